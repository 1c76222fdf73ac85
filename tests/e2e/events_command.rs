//! `wharf events`: follows, comes back by itself, prints for people and programs, and ends as one expects.

use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};
use wharf_testkit::{Grid, binaries::built_binary, eventually, patience};

use crate::support::{create, id, release, signal};

/// `wharf events`, running.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(url: &str, args: &[&str]) -> Result<Self> {
        let mut child = Command::new(built_binary("wharf")?)
            .arg("events")
            .args(args)
            .env("WHARF_URL", url)
            .env_remove("WHARF_TOKEN")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no output")?).lines();
        Ok(Self { child, lines })
    }

    async fn line(&mut self) -> Result<String> {
        let line = tokio::time::timeout(patience() * 2, self.lines.next_line()).await;
        line.context("no line came")??.context("the output ended")
    }

    /// Ctrl-C; the exit code and what it said.
    async fn interrupt(self) -> Result<(Option<i32>, String)> {
        signal(self.child.id().context("it has ended")?, Signal::INT)?;
        let output = tokio::time::timeout(patience(), self.child.wait_with_output()).await??;
        Ok((
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ))
    }
}

#[tokio::test]
async fn command_follows_and_comes_back_by_itself_across_a_restart() -> Result<()> {
    // The same port again after the restart: that is where the command comes back to.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut grid = Grid::builder()
        .slots(1)
        .listen(&format!("127.0.0.1:{port}"))
        .start()
        .await?;
    let mut follower = Follower::start(&grid.url(), &["--json", "--after", "0"])?;
    let mut sessions = Vec::new();
    let mut numbers = Vec::new();
    for round in 0..3 {
        let session = create(&grid, json!({})).await?;
        release(&grid, &id(&session)).await?;
        loop {
            let event: Value = serde_json::from_str(&follower.line().await?)?;
            if let Some(number) = event["id"].as_u64() {
                numbers.push(number);
            } else {
                ensure!(event["type"] == "end", "{event}");
            }
            if event["type"] == "session.ended" && event["session"] == session["id"] {
                break;
            }
        }
        sessions.push(id(&session));
        match round {
            0 => grid.restart().await?,
            1 => {
                grid.kill9().await?;
                grid.restart().await?;
            }
            _ => {}
        }
    }
    ensure!(
        numbers == (1..=numbers.len() as u64).collect::<Vec<_>>(),
        "lost or repeated: {numbers:?}"
    );
    let (code, said) = follower.interrupt().await?;
    ensure!(code == Some(0), "{code:?} {said}");
    ensure!(
        said.contains("the grid says: draining") && said.contains("connected again"),
        "{said}"
    );
    grid.finish().await
}

#[tokio::test]
async fn command_prints_for_people_filters_and_has_exit_codes() -> Result<()> {
    let grid = Grid::builder().slots(1).start().await?;
    let session = create(&grid, json!({"operation": "agent"})).await?;
    let mut follower = Follower::start(
        &grid.url(),
        &["--after", "0", "--type", "session.active", "--pool", "default"],
    )?;
    let line = follower.line().await?;
    ensure!(
        line.contains("session.active") && line.contains(&id(&session)) && line.contains("operation=agent"),
        "{line}"
    );
    ensure!(!line.contains('\u{1b}'), "escape codes in a pipe: {line}");
    let (code, said) = follower.interrupt().await?;
    ensure!(code == Some(0), "{code:?} {said}");
    // A reader that leaves is no failure.
    let wharf = built_binary("wharf")?;
    let script = format!(
        "set -o pipefail; {} events --url {} | head -n 1",
        wharf.display(),
        grid.url()
    );
    let mut piped = Command::new("bash")
        .args(["-c", &script])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let status = eventually("the pipe to end", async || {
        let lock = json!({"holder": "me", "pools": ["elsewhere"]});
        grid.http().post("/v1/locks/noise", &lock).await?;
        grid.http().post("/v1/locks/noise/force-unlock", &json!(null)).await?;
        piped.try_wait()?.context("it still runs")
    })
    .await?;
    ensure!(status.success(), "{status}");
    for (args, code, part) in [
        (&["--type", "nonsense"][..], 1, "session.queued"),
        (&["--after", "x"], 1, "after"),
        (&["--url", "http://127.0.0.1:9"], 69, "wharf up"),
        (&["--nonsense"], 2, "nonsense"),
    ] {
        let mut command = Command::new(&wharf);
        command.arg("events").args(args).env("WHARF_URL", grid.url());
        let output = tokio::time::timeout(patience(), command.output()).await??;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() != Some(code) || !said.contains(part) {
            bail!("{args:?}: {:?} {said}", output.status);
        }
    }
    release(&grid, &id(&session)).await?;
    grid.finish().await
}

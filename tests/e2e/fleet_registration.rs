//! Who may join a fleet, who is refused with which words, and what strangers see of a worker.

use std::process::Output;

use anyhow::{Result, ensure};
use serde_json::json;
use wharf_testkit::{BrowserUnderTest, Fleet, eventually};

use crate::fleet_support::{create, finish, id, is_whole, release, wharf, workers};

/// A token, but not the fleet's.
const FOREIGN: &str = "another-token-of-forty-characters-000000";

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs a worker that is expected to be refused; all of its words.
async fn refused_worker(fleet: &Fleet, name: &str, flags: &[&str], token: &str) -> Result<String> {
    let home = fleet.home().join(name);
    let binary = BrowserUnderTest::Fake.executable()?;
    let (data, run, binary) = (home.join("data"), home.join("run"), binary.display().to_string());
    let (data, run) = (data.display().to_string(), run.display().to_string());
    let mut args = vec![
        "worker",
        "--coordinator",
        fleet.url(),
        "--gateway",
        "127.0.0.1:0",
        "--binary",
        &binary,
    ];
    args.extend(["--data-dir", &data, "--run-dir", &run, "--log-format", "text"]);
    args.extend(flags);
    let output = wharf(&args, &[("WHARF_WORKER_TOKEN", token)]).await?;
    ensure!(
        output.status.code() == Some(1),
        "{name}: {} {}",
        output.status,
        text(&output)
    );
    Ok(text(&output))
}

#[tokio::test]
async fn registration_refuses_who_cannot_be_believed_and_waits_for_who_is_not_there() -> Result<()> {
    let mut fleet = Fleet::builder().coordinators(1).workers(1).start().await?;
    let somebody = fleet.worker(0).url();
    let (front, own) = (fleet.url().to_owned(), fleet.worker(0).id()?);
    let at_somebody = ["--advertise", somebody.as_str()];
    let at_front = ["--advertise", front.as_str()];
    let (wrong_token, nobody, another, no_gateway) = tokio::try_join!(
        refused_worker(&fleet, "token", &[], FOREIGN),
        refused_worker(&fleet, "nobody", &["--advertise", "http://127.0.0.1:1"], Fleet::token()),
        refused_worker(&fleet, "another", &at_somebody, Fleet::token()),
        refused_worker(&fleet, "front", &at_front, Fleet::token()),
    )?;
    ensure!(wrong_token.contains("WHARF_WORKER_TOKEN"), "{wrong_token}");
    for (words, part) in [
        (&nobody, "http://127.0.0.1:1"),
        (&another, "does not take its key"),
        (&no_gateway, &front),
    ] {
        ensure!(words.contains(part) && words.contains("--advertise"), "{words}");
    }
    ensure!(
        !wrong_token.contains(FOREIGN) && !nobody.contains(Fleet::token()),
        "a token is shown"
    );
    let known = workers(&fleet.http()).await?;
    ensure!(known.len() == 1, "a refused worker is listed: {known:?}");

    // What strangers see of a gateway.
    let gateway = fleet.worker(0).http();
    for path in ["/livez", "/readyz"] {
        ensure!(gateway.get(path).await?.status == 200);
    }
    for (http, path) in [
        (gateway.clone(), "/gateway/v1/hello"),
        (gateway.clone(), "/gateway/v1/orphans"),
        (gateway.clone(), "/metrics"),
        (
            gateway
                .clone()
                .header("authorization", &format!("Bearer {}", Fleet::token())),
            "/gateway/v1/hello",
        ),
    ] {
        let reply = http.get(path).await?;
        ensure!(reply.status == 401, "{path}: {} {}", reply.status, reply.text());
    }
    let lease = json!({"session": "ses_00000000000070008000000000000000", "epoch": 1, "options": {}, "data": null});
    ensure!(gateway.post("/gateway/v1/lease", &lease).await?.status == 401);
    let stranger = fleet
        .http()
        .post("/internal/workers/deregister", &json!({"worker": own}))
        .await?;
    ensure!(
        stranger.status == 401 || stranger.status == 403,
        "{} {}",
        stranger.status,
        stranger.text()
    );
    // The key is told at registration and nowhere shown.
    let shown = fleet.http().get("/v1/workers").await?.text();
    ensure!(
        shown.contains(&somebody) && !shown.contains("http://:") && !shown.contains('@'),
        "{shown}"
    );
    for member in fleet.members() {
        let log = member.log();
        ensure!(
            !log.contains("http://:") && !log.contains(Fleet::token()),
            "a secret is in the log:\n{log}"
        );
    }

    // Nobody there yet: it waits until somebody is. The id is the same in every life.
    ensure!(fleet.workers()[0].terminate().await?.success());
    ensure!(fleet.coordinators()[0].terminate().await?.success());
    fleet.workers()[0].spawn()?;
    eventually("the worker to try again", async || {
        ensure!(fleet.worker(0).log().contains("could not register; trying again"));
        Ok(())
    })
    .await?;
    fleet.coordinators()[0].start_again().await?;
    fleet.workers()[0].ready().await?;
    fleet.all_available(1).await?;
    ensure!(fleet.worker(0).id()? == own, "the id changed");
    let session = create(&fleet.http(), json!({})).await?;
    ensure!(session["worker"] == own.as_str(), "{session}");
    release(&fleet.http(), &id(&session)).await?;
    is_whole(&mut fleet, 2).await?;
    finish(fleet).await
}

#[tokio::test]
async fn fleet_settings_that_do_not_fit_are_refused_with_the_way_out() -> Result<()> {
    let token = [("WHARF_WORKER_TOKEN", Fleet::token())];
    let coordinator = ["coordinator", "--listen", "127.0.0.1:0", "--store", "memory:"];
    let worker = [
        "worker",
        "--coordinator",
        "http://127.0.0.1:1",
        "--gateway",
        "127.0.0.1:0",
    ];
    let heartbeat: &[&str] = &["--heartbeat-interval=5s", "--liveness-ttl=10s"];
    let drain: &[&str] = &["--drain-timeout=30s", "--termination-grace=40s"];
    /// The command, more flags, variables, and what the refusal names.
    type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: &[Case<'_>] = &[
        (&coordinator, &[], &[], &["worker_token", "WHARF_WORKER_TOKEN"]),
        (
            &coordinator,
            &[],
            &[("WHARF_WORKER_TOKEN", "short")],
            &["worker_token", "32"],
        ),
        (&worker, &[], &[], &["worker_token", "WHARF_WORKER_TOKEN"]),
        (&["worker"], &[], &token, &["coordinator", "--coordinator"]),
        (
            &coordinator,
            heartbeat,
            &token,
            &["heartbeat_interval (5s)", "liveness_ttl (10s)"],
        ),
        (
            &worker,
            heartbeat,
            &token,
            &["heartbeat_interval (5s)", "liveness_ttl (10s)"],
        ),
        (
            &coordinator,
            drain,
            &token,
            &["drain_timeout (30s)", "termination_grace (40s)"],
        ),
        (
            &worker,
            drain,
            &token,
            &["drain_timeout (30s)", "termination_grace (40s)"],
        ),
        (
            &worker,
            &["--liveness-ttl=10s", "--fence-after=5s"],
            &token,
            &["liveness_ttl (10s)", "fence_after (5s)"],
        ),
        (
            &["up"],
            &["--store", "postgres://a:geheim@b/c"],
            &[],
            &["wharf coordinator", "wharf worker"],
        ),
    ];
    for (role, flags, env, parts) in cases {
        let args: Vec<_> = role.iter().chain(*flags).copied().collect();
        let output = wharf(&args, env).await?;
        let said = text(&output);
        ensure!(output.status.code() == Some(78), "{args:?}: {} {said}", output.status);
        for part in *parts {
            ensure!(said.contains(part), "{args:?} does not name {part}: {said}");
        }
        ensure!(
            !said.contains("geheim") && !said.contains(Fleet::token()),
            "a secret is shown: {said}"
        );
    }
    Ok(())
}

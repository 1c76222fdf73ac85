//! Real processes against the crate's promises: gone means gone, found means found, and nobody else is touched.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic like the test itself")]

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use wharf_process::{
    Cgroups, ExitStatus, Marker, Output, Priority, ProcessState, RunDir, RunDirError, SpawnError, SpawnRequest,
    Spawned, Spawner, guard, kill_orphans, live_roots, orphans, process, sweep_leftovers, tree_processes,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn request(run_dir: &Path, script: &str) -> SpawnRequest {
    SpawnRequest {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: None,
        fds: Vec::new(),
        stdout: Output::Piped,
        stderr: Output::Null,
        priority: Priority::Normal,
        oom_score_adj: None,
        marker: Marker {
            run_dir: run_dir.to_owned(),
            browser: "brw_test".into(),
        },
        dir: None,
        cgroups: None,
    }
}

async fn spawn(run_dir: &Path, script: &str) -> Spawned {
    Spawner::new().unwrap().spawn(request(run_dir, script)).await.unwrap()
}

/// The first line a script prints: it has come that far.
fn first_line(spawned: &mut Spawned) -> String {
    let mut line = String::new();
    BufReader::new(fs::File::from(spawned.stdout.take().unwrap()))
        .read_line(&mut line)
        .unwrap();
    line.trim().to_owned()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < limit, "still waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn tree_that_exits_tells_its_code_and_signal() {
    let dir = tempfile::tempdir().unwrap();
    let tree = spawn(dir.path(), "exit 7").await.tree;
    let exited = tree.exited().await;
    assert_eq!((exited.status, exited.killed_by_us), (ExitStatus::Code(7), false));
    tree.gone().await;
    let tree = spawn(dir.path(), "kill -TERM $$").await.tree;
    assert_eq!(tree.exited().await.status, ExitStatus::Signal(15));
    assert_eq!(tree.exited().await.status, ExitStatus::Signal(15), "answers again");
}

#[tokio::test]
async fn kill_ends_grandchildren_and_leaves_no_zombie() {
    let dir = tempfile::tempdir().unwrap();
    let mut spawned = spawn(dir.path(), "(sleep 600 & sleep 600) & sleep 600 & echo up; wait").await;
    assert_eq!(first_line(&mut spawned), "up");
    let root = spawned.tree.pid();
    assert!(tree_processes(root).len() >= 3);
    assert!(live_roots().contains(&root));
    tokio::join!(spawned.tree.kill(), spawned.tree.kill());
    assert_eq!(tree_processes(root), []);
    assert!(spawned.tree.exited().await.killed_by_us);
    assert!(!live_roots().contains(&root));
    spawned.tree.kill().await;
}

#[tokio::test]
async fn main_exit_takes_the_rest_along() {
    let dir = tempfile::tempdir().unwrap();
    let tree = spawn(dir.path(), "sleep 600 & exit 3").await.tree;
    assert_eq!(tree.exited().await.status, ExitStatus::Code(3));
    tree.gone().await;
    assert_eq!(tree_processes(tree.pid()), []);
}

#[tokio::test]
async fn process_that_left_the_session_is_found_and_killed() {
    let dir = tempfile::tempdir().unwrap();
    // A daemon: double fork, its own session, parent gone.
    let mut spawned = spawn(
        dir.path(),
        "(setsid sh -c 'echo $$; exec sleep 601' &) ; exec sleep 600",
    )
    .await;
    let daemon: u32 = first_line(&mut spawned).parse().unwrap();
    assert_ne!(process(daemon).unwrap().session, spawned.tree.pid());
    spawned.tree.kill().await;
    assert_eq!(process(daemon), None, "not even a zombie");
}

#[tokio::test]
async fn stopped_tree_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let spawned = spawn(dir.path(), "kill -STOP $$; sleep 600").await;
    let root = spawned.tree.pid();
    eventually("stopped", || {
        process(root).is_some_and(|p| p.state == ProcessState::Stopped)
    });
    spawned.tree.kill().await;
    assert_eq!(process(root), None);
}

#[tokio::test]
async fn dropped_tree_and_dropped_spawn_die_with_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::open(dir.path()).unwrap();
    let mut wanted = request(run.path(), "echo up; sleep 600");
    wanted.dir = Some(run.session_dir("brw_1").unwrap());
    let mut spawned = Spawner::new().unwrap().spawn(wanted).await.unwrap();
    first_line(&mut spawned);
    let root = spawned.tree.pid();
    drop(spawned);
    eventually("dropped tree gone", || process(root).is_none());
    let mut wanted = request(run.path(), "sleep 602");
    wanted.dir = Some(run.session_dir("brw_2").unwrap());
    let spawner = Spawner::new().unwrap();
    // Polled once, so the request is on its way to the forking thread, then forgotten.
    let mut future = Box::pin(spawner.spawn(wanted));
    drop(tokio::time::timeout(Duration::ZERO, &mut future).await);
    drop(future);
    eventually("nothing left", || {
        run.session_ids().is_empty() && orphans(run.path(), &[]).is_empty()
    });
}

#[tokio::test]
async fn foreign_children_are_not_reaped() {
    let dir = tempfile::tempdir().unwrap();
    let mut foreign = Command::new("/bin/sh").args(["-c", "exit 9"]).spawn().unwrap();
    for _ in 0..3 {
        spawn(dir.path(), "sleep 600").await.tree.kill().await;
    }
    assert_eq!(foreign.wait().unwrap().code(), Some(9));
}

#[tokio::test]
async fn exec_failure_names_the_program_and_removes_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::open(dir.path()).unwrap();
    let mut wanted = request(run.path(), "");
    wanted.program = "/no/such/browser".into();
    wanted.dir = Some(run.session_dir("brw_1").unwrap());
    let error = Spawner::new().unwrap().spawn(wanted).await.unwrap_err();
    assert!(
        matches!(&error, SpawnError::Exec { program, .. } if program == Path::new("/no/such/browser")),
        "{error}"
    );
    assert_eq!(run.session_ids(), Vec::<String>::new());
}

#[tokio::test]
async fn child_has_only_the_given_environment_and_is_dearer_to_the_oom_killer() {
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path(), "cat /proc/self/oom_score_adj; env");
    wanted.oom_score_adj = Some(200);
    let mut spawned = Spawner::new().unwrap().spawn(wanted).await.unwrap();
    let mut text = String::new();
    fs::File::from(spawned.stdout.take().unwrap())
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.starts_with("200\n"), "{text}");
    let names: Vec<&str> = text.lines().skip(1).filter_map(|line| line.split('=').next()).collect();
    assert!(
        names.iter().all(|n| [
            "PATH",
            "PWD",
            "SHLVL",
            "_",
            "OLDPWD",
            "_WHARF_OWNER_RUN_DIR",
            "_WHARF_OWNER_BROWSER"
        ]
        .contains(n)),
        "{names:?}"
    );
    assert!(names.contains(&"_WHARF_OWNER_BROWSER"));
}

#[tokio::test]
async fn background_priority_is_set_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(dir.path(), "echo up; exec sleep 600");
    wanted.priority = Priority::Background;
    let mut spawned = Spawner::new().unwrap().spawn(wanted).await.unwrap();
    first_line(&mut spawned);
    let level = || {
        let text = fs::read_to_string(format!("/proc/{}/autogroup", spawned.tree.pid())).unwrap_or_default();
        text.rsplit(' ').next().unwrap_or_default().trim().to_owned()
    };
    if level().is_empty() {
        eprintln!("SKIPPED: this kernel has no autogroups");
        return;
    }
    assert_eq!(level(), "5");
    spawned.tree.set_priority(Priority::Normal);
    eventually("restored", || level() == "0");
}

#[tokio::test]
async fn run_dir_is_exclusive_and_names_its_holder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let first = RunDir::open(&path).unwrap();
    let own = std::process::id().to_string();
    assert!(matches!(RunDir::open(&path), Err(RunDirError::InUse { holder, .. }) if holder == own));
    fs::create_dir(first.path().join("browsers/brw_stale")).unwrap();
    drop(first);
    assert_eq!(RunDir::open(&path).unwrap().session_ids(), Vec::<String>::new());
    assert!(RunDir::open(&path).unwrap().session_dir("../x").is_err());
}

#[tokio::test]
async fn memory_and_cpu_of_a_tree_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut spawned = spawn(
        dir.path(),
        "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo up; sleep 600",
    )
    .await;
    first_line(&mut spawned);
    assert!(spawned.tree.pss_bytes().unwrap() > 50_000);
    assert!(spawned.tree.cpu() > Duration::ZERO);
    spawned.tree.kill().await;
    assert_eq!(spawned.tree.pss_bytes(), None);
}

#[tokio::test]
async fn orphan_is_counted_and_killed_and_a_known_tree_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut spawned = spawn(
        dir.path(),
        "(setsid sh -c 'exec sleep 603' &) ; echo up; exec sleep 600",
    )
    .await;
    first_line(&mut spawned);
    let root = spawned.tree.pid();
    assert_eq!(
        orphans(dir.path(), &[root]),
        Vec::<u32>::new(),
        "its own daemon is the tree's"
    );
    let mut stray = Command::new("setsid");
    stray
        .args(["sleep", "604"])
        .env("_WHARF_OWNER_RUN_DIR", dir.path())
        .env("_WHARF_OWNER_BROWSER", "brw_other");
    let mut stray = stray.spawn().unwrap();
    eventually("stray seen", || orphans(dir.path(), &[root]) == [stray.id()]);
    assert_eq!(kill_orphans(dir.path(), &[root]).killed, [stray.id()]);
    let _reaped = stray.wait();
    assert!(spawned.tree.try_exited().is_none());
    spawned.tree.kill().await;
}

/// Re-runs this test binary as another program: `role` is the name of an ignored test below.
fn role(role: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", role]).arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

fn role_dir() -> PathBuf {
    PathBuf::from(std::env::args_os().next_back().unwrap())
}

fn pids_told(child: &mut std::process::Child, count: usize) -> Vec<u32> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids = lines
        .map_while(Result::ok)
        .filter_map(|line| line.strip_prefix("pid ")?.parse().ok());
    pids.take(count).collect()
}

#[test]
#[ignore = "a role: a Wharf that starts trees and a guard and never ends by itself"]
fn role_wharf() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let run = RunDir::open(&role_dir()).unwrap();
        let args: Vec<OsString> = ["--ignored", "--exact", "--nocapture", "role_guard"]
            .map(Into::into)
            .to_vec();
        let args: Vec<&OsStr> = args.iter().map(AsRef::as_ref).collect();
        let guard = guard::spawn(&std::env::current_exe().unwrap(), &args, run.path()).unwrap();
        let mut wanted = request(
            run.path(),
            "(setsid sh -c 'echo $$; exec sleep 605' &) ; exec sleep 600",
        );
        wanted.dir = Some(run.session_dir("brw_1").unwrap());
        let mut spawned = Spawner::new().unwrap().spawn(wanted).await.unwrap();
        println!(
            "pid {}\npid {}\npid {}",
            guard.pid(),
            spawned.tree.pid(),
            first_line(&mut spawned)
        );
        std::future::pending::<()>().await;
    });
}

#[test]
#[ignore = "a role: the guard"]
fn role_guard() {
    guard::run(&role_dir()).unwrap();
}

#[test]
fn guard_cleans_up_after_a_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut wharf = role("role_wharf", dir.path()).spawn().unwrap();
    let pids = pids_told(&mut wharf, 3);
    assert_eq!(pids.len(), 3);
    assert!(dir.path().join("browsers/brw_1").exists());
    let killed_at = Instant::now();
    wharf.kill().unwrap();
    wharf.wait().unwrap();
    let gone = |pid: u32| process(pid).is_none_or(|p| p.state == ProcessState::Zombie);
    eventually("tree, daemon and guard gone", || pids.iter().all(|pid| gone(*pid)));
    assert!(!dir.path().join("browsers").exists());
    println!("all gone {} ms after the SIGKILL", killed_at.elapsed().as_millis());
}

#[test]
fn guard_leaves_when_dismissed_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::open(dir.path()).unwrap();
    let kept = run.session_dir("brw_1").unwrap();
    let args = ["--ignored", "--exact", "role_guard"].map(OsStr::new);
    let guard = guard::spawn(&std::env::current_exe().unwrap(), &args, run.path()).unwrap();
    guard.dismiss().unwrap();
    assert!(kept.path().exists());
}

#[test]
fn leftovers_of_a_past_life_are_swept_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = fs::canonicalize(dir.path()).unwrap();
    // Started by a shell that leaves at once: no descendant of ours in the sense of the sweep, were we not a subreaper.
    let script = "setsid sh -c 'echo pid $$; exec sleep 606' & wait";
    let mut past = Command::new("/bin/sh");
    past.args(["-c", script])
        .env("_WHARF_OWNER_RUN_DIR", &path)
        .stdout(Stdio::piped());
    let mut past = past.spawn().unwrap();
    let left = pids_told(&mut past, 1)[0];
    assert_eq!(
        sweep_leftovers(&path).killed,
        Vec::<u32>::new(),
        "a descendant is not a leftover"
    );
    assert!(process(left).is_some());
    // Asked by a process it does not descend from, it is.
    let mut other = role("role_sweeper", &path).spawn().unwrap();
    assert_eq!(pids_told(&mut other, 1), [left]);
    other.wait().unwrap();
    past.wait().unwrap();
    assert_eq!(process(left), None);
}

#[test]
#[ignore = "a role: opens a run directory and tells what it swept"]
fn role_sweeper() {
    for pid in &RunDir::open(&role_dir()).unwrap().swept().killed {
        println!("pid {pid}");
    }
}

#[test]
fn session_without_a_number_is_no_obstacle() {
    // As in a container entered from outside (`docker exec`, a CI's sandbox): our session and group are 0 there.
    let inside = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", program]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    };
    if !inside("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: this host lets us make no pid namespace");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut wharf = inside(std::env::current_exe().unwrap().to_str().unwrap());
    wharf
        .args(["--ignored", "--exact", "--nocapture", "role_wharf"])
        .arg(dir.path());
    let mut wharf = wharf.spawn().unwrap();
    assert_eq!(
        pids_told(&mut wharf, 3).len(),
        3,
        "a tree, its daemon and the guard are up"
    );
    wharf.kill().unwrap();
    wharf.wait().unwrap();
}

#[tokio::test]
async fn cgroup_kill_takes_a_daemon_along() {
    let Some(cgroups) = Cgroups::detect() else {
        eprintln!("SKIPPED: no writable cgroup v2 on this host");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut wanted = request(
        dir.path(),
        "(setsid sh -c 'echo $$; exec sleep 607' &) ; exec sleep 600",
    );
    wanted.cgroups = Some(cgroups.clone());
    let mut spawned = Spawner::new().unwrap().spawn(wanted).await.unwrap();
    let daemon: u32 = first_line(&mut spawned).parse().unwrap();
    assert!(
        fs::read_to_string(format!("/proc/{daemon}/cgroup"))
            .unwrap()
            .contains("brw_test")
    );
    spawned.tree.kill().await;
    eventually("daemon gone", || {
        process(daemon).is_none_or(|p| p.state == ProcessState::Zombie)
    });
    cgroups.remove();
}

#[tokio::test]
async fn out_of_memory_kill_is_told_apart() {
    let cgroup = Path::new("/sys/fs/cgroup/memory").join(format!("wharf-test-{}", std::process::id()));
    if fs::create_dir(&cgroup).is_err() || fs::write(cgroup.join("memory.limit_in_bytes"), "20971520").is_err() {
        eprintln!("SKIPPED: no writable memory cgroup (v1) on this host");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let eat = format!("echo $$ > {}/cgroup.procs; exec tail -n 1 /dev/zero", cgroup.display());
    let tree = spawn(dir.path(), &eat).await.tree;
    let exited = tokio::time::timeout(PATIENCE, tree.exited()).await.unwrap();
    tree.gone().await;
    let _left = fs::remove_dir(&cgroup);
    assert_eq!(exited.status, ExitStatus::Signal(9));
    assert!(exited.out_of_memory.is_some(), "{exited:?}");
}

#[tokio::test]
async fn kill_is_fast_and_many_at_once_are_independent() {
    let dir = tempfile::tempdir().unwrap();
    let mut trees = Vec::new();
    for _ in 0..10 {
        trees.push(Arc::new(spawn(dir.path(), "sleep 600 & sleep 600").await.tree));
    }
    let begun = Instant::now();
    trees[0].kill().await;
    let one = begun.elapsed();
    let begun = Instant::now();
    let mut kills = tokio::task::JoinSet::new();
    for tree in &trees {
        let tree = Arc::clone(tree);
        kills.spawn(async move { tree.kill().await });
    }
    kills.join_all().await;
    println!("kill(): one {one:?}, nine at once {:?}", begun.elapsed());
    assert!(one < Duration::from_secs(2), "{one:?}");
}

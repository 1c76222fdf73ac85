//! The command driver against the test kit's fake program and small scripts.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic like the test itself")]

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_core::BrowserId;
use wharf_driver::{
    Browser, CallFailed, CommandConfig, CommandDriver, Driver, DriverProblem, Exit, LaunchError, LaunchGate,
    LaunchOptions, LaunchSpec, Urgency,
};
use wharf_process::{ExitStatus, RunDir, orphans, tree_processes};

const LIMIT: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(300);

/// Built by the test kit, which depends on nothing of ours that could build it here.
fn fake_program() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let path = exe.ancestors().nth(2).unwrap().join("fake-program");
    assert!(
        path.exists(),
        "{} is not built: run `cargo build -p wharf-testkit --bins` first",
        path.display()
    );
    path
}

struct Bench {
    run_dir: Arc<RunDir>,
    driver: Arc<CommandDriver>,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(change: impl FnOnce(&mut CommandConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = Arc::new(RunDir::open(&dir.path().join("run")).unwrap());
        let mut config = CommandConfig {
            program: fake_program(),
            args: Vec::new(),
            env: CommandConfig::host_env(std::env::vars_os()),
            working_dir: dir.path().to_owned(),
            run_dir: Arc::clone(&run_dir),
            cgroups: None,
        };
        change(&mut config);
        Self {
            run_dir,
            driver: Arc::new(CommandDriver::new(config).unwrap()),
            dir,
        }
    }

    fn fault(fault: &str) -> Self {
        Self::new(|config| config.args.push(format!("--fault={fault}")))
    }

    /// A script in place of the program; `$FAKE` is the fake program, the working directory is the bench's own.
    fn script(text: &str) -> Self {
        Self::new(|config| {
            let path = config.working_dir.join("program.sh");
            executable(&path, text);
            config.program = "./program.sh".into();
            config.env.push(("FAKE".into(), fake_program().into()));
        })
    }

    async fn launch(&self) -> Arc<dyn Browser> {
        self.driver.launch(spec(LIMIT)).await.unwrap()
    }

    async fn failure(&self, timeout: Duration) -> LaunchError {
        let error = self.driver.launch(spec(timeout)).await.err().unwrap();
        assert!(self.is_clean(), "clean before the error is returned: {error}");
        error
    }

    fn is_clean(&self) -> bool {
        orphans(self.run_dir.path(), &[]).is_empty() && self.run_dir.session_ids().is_empty()
    }

    async fn eventually_clean(&self) {
        let limit = Instant::now() + LIMIT;
        while !self.is_clean() {
            let left = (orphans(self.run_dir.path(), &[]), self.run_dir.session_ids());
            assert!(Instant::now() < limit, "left behind: {left:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(&self, browser: Arc<dyn Browser>) {
        browser.kill().await;
        browser.files_removed().await;
        assert_eq!(tree_processes(browser.pid()), []);
        assert!(self.is_clean());
    }
}

fn executable(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn spec(timeout: Duration) -> LaunchSpec {
    LaunchSpec {
        id: BrowserId::from_uuid(Uuid::now_v7()),
        options: LaunchOptions::default(),
        timeout,
        urgency: Urgency::Refill,
        cancel: CancellationToken::new(),
    }
}

fn pid(browser: &Arc<dyn Browser>) -> Pid {
    Pid::from_raw(i32::try_from(browser.pid()).unwrap()).unwrap()
}

/// Takes a port and answers everything with a healthy 200, until dropped with the runtime of the test.
fn thief(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    });
}

async fn appears(path: &Path) -> String {
    let limit = Instant::now() + LIMIT;
    loop {
        match fs::read_to_string(path) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => assert!(Instant::now() < limit, "{} never came", path.display()),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn program_serves_its_session_and_dies_completely() {
    let bench = Bench::new(|_| {});
    let browser = bench.launch().await;
    assert_eq!(browser.version().product, "fake-program");
    browser.probe(LIMIT).await.unwrap();
    let program = browser.program().unwrap();
    assert!(program.look(LIMIT).await.is_err(), "nothing has begun");
    program.finish(LIMIT).await.unwrap();
    let begun = program.begin(&json!({"job": 42}), LIMIT).await.unwrap();
    assert_eq!(begun["data"], json!({"job": 42}));
    assert!(begun["id"].is_string() && begun["created_at"].is_string(), "{begun}");
    assert_eq!(program.look(LIMIT).await.unwrap(), begun);
    program.finish(LIMIT).await.unwrap();
    // 404 by now: over is over.
    program.finish(LIMIT).await.unwrap();
    let gone = program.look(LIMIT).await.unwrap_err();
    assert!(
        matches!(&gone, CallFailed::Refused { answer, .. } if answer.contains("404")),
        "{gone}"
    );
    bench.end(browser).await;
}

#[tokio::test]
async fn environment_has_the_port_a_directory_of_its_own_and_nothing_of_wharf() {
    let bench = Bench::new(|config| {
        let vars = [
            ("WHARF_STORE", "secret"),
            ("MINE", "1"),
            ("PORT", "1"),
            ("PATH", "/bin:/usr/bin"),
        ];
        config.env = CommandConfig::host_env(vars.map(|(name, value)| (name.into(), value.into())));
    });
    let browser = bench.launch().await;
    let environ = fs::read(format!("/proc/{}/environ", browser.pid())).unwrap();
    let environ = String::from_utf8_lossy(&environ).replace('\0', "\n");
    let port = format!("PORT={}\n", browser.endpoint().addr.port());
    assert!(environ.contains(&port) && !environ.contains("PORT=1\n"), "{environ}");
    let tmp = bench
        .run_dir
        .path()
        .join("browsers")
        .join(browser.id().to_string())
        .join("tmp");
    assert!(environ.contains(&format!("TMPDIR={}", tmp.display())) && tmp.is_dir());
    assert!(environ.contains("MINE=1") && !environ.contains("secret"), "{environ}");
    bench.end(browser).await;
}

#[tokio::test]
async fn check_reports_the_program_and_names_what_is_wrong() {
    let bench = Bench::new(|_| {});
    let report = bench.driver.check().await.unwrap();
    assert_eq!(
        (report.binary, report.version.product.as_str()),
        (fake_program(), "fake-program")
    );
    assert!(bench.is_clean());
    let problem = Bench::fault("exit_code:42").driver.check().await.unwrap_err();
    let text = problem.to_string();
    assert!(text.contains("code 42") && text.contains("this launch fails"), "{text}");
    let words = "x: error while loading shared libraries: libssl.so.3: cannot open shared object file";
    let problem = Bench::script(&format!("echo '{words}' >&2; exit 127"))
        .driver
        .check()
        .await;
    assert!(
        matches!(&problem, Err(DriverProblem::MissingLibrary { library, .. }) if library == "libssl.so.3"),
        "{problem:?}"
    );
    let bench = Bench::new(|config| {
        let path = config.working_dir.join("broken");
        fs::write(&path, "#!/no/such/interpreter\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        config.program = path;
    });
    let problem = bench.driver.check().await.unwrap_err();
    assert!(matches!(problem, DriverProblem::NotExecutable { .. }), "{problem}");
}

#[tokio::test]
async fn program_is_found_in_path_and_its_absence_is_told() {
    let bench = Bench::new(|config| {
        let bin = config.working_dir.join("bin");
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(fake_program(), bin.join("my-browser")).unwrap();
        config.program = "my-browser".into();
        config.env = vec![("PATH".into(), bin.into())];
    });
    let browser = bench.launch().await;
    assert_eq!(browser.version().product, "my-browser");
    bench.end(browser).await;
    let dir = tempfile::tempdir().unwrap();
    let problem = CommandDriver::new(CommandConfig {
        program: "my-browser".into(),
        args: Vec::new(),
        env: vec![("PATH".into(), "/nowhere".into())],
        working_dir: dir.path().to_owned(),
        run_dir: Arc::new(RunDir::open(dir.path()).unwrap()),
        cgroups: None,
    });
    let text = problem.unwrap_err().to_string();
    assert!(
        text.contains("`my-browser`") && text.contains("/nowhere") && text.contains("--command"),
        "{text}"
    );
}

#[tokio::test]
async fn program_that_exits_at_once_is_told_with_its_last_words_on_either_stream() {
    for stream in [1, 2] {
        let bench = Bench::script(&format!("echo started >>count; echo 'no licence' >&{stream}; exit 42"));
        let error = bench.failure(LIMIT).await;
        let LaunchError::ExitedEarly { exit, stderr } = &error else {
            panic!("{error}")
        };
        assert_eq!((exit, stderr.as_str()), (&ExitStatus::Code(42), "no licence"));
        let count = fs::read_to_string(bench.dir.path().join("count")).unwrap();
        assert_eq!(
            count.lines().count(),
            3,
            "an exit may be the port's fault: three ports are tried"
        );
    }
}

#[tokio::test]
async fn program_that_crashes_once_it_listens_is_not_started_again() {
    let bench = Bench::script("echo started >>count; exec \"$FAKE\" --fault=sick --fault=crash_after:300ms");
    let error = bench.failure(LIMIT).await;
    assert!(
        matches!(
            error,
            LaunchError::ExitedEarly {
                exit: ExitStatus::Signal(11),
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(
        fs::read_to_string(bench.dir.path().join("count"))
            .unwrap()
            .lines()
            .count(),
        1
    );
}

#[tokio::test]
async fn program_that_never_gets_ready_is_told_with_what_was_seen_last() {
    for (fault, gate, seen) in [
        ("hang_at_start", LaunchGate::Port, "nobody listens there yet"),
        ("wrong_port", LaunchGate::Port, "nobody listens there yet"),
        ("sick", LaunchGate::Health, "503"),
        ("garbage:health", LaunchGate::Health, "not HTTP"),
    ] {
        let bench = Bench::fault(fault);
        let error = bench.failure(Duration::from_millis(500)).await;
        let LaunchError::Unhealthy { phase, last, .. } = &error else {
            panic!("{fault}: {error}")
        };
        assert_eq!(*phase, gate, "{fault}: {error}");
        assert!(last.contains(seen), "{fault}: {error}");
    }
    // Answers, but later than one look may take: asked again until the gate's end.
    let error = Bench::fault("slow_health:60s")
        .failure(Duration::from_millis(1500))
        .await;
    assert!(
        error.to_string().contains("did not answer GET /health within 1s"),
        "{error}"
    );
}

#[tokio::test]
async fn slow_program_is_waited_for() {
    for fault in ["slow_start:700ms", "slow_health:700ms"] {
        let bench = Bench::fault(fault);
        let begun = Instant::now();
        let browser = bench.launch().await;
        assert!(
            begun.elapsed() >= Duration::from_millis(700),
            "{fault}: {:?}",
            begun.elapsed()
        );
        bench.end(browser).await;
    }
}

/// The first program says its port and waits until it has been stolen; later ones find theirs free.
const ROBBED: &str = "if [ -e port ]; then exec \"$FAKE\"; fi\n\
    echo \"$PORT\" >port.new; mv port.new port\n\
    while [ ! -e stolen ]; do sleep 0.01; done";

#[tokio::test]
async fn port_stolen_by_another_listener_is_noticed_and_another_is_taken() {
    // Whether the program leaves for want of its port, or sits there while the thief answers 200 in its place.
    for then in ["exec \"$FAKE\"", "exec sleep 600"] {
        let bench = Bench::script(&format!("{ROBBED}\n{then}"));
        let steal = async {
            let port: u16 = appears(&bench.dir.path().join("port")).await.parse().unwrap();
            thief(port);
            fs::write(bench.dir.path().join("stolen"), "").unwrap();
            port
        };
        let (browser, stolen) = tokio::join!(bench.launch(), steal);
        assert_ne!(browser.endpoint().addr.port(), stolen, "{then}");
        let begun = browser.program().unwrap().begin(&json!({}), LIMIT).await.unwrap();
        assert!(begun["id"].is_string(), "it is the program and not the thief: {begun}");
        bench.end(browser).await;
    }
}

#[tokio::test]
async fn every_port_stolen_is_told_as_such() {
    // A program that never listens, and a thief that is faster every time.
    let bench = Bench::script("echo \"$PORT\" >>ports; exec sleep 600");
    let ports = bench.dir.path().join("ports");
    let steal = async {
        let mut seen = 0;
        while seen < 3 {
            let text = fs::read_to_string(&ports).unwrap_or_default();
            for port in text.lines().skip(seen) {
                thief(port.parse().unwrap());
                seen += 1;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let (error, ()) = tokio::join!(bench.failure(LIMIT), steal);
    let LaunchError::PortTaken { taken, .. } = &error else {
        panic!("{error}")
    };
    let mut different = taken.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 3, "no port is tried twice: {error}");
}

#[tokio::test]
async fn listener_of_a_child_counts_as_the_programs_own() {
    // A wrapper that stays, and one whose server has left the group altogether.
    for script in ["\"$FAKE\" & wait", "setsid \"$FAKE\" & wait"] {
        let bench = Bench::script(script);
        let browser = bench.launch().await;
        browser.program().unwrap().begin(&json!({}), LIMIT).await.unwrap();
        bench.end(browser).await;
    }
}

#[tokio::test]
async fn launch_called_off_or_abandoned_leaves_nothing_whenever_it_happens() {
    let bench = Bench::fault("slow_health:150ms");
    for millis in [0, 1, 3, 10, 30, 60, 100, 200, 350] {
        let launch = bench.driver.launch(spec(LIMIT));
        // Both outcomes drop everything: the future, or the browser it gave.
        drop(tokio::time::timeout(Duration::from_millis(millis), launch).await);
        bench.eventually_clean().await;
        let wanted = spec(LIMIT);
        let cancel = wanted.cancel.clone();
        let call_off = async {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            cancel.cancel();
        };
        let (launched, ()) = tokio::join!(bench.driver.launch(wanted), call_off);
        match launched {
            Err(LaunchError::Cancelled) => assert!(bench.is_clean(), "called off after {millis} ms"),
            Err(other) => panic!("{other}"),
            Ok(browser) => bench.end(browser).await,
        }
    }
}

#[tokio::test]
async fn many_launches_at_once_get_a_port_each() {
    let bench = Bench::new(|_| {});
    let mut launches = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let driver = Arc::clone(&bench.driver);
        launches.spawn(async move { driver.launch(spec(LIMIT)).await });
    }
    let launched = launches.join_all().await.into_iter();
    let browsers: Vec<_> = launched.map(Result::unwrap).collect();
    let mut ports: Vec<_> = browsers.iter().map(|browser| browser.endpoint().addr.port()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 20);
    for browser in browsers {
        browser.kill().await;
        browser.files_removed().await;
    }
    assert!(bench.is_clean());
}

#[tokio::test]
async fn every_wrong_answer_is_named() {
    for (fault, part) in [
        ("refuse_create", "500"),
        ("garbage:http", "not HTTP"),
        ("garbage:json", "not JSON"),
        ("garbage:list", "no object"),
        ("garbage:no_id", "without an `id`"),
        ("garbage:huge", "more than 1048576 bytes"),
        ("crash_on_create", "could not be asked POST /sessions"),
        ("hang_on_create", "did not answer POST /sessions within 300ms"),
    ] {
        let bench = Bench::fault(fault);
        let browser = bench.launch().await;
        let begun = Instant::now();
        let failed = browser.program().unwrap().begin(&json!({}), SHORT).await.unwrap_err();
        assert!(failed.to_string().contains(part), "{fault}: {failed}");
        assert!(begun.elapsed() < LIMIT, "{fault} took {:?}", begun.elapsed());
        bench.end(browser).await;
    }
}

#[tokio::test]
async fn hung_calls_about_a_session_end_at_their_limit() {
    for fault in ["hang_on_get", "hang_on_delete", "hang_after:1call"] {
        let bench = Bench::fault(fault);
        let browser = bench.launch().await;
        let program = browser.program().unwrap();
        program.begin(&json!({}), LIMIT).await.unwrap();
        let (look, finish) = (program.look(SHORT).await, program.finish(SHORT).await);
        let hung = |failed: Option<CallFailed>| matches!(failed, Some(CallFailed::TimedOut { .. }));
        assert!(hung(look.err()) || hung(finish.err()), "{fault}");
        bench.end(browser).await;
    }
}

#[tokio::test]
async fn stubborn_program_and_its_leaked_child_die_with_it() {
    let bench = Bench::new(|config| {
        config.args = ["ignore_sigterm", "leak_child"]
            .map(|fault| format!("--fault={fault}"))
            .to_vec();
    });
    let browser = bench.launch().await;
    kill_process(pid(&browser), Signal::TERM).unwrap();
    browser.probe(LIMIT).await.unwrap();
    bench.end(browser).await;
}

#[tokio::test]
async fn every_way_of_leaving_is_a_crash_with_its_status() {
    let bench = Bench::new(|_| {});
    let browser = bench.launch().await;
    kill_process(pid(&browser), Signal::KILL).unwrap();
    let exit = browser.exited().await;
    assert!(
        matches!(
            &exit,
            Exit::Crashed {
                status: ExitStatus::Signal(9),
                ..
            }
        ),
        "{exit:?}"
    );
    browser.files_removed().await;
    // Code 0 too: nobody asked it to leave.
    let bench = Bench::script("\"$FAKE\" & sleep 0.3; kill $!; echo 'good night'; exit 0");
    let exit = bench.launch().await.exited().await;
    assert!(
        matches!(&exit, Exit::Crashed { status: ExitStatus::Code(0), detail } if detail.contains("good night")),
        "{exit:?}"
    );
    bench.eventually_clean().await;
}

#[tokio::test]
async fn stopped_program_fails_its_probe_in_time_and_can_be_killed() {
    let bench = Bench::new(|_| {});
    let browser = bench.launch().await;
    kill_process_group(pid(&browser), Signal::STOP).unwrap();
    let begun = Instant::now();
    let failed = browser.probe(SHORT).await.unwrap_err();
    assert!(failed.to_string().contains("GET /health"), "{failed}");
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    bench.end(browser).await;
}

#[tokio::test]
async fn launch_options_are_refused() {
    let bench = Bench::new(|_| {});
    let mut wanted = spec(LIMIT);
    wanted.options.lang = Some("de".into());
    let error = bench.driver.launch(wanted).await.err().unwrap();
    assert!(error.to_string().contains("`data`"), "{error}");
    assert!(bench.is_clean());
}

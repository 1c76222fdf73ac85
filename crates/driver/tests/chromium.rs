//! The chromium driver against the real headless shell and the real Chromium.

#![expect(clippy::unwrap_used, reason = "a helper of a test may panic like the test itself")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_core::BrowserId;
use wharf_driver::{
    Browser, ChromiumConfig, ChromiumDriver, Driver, DriverProblem, Engine, Exit, LaunchError, LaunchGate,
    LaunchOptions, LaunchSpec, Urgency, WindowSize,
};
use wharf_process::{Cgroups, ExitStatus, RunDir, orphans, process, tree_processes};

const LIMIT: Duration = Duration::from_secs(10);

struct Bench {
    run_dir: Arc<RunDir>,
    driver: ChromiumDriver,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new(change: impl FnOnce(&mut ChromiumConfig)) -> Self {
        for package in ["chromium", "chromium-headless-shell"] {
            let binary = Path::new("/usr/lib/chromium").join(package);
            assert!(
                binary.exists(),
                "Debian package `{package}` is missing: run `cargo xtask setup`"
            );
        }
        let dir = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        let run_dir = Arc::new(RunDir::open(dir.path()).unwrap());
        let mut config = ChromiumConfig::new(Arc::clone(&run_dir));
        change(&mut config);
        Self {
            run_dir,
            driver: ChromiumDriver::new(config).unwrap(),
            _dir: dir,
        }
    }

    fn engine(engine: Engine) -> Self {
        Self::new(|config| config.engine = engine)
    }

    /// A script in place of the browser.
    fn script(text: &str) -> Self {
        Self::new(|config| {
            let path = config.run_dir.path().join("browser.sh");
            fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            config.binary = Some(path);
        })
    }

    async fn launch(&self) -> Result<Arc<dyn Browser>, LaunchError> {
        self.driver.launch(spec(LIMIT)).await
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

/// `GET` on the clients' port.
async fn get(browser: &Arc<dyn Browser>, path: &str) -> String {
    let mut stream = TcpStream::connect(browser.endpoint().addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // Chromium keeps the connection open: the answer ends where its length says.
    let mut answer = Vec::new();
    let mut chunk = [0_u8; 4096];
    loop {
        let count = tokio::time::timeout(LIMIT, stream.read(&mut chunk))
            .await
            .unwrap()
            .unwrap();
        answer.extend_from_slice(&chunk[..count]);
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length:"))
                .unwrap();
            if count == 0 || body.len() >= length.trim().parse::<usize>().unwrap() {
                return body.to_owned();
            }
        }
    }
}

/// One command over the clients' WebSocket, as a client would send it; the answer's text.
async fn client_call(browser: &Arc<dyn Browser>, command: &str) -> String {
    let endpoint = browser.endpoint();
    let mut stream = TcpStream::connect(endpoint.addr).await.unwrap();
    let upgrade = format!(
        "GET {} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        endpoint.path
    );
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    // A masked text frame (RFC 6455 §5.2); the mask is zero, so the payload stays readable.
    let length = u8::try_from(command.len()).unwrap();
    assert!(length < 126);
    let frame = [&[0x81, 0x80 | length, 0, 0, 0, 0], command.as_bytes()].concat();
    stream.write_all(&frame).await.unwrap();
    let _first = stream.read_u8().await.unwrap();
    let length = match stream.read_u8().await.unwrap() {
        126 => u64::from(stream.read_u16().await.unwrap()),
        127 => stream.read_u64().await.unwrap(),
        short => u64::from(short),
    };
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).await.unwrap();
    String::from_utf8(payload).unwrap()
}

async fn whole_life(engine: Engine, name: &str) {
    let bench = Bench::engine(engine);
    let browser = bench.launch().await.unwrap();
    assert!(browser.version().product.contains("Chrome/"), "{:?}", browser.version());
    assert!(browser.endpoint().addr.ip().is_loopback());
    assert!(browser.endpoint().path.starts_with("/devtools/browser/"));
    let pages = browser.pages(LIMIT).await.unwrap();
    assert_eq!(pages.len(), 1, "{name}: {pages:?}");
    assert_eq!(pages[0].url, "about:blank");
    // What clients would see: exactly the one page, no hidden pages of the browser's own.
    let listed: serde_json::Value = serde_json::from_str(&get(&browser, "/json/list").await).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    browser
        .open_page("data:text/html,<title>second</title>", LIMIT)
        .await
        .unwrap();
    assert_eq!(browser.pages(LIMIT).await.unwrap().len(), 2);
    browser.probe(LIMIT).await.unwrap();
    assert!(browser.pss_bytes().unwrap() > 20 << 20);
    let root = browser.pid();
    let before = tree_processes(root).len();
    // Full Chromium's crash handlers leave the session (without them puppeteer cannot navigate); they still count as
    // their browser's and go with it.
    assert_eq!(
        orphans(bench.run_dir.path(), &[root]),
        Vec::<u32>::new(),
        "all processes belong to the tree"
    );
    browser.kill().await;
    assert_eq!(tree_processes(root), [], "{name}: no process of {before}, no zombie");
    assert_eq!(orphans(bench.run_dir.path(), &[]), Vec::<u32>::new());
    assert_eq!(browser.exited().await, Exit::Killed);
    browser.files_removed().await;
    assert!(bench.is_clean());
    browser.kill().await;
}

#[tokio::test]
async fn headless_shell_lives_and_dies_completely() {
    whole_life(Engine::HeadlessShell, "shell").await;
}

#[tokio::test]
async fn full_chromium_lives_and_dies_completely() {
    whole_life(Engine::Chromium, "chromium").await;
}

#[tokio::test]
async fn check_reports_the_real_binary_and_version() {
    let bench = Bench::engine(Engine::Auto);
    let report = bench.driver.check().await.unwrap();
    assert_eq!(report.binary, Path::new("/usr/lib/chromium/chromium-headless-shell"));
    assert!(report.version.product.starts_with("HeadlessChrome/"), "{report:?}");
    assert!(
        report.sandboxed || !report.notes.is_empty(),
        "an unsandboxed browser is explained"
    );
    assert!(bench.is_clean());
}

#[tokio::test]
async fn killed_main_process_is_noticed_at_once_and_all_is_cleaned() {
    let bench = Bench::engine(Engine::Auto);
    let browser = bench.launch().await.unwrap();
    let waiting = (browser.exited(), browser.exited());
    let begun = Instant::now();
    kill_process(pid(&browser), Signal::KILL).unwrap();
    let (one, two) = tokio::join!(waiting.0, waiting.1);
    println!("SIGKILL noticed after {:?}", begun.elapsed());
    assert!(
        matches!(
            &one,
            Exit::Crashed {
                status: ExitStatus::Signal(9),
                ..
            }
        ),
        "{one:?}"
    );
    assert_eq!(one, two);
    browser.files_removed().await;
    assert!(bench.is_clean(), "helpers and files go without being asked");
}

#[tokio::test]
async fn browser_closed_by_its_client_ends_cleanly() {
    for engine in [Engine::HeadlessShell, Engine::Chromium] {
        let bench = Bench::engine(engine);
        let browser = bench.launch().await.unwrap();
        client_call(&browser, r#"{"id":1,"method":"Browser.close"}"#).await;
        assert_eq!(browser.exited().await, Exit::Clean, "{engine:?}");
        browser.files_removed().await;
        assert!(bench.is_clean());
    }
}

#[tokio::test]
async fn crash_is_told_with_its_signal() {
    let bench = Bench::engine(Engine::Auto);
    let browser = bench.launch().await.unwrap();
    kill_process(pid(&browser), Signal::SEGV).unwrap();
    let exit = browser.exited().await;
    assert!(matches!(&exit, Exit::Crashed { .. }), "{exit:?}");
}

#[tokio::test]
async fn stopped_browser_fails_its_probe_in_time_and_can_be_killed() {
    let bench = Bench::engine(Engine::Auto);
    let browser = bench.launch().await.unwrap();
    kill_process_group(pid(&browser), Signal::STOP).unwrap();
    let begun = Instant::now();
    assert!(browser.probe(Duration::from_millis(300)).await.is_err());
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    browser.kill().await;
    assert_eq!(process(browser.pid()), None);
    browser.files_removed().await;
    assert!(bench.is_clean());
}

#[tokio::test]
async fn full_chromium_in_a_cgroup_dies_with_it() {
    let Some(cgroups) = Cgroups::detect() else {
        eprintln!("SKIPPED: no writable cgroup v2 on this host");
        return;
    };
    let bench = Bench::new(|config| {
        config.engine = Engine::Chromium;
        config.cgroups = Some(cgroups.clone());
    });
    let browser = bench.launch().await.unwrap();
    let own = fs::read_to_string(format!("/proc/{}/cgroup", browser.pid())).unwrap();
    assert!(own.contains(&browser.id().to_string()), "{own}");
    browser.kill().await;
    assert_eq!(tree_processes(browser.pid()), []);
    browser.files_removed().await;
    assert!(bench.is_clean());
    cgroups.remove();
}

#[tokio::test]
async fn abandoned_launch_leaves_nothing_whenever_it_is_abandoned() {
    for engine in [Engine::HeadlessShell, Engine::Chromium] {
        let bench = Bench::engine(engine);
        for millis in [0, 1, 3, 10, 30, 60, 100, 200, 350] {
            let launch = bench.driver.launch(spec(LIMIT));
            // Both outcomes drop everything: the future, or the browser it gave.
            drop(tokio::time::timeout(Duration::from_millis(millis), launch).await);
            bench.eventually_clean().await;
        }
    }
}

#[tokio::test]
async fn dropped_browser_is_killed_and_cleaned() {
    let bench = Bench::engine(Engine::Auto);
    let browser = bench.launch().await.unwrap();
    let root = browser.pid();
    drop(browser);
    bench.eventually_clean().await;
    assert_eq!(process(root), None);
}

#[tokio::test]
async fn binary_that_exits_at_once_is_told_with_its_last_words() {
    let bench = Bench::script("echo 'no such device' >&2; exit 42");
    let error = bench.launch().await.err().unwrap();
    let LaunchError::ExitedEarly { exit, stderr } = &error else {
        panic!("{error}")
    };
    assert_eq!((exit, stderr.as_str()), (&ExitStatus::Code(42), "no such device"));
    assert!(bench.is_clean(), "clean before the error is returned");
    assert!(matches!(bench.driver.check().await, Err(DriverProblem::Launch { .. })));
}

#[tokio::test]
async fn binary_that_never_gets_ready_is_told_with_its_phase() {
    let bench = Bench::script("echo garbage >&2; exec sleep 600");
    let error = bench
        .driver
        .launch(spec(Duration::from_millis(300)))
        .await
        .err()
        .unwrap();
    assert!(
        matches!(
            &error,
            LaunchError::NotReady {
                phase: LaunchGate::Endpoint,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("garbage"), "{error}");
    assert!(bench.is_clean());
    let bench = Bench::script("echo 'DevTools listening on ws://127.0.0.1:1/devtools/browser/x' >&2; exec sleep 600");
    let error = bench
        .driver
        .launch(spec(Duration::from_millis(300)))
        .await
        .err()
        .unwrap();
    assert!(
        matches!(
            &error,
            LaunchError::NotReady {
                phase: LaunchGate::Version,
                ..
            }
        ),
        "{error}"
    );
    assert!(bench.is_clean());
}

#[tokio::test]
async fn missing_library_and_sandbox_are_diagnosed() {
    let words = "x: error while loading shared libraries: libnss3.so: cannot open shared object file";
    let problem = Bench::script(&format!("echo '{words}' >&2; exit 127"))
        .driver
        .check()
        .await
        .unwrap_err();
    assert!(
        matches!(&problem, DriverProblem::MissingLibrary { library, .. } if library == "libnss3.so"),
        "{problem}"
    );
    let problem = Bench::script("echo 'FATAL: No usable sandbox!' >&2; exit 1")
        .driver
        .check()
        .await
        .unwrap_err();
    assert!(matches!(problem, DriverProblem::SandboxUnusable), "{problem}");
}

#[tokio::test]
async fn any_binary_that_speaks_the_protocol_is_launched() {
    // Built by the test kit, which depends on nothing of ours that could build it here.
    let fake = std::env::current_exe()
        .unwrap()
        .ancestors()
        .nth(2)
        .unwrap()
        .join("fake-browser");
    if !fake.exists() {
        eprintln!("SKIPPED: {} is not built: cargo build -p wharf-testkit", fake.display());
        return;
    }
    let bench = Bench::new(|config| config.binary = Some(fake));
    let browser = bench.launch().await.unwrap();
    assert_eq!(browser.pages(LIMIT).await.unwrap().len(), 1);
    browser.probe(LIMIT).await.unwrap();
    browser.kill().await;
    browser.files_removed().await;
    assert!(bench.is_clean());
}

#[tokio::test]
async fn refused_options_start_nothing() {
    let bench = Bench::engine(Engine::Auto);
    let mut wanted = spec(LIMIT);
    wanted.options.args.push("--remote-debugging-address=0.0.0.0".into());
    let error = bench.driver.launch(wanted).await.err().unwrap();
    assert!(matches!(error, LaunchError::Refused(_)), "{error}");
    assert!(bench.is_clean());
}

#[tokio::test]
async fn options_reach_the_browser() {
    let bench = Bench::engine(Engine::Auto);
    let mut wanted = spec(LIMIT);
    wanted.urgency = Urgency::Refill;
    wanted.options.user_agent = Some("wharf-test/1".into());
    wanted.options.window_size = Some(WindowSize {
        width: 800,
        height: 600,
    });
    let browser = bench.driver.launch(wanted).await.unwrap();
    assert_eq!(browser.version().user_agent, "wharf-test/1");
    browser.promote();
    let command = fs::read(format!("/proc/{}/cmdline", browser.pid())).unwrap();
    assert!(String::from_utf8_lossy(&command).contains("--window-size=800,600"));
    let environ = String::from_utf8_lossy(&fs::read(format!("/proc/{}/environ", browser.pid())).unwrap()).into_owned();
    assert!(!environ.contains("CARGO"), "{environ}");
}

//! The one table of Chromium's flags, each with its reason, and the command line and environment made from it.
//!
//! Its own file because flags rot: names change with versions, and copied lists hide what each entry is for (measured:
//! the usual "lean" lists bring nothing, `--no-zygote` harms; reference/performance.md §1). The invariant: a flag is
//! here with a reason or not at all, and `--disable-features` appears once, because Chromium obeys only the last.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use wharf_process::{Cgroups, RunDir, SessionDir};

use crate::{AllowList, LaunchOptions};

/// Which binary to prefer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Engine {
    /// The headless shell: a quarter of the launch time, half of the memory.
    HeadlessShell,
    /// Full Chromium, in its new headless mode.
    Chromium,
    /// The shell if there is one.
    #[default]
    Auto,
}

/// Whether pages run in Chromium's sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sandbox {
    /// Where the host allows it; never as root, where Chromium refuses.
    #[default]
    Auto,
    /// Always; a host that does not allow it fails the check.
    On,
    /// Never.
    Off,
}

/// How Chromium is launched on this host.
#[derive(Debug, Clone)]
pub struct ChromiumConfig {
    /// Which engine.
    pub engine: Engine,
    /// A binary instead of a search.
    pub binary: Option<PathBuf>,
    /// Whether pages may reach link-local addresses, where clouds keep their hosts' credentials.
    pub allow_link_local: bool,
    /// The operator's own flags, after the table's.
    pub extra_args: Vec<String>,
    /// What clients may set.
    pub allow_list: AllowList,
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Where browsers' directories go.
    pub run_dir: Arc<RunDir>,
    /// One cgroup per browser, if the host delegates.
    pub cgroups: Option<Cgroups>,
    /// The host's variables that browsers may see; see [`ChromiumConfig::host_env`].
    pub env: Vec<(OsString, OsString)>,
}

/// Which engines a flag is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Both,
    Full,
}

struct Flag {
    text: &'static str,
    engines: For,
    #[expect(dead_code, reason = "the reason is for the reader and for the generated reference")]
    reason: &'static str,
}

const fn flag(text: &'static str, engines: For, reason: &'static str) -> Flag {
    Flag { text, engines, reason }
}

const FLAGS: &[Flag] = &[
    flag(
        "--headless=new",
        For::Full,
        "no display on a server; the shell is always headless",
    ),
    flag("--no-first-run", For::Both, "no welcome page as an extra target"),
    flag("--no-default-browser-check", For::Full, "no prompt over the page"),
    flag(
        "--disable-background-networking",
        For::Both,
        "no calls home: refused at once on closed networks, by the dozen",
    ),
    flag(
        "--disable-component-update",
        For::Both,
        "no downloads into a profile that lives a minute",
    ),
    flag("--disable-sync", For::Both, "no account, no sync traffic"),
    flag("--disable-domain-reliability", For::Both, "no reports to the vendor"),
    flag("--no-pings", For::Both, "no hyperlink auditing beacons"),
    flag(
        "--disable-default-apps",
        For::Full,
        "no app installation at the first start of each profile",
    ),
    flag(
        "--disable-search-engine-choice-screen",
        For::Full,
        "no choice page as an extra target",
    ),
    flag("--disable-breakpad", For::Both, "no crash uploads"),
    flag("--metrics-recording-only", For::Both, "no usage reports"),
    flag("--password-store=basic", For::Full, "no wait for a desktop keyring"),
    flag(
        "--disable-background-timer-throttling",
        For::Both,
        "a page that nobody looks at must not slow down",
    ),
    flag("--disable-backgrounding-occluded-windows", For::Both, "same"),
    flag(
        "--disable-renderer-backgrounding",
        For::Both,
        "same; and renderers keep their nice level",
    ),
    flag(
        "--disable-hang-monitor",
        For::Both,
        "no dialog; a hang is the probe's affair",
    ),
    flag(
        "--disable-prompt-on-repost",
        For::Both,
        "no dialog that blocks a reload",
    ),
    flag("--mute-audio", For::Both, "no sound device on a server"),
    flag(
        "--hide-scrollbars",
        For::Both,
        "what puppeteer's and Playwright's users see in screenshots",
    ),
];

/// Features switched off in both engines: each starts a service or a request that no client asked for.
const QUIET: &[&str] = &[
    "Translate",
    "MediaRouter",
    "DialMediaRouteProvider",
    "OptimizationHints",
];
/// Full Chromium loads two hidden pages of its own address bar per window: 1.06 CPU s and 55 MB each launch. The names
/// are version-bound; a test sees that only a page and its tab exist after a launch.
const QUIET_FULL: &[&str] = &[
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "PreloadTopChromeWebUI",
];

/// Link-local addresses and the names of metadata services lead nowhere. By what the page asks for: a name of its own that
/// its DNS resolves to such an address still does, and needs a firewall.
const NO_LINK_LOCAL: &str = "MAP 169.254.* ^NOTFOUND,MAP [fe80:* ^NOTFOUND,MAP [fd00:ec2:* ^NOTFOUND,\
                             MAP metadata.google.internal ^NOTFOUND";

/// Host variables that a browser may need; everything else stays with us.
const HOST_ENV: &[&str] = &[
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "FONTCONFIG_PATH",
    "FONTCONFIG_FILE",
    "XDG_DATA_DIRS",
];

// === impl ChromiumConfig ===

impl ChromiumConfig {
    /// The defaults, for a run directory.
    pub fn new(run_dir: Arc<RunDir>) -> Self {
        Self {
            engine: Engine::Auto,
            binary: None,
            allow_link_local: false,
            extra_args: Vec::new(),
            allow_list: AllowList::default(),
            sandbox: Sandbox::Auto,
            run_dir,
            cgroups: None,
            env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        }
    }

    /// Picks from the host's environment what browsers may see. The binary calls it; nothing below reads variables.
    pub fn host_env(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
        vars.into_iter()
            .filter(|(name, _)| HOST_ENV.iter().any(|allowed| name == allowed))
            .collect()
    }
}

/// What a command line is made of.
pub(crate) struct CommandLine<'a> {
    pub(crate) config: &'a ChromiumConfig,
    pub(crate) options: &'a LaunchOptions,
    pub(crate) dir: &'a SessionDir,
    pub(crate) shell: bool,
    pub(crate) sandboxed: bool,
}

// === impl CommandLine ===

impl CommandLine<'_> {
    pub(crate) fn args(&self) -> Vec<OsString> {
        let table = FLAGS.iter().filter(|flag| flag.engines == For::Both || !self.shell);
        let mut args: Vec<String> = table.map(|flag| flag.text.to_owned()).collect();
        if !self.sandboxed {
            args.push("--no-sandbox".into());
        }
        if small_shm() {
            args.push("--disable-dev-shm-usage".into());
        }
        if !self.config.allow_link_local {
            args.push(format!("--host-resolver-rules={NO_LINK_LOCAL}"));
        }
        args.extend(self.config.extra_args.iter().cloned());
        args.extend(self.chosen());
        let mut off: Vec<String> = QUIET.iter().map(ToString::to_string).collect();
        off.extend(QUIET_FULL.iter().filter(|_| !self.shell).map(ToString::to_string));
        let mut on = Vec::new();
        args.retain(|arg| {
            !take_list(arg, "--disable-features=", &mut off) && !take_list(arg, "--enable-features=", &mut on)
        });
        args.push(format!("--disable-features={}", off.join(",")));
        args.extend((!on.is_empty()).then(|| format!("--enable-features={}", on.join(","))));
        // Last, so that nothing before can override what the grid itself depends on.
        args.extend(["--remote-debugging-pipe".into(), "--remote-debugging-port=0".into()]);
        let mut args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        for (name, part) in [("--user-data-dir=", "profile"), ("--crash-dumps-dir=", "tmp")] {
            let mut arg = OsString::from(name);
            arg.push(self.dir.path().join(part));
            args.push(arg);
        }
        args.push("about:blank".into());
        args
    }

    /// The client's choices, already validated.
    fn chosen(&self) -> Vec<String> {
        let options = self.options;
        let mut args = Vec::new();
        args.extend(
            options
                .window_size
                .map(|size| format!("--window-size={},{}", size.width, size.height)),
        );
        let named = [
            ("--user-agent=", &options.user_agent),
            ("--accept-lang=", &options.lang),
            ("--proxy-server=", &options.proxy_server),
            ("--proxy-bypass-list=", &options.proxy_bypass_list),
        ];
        args.extend(
            named
                .iter()
                .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name}{value}"))),
        );
        // `--lang` takes one tag, `--accept-lang` all of them.
        let first = options.lang.as_ref().and_then(|lang| lang.split(',').next());
        args.extend(first.map(|tag| format!("--lang={tag}")));
        args.extend(
            options
                .ignore_certificate_errors
                .then(|| "--ignore-certificate-errors".to_owned()),
        );
        args.extend(options.args.iter().cloned());
        args
    }

    /// Everything a browser writes by default goes to its own directory.
    pub(crate) fn env(&self) -> Vec<(OsString, OsString)> {
        let dir = self.dir.path();
        let mut env = self.config.env.clone();
        for (name, part) in [
            ("HOME", "profile"),
            ("XDG_CONFIG_HOME", "profile"),
            ("XDG_CACHE_HOME", "tmp"),
            ("XDG_DATA_HOME", "profile"),
            ("XDG_RUNTIME_DIR", "tmp"),
            ("XDG_DOWNLOAD_DIR", "downloads"),
        ] {
            env.push((name.into(), dir.join(part).into()));
        }
        env.push(("TMPDIR".into(), self.tmp_dir().into()));
        if let Some(zone) = &self.options.timezone {
            env.retain(|(name, _)| name != "TZ");
            env.push(("TZ".into(), zone.into()));
        }
        env
    }

    /// The session's `tmp`, by a short name where the long one would not fit into a socket's address.
    fn tmp_dir(&self) -> PathBuf {
        let tmp = self.dir.path().join("tmp");
        let fits = tmp.as_os_str().len() + SINGLETON <= LONGEST_SOCKET;
        if self.shell || fits { tmp } else { OWN_CWD.into() }
    }
}

/// Where a browser's working directory is, for itself and for every child that does not leave it.
const OWN_CWD: &str = "/proc/self/cwd";
/// Full Chromium binds `org.chromium.Chromium.XXXXXX/SingletonSocket` in TMPDIR and aborts if the path is too long.
const SINGLETON: usize = "/org.chromium.Chromium.XXXXXX/SingletonSocket".len();
/// `sun_path` (unix(7)), less the final NUL.
const LONGEST_SOCKET: usize = 107;

/// Moves a feature list out of the arguments into `into`.
fn take_list(arg: &str, name: &str, into: &mut Vec<String>) -> bool {
    let Some(list) = arg.strip_prefix(name) else {
        return false;
    };
    into.extend(list.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned));
    true
}

/// Containers give 64 MB of /dev/shm by default; a page of images fills that and its renderer crashes.
fn small_shm() -> bool {
    rustix::fs::statvfs("/dev/shm").is_ok_and(|stat| stat.f_blocks.saturating_mul(stat.f_frsize) < 512 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(shell: bool, options: &LaunchOptions) -> (Vec<String>, Vec<(OsString, OsString)>) {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = Arc::new(RunDir::open(dir.path()).unwrap());
        let session = run_dir.session_dir("brw_1").unwrap();
        let mut config = ChromiumConfig::new(run_dir);
        config.env.push(("TZ".into(), "UTC".into()));
        let line = CommandLine {
            config: &config,
            options,
            dir: &session,
            shell,
            sandboxed: false,
        };
        (
            line.args()
                .iter()
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect(),
            line.env(),
        )
    }

    #[test]
    fn feature_lists_are_merged_and_ours_stay() {
        let args = vec![
            "--disable-features=Foo,Bar".to_owned(),
            "--enable-features=Baz".to_owned(),
        ];
        let options = LaunchOptions {
            args,
            timezone: Some("Asia/Tokyo".into()),
            ..Default::default()
        };
        let (args, env) = line(false, &options);
        let lists: Vec<&String> = args
            .iter()
            .filter(|arg| arg.starts_with("--disable-features="))
            .collect();
        assert_eq!(lists.len(), 1);
        assert!(
            lists[0].contains("WebUIOmniboxPopup") && lists[0].contains("Foo,Bar"),
            "{lists:?}"
        );
        assert!(args.contains(&"--enable-features=Baz".to_owned()));
        let zones: Vec<_> = env.iter().filter(|(name, _)| name == "TZ").collect();
        assert_eq!(zones, [&(OsString::from("TZ"), OsString::from("Asia/Tokyo"))]);
    }

    #[test]
    fn shell_gets_no_flags_of_the_full_browser() {
        let (args, _) = line(true, &LaunchOptions::default());
        assert!(
            !args
                .iter()
                .any(|arg| arg.contains("--headless") || arg.contains("Omnibox")),
            "{args:?}"
        );
        assert_eq!(args.last().map(String::as_str), Some("about:blank"));
    }

    #[test]
    fn host_environment_is_an_allow_list() {
        let vars = [("PATH", "/bin"), ("AWS_SECRET_ACCESS_KEY", "x"), ("LANG", "C")].map(|(n, v)| (n.into(), v.into()));
        let kept = ChromiumConfig::host_env(vars);
        assert_eq!(kept.len(), 2);
    }
}

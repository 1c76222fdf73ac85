//! What a client may choose about its browser, by allow-list.
//!
//! Its own file because it is a security boundary: these values become a command line and an environment. The
//! invariant: a flag reaches the browser only if its name is on the operator's list and not on [`FORBIDDEN`], which no
//! configuration can open; a value can never become a second argument, a path to a file of the host or a control byte.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Flags that would give a client the host, another session or our own control channel. Prefixes end with `*`.
const FORBIDDEN: &[&str] = &[
    "user-data-dir",
    "remote-debugging*",
    "remote-allow-origins",
    "no-sandbox",
    "disable-setuid-sandbox",
    "disable-seccomp*",
    "disable-namespace-sandbox",
    "disable-gpu-sandbox",
    "no-zygote*",
    "single-process",
    "load-extension",
    "disable-extensions-except",
    "load-component-extension",
    "whitelisted-extension-id",
    "app",
    "renderer-cmd-prefix",
    "utility-cmd-prefix",
    "gpu-launcher",
    "browser-subprocess-path",
    "ppapi*",
    "zygote*",
    "log-file",
    "enable-logging",
    "log-net-log",
    "net-log*",
    "trace*",
    "crash*",
    "breakpad*",
    "disk-cache-dir",
    "media-cache-dir",
    "homedir",
    "profile-directory",
    "download*",
    "print-to-pdf*",
    "screenshot*",
    "dump-dom",
    "repl",
    "type",
    "headless",
    "version",
    "product-version",
    "install*",
    "uninstall*",
    "policy*",
    "allow-file-access*",
    "allow-no-sandbox-job",
    "ssl-key-log-file",
    "auto-open-devtools-for-tabs",
    "use-fake-device-for-media-stream-path",
    "use-file-for-fake-*",
    "proxy*",
    "host-rules",
    "host-resolver-rules",
    "enable-automation-file",
];

/// Flags that change only what a page sees; the default list.
const HARMLESS: &[&str] = &[
    "autoplay-policy",
    "blink-settings",
    "disable-blink-features",
    "disable-features",
    "disable-gpu",
    "disable-notifications",
    "disable-popup-blocking",
    "enable-automation",
    "enable-features",
    "font-render-hinting",
    "force-color-profile",
    "force-dark-mode",
    "force-device-scale-factor",
    "force-prefers-reduced-motion",
    "hide-scrollbars",
    "incognito",
    "mute-audio",
    "start-maximized",
    "use-fake-device-for-media-stream",
    "use-fake-ui-for-media-stream",
];

/// Long enough for any user agent or bypass list, short enough for a command line.
const LONGEST_VALUE: usize = 4096;
const MOST_ARGS: usize = 64;

/// Width and height in CSS pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSize {
    /// Width.
    pub width: u16,
    /// Height.
    pub height: u16,
}

/// A client's choices. The default is what warm browsers have.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaunchOptions {
    /// Size of the first window.
    pub window_size: Option<WindowSize>,
    /// User agent of every page.
    pub user_agent: Option<String>,
    /// Language tags, `de-DE` or `de-DE,en`.
    pub lang: Option<String>,
    /// Proxy for all traffic, `http://host:port` or `socks5://host:port`.
    pub proxy_server: Option<String>,
    /// Hosts that bypass the proxy.
    pub proxy_bypass_list: Option<String>,
    /// IANA time zone, `Europe/Berlin`.
    pub timezone: Option<String>,
    /// Accept any certificate.
    pub ignore_certificate_errors: bool,
    /// Further flags, `--name` or `--name=value`, each on the operator's list.
    pub args: Vec<String>,
}

/// The names of flags that clients may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowList {
    flags: BTreeSet<String>,
}

/// One thing that was refused, and what would not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionRefused {
    /// Not on the list.
    #[error("flag `--{flag}` is not allowed; allowed are: {allowed}")]
    Flag {
        /// Its name.
        flag: String,
        /// The list.
        allowed: String,
    },
    /// Not the form of a flag.
    #[error("`{0}` is not a flag of the form `--name` or `--name=value`")]
    Form(String),
    /// A value that is not what the field is for.
    #[error("`{field}` must be {expected}, got `{found}`")]
    Value {
        /// Which field.
        field: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What it got, cut.
        found: String,
    },
}

// === impl AllowList ===

impl Default for AllowList {
    fn default() -> Self {
        Self {
            flags: HARMLESS.iter().map(|flag| (*flag).to_owned()).collect(),
        }
    }
}

impl AllowList {
    /// A list of the operator's; names with or without dashes. Says which of them can never be allowed.
    pub fn new<S: AsRef<str>>(flags: impl IntoIterator<Item = S>) -> Result<Self, Vec<String>> {
        let flags: BTreeSet<String> = flags
            .into_iter()
            .map(|flag| flag.as_ref().trim_start_matches('-').to_owned())
            .collect();
        let forbidden: Vec<String> = flags.iter().filter(|flag| is_forbidden(flag)).cloned().collect();
        if forbidden.is_empty() {
            Ok(Self { flags })
        } else {
            Err(forbidden)
        }
    }

    /// This list and the operator's further names. Says which of them can never be allowed.
    pub fn with<S: AsRef<str>>(self, flags: impl IntoIterator<Item = S>) -> Result<Self, Vec<String>> {
        let Self { flags: mut all } = Self::new(flags)?;
        all.extend(self.flags);
        Ok(Self { flags: all })
    }

    fn allows(&self, flag: &str) -> bool {
        self.flags.contains(flag) && !is_forbidden(flag)
    }

    fn names(&self) -> String {
        self.flags
            .iter()
            .map(|flag| format!("--{flag}"))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

fn is_forbidden(flag: &str) -> bool {
    FORBIDDEN.iter().any(|entry| match entry.strip_suffix('*') {
        Some(prefix) => flag.starts_with(prefix),
        None => flag == *entry,
    })
}

// === impl LaunchOptions ===

impl LaunchOptions {
    /// Checks every choice; all refusals at once.
    pub fn validate(&self, allowed: &AllowList) -> Result<(), Vec<OptionRefused>> {
        let mut refused = Vec::new();
        self.check_values(&mut refused);
        if self.args.len() > MOST_ARGS {
            refused.push(value("args", "at most 64 flags", &self.args.len().to_string()));
        }
        refused.extend(
            self.args
                .iter()
                .take(MOST_ARGS)
                .filter_map(|arg| check_arg(arg, allowed)),
        );
        if refused.is_empty() { Ok(()) } else { Err(refused) }
    }

    fn check_values(&self, refused: &mut Vec<OptionRefused>) {
        if let Some(size) = self.window_size
            && !(1..=16_384).contains(&size.width.min(size.height))
        {
            refused.push(value(
                "window_size",
                "1 to 16384 each way",
                &format!("{}x{}", size.width, size.height),
            ));
        }
        let word = |text: &str, extra: &str| {
            !text.is_empty()
                && text
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || extra.as_bytes().contains(&b))
        };
        let mut check = |field, found: &Option<String>, expected, good: &dyn Fn(&str) -> bool| {
            if let Some(found) = found
                && !(is_plain(found) && good(found))
            {
                refused.push(value(field, expected, found));
            }
        };
        check(
            "user_agent",
            &self.user_agent,
            "printable text without a leading `--`",
            &|_| true,
        );
        check("lang", &self.lang, "language tags like `de-DE,en`", &|text| {
            word(text, "-_,")
        });
        check(
            "proxy_server",
            &self.proxy_server,
            "a proxy like `http://host:3128`",
            &|text| word(text, ":/.-_[]=;"),
        );
        let hosts = "hosts like `*.local,10.0.0.0/8,<local>`";
        check("proxy_bypass_list", &self.proxy_bypass_list, hosts, &|text| {
            word(text, ":/.-_[]*,;<>")
        });
        // `TZ` may also name a file, absolute, relative or after a colon: only plain zone names pass.
        let zone = |text: &str| word(text, "/_+-") && !text.starts_with('/') && text.len() <= 64;
        check("timezone", &self.timezone, "a time zone like `Europe/Berlin`", &zone);
    }
}

fn check_arg(arg: &str, allowed: &AllowList) -> Option<OptionRefused> {
    let cut = || arg.chars().take(80).collect::<String>();
    let Some(rest) = arg.strip_prefix("--") else {
        return Some(OptionRefused::Form(cut()));
    };
    let (name, flag_value) = rest.split_once('=').unwrap_or((rest, "x"));
    let named = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if !named || name.starts_with('-') || !(flag_value.is_empty() || is_plain(flag_value)) {
        return Some(OptionRefused::Form(cut()));
    }
    (!allowed.allows(name)).then(|| OptionRefused::Flag {
        flag: name.to_owned(),
        allowed: allowed.names(),
    })
}

/// One argument's worth of text: no control bytes, nothing that looks like a flag.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_VALUE && !text.starts_with("--") && !text.chars().any(char::is_control)
}

fn value(field: &'static str, expected: &'static str, found: &str) -> OptionRefused {
    OptionRefused::Value {
        field,
        expected,
        found: found.chars().take(80).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_arg(arg: &str) -> LaunchOptions {
        LaunchOptions {
            args: vec![arg.to_owned()],
            ..LaunchOptions::default()
        }
    }

    #[test]
    fn default_options_and_harmless_flags_pass() {
        let list = AllowList::default();
        assert_eq!(LaunchOptions::default().validate(&list), Ok(()));
        for arg in [
            "--mute-audio",
            "--force-device-scale-factor=2",
            "--blink-settings=imagesEnabled=false",
        ] {
            assert_eq!(with_arg(arg).validate(&list), Ok(()), "{arg}");
        }
    }

    #[test]
    fn dangerous_and_malformed_flags_are_refused_by_name() {
        let list = AllowList::default();
        for arg in [
            "--user-data-dir=/etc",
            "--remote-debugging-port=9222",
            "--remote-debugging-address=0.0.0.0",
            "--no-sandbox",
            "--load-extension=/x",
            "--renderer-cmd-prefix=sh",
            "--log-file=/etc/x",
            "-no-sandbox",
            "no-sandbox",
            "--",
            "--=x",
            "---mute-audio",
            "--MUTE-AUDIO",
            "--mute-audio\n--no-sandbox",
            "--mute-audio=a\0b",
            "--mute-audio=--no-sandbox",
            "https://example.com",
            "",
        ] {
            assert!(with_arg(arg).validate(&list).is_err(), "{arg:?}");
        }
        let text = with_arg("--no-sandbox").validate(&list).unwrap_err()[0].to_string();
        assert!(text.contains("--no-sandbox") && text.contains("--mute-audio"), "{text}");
    }

    #[test]
    fn values_cannot_smuggle() {
        let list = AllowList::default();
        for options in [
            LaunchOptions {
                user_agent: Some("a\nb".into()),
                ..Default::default()
            },
            LaunchOptions {
                user_agent: Some("--no-sandbox".into()),
                ..Default::default()
            },
            LaunchOptions {
                timezone: Some("/etc/passwd".into()),
                ..Default::default()
            },
            LaunchOptions {
                timezone: Some(":/etc/passwd".into()),
                ..Default::default()
            },
            LaunchOptions {
                timezone: Some("../../etc/passwd".into()),
                ..Default::default()
            },
            LaunchOptions {
                lang: Some("de DE".into()),
                ..Default::default()
            },
            LaunchOptions {
                proxy_server: Some("a b".into()),
                ..Default::default()
            },
            LaunchOptions {
                window_size: Some(WindowSize { width: 0, height: 5 }),
                ..Default::default()
            },
        ] {
            assert!(options.validate(&list).is_err(), "{options:?}");
        }
    }

    #[test]
    fn no_configuration_opens_the_forbidden() {
        assert_eq!(
            AllowList::new(["--mute-audio", "remote-debugging-port"]),
            Err(vec!["remote-debugging-port".into()])
        );
        assert!(AllowList::new(["--mute-audio"]).is_ok());
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(serde_json::from_str::<LaunchOptions>(r#"{"binary":"/bin/sh"}"#).is_err());
        assert!(serde_json::from_str::<LaunchOptions>(r#"{"lang":"de"}"#).is_ok());
    }
}

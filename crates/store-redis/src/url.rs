//! Addresses: `redis://`, `rediss://`, `redis+unix://`, `redis+cluster://a:1,b:2`, `rediss+cluster://…`.
//!
//! Its own file because the library knows single servers only, and because an address holds a password that must not get
//! out. Invariant: [`shown`] is the only form in which an address leaves this file as text.

use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, io::tcp::TcpSettings};

use crate::{ConnectError, Options};

const SCHEMES: &str = "redis://host:port, rediss://host:port (TLS), redis+unix:///path/to/socket, \
                       redis+cluster://host:port,host:port,… or rediss+cluster://host:port,…";
const PARAMETERS: &str = "wait_replicas, wait_timeout_ms (and db, user, pass for a socket)";

/// Where to connect.
pub(crate) struct Target {
    /// The server, or some nodes of the cluster.
    pub(crate) seeds: Vec<ConnectionInfo>,
    pub(crate) is_cluster: bool,
}

/// Reads an address; what it says about waiting goes to the options.
pub(crate) fn parse(url: &str, options: &mut Options) -> Result<Target, ConnectError> {
    let refused = |problem: String| ConnectError::Address {
        address: shown(url),
        problem,
    };
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| refused(format!("has no scheme; write one of {SCHEMES}")))?;
    let is_socket = matches!(scheme, "redis+unix" | "unix");
    // First of all who we are: a password that was not written with percent signs may contain anything.
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) if !is_socket => (format!("{}@", escaped(user)), rest),
        _ => (String::new(), rest),
    };
    let (rest, fragment) = match rest.split_once('#') {
        Some((rest, fragment)) => (rest, format!("#{fragment}")),
        None => (rest, String::new()),
    };
    let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
    let left = take_parameters(query, is_socket, options).map_err(refused)?;
    let (plain, is_cluster) = match scheme {
        "redis" | "rediss" | "redis+unix" | "unix" => (scheme, false),
        "redis+cluster" => ("redis", true),
        "rediss+cluster" => ("rediss", true),
        _ => {
            return Err(refused(format!(
                "has an unknown scheme {scheme:?}; write one of {SCHEMES}"
            )));
        }
    };
    let hosts: Vec<&str> = if is_cluster {
        hosts.trim_end_matches('/').split(',').collect()
    } else {
        vec![hosts]
    };
    let seeds = hosts.into_iter().map(|host| {
        let one = format!("{plain}://{user}{host}{left}{fragment}");
        // The library's words about an address never repeat it.
        let info = one
            .into_connection_info()
            .map_err(|error| refused(format!("{host:?}: {}", bare(&error))))?;
        if is_cluster && info.redis_settings().db() != 0 {
            return Err(refused(
                "names a database; a cluster has only database 0, leave it out".to_owned(),
            ));
        }
        Ok(prompt(info))
    });
    let seeds = seeds.collect::<Result<Vec<_>, _>>()?;
    if seeds
        .iter()
        .any(|seed| matches!(seed.addr(), ConnectionAddr::TcpTls { .. }))
    {
        // Fails if the process has chosen one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Ok(Target { seeds, is_cluster })
}

/// Another node of the same cluster: same user, password and TLS.
pub(crate) fn sibling(of: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let addr = match of.addr() {
        ConnectionAddr::TcpTls {
            insecure, tls_params, ..
        } => ConnectionAddr::TcpTls {
            host: host.to_owned(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.to_owned(), port),
    };
    of.clone().set_addr(addr)
}

/// An address for people: what stands before the last `@`, and values in the query, may be secret.
pub(crate) fn shown(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let (has_user, rest) = rest.rsplit_once('@').map_or((false, rest), |(_, rest)| (true, rest));
    let (hosts, has_query) = rest
        .split_once(['?', '#'])
        .map_or((rest, false), |(hosts, _)| (hosts, true));
    let separator = if scheme.is_empty() { "" } else { "://" };
    let user = if has_user { "…@" } else { "" };
    let query = if has_query { "?…" } else { "" };
    format!(
        "{scheme}{separator}{user}{}{query}",
        hosts.chars().take(200).collect::<String>()
    )
}

/// Characters that would end the user's part of an address early.
fn escaped(user: &str) -> String {
    user.replace('/', "%2F")
        .replace('?', "%3F")
        .replace('#', "%23")
        .replace('@', "%40")
}

/// What a library error says, without its kind.
fn bare(error: &redis::RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_lowercase()
}

/// Small commands must not wait for company (Nagle), and a peer that vanished must be noticed by the idle, too.
fn prompt(info: ConnectionInfo) -> ConnectionInfo {
    info.set_tcp_settings(TcpSettings::default().set_nodelay(true))
}

/// Takes our parameters out of a query and gives back what the library understands.
fn take_parameters(query: &str, is_socket: bool, options: &mut Options) -> Result<String, String> {
    let mut left = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        match key {
            "wait_replicas" => {
                options.wait_replicas = value
                    .parse()
                    .map_err(|_| format!("wait_replicas={value:?} is not a number; for example wait_replicas=1"))?;
            }
            "wait_timeout_ms" => {
                let milliseconds = value.parse().ok().filter(|ms| *ms > 0);
                options.wait_timeout = milliseconds.map(Duration::from_millis).ok_or_else(|| {
                    format!(
                        "wait_timeout_ms={value:?} is not a number above 0 (0 would wait for ever); for example 1000"
                    )
                })?;
            }
            "db" | "user" | "pass" if is_socket => left.push(pair),
            _ => return Err(format!("has an unknown parameter {key:?}; known are {PARAMETERS}")),
        }
    }
    Ok(if left.is_empty() {
        String::new()
    } else {
        format!("?{}", left.join("&"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(url: &str) -> Vec<String> {
        let target = parse(url, &mut Options::default()).expect(url);
        target.seeds.iter().map(|seed| seed.addr().to_string()).collect()
    }

    #[test]
    fn address_of_every_scheme_is_read() {
        assert_eq!(addresses("redis://h:1/3"), ["h:1"]);
        assert_eq!(addresses("redis://[::1]:7/"), ["::1:7"]);
        assert_eq!(addresses("rediss://u:p@h"), ["h:6379"]);
        assert_eq!(addresses("redis://u:p?/#@h?wait_replicas=1"), ["h:6379"]);
        assert_eq!(addresses("redis+unix:///tmp/a.sock?db=1"), ["/tmp/a.sock"]);
        assert_eq!(addresses("redis+cluster://u:p%40@a:1,b:2,c/"), ["a:1", "b:2", "c:6379"]);
        let target = parse("rediss+cluster://u:p%40@a:1,b:2", &mut Options::default()).expect("two nodes");
        assert!(target.is_cluster);
        assert_eq!(target.seeds[1].redis_settings().password(), Some("p@"));
        assert!(target.seeds[1].tcp_settings().nodelay());
    }

    #[test]
    fn parameters_set_the_options_and_unknown_ones_are_refused() {
        let mut options = Options::default();
        parse("redis://h?wait_replicas=2&wait_timeout_ms=50", &mut options).expect("both are known");
        assert_eq!(
            (options.wait_replicas, options.wait_timeout),
            (2, Duration::from_millis(50))
        );
        for url in [
            "redis://h?wait_replica=2",
            "redis://h?wait_replicas=x",
            "redis://h?wait_timeout_ms=0",
            "h:1",
            "http://h",
        ] {
            assert!(parse(url, &mut options).is_err(), "{url}");
        }
    }

    #[test]
    fn password_is_in_no_error() {
        for url in [
            "redis://me:hunter2@",
            "redis://me:hunter2@h:port",
            "redis://:hunter2@h/x",
            "ftp://me:hunter2@h",
            "me:hunter2@h",
            "redis+cluster://me:hunter2@a:1,b:x",
            "redis+cluster://me:hunter2@a:1/4",
            "redis://me:hunter2?hunter2#hunter2/hunter2@h:x",
            "redis+unix:///s?pass=hunter2&x=1",
            "redis://h?pass=hunter2",
        ] {
            let error = parse(url, &mut Options::default()).err().expect(url);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
        }
    }
}

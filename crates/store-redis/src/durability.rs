//! What an operator should know: which server this is, and what a crash or a fail-over may lose.
//!
//! Its own file because it is about words. Redis keeps data as safe as it was told to, and the default is "not very";
//! an operator should hear once, at start, what that means for a grid. Invariant: every setting that can lose a page is
//! named with its value, and what could not be asked is said to be unknown.

use std::collections::HashMap;

use redis::{Cmd, RedisError, ServerErrorKind, Value};

use crate::{Options, link::Ask};

/// Streams trimmed by id (XTRIM MINID) came with this one.
const OLDEST: (u32, u32) = (6, 2);
const SETTINGS: [&str; 6] = [
    "appendonly",
    "appendfsync",
    "save",
    "maxmemory",
    "maxmemory-policy",
    "min-replicas-to-write",
];

/// Asks who the server is.
pub(crate) fn info() -> Cmd {
    redis::cmd("INFO")
}

/// Whether the server understood but will not say: managed ones rename or forbid commands.
pub(crate) fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm)
        || (error.kind() == redis::ErrorKind::Server(ServerErrorKind::ResponseError)
            && error
                .detail()
                .is_some_and(|detail| detail.to_lowercase().starts_with("unknown command")))
}

/// Whether this server can keep a journal; if not, why.
pub(crate) fn check_server(info: &str) -> Result<(), String> {
    let info = fields(info);
    let version = info.get("redis_version").copied().unwrap_or_default();
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // A server that does not say its version is asked by its deeds.
    if !version.is_empty() && found < OLDEST {
        return Err(format!(
            "is version {version}; {}.{} or later is needed",
            OLDEST.0, OLDEST.1
        ));
    }
    if info.get("role") == Some(&"slave") {
        let primary = [info.get("master_host"), info.get("master_port")].map(|part| part.copied().unwrap_or("?"));
        return Err(format!(
            "is a replica; write the address of its primary, {}:{}",
            primary[0], primary[1]
        ));
    }
    Ok(())
}

/// All that the description is made of, in one go: PING first, because the first answer decides about the call.
pub(crate) fn question() -> Ask {
    let mut ask = Ask::one(redis::cmd("PING")).and(info());
    for setting in SETTINGS {
        let mut get = redis::cmd("CONFIG");
        get.arg("GET").arg(setting);
        ask = ask.and(get);
    }
    ask
}

/// The description.
pub(crate) fn sentences(place: &str, is_cluster: bool, options: &Options, answers: Vec<Value>) -> String {
    let mut answers = answers.into_iter().skip(1);
    let info = match answers.next() {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    };
    let info = fields(&info);
    let settings: HashMap<&str, String> = SETTINGS
        .into_iter()
        .zip(answers)
        .filter_map(|(name, answer)| Some((name, setting(answer)?)))
        .collect();
    let version = info.get("redis_version").copied().unwrap_or("of an unknown version");
    let kind = if is_cluster { "Redis Cluster" } else { "Redis" };
    let replicas = info.get("connected_slaves").and_then(|count| count.parse().ok());
    let mut text = vec![format!(
        "{kind} {version}, primary {place}, keys {{{}}}:*.",
        options.prefix
    )];
    text.push(on_crash(&settings));
    text.extend(on_restart_with_replicas(&settings, replicas));
    text.push(on_failover(replicas, options));
    text.extend(on_memory(&settings));
    text.join(" ")
}

fn on_crash(settings: &HashMap<&str, String>) -> String {
    let Some(appendonly) = settings.get("appendonly") else {
        return "What a crash of the server may lose could not be told: it does not let us read its settings (CONFIG); \
                ask whoever runs it about append-only persistence."
            .to_owned();
    };
    if appendonly == "yes" {
        let fsync = settings.get("appendfsync").map_or("unknown", String::as_str);
        return match fsync {
            "always" => "appendonly yes, appendfsync always: a crash loses nothing that was acknowledged.".to_owned(),
            "everysec" => "appendonly yes, appendfsync everysec: a crash of the process loses nothing, a crash of the \
                           machine may lose the last second or two."
                .to_owned(),
            other => format!(
                "appendonly yes, appendfsync {other}: a crash of the process loses nothing, a crash of the machine may \
                 lose what the kernel had not written yet, commonly 30 seconds."
            ),
        };
    }
    let save = settings.get("save").map_or("", String::as_str);
    if save.is_empty() {
        "Warning: appendonly no and no snapshots: a restart of the server loses everything, sessions, locks, limits, API \
         keys and the archive; set `appendonly yes`."
            .to_owned()
    } else {
        format!(
            "Warning: appendonly no: a crash loses everything since the last snapshot (save {save:?}); set `appendonly yes`."
        )
    }
}

/// The trap of replicas behind a primary without a disk.
fn on_restart_with_replicas(settings: &HashMap<&str, String>, replicas: Option<u32>) -> Option<String> {
    let forgets = settings.get("appendonly").is_some_and(|value| value == "no")
        && settings.get("save").is_some_and(|value| value.is_empty());
    (forgets && replicas > Some(0)).then(|| {
        "Warning: a primary that restarts before its replicas have replaced it comes back empty, and they copy that."
            .to_owned()
    })
}

fn on_failover(replicas: Option<u32>, options: &Options) -> String {
    let wanted = options.wait_replicas;
    match replicas {
        None => "How many replicas it has could not be told.".to_owned(),
        Some(0) if wanted > 0 => format!(
            "Warning: wait_replicas={wanted}, but no replica is connected: nothing can be written until there is."
        ),
        Some(0) => "No replica: if it is lost, the grid has no store until it is back.".to_owned(),
        Some(count) if wanted == 0 => format!(
            "Replicas: {count}. A fail-over may lose the last moments before it, which every coordinator notices; \
             wait_replicas={count} in the address prevents that for a round trip per write."
        ),
        Some(count) if wanted < count => format!(
            "Replicas: {count}, wait_replicas={wanted}: a fail-over to a replica that had not confirmed may still lose \
             the last moments; wait_replicas={count} prevents that."
        ),
        Some(count) if wanted > count => format!(
            "Warning: wait_replicas={wanted}, but only {count} replicas are connected: nothing can be written until \
             there are more."
        ),
        Some(count) => {
            format!("Replicas: {count}, wait_replicas={wanted}: a fail-over loses nothing that was acknowledged.")
        }
    }
}

fn on_memory(settings: &HashMap<&str, String>) -> Option<String> {
    let policy = settings.get("maxmemory-policy")?;
    let has_limit = settings.get("maxmemory").is_some_and(|limit| limit != "0");
    // Our keys have no time to live, so only the policies over all keys touch them.
    if policy.starts_with("allkeys") {
        let when = if has_limit { "" } else { " (not yet: maxmemory is 0)" };
        return Some(format!(
            "Warning: maxmemory-policy {policy} may evict the grid's keys when memory is short{when}; set `maxmemory-policy \
             noeviction`."
        ));
    }
    None
}

/// `name:value` lines.
fn fields(info: &str) -> HashMap<&str, &str> {
    info.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .collect()
}

/// The value in an answer to CONFIG GET.
fn setting(answer: Value) -> Option<String> {
    let value = match answer {
        Value::Array(parts) => parts.into_iter().nth(1)?,
        Value::Map(pairs) => pairs.into_iter().next()?.1,
        _ => return None,
    };
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

//! The words of the commands that call a grid, with their help and examples.
//!
//! Its own file because it is the reference of the command line: what each does is in the files named after them.

use clap::{Arg, ArgAction, Command as Clap};

const CALLING: &str = "Where the grid is";

const SESSIONS: &str = "\
Examples:
  wharf sessions                                  what waits and runs
  wharf sessions list --history --reason browser_crashed
  wharf sessions create --operation test_run --description 'nightly' --idle-timeout 5m
  wharf sessions show ses_0198…
  wharf sessions end ses_0198… ses_0199…";
const POOL: &str = "\
Examples:
  wharf pool                                      counts, limits, who holds what since when
  wharf pool limit 20                             at most 20 sessions at once in the pool
  wharf pool limit 5 --operation scrape           at most 5 of them scrapes
  wharf pool limit none --operation scrape
  wharf pool recent --limit 20
  wharf pool cleanup --max-age 30m                end what runs for longer than half an hour";
const QUEUE: &str = "\
Examples:
  wharf queue                                     who waits, in the order of service
  wharf queue clear --operation scrape            send waiting scrapes away";
const LOCK: &str = "\
Examples:
  wharf lock take load-test --holder 'ci run 42' --ttl 30m --drain 2m
  wharf lock take nightly --holder ops --operations scrape,screenshot
  wharf lock renew load-test lck_… --ttl 30m
  wharf lock release load-test lck_…
  wharf lock list
  wharf lock force-unlock load-test               whoever holds it

`take` prints the token on standard output: TOKEN=$(wharf lock take …)";
const KEY: &str = "\
Examples:
  wharf key create ci --max-sessions 10           prints the key, once
  wharf key create ops --admin
  wharf key list
  wharf key limit key_0198… 20
  wharf key revoke key_0198…                      its sessions end

While no grid uses the store, these work on the store itself; otherwise through the grid, which may ask for an admin key
(--token or WHARF_TOKEN).";
const WORKERS: &str = "\
Examples:
  wharf workers                                   who offers slots, and how busy they are
  wharf workers list --pool gpu --json
  wharf workers drain wrk_0198…                   no more sessions; those it has may finish
  wharf workers drain wrk_0198… --wait 40s        answers when it is empty (a preStop hook)
  wharf workers remove wrk_0198…                  forget one that is drained, gone or lost
  wharf workers remove wrk_0198… --force          whatever it holds; its sessions end as `worker_lost`

`drain --wait` ends with 0 when the worker holds nothing any more, and with 1 when it still does.";
const EVENTS: &str = "\
Examples:
  wharf events                                    what happens from now on, until Ctrl-C
  wharf events --type session.ended,worker.       only these (beginnings of types)
  wharf events --session ses_0198… --after 0      one session's life, from the oldest event kept
  wharf events --after 1234 --json | jq .reason   for programs: one JSON object a line

Cut off, it comes back by itself, and goes on after the last event it printed.";
const TOP: &str = "\
Examples:
  wharf top
  wharf top --interval 500ms --url http://10.0.0.5:8080

Keys: q or Esc leaves, space pauses, s changes the order of the sessions.";

fn text(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn operand(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).required(true).value_name(name).help(help)
}

/// What every command that calls a grid takes.
fn calling(command: Clap) -> Clap {
    let url = text(
        "url",
        "URL",
        "The grid [default: http://127.0.0.1:8080] [env: WHARF_URL]",
    );
    let token = text("token", "KEY", "An API key [env: WHARF_TOKEN]");
    let json = Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("The grid's own answer, for programs");
    command.args([url, token, json].map(|arg| arg.global(true).help_heading(CALLING)))
}

fn pool() -> Arg {
    text("pool", "NAME", "The pool [default: the grid's own]")
}

fn operation() -> Arg {
    text("operation", "NAME", "Only this operation")
}

fn limit() -> Arg {
    text("limit", "N", "At most this many").value_parser(clap::value_parser!(u32).range(1..=1000))
}

/// The commands, without those that are a grid.
pub fn commands() -> Vec<Clap> {
    vec![
        calling(sessions()),
        calling(pool_command()),
        calling(queue()),
        calling(lock()),
        crate::cli::with_store(calling(key())),
        calling(workers()),
        calling(events()),
        calling(top()),
    ]
}

fn sessions() -> Clap {
    let list = Clap::new("list").about("What waits and runs, or what has ended").args([
        text("status", "LIST", "Only these states, separated by commas"),
        operation(),
        text("pool", "NAME", "Only this pool"),
        text("reason", "REASON", "Only those that ended so"),
        limit(),
        Arg::new("history")
            .long("history")
            .action(ArgAction::SetTrue)
            .help("What has ended, newest first"),
    ]);
    let create = Clap::new("create")
        .about("Make a session and print where to connect")
        .args([
            text("operation", "NAME", "What it is for"),
            text("description", "TEXT", "A line for people"),
            text("pool", "NAME", "The pool to run in"),
            text("browser", "KIND", "The kind of browser"),
            text("priority", "N", "Higher is served sooner, -100 to 100")
                .allow_hyphen_values(true)
                .value_parser(clap::value_parser!(i64).range(-100..=100)),
            text("data", "JSON", "Data of your own"),
            text("queue-timeout", "SPAN", "Longest wait for a slot"),
            text("idle-timeout", "SPAN", "Longest time without client traffic"),
            text("max-duration", "SPAN", "Longest life"),
        ]);
    Clap::new("sessions")
        .about("List, make and end sessions")
        .after_help(SESSIONS)
        .subcommand(list)
        .subcommand(create)
        .subcommand(Clap::new("show").about("One session").arg(operand("ID", "The session")))
        .subcommand(
            Clap::new("end")
                .about("End sessions")
                .arg(operand("ID", "The sessions").num_args(1..)),
        )
}

fn pool_command() -> Clap {
    let cleanup = Clap::new("cleanup")
        .about("Release, by force, what runs for too long")
        .args([
            text("pool", "NAME", "Only this pool"),
            text("max-age", "SPAN", "What is active for longer [default: 60m]"),
        ]);
    let set = Clap::new("limit")
        .about("Set or lift a limit; waiters that it held back are served at once")
        .args([
            operand("MAX", "How many sessions at once, or `none`"),
            pool(),
            text("operation", "NAME", "Of this operation instead of the whole pool"),
        ]);
    Clap::new("pool")
        .about("What runs and waits, limits, forced release")
        .after_help(POOL)
        .subcommand(
            Clap::new("status")
                .about("Counts, limits, who holds what since when")
                .arg(pool()),
        )
        .subcommand(
            Clap::new("recent")
                .about("What ended last")
                .args([text("pool", "NAME", "Only this pool"), limit()]),
        )
        .subcommand(cleanup)
        .subcommand(set)
}

fn queue() -> Clap {
    Clap::new("queue")
        .about("Who waits")
        .after_help(QUEUE)
        .subcommand(
            Clap::new("list")
                .about("Who waits, in the order of service")
                .args([pool(), limit()]),
        )
        .subcommand(
            Clap::new("clear")
                .about("Send waiters away")
                .args([text("pool", "NAME", "Only this pool"), operation()]),
        )
}

fn lock() -> Clap {
    let take = Clap::new("take").about("Take a lock and print its token").args([
        operand("NAME", "The lock"),
        text("holder", "WHO", "Who holds it, as others will see").required(true),
        text("description", "TEXT", "What for"),
        text("ttl", "SPAN", "How long it holds without renewal [default: 2h]"),
        text(
            "pools",
            "LIST",
            "The pools it covers, separated by commas [default: all]",
        ),
        text(
            "operations",
            "LIST",
            "The operations it covers, separated by commas [default: all]",
        ),
        text(
            "drain",
            "SPAN",
            "Wait until what runs under it has ended, at most this long",
        ),
    ]);
    let name = || operand("NAME", "The lock");
    let token = || operand("TOKEN", "As `take` printed it");
    Clap::new("lock")
        .about("Exclusive locks that keep work out")
        .after_help(LOCK)
        .subcommand(Clap::new("list").about("The locks that are held"))
        .subcommand(take)
        .subcommand(Clap::new("renew").about("Make it last longer").args([
            name(),
            token(),
            text("ttl", "SPAN", "How long from now [default: 2h]"),
        ]))
        .subcommand(Clap::new("release").about("Give it back").args([name(), token()]))
        .subcommand(
            Clap::new("force-unlock")
                .about("Take it away from whoever holds it")
                .arg(name()),
        )
}

fn key() -> Clap {
    let id = || operand("ID", "The key's id, as `list` prints it");
    let count = || clap::value_parser!(u64).range(0..=1_000_000);
    Clap::new("key")
        .about("API keys")
        .after_help(KEY)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Clap::new("create").about("Make a key and print it, once").args([
                operand("NAME", "What people call it"),
                Arg::new("admin")
                    .long("admin")
                    .action(ArgAction::SetTrue)
                    .help("It may do and see everything; otherwise its own sessions"),
                text(
                    "max-sessions",
                    "N",
                    "How many sessions it may hold, waiting ones included",
                )
                .value_parser(count()),
            ]),
        )
        .subcommand(Clap::new("list").about("All keys, without their secrets"))
        .subcommand(
            Clap::new("limit")
                .about("Change how many sessions a key may hold")
                .args([id(), operand("MAX", "How many, or `none`")]),
        )
        .subcommand(Clap::new("revoke").about("Revoke a key for ever").arg(id()))
}

fn workers() -> Clap {
    let id = || operand("ID", "The worker, as `list` prints it");
    Clap::new("workers")
        .about("Who offers slots; draining and forgetting workers")
        .after_help(WORKERS)
        .subcommand(Clap::new("list").about("The workers, given-up ones too").arg(text(
            "pool",
            "NAME",
            "Only this pool",
        )))
        .subcommand(
            Clap::new("drain")
                .about("No more sessions; those it has may finish")
                .args([
                    id(),
                    text("wait", "SPAN", "Wait until it holds none, at most this long"),
                ]),
        )
        .subcommand(
            Clap::new("remove").about("Forget a worker").args([
                id(),
                Arg::new("force")
                    .long("force")
                    .action(ArgAction::SetTrue)
                    .help("Although it serves or holds sessions; those end"),
            ]),
        )
}

fn events() -> Clap {
    Clap::new("events")
        .about("Follow what happens: sessions, workers, locks, the queue")
        .after_help(EVENTS)
        .args([
            text(
                "type",
                "LIST",
                "Only types that begin with one of these, separated by commas",
            ),
            text("session", "ID", "Only this session"),
            text("pool", "NAME", "Only this pool"),
            text(
                "after",
                "NUMBER",
                "Begin after this event; 0 is the oldest kept [default: what comes]",
            ),
        ])
}

fn top() -> Clap {
    Clap::new("top")
        .about("A live view in the terminal: sessions, queue, browsers, rates")
        .after_help(TOP)
        .args([
            text("interval", "SPAN", "How often to look [default: 1s]"),
            pool(),
            Arg::new("once")
                .long("once")
                .action(ArgAction::SetTrue)
                .help("Print one picture and leave; the default when output is not a terminal"),
        ])
}

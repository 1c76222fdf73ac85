//! The journal of a fleet on Redis: one stream of pages, written by server-side scripts.
//!
//! A crate of its own because it is the only one that knows Redis. It implements [`wharf_journal::Journal`], whose
//! contract is the specification; no rule of the grid is here.
//!
//! **One hash slot per grid.** All keys carry one hash tag (`{wharf}:head`, `{wharf}:pages`, …), so that a script may
//! touch all of them on a cluster. One slot per pool would not do: quotas of keys and exclusive locks span pools, and a
//! script cannot be atomic over two slots. Several grids share a cluster under several prefixes, and spread over it.
//!
//! **Exactly once.** The append script remembers each writer's last page and answers a second attempt with it. Every
//! other call may be repeated too, so connections are retried freely within the call's time.
//!
//! **Losing the tail.** Redis confirms before its replicas have heard, and before the disk has, unless told otherwise. A
//! fail-over may therefore lose the last pages. Every question carries the reader's position with its mark (and, where
//! this process has read it, the page's time); the script answers "rewound" if that very page is not there, whatever
//! has been written in its place since. With `wait_replicas` an acknowledged page is on that many replicas first.
//!
//! **While a slot is migrated** to another node, scripts over keys of which some have moved are refused by Redis
//! (TRYAGAIN): calls fail with `Unavailable` until the migration is done.
//!
//! Layout:
//! - [`RedisJournal`] (`journal.rs`): the port, call by call; `archive.rs`: its archive · [`Options`], [`ConnectError`]
//! - `url.rs`: what an address may say · `link.rs`: connections, time limits, redirections, retries
//! - `scripts.rs`, `lua/`: the scripts and the keys · `reply.rs`: their answers read
//! - `bell.rs`: the blocking reader that all waiters share · `durability.rs`: what a crash may lose, in sentences
#![forbid(unsafe_code)]

mod archive;
mod bell;
mod durability;
mod journal;
mod link;
mod options;
mod reply;
mod scripts;
mod url;

pub use self::{
    journal::RedisJournal,
    options::{ConnectError, Options},
};

//! The journal against a real PostgreSQL: order, exactly once, faults, checkpoint, archive.
//!
//! One binary; every test starts a server of its own (see `wharf_testkit::postgres`). Those that judge order and
//! exactly-once run a second time on a server whose default isolation is serializable, as CockroachDB's is.

mod archive;
mod conformance;
mod faults;
mod journal;
mod outages;
mod proxy;
mod start;
mod support;

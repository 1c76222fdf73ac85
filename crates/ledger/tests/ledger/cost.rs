//! What an operation costs, without a clock: how many heads of lines, workers and due times it looks at must not grow
//! with the number of waiters, sessions or workers.

use crate::kit::{Fleet, session};
use wharf_core::{BrowserKind, EndReason, Epoch, LimitScope, PoolName};
use wharf_ledger::{Answer, Op};
use wharf_store::Submitted;

const FEW: u128 = 10;
const MANY: u128 = 10_000;

/// Submits, activates, ends and vacates one session beside whatever waits and runs; what that looked at.
fn one_round(fleet: &mut Fleet, n: u128, browser: BrowserKind, operation: &str) -> u64 {
    let before = fleet.ledger.looks();
    let Answer::Submitted(Submitted::Placed(record)) = fleet.submit(n, browser, operation) else {
        panic!("expected {n} to be placed");
    };
    let (session, epoch) = (record.id, record.epoch);
    fleet.apply(Op::Activate { session, epoch });
    fleet.apply(Op::End {
        session,
        reason: EndReason::Released,
        detail: None,
    });
    fleet.apply(Op::Vacate { session, epoch });
    fleet.apply(Op::Sweep);
    fleet.apply(Op::Dispatch);
    fleet.ledger.looks() - before
}

/// A worker for Chromium whose slots are all taken, one for Firefox with room, and waiters for the first.
fn behind_a_full_class(waiters: u128) -> u64 {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    fleet.register(2, &[BrowserKind::Firefox], 2);
    fleet.place(1, "session");
    fleet.wait(100..100 + waiters, "session");
    one_round(&mut fleet, 50, BrowserKind::Firefox, "session")
}

/// The same when the slot of the full class comes free and is taken by the first waiter.
fn serving_the_first(waiters: u128) -> u64 {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    fleet.place(1, "session");
    fleet.wait(100..100 + waiters, "session");
    let before = fleet.ledger.looks();
    let answer = fleet.apply(Op::Vacate {
        session: session(1),
        epoch: Epoch(1),
    });
    assert!(matches!(answer, Answer::Freed(freed) if freed.placed.len() == 1));
    fleet.ledger.looks() - before
}

fn behind_a_limit(waiters: u128) -> u64 {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 9);
    fleet.apply(Op::SetLimit {
        pool: PoolName::default(),
        scope: LimitScope::Operation("scrape".parse().unwrap()),
        max: Some(0),
    });
    fleet.wait(100..100 + waiters, "scrape");
    one_round(&mut fleet, 50, BrowserKind::Chromium, "session")
}

fn behind_a_lock(waiters: u128) -> u64 {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    fleet.place(1, "session");
    fleet.wait(100..100 + waiters, "scrape");
    fleet.lock("exclusive", &["scrape"]);
    fleet.apply(Op::Vacate {
        session: session(1),
        epoch: Epoch(1),
    });
    one_round(&mut fleet, 50, BrowserKind::Chromium, "session")
}

fn among_workers(workers: u128) -> u64 {
    let mut fleet = Fleet::new();
    for n in 0..workers {
        fleet.register(n + 1, &[BrowserKind::Chromium], 1 + u32::try_from(n % 7).unwrap());
    }
    for n in 0..workers {
        fleet.place(1_000_000 + n, "session");
    }
    one_round(&mut fleet, 50, BrowserKind::Chromium, "session")
}

/// Sessions that have been touched stay filed where they were; a sweep that finds nothing due looks at none twice.
fn among_the_idle(sessions: u128) -> u64 {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 20_000);
    for n in 0..sessions {
        fleet.place(1_000 + n, "session");
        fleet.apply(Op::Activate {
            session: session(1_000 + n),
            epoch: Epoch(1),
        });
    }
    one_round(&mut fleet, 50, BrowserKind::Chromium, "session")
}

#[test]
fn ten_thousand_waiters_cost_what_ten_do() {
    for (name, cost) in [
        ("a full class", behind_a_full_class as fn(u128) -> u64),
        ("a slot that comes free", serving_the_first),
        ("a limit", behind_a_limit),
        ("a lock", behind_a_lock),
    ] {
        let (few, many) = (cost(FEW), cost(MANY));
        println!("{name}: {few} looks behind {FEW} waiters, {many} behind {MANY}");
        assert_eq!(few, many, "{name}");
        assert!(many < 20, "{name}: {many}");
    }
}

#[test]
fn a_thousand_workers_cost_what_ten_do() {
    let (few, many) = (among_workers(10), among_workers(1_000));
    println!("{few} looks among 10 workers, {many} among 1000");
    assert_eq!(few, many);
}

#[test]
fn ten_thousand_sessions_cost_what_ten_do() {
    let (few, many) = (among_the_idle(FEW), among_the_idle(MANY));
    println!("{few} looks among {FEW} sessions, {many} among {MANY}");
    assert_eq!(few, many);
}

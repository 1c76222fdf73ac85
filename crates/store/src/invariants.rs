//! I1-I8 as checks over a snapshot, for the conformance suite, end-to-end tests and chaos.
//!
//! Its own file because the checks must not share code with any engine: they look at what is there, nothing else.

use std::collections::{HashMap, HashSet};

use wharf_core::{LimitScope, Operation, PoolName, SessionState, WorkerState};

use crate::{LimitRecord, SessionRecord, Snapshot};

/// What is wrong with a snapshot, one line each; empty when all invariants hold.
pub fn violations(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    let sessions: HashMap<_, _> = snapshot.sessions.iter().map(|record| (record.id, record)).collect();
    let workers: HashMap<_, _> = snapshot.workers.iter().map(|record| (record.id, record)).collect();
    let mut held: HashMap<_, u32> = HashMap::new();
    let mut leased = HashSet::new();

    for (session, seat) in &snapshot.leases {
        *held.entry(seat.worker).or_default() += 1;
        if !leased.insert(*session) {
            found.push(format!("I1: {session} holds two leases"));
        }
        match sessions.get(session) {
            None => found.push(format!("I1: a lease of {session}, which does not exist")),
            Some(record) => {
                if record.state.seat().is_some_and(|own| own != *seat) {
                    found.push(format!(
                        "I1: {session} sits at {:?} but its lease says {seat:?}",
                        record.state
                    ));
                }
                if matches!(record.state, SessionState::Queued) {
                    found.push(format!("I1: {session} waits and holds a lease"));
                }
            }
        }
    }
    for (worker, count) in &held {
        match workers.get(worker) {
            None => found.push(format!("I1: {count} leases on {worker}, which does not exist")),
            Some(record) if *count > record.slots => {
                found.push(format!("I1: {worker} holds {count} leases on {} slots", record.slots));
            }
            Some(record) if !record.state.is_live() => {
                found.push(format!(
                    "I6: {worker} is {} and holds {count} leases",
                    record.state.as_str()
                ));
            }
            Some(record) if record.busy != *count => {
                found.push(format!(
                    "I1: {worker} counts {} busy and has {count} leases",
                    record.busy
                ));
            }
            Some(_) => {}
        }
    }
    for record in &snapshot.sessions {
        if record.state.seat().is_some() && !leased.contains(&record.id) {
            found.push(format!("I1: {} is {:?} without a lease", record.id, record.state));
        }
        if record.state.is_ended() != record.ended_at.is_some() {
            found.push(format!(
                "I4: {} is {:?} and ended at {:?}",
                record.id, record.state, record.ended_at
            ));
        }
    }
    found.extend(limits_kept(snapshot));
    found.extend(locks_kept(snapshot));
    found.extend(keys_counted(snapshot));
    found.extend(waiters_served(snapshot));
    found
}

/// The sessions that hold a lease.
fn leased(snapshot: &Snapshot) -> Vec<&SessionRecord> {
    let held: HashSet<_> = snapshot.leases.iter().map(|(session, _)| *session).collect();
    let records = snapshot.sessions.iter();
    records.filter(|record| held.contains(&record.id)).collect()
}

/// Whether a limit counts sessions of this pool and operation.
fn counts(limit: &LimitRecord, pool: &PoolName, operation: &Operation) -> bool {
    limit.pool == *pool
        && match &limit.scope {
            LimitScope::Pool => true,
            LimitScope::Operation(own) => own == operation,
        }
}

/// I1: what is above a limit was there before it. Exact: a placement leaves the count at or below the limit, and from
/// then on it rises by placements only.
fn limits_kept(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    let leased = leased(snapshot);
    for limit in &snapshot.limits {
        let counted = leased
            .iter()
            .filter(|record| counts(limit, &record.spec.pool, &record.spec.operation));
        let counted: Vec<_> = counted.collect();
        if counted.len() as u64 <= limit.max {
            continue;
        }
        for record in counted {
            if record.times.placed_at.is_some_and(|at| at > limit.set_at) {
                let (id, scope, max) = (record.id, &limit.scope, limit.max);
                found.push(format!(
                    "I1: {id} was placed beyond the limit {max} of {scope} in {}",
                    limit.pool
                ));
            }
        }
    }
    found
}

/// I5: nothing that a held lock covers was placed after it was taken.
fn locks_kept(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    for lock in snapshot.locks.iter().filter(|lock| lock.until > snapshot.at) {
        for record in leased(snapshot) {
            let is_covered = lock.cover.covers(&record.spec.pool, &record.spec.operation);
            if is_covered && record.times.placed_at.is_some_and(|at| at > lock.taken_at) {
                found.push(format!("I5: {} was placed under the lock {}", record.id, lock.name));
            }
        }
    }
    found
}

/// I1: a key's count is the number of its sessions that have not ended or still hold a slot; a revoked one has no live
/// session.
fn keys_counted(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    let leased: HashSet<_> = snapshot.leases.iter().map(|(session, _)| *session).collect();
    for key in &snapshot.keys {
        let own: Vec<_> = snapshot
            .sessions
            .iter()
            .filter(|record| record.owner == Some(key.id))
            .collect();
        let held = own
            .iter()
            .filter(|record| !record.state.is_ended() || leased.contains(&record.id))
            .count() as u64;
        if key.held != held {
            found.push(format!("I1: {} counts {} sessions and holds {held}", key.id, key.held));
        }
        if key.revoked_at.is_some() && own.iter().any(|record| !record.state.is_ended()) {
            found.push(format!("I4: {} is revoked and has a live session", key.id));
        }
    }
    found
}

/// Whether something other than the want of a slot holds a waiter back. A lock that has expired counts while it is
/// still there: time alone serves nobody, and the next step that dispatches forgets it.
pub(crate) fn is_held_back(snapshot: &Snapshot, waiter: &SessionRecord) -> bool {
    let (pool, operation) = (&waiter.spec.pool, &waiter.spec.operation);
    let leased = leased(snapshot);
    let is_full = |limit: &LimitRecord| {
        let counted = leased
            .iter()
            .filter(|record| counts(limit, &record.spec.pool, &record.spec.operation));
        counts(limit, pool, operation) && counted.count() as u64 >= limit.max
    };
    snapshot.locks.iter().any(|lock| lock.cover.covers(pool, operation)) || snapshot.limits.iter().any(is_full)
}

/// I2, I7: nobody waits while a slot that could serve them is free and neither limit nor lock keeps them from it.
fn waiters_served(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    for waiter in snapshot
        .sessions
        .iter()
        .filter(|record| record.state == SessionState::Queued)
    {
        if is_held_back(snapshot, waiter) {
            continue;
        }
        for worker in &snapshot.workers {
            let is_free = worker.state == WorkerState::Available
                && !worker.is_circuit_open
                && worker.busy < worker.slots
                && worker.pool == waiter.spec.pool
                && worker.browsers.contains(&waiter.spec.browser);
            // A worker that time has silenced but no sweep has seen yet is not a free slot.
            if is_free && snapshot.at.since(worker.heard_at) < std::time::Duration::from_secs(1) {
                found.push(format!(
                    "I7: {} waits although {} has a free slot",
                    waiter.id, worker.id
                ));
            }
        }
    }
    found
}

//! I1-I8 as checks over a snapshot, for the conformance suite, end-to-end tests and chaos.
//!
//! Its own file because the checks must not share code with any engine: they look at what is there, nothing else.

use std::collections::{HashMap, HashSet};

use wharf_core::{SessionState, WorkerState};

use crate::Snapshot;

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
    found.extend(waiters_served(snapshot));
    found
}

/// I2, I7: nobody waits while a slot that could serve them is free.
fn waiters_served(snapshot: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    for waiter in snapshot
        .sessions
        .iter()
        .filter(|record| record.state == SessionState::Queued)
    {
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

//! Which events a stream tells: what its caller may see, and what it asked for; and how each is written.
//!
//! Its own file because it is pure: the rule "a key sees its own sessions, and how many wait" is told here once for the
//! log of events, as `Caller` tells it for sessions.

use wharf_core::{KeyId, PoolName, SessionId};
use wharf_store::{Event, Happening, SessionChange};
use wharf_wire::events::{EVENT_NAMES, EventBody, block};

/// What a stream is about.
#[derive(Debug, Clone, Default)]
pub(super) struct Choice {
    /// The key whose affairs it tells; `None` means everybody's.
    pub only: Option<KeyId>,
    /// Beginnings of names; empty means all.
    pub types: Vec<String>,
    /// Only this session.
    pub session: Option<SessionId>,
    /// Only this pool.
    pub pool: Option<PoolName>,
}

/// An event with its text, written once for all streams that tell it.
#[derive(Debug)]
pub(super) struct Told {
    pub number: u64,
    pub what: Happening,
    pub text: String,
}

/// Beginnings of names, separated by commas; or what is wrong with them.
pub(super) fn types(text: &str) -> Result<Vec<String>, String> {
    let known = |part: &str| !part.is_empty() && EVENT_NAMES.iter().any(|name| name.starts_with(part));
    text.split(',')
        .map(str::trim)
        .map(|part| match known(part) {
            true => Ok(part.to_owned()),
            false => Err(format!(
                "`type`: no event begins with `{}`; there are {}",
                part.chars().take(40).collect::<String>(),
                EVENT_NAMES.join(", ")
            )),
        })
        .collect()
}

// === impl Choice ===

impl Choice {
    /// Whether this event is told.
    pub(super) fn tells(&self, what: &Happening) -> bool {
        self.may_see(what)
            && (self.types.is_empty() || self.types.iter().any(|part| what.name().starts_with(part.as_str())))
            && self.session.is_none_or(|wanted| session(what) == Some(wanted))
            && self.pool.as_ref().is_none_or(|wanted| pool(what) == Some(wanted))
    }

    fn may_see(&self, what: &Happening) -> bool {
        let Some(only) = self.only else { return true };
        match what {
            Happening::Session { .. } => what.owner() == Some(only),
            // How many wait is told to everybody, as `/v1/pool` does.
            Happening::Queue { .. } => true,
            Happening::Worker { .. } | Happening::Lock { .. } => false,
        }
    }
}

fn session(what: &Happening) -> Option<SessionId> {
    match what {
        Happening::Session { session, .. } => Some(*session),
        _ => None,
    }
}

fn pool(what: &Happening) -> Option<&PoolName> {
    match what {
        Happening::Session { pool, .. } | Happening::Worker { pool, .. } | Happening::Queue { pool, .. } => Some(pool),
        Happening::Lock { .. } => None,
    }
}

// === impl Told ===

impl Told {
    pub(super) fn new(event: Event) -> Self {
        let body = shape(&event);
        // Bodies of names, numbers and texts are always JSON.
        let data = serde_json::to_string(&body).unwrap_or_default();
        Self {
            number: event.number,
            text: block(event.number, &body.kind, &data),
            what: event.what,
        }
    }
}

/// An event as it is told.
fn shape(event: &Event) -> EventBody {
    let empty = EventBody {
        id: event.number,
        at: event.at,
        kind: event.what.name().to_owned(),
        session: None,
        pool: pool(&event.what).cloned(),
        operation: None,
        worker: None,
        reason: None,
        key: event.what.owner(),
        lock: None,
        holder: None,
        waiting: None,
    };
    match &event.what {
        Happening::Session {
            session,
            operation,
            worker,
            change,
            ..
        } => EventBody {
            session: Some(*session),
            operation: Some(operation.clone()),
            worker: *worker,
            reason: match change {
                SessionChange::Ended(reason) => Some(*reason),
                _ => None,
            },
            ..empty
        },
        Happening::Worker { worker, .. } => EventBody {
            worker: Some(*worker),
            ..empty
        },
        Happening::Lock { name, holder, .. } => EventBody {
            lock: Some(name.clone()),
            holder: Some(holder.clone()),
            ..empty
        },
        Happening::Queue { waiting, .. } => EventBody {
            waiting: Some(*waiting),
            ..empty
        },
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use uuid::Uuid;
    use wharf_core::{EndReason, LockName, Operation, Timestamp, WorkerId};
    use wharf_store::{LockChange, WorkerChange};

    use super::*;

    pub(in crate::fronts::events) fn key(n: u128) -> KeyId {
        KeyId::from_uuid(Uuid::from_u128(n))
    }

    fn ended(session: u128, owner: Option<KeyId>) -> Happening {
        Happening::Session {
            session: SessionId::from_uuid(Uuid::from_u128(session)),
            pool: PoolName::default(),
            operation: Operation::default(),
            owner,
            worker: Some(WorkerId::from_uuid(Uuid::nil())),
            change: SessionChange::Ended(EndReason::Released),
        }
    }

    fn worker(change: WorkerChange) -> Happening {
        Happening::Worker {
            worker: WorkerId::from_uuid(Uuid::nil()),
            pool: "other".parse().unwrap(),
            change,
        }
    }

    fn lock(change: LockChange) -> Happening {
        Happening::Lock {
            name: LockName::default(),
            holder: "me\nand \u{1b}you".to_owned(),
            owner: Some(key(1)),
            change,
        }
    }

    fn queue() -> Happening {
        Happening::Queue {
            pool: PoolName::default(),
            waiting: 4,
        }
    }

    fn all() -> Vec<Happening> {
        let mut all = vec![queue()];
        for change in [
            SessionChange::Queued,
            SessionChange::Placed,
            SessionChange::Active,
            SessionChange::Ended(EndReason::Killed),
        ] {
            let mut one = ended(1, Some(key(1)));
            if let Happening::Session { change: of, .. } = &mut one {
                *of = change;
            }
            all.push(one);
        }
        use LockChange::{Acquired, Expired, Forced, Released, Renewed};
        use WorkerChange::{Available, CircuitClosed, CircuitOpened, Draining, Gone, Lost, Registered, Removed};
        all.extend([Acquired, Renewed, Released, Forced, Expired].map(lock));
        all.extend(
            [
                Registered,
                Available,
                CircuitOpened,
                CircuitClosed,
                Draining,
                Lost,
                Gone,
                Removed,
            ]
            .map(worker),
        );
        all
    }

    #[test]
    fn every_event_has_a_documented_name() {
        let names: BTreeSet<_> = all().iter().map(Happening::name).collect();
        assert_eq!(names, EVENT_NAMES.iter().copied().collect());
    }

    #[test]
    fn key_sees_its_own_sessions_and_how_many_wait() {
        let choice = Choice {
            only: Some(key(1)),
            ..Choice::default()
        };
        assert!(choice.tells(&ended(1, Some(key(1)))) && choice.tells(&queue()));
        assert!(!choice.tells(&ended(1, Some(key(2)))) && !choice.tells(&ended(1, None)));
        // Its own locks neither: they are an admin's to take.
        assert!(!choice.tells(&lock(LockChange::Acquired)) && !choice.tells(&worker(WorkerChange::Lost)));
        let everybody = Choice::default();
        assert!(all().iter().all(|what| everybody.tells(what)));
    }

    #[test]
    fn filters_are_beginnings_of_names_a_session_and_a_pool() {
        let only = |types_of: &str| Choice {
            types: types(types_of).unwrap(),
            ..Choice::default()
        };
        let told = |choice: &Choice| all().iter().filter(|what| choice.tells(what)).count();
        assert_eq!(told(&only("session.")), 4);
        assert_eq!(told(&only("session.,worker.lost")), 5);
        assert_eq!(told(&only("queue.changed, lock")), 6);
        let session = Choice {
            session: Some(SessionId::from_uuid(Uuid::from_u128(1))),
            ..Choice::default()
        };
        assert_eq!(told(&session), 4);
        assert!(!session.tells(&ended(2, None)));
        let pool = Choice {
            pool: Some("other".parse().unwrap()),
            ..Choice::default()
        };
        assert_eq!(told(&pool), 8, "the workers' events, and no lock's");
        for wrong in ["", "session.,", "sessions", "gap", "session.ended2", ","] {
            let problem = types(wrong).unwrap_err();
            assert!(
                problem.contains("`type`") && problem.contains("session.queued"),
                "{problem}"
            );
        }
    }

    #[test]
    fn event_is_one_block_whatever_people_wrote_into_it() {
        for (number, what) in (1..).zip(all()) {
            let at = Timestamp::from_micros(0);
            let name = what.name();
            let told = Told::new(Event { number, at, what });
            let lines: Vec<_> = told.text.split('\n').collect();
            assert_eq!(lines.len(), 5, "{}", told.text);
            assert_eq!(lines[0], format!("id: {number}"));
            assert_eq!(lines[1], format!("event: {name}"));
            let body: EventBody = serde_json::from_str(lines[2].strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!((body.id, body.kind.as_str()), (number, name));
            assert!(!told.text.contains('\r'));
        }
    }
}

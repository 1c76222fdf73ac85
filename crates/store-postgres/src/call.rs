//! One call: attempts until one is answered or the time is up.
//!
//! Its own file because every call of the port is bounded and retried by the same rules. An attempt is a function of a
//! connection that gives it back; a call that is dropped, or whose time is up, drops the connection with the attempt.

use std::{future::Future, time::Duration};

use sqlx::PgConnection;
use tokio::time::{Instant, sleep_until, timeout_at};
use wharf_journal::JournalError;

use crate::{
    PostgresJournal,
    failure::{self, Failure, Meaning},
    lane::{Lane, Taken},
};

/// The first pause after a conflict: about as long as the other's statement takes.
const CONFLICT_PAUSE: Duration = Duration::from_millis(2);
/// The first pause after a refused connection: a server that restarts needs some hundred milliseconds.
const LOST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// What an attempt gives back.
pub(crate) type Attempted<T> = (PgConnection, Result<T, Failure>);

/// The pauses between attempts.
struct Pace {
    deadline: Instant,
    attempts: u32,
    last: Option<String>,
}

impl PostgresJournal {
    /// Runs `attempt` until it succeeds, within the budget. `what` completes "could not …".
    pub(crate) async fn call<T, F, A>(&self, lane: &Lane, what: &str, attempt: F) -> Result<T, JournalError>
    where
        F: Fn(PgConnection) -> A,
        A: Future<Output = Attempted<T>>,
    {
        let mut pace = Pace {
            deadline: Instant::now() + self.budget,
            attempts: 0,
            last: None,
        };
        loop {
            let Ok(taken) = timeout_at(pace.deadline, lane.take()).await else {
                return Err(self.unavailable(what, &pace));
            };
            let Taken {
                connection,
                is_fresh,
                permit,
            } = match taken {
                Ok(taken) => taken,
                Err(error) => {
                    self.judge(what, &error)?;
                    pace.last = Some(failure::text(&error));
                    pace.pause(LOST_PAUSE).await;
                    continue;
                }
            };
            let Ok((connection, outcome)) = timeout_at(pace.deadline, attempt(connection)).await else {
                return Err(self.unavailable(what, &pace));
            };
            let error = match outcome {
                Ok(value) => {
                    lane.give_back(connection);
                    return Ok(value);
                }
                Err(Failure::Answer(answer)) => {
                    lane.give_back(connection);
                    return Err(answer);
                }
                Err(Failure::Again) => {
                    lane.give_back(connection);
                    drop(permit);
                    pace.pause(CONFLICT_PAUSE).await;
                    continue;
                }
                Err(Failure::Sql(error)) => error,
            };
            let meaning = self.judge(what, &error)?;
            pace.last = Some(failure::text(&error));
            if meaning == Meaning::Conflict {
                lane.give_back(connection);
                drop(permit);
                pace.pause(CONFLICT_PAUSE).await;
            } else if is_fresh {
                drop((connection, permit));
                pace.pause(LOST_PAUSE).await;
            } else {
                // It had been idle and may have died long ago, with a server that is up again: at once, on a new one.
                drop((connection, permit));
                lane.drop_idle();
                pace.attempts += 1;
            }
        }
    }

    /// Whether another attempt makes sense.
    fn judge(&self, what: &str, error: &sqlx::Error) -> Result<Meaning, JournalError> {
        let meaning = Meaning::of(error);
        match meaning {
            Meaning::Conflict | Meaning::Lost => Ok(meaning),
            Meaning::Closed => Err(JournalError::Unavailable(format!(
                "{}: the journal was closed",
                self.address
            ))),
            Meaning::Duplicate | Meaning::Wrong => Err(JournalError::Corrupt(format!(
                "{}: could not {what}: {}",
                self.address,
                failure::text(error)
            ))),
        }
    }

    fn unavailable(&self, what: &str, pace: &Pace) -> JournalError {
        let reason = pace.last.as_deref().unwrap_or("no answer");
        JournalError::Unavailable(format!(
            "{}: could not {what} within {} s: {reason}",
            self.address,
            self.budget.as_secs_f32()
        ))
    }
}

// === impl Pace ===

impl Pace {
    /// Twice as long each time, half of it at random so that those who collided do not meet again; never beyond the
    /// deadline, where the next attempt finds its time up.
    async fn pause(&mut self, first: Duration) {
        let doubled = first.saturating_mul(1 << self.attempts.min(8)).min(LONGEST_PAUSE);
        self.attempts += 1;
        let pause = doubled.mul_f64(rand::random_range(0.5..1.5));
        sleep_until((Instant::now() + pause).min(self.deadline)).await;
    }
}

//! The port, call by call.
//!
//! Its own file because this is where the contract meets the scripts. Invariant: what a script answered is checked
//! before it is passed on: pages follow each other, and the last page of an append is the writer's own.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use redis::{Cmd, Value};
use wharf_core::{SessionId, Timestamp};
use wharf_journal::{ArchiveQuery, ArchiveRow, Checkpoint, Draft, Journal, JournalError, Page, Position, Tail};

use crate::{
    ConnectError, Options,
    bell::Bell,
    durability,
    link::{Ask, Home, Lane, LinkError},
    reply::{accepted, check_order, corrupt, number_of, pages, text, time, writer},
    scripts::{APPEND, KEEP, Keys, READ},
    url,
};

/// A writer that has been silent for so long will not try an append again.
const FORGET_WRITERS_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Of how many answers the end is remembered. A caller stands at the end of the last one, or of one of those that came
/// in while it applied it.
const REMEMBERED: usize = 32;

/// The journal on Redis.
pub struct RedisJournal {
    pub(crate) keys: Keys,
    pub(crate) options: Options,
    home: Arc<Home>,
    /// Appends, alone: WAIT blocks the connection it is sent on.
    append: Lane,
    read: Lane,
    /// What is large or may take long: images, the archive.
    pub(crate) bulk: Lane,
    bell: Bell,
    /// The times of pages that were handed out, see [`RedisJournal::args`].
    seen: Mutex<VecDeque<(u64, Timestamp)>>,
}

// === impl RedisJournal ===

impl RedisJournal {
    /// Opens the journal at an address.
    ///
    /// # Errors
    /// If the address makes no sense, nobody answers there, or the server is of no use.
    pub async fn connect(url: &str, mut options: Options) -> Result<Self, ConnectError> {
        options.check()?;
        let target = url::parse(url, &mut options)?;
        let keys = Keys::new(&options.prefix);
        let home = Arc::new(Home::new(target, keys.slot(), options.connect_timeout));
        let lane = || Lane::new(Arc::clone(&home));
        let journal = Self {
            append: lane(),
            read: lane(),
            bulk: lane(),
            bell: Bell::new(lane(), keys.bell().to_owned(), options.response_timeout),
            home,
            keys,
            options,
            seen: Mutex::default(),
        };
        journal.greet().await.map_err(|error| journal.explain(&error))?;
        Ok(journal)
    }

    /// Says what an append is said to be by the replicas.
    fn wait_for_replicas(&self) -> Option<Cmd> {
        let replicas = self.options.wait_replicas;
        (replicas > 0).then(|| {
            let mut wait = redis::cmd("WAIT");
            // 0 would mean for ever.
            wait.arg(replicas)
                .arg(self.options.wait_timeout.as_millis().max(1).to_string());
            wait
        })
    }

    /// A position as the scripts take it: place, mark, and the page's time if this process was told it. The mark alone
    /// would not tell a page from the same draft appended again after the first was lost, which has another time; a
    /// replica that applied the first would differ from all others for good.
    fn args(&self, call: &mut Cmd, position: Position) {
        call.arg(position.seq);
        match position.mark {
            Some((writer, number)) => call.arg(writer.0.to_string()).arg(number),
            None => call.arg("").arg(""),
        };
        let seen = self.seen.lock();
        match seen.iter().rev().find(|(seq, _)| *seq == position.seq) {
            Some((_, at)) => call.arg(at.as_micros()),
            None => call.arg(""),
        };
    }

    fn remember(&self, seq: u64, at: Timestamp) {
        let mut seen = self.seen.lock();
        if seen.back() != Some(&(seq, at)) {
            seen.push_back((seq, at));
        }
        if seen.len() > REMEMBERED {
            seen.pop_front();
        }
    }

    /// Four times the usual: what moves an image or a list.
    pub(crate) fn long(&self) -> Duration {
        self.options.response_timeout * 4
    }
}

/// Opening.
impl RedisJournal {
    /// Checks that the server is there, is a primary, and lets us run scripts on our keys.
    async fn greet(&self) -> Result<(), Greeting> {
        let budget = self.options.response_timeout;
        let info = self.bulk.call(&Ask::one(durability::info()), budget).await;
        // A server that forbids INFO may still keep a journal.
        if let Some(Value::BulkString(info)) =
            info.map_or_else(Greeting::unless_forbidden, |values| Ok(values.into_iter().next()))?
        {
            durability::check_server(&String::from_utf8_lossy(&info)).map_err(Greeting::Unfit)?;
        }
        let mut call = READ.call(&self.keys.journal);
        self.args(&mut call, Position { seq: 0, mark: None });
        call.arg(0);
        self.read.call(&Ask::script(&READ, call), budget).await?;
        Ok(())
    }

    fn explain(&self, error: &Greeting) -> ConnectError {
        let address = self.home.place();
        match error {
            Greeting::Unfit(problem) => ConnectError::Refused {
                address,
                problem: problem.clone(),
            },
            Greeting::Link(error) if error.is_unauthorized() => {
                let problem = "does not take this user and password; write them as redis://user:password@host:port, \
                               special characters as %XX"
                    .to_owned();
                ConnectError::Refused { address, problem }
            }
            Greeting::Link(error) if error.is_moved() => {
                let problem = "is one node of a cluster; write redis+cluster:// with some of its nodes".to_owned();
                ConnectError::Refused { address, problem }
            }
            Greeting::Link(LinkError::Unavailable { at, what }) => ConnectError::Unreachable {
                address: at.clone(),
                problem: what.clone(),
            },
            Greeting::Link(LinkError::Refused { at, error }) => {
                let hint = if self.home.is_cluster() && error.to_string().contains("cluster support disabled") {
                    "; it is not a cluster: write redis://"
                } else {
                    ""
                };
                ConnectError::Refused {
                    address: at.clone(),
                    problem: format!("{error}{hint}"),
                }
            }
        }
    }
}

/// What went wrong while opening.
enum Greeting {
    Link(LinkError),
    Unfit(String),
}

impl Greeting {
    fn unless_forbidden(error: LinkError) -> Result<Option<Value>, Self> {
        match error {
            LinkError::Refused { error, .. } if durability::is_forbidden(&error) => Ok(None),
            other => Err(Self::Link(other)),
        }
    }
}

impl From<LinkError> for Greeting {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl fmt::Debug for RedisJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisJournal")
            .field("at", &self.home.place())
            .field("options", &self.options)
            .finish()
    }
}

#[async_trait]
impl Journal for RedisJournal {
    async fn append(&self, after: Position, draft: &Draft) -> Result<Tail, JournalError> {
        let wait = self.wait_for_replicas();
        let mut call = APPEND.call(&self.keys.journal);
        self.args(&mut call, after);
        call.arg(draft.writer.0.to_string()).arg(draft.number).arg(&draft.body);
        match draft.at {
            Some(at) => call.arg(at.as_micros()),
            None => call.arg(""),
        };
        call.arg(u8::from(wait.is_some()));
        let mut ask = Ask::script(&APPEND, call);
        let mut budget = self.options.response_timeout;
        if let Some(wait) = wait {
            ask = ask.and(wait);
            budget += self.options.wait_timeout;
        }
        let mut values = self.append.call(&ask, budget).await?.into_iter();
        let answer = accepted(values.next().unwrap_or_default(), after.seq, self.keys.pages())?;
        let tail = self.appended(answer, after, draft)?;
        if let Some(confirmed) = values.next() {
            self.check_confirmed(confirmed)?;
        }
        Ok(tail)
    }

    async fn read(&self, after: Position, limit: u32) -> Result<Tail, JournalError> {
        let mut call = READ.call(&self.keys.journal);
        self.args(&mut call, after);
        call.arg(limit);
        let values = self
            .read
            .call(&Ask::script(&READ, call), self.options.response_timeout)
            .await?;
        let value = values.into_iter().next().unwrap_or_default();
        let [now, found, tip] = parts(accepted(value, after.seq, self.keys.pages())?)?;
        let (pages, tip) = (pages(found)?, number_of(tip)?);
        check_order(&pages, after.seq)?;
        let end = pages.last().map_or(after.seq, |page| page.seq);
        if end < tip && pages.len() < limit as usize {
            return Err(corrupt(format_args!(
                "page {} of {} is missing",
                end + 1,
                self.keys.pages()
            )));
        }
        if let Some(last) = pages.last() {
            self.remember(last.seq, last.at);
        }
        Ok(Tail {
            is_partial: end < tip,
            now: time(now)?,
            pages,
        })
    }

    async fn wait(&self, after: u64) {
        self.bell.wait(after).await;
    }

    async fn checkpoint(&self) -> Result<Option<Checkpoint>, JournalError> {
        let mut get = redis::cmd("HMGET");
        get.arg(self.keys.checkpoint())
            .arg(&["seq", "writer", "number", "at", "image"]);
        let values = self.bulk.call(&Ask::one(get), self.long()).await?;
        let [seq, by, number, at, image] = parts(crate::reply::list(values.into_iter().next().unwrap_or_default())?)?;
        if seq == Value::Nil {
            return Ok(None);
        }
        let (seq, at) = (number_of(seq)?, time(at)?);
        let mark = if seq == 0 {
            None
        } else {
            Some((writer(by)?, number_of(number)?))
        };
        self.remember(seq, at);
        Ok(Some(Checkpoint {
            position: Position { seq, mark },
            at,
            image: text(image)?,
        }))
    }

    async fn keep(&self, checkpoint: &Checkpoint, trim_to: u64) -> Result<(), JournalError> {
        let position = checkpoint.position;
        let mut call = KEEP.call(&self.keys.journal);
        call.arg(position.seq);
        match position.mark {
            Some((writer, number)) => call.arg(writer.0.to_string()).arg(number),
            None => call.arg("").arg(""),
        };
        call.arg(checkpoint.at.as_micros()).arg(&checkpoint.image).arg(trim_to);
        call.arg(FORGET_WRITERS_AFTER.as_micros().to_string());
        let values = self.bulk.call(&Ask::script(&KEEP, call), self.long()).await?;
        accepted(
            values.into_iter().next().unwrap_or_default(),
            position.seq,
            self.keys.pages(),
        )?;
        Ok(())
    }

    async fn archive(&self, rows: &[ArchiveRow]) -> Result<(), JournalError> {
        self.archive_add(rows).await
    }

    async fn archived(&self, session: SessionId) -> Result<Option<String>, JournalError> {
        self.archive_get(session).await
    }

    async fn archived_list(&self, query: &ArchiveQuery) -> Result<Vec<String>, JournalError> {
        self.archive_list(query).await
    }

    async fn prune_archive(&self, ended_by: Timestamp) -> Result<u64, JournalError> {
        self.archive_prune(ended_by).await
    }

    async fn describe(&self) -> Result<String, JournalError> {
        let values = self
            .bulk
            .call(&durability::question(), self.options.response_timeout)
            .await?;
        let place = self.home.place();
        Ok(durability::sentences(
            &place,
            self.home.is_cluster(),
            &self.options,
            values,
        ))
    }

    async fn close(&self) {
        self.bell.close().await;
        for lane in [&self.append, &self.read, &self.bulk] {
            lane.close().await;
        }
    }
}

/// Reading what the append script answers.
impl RedisJournal {
    fn appended(&self, answer: Vec<Value>, after: Position, draft: &Draft) -> Result<Tail, JournalError> {
        let [now, missed, seq, at] = parts(answer)?;
        let (seq, at) = (number_of(seq)?, time(at)?);
        let mut pages = pages(missed)?;
        if pages.last().is_none_or(|page| page.seq != seq) {
            // The page itself is not sent back; the writer has its text.
            let body = draft.body.clone();
            pages.push(Page {
                seq,
                at,
                writer: draft.writer,
                number: draft.number,
                body,
            });
        }
        // A second attempt from beyond its own page is answered with that page alone.
        check_order(&pages, after.seq.min(seq - 1))?;
        self.remember(seq, at);
        Ok(Tail {
            pages,
            is_partial: false,
            now: time(now)?,
        })
    }

    fn check_confirmed(&self, confirmed: Value) -> Result<(), JournalError> {
        let wanted = u64::from(self.options.wait_replicas);
        let unavailable = |what: String| {
            Err(JournalError::Unavailable(format!(
                "redis at {} {what}",
                self.home.place()
            )))
        };
        match confirmed {
            Value::Int(count) if u64::try_from(count).is_ok_and(|count| count >= wanted) => Ok(()),
            Value::Int(count) => unavailable(format!(
                "has the page, but only {count} of {wanted} replicas confirmed it within {:?} (wait_replicas)",
                self.options.wait_timeout
            )),
            Value::ServerError(error) => unavailable(format!("has the page, but refuses WAIT: {error:?}")),
            other => Err(corrupt(format_args!("WAIT was answered with {other:?}"))),
        }
    }
}

/// Exactly so many parts.
fn parts<const N: usize>(values: Vec<Value>) -> Result<[Value; N], JournalError> {
    <[Value; N]>::try_from(values).map_err(|values| corrupt(format_args!("{} parts instead of {N}", values.len())))
}

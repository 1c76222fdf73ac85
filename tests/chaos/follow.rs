//! Followers of `/v1/events`: one per coordinator, each going on at the next coordinator when its stream breaks.
//!
//! Its own file because the stream is a promise of its own: numbers without gap or repeat, and the same words at every
//! coordinator. What they hear is also the proof that each session ended exactly once.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_testkit::{EventStream, Http};

use crate::{
    book::{Book, Sort},
    client::World,
};

/// A coordinator that is held takes connections and says nothing.
const OPENING: Duration = Duration::from_secs(5);
/// A stream that is quiet for so long is left for another.
const QUIET: Duration = Duration::from_secs(10);

/// Everything that was told, by number.
#[derive(Default)]
pub struct Heard(Mutex<Log>);

#[derive(Default)]
struct Log {
    words: HashMap<u64, String>,
    /// How often each session was told to have ended.
    ends: BTreeMap<String, u32>,
    newest: u64,
}

// === impl Heard ===

impl Heard {
    pub fn newest(&self) -> u64 {
        self.0.lock().newest
    }

    pub fn ends_of(&self, session: &str) -> u32 {
        self.0.lock().ends.get(session).copied().unwrap_or(0)
    }

    /// Takes one event; two followers must hear the same under one number.
    fn take(&self, number: u64, data: &str, book: &Book) {
        let mut log = self.0.lock();
        log.newest = log.newest.max(number);
        match log.words.get(&number) {
            Some(known) if known != data => {
                let text = format!("event {number} is {known} at one coordinator and {data} at another");
                drop(log);
                book.finding(Sort::Events, text);
            }
            Some(_) => {}
            None => {
                let event: Value = serde_json::from_str(data).unwrap_or_default();
                if event["type"] == "session.ended" {
                    let session = event["session"].as_str().unwrap_or_default().to_owned();
                    *log.ends.entry(session).or_default() += 1;
                }
                log.words.insert(number, data.to_owned());
                drop(log);
                book.write(|pages| pages.events += 1);
            }
        }
    }
}

/// Follows until told to stop; how far it got.
pub async fn follow(world: Arc<World>, heard: Arc<Heard>, first: usize, stop: CancellationToken) -> u64 {
    let (mut last, mut at) = (0, first);
    while !stop.is_cancelled() {
        let addr = world.coordinators[at % world.coordinators.len()];
        let http = Http::new(addr).header("last-event-id", &last.to_string());
        let listening = async {
            if let Ok(Ok(mut stream)) = timeout(OPENING, http.events("/v1/events?after=0")).await {
                listen(&world.book, &heard, &mut stream, &mut last).await;
            }
        };
        tokio::select! {
            () = listening => {}
            () = stop.cancelled() => {}
        }
        at += 1;
        sleep(Duration::from_millis(200)).await;
    }
    last
}

/// Until the stream breaks, says goodbye or is quiet.
async fn listen(book: &Book, heard: &Heard, stream: &mut EventStream, last: &mut u64) {
    while let Ok(Some(event)) = stream.next_within(QUIET).await {
        let number: u64 = event.id.parse().unwrap_or(0);
        match event.event.as_str() {
            "end" => return,
            "gap" | "slow" => {
                book.finding(Sort::Events, format!("after {last}: {} {}", event.event, event.data));
                *last = number.max(*last);
                return;
            }
            _ => {}
        }
        if number != *last + 1 {
            book.finding(Sort::Events, format!("after {last} came {number}: {}", event.data));
        }
        *last = number;
        heard.take(number, &event.data, book);
    }
}

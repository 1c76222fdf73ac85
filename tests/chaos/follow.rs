//! Followers of `/v1/events`: one per coordinator, each going on at the next coordinator when its stream breaks.
//!
//! Its own file because the stream is a promise of its own: numbers without gap or repeat, and the same words at every
//! coordinator. What they hear is also the proof that each session ended exactly once.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

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

/// The newest words that are kept to be compared: twice as many as the grid keeps (about 10,000), so that nobody can be told
/// an older one. A run of an hour has ten times as many.
const COMPARED: usize = 20_000;

/// Everything that was told, by number.
#[derive(Default)]
pub struct Heard(Mutex<Log>);

#[derive(Default)]
struct Log {
    /// The newest.
    words: BTreeMap<u64, String>,
    /// Those up to here are no longer among them.
    forgotten: u64,
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

    /// How many sessions were told to have ended.
    pub fn sessions(&self) -> usize {
        self.0.lock().ends.len()
    }

    /// Takes one event; two followers must hear the same under one number.
    fn take(&self, number: u64, data: &str, book: &Book) {
        let mut log = self.0.lock();
        log.newest = log.newest.max(number);
        match log.words.get(&number) {
            None if number <= log.forgotten => {}
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
                while log.words.len() > COMPARED {
                    log.forgotten = log.words.pop_first().map_or(log.forgotten, |(oldest, _)| oldest);
                }
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
        let mut http = Http::new(addr);
        // Who has heard nothing begins with the oldest event that is kept, whichever that is; who has, exactly after it.
        if last > 0 {
            http = http.header("last-event-id", &last.to_string());
        }
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
            // Its own stream goes on from the last event that it heard, seconds ago: that is kept.
            "gap" | "slow" => {
                book.finding(Sort::Events, format!("after {last}: {} {}", event.event, event.data));
                *last = number.max(*last);
                return;
            }
            _ => {}
        }
        if *last > 0 && number != *last + 1 {
            book.finding(Sort::Events, format!("after {last} came {number}: {}", event.data));
        }
        *last = number;
        heard.take(number, &event.data, book);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Means;

    #[test]
    fn words_are_compared_and_the_oldest_forgotten() {
        let (heard, book) = (Heard::default(), Book::new(Means::Proxies, false));
        let last = COMPARED as u64 + 10;
        for number in 1..=last {
            heard.take(
                number,
                &format!(r#"{{"type":"session.ended","session":"s{number}"}}"#),
                &book,
            );
        }
        assert_eq!(
            (heard.newest(), heard.sessions(), heard.ends_of("s1")),
            (last, COMPARED + 10, 1)
        );
        // One that nobody can be told again is neither compared nor counted twice.
        heard.take(1, "{}", &book);
        assert_eq!(heard.ends_of("s1"), 1);
        assert!(book.read(|pages| pages.findings.is_empty() && pages.events == last));
        heard.take(last, "{}", &book);
        assert_eq!(book.read(|pages| pages.findings.len()), 1);
    }
}

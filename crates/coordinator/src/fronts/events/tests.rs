//! Streams of events against the reference store, in paused time: resuming, gaps, slow clients, keep-alives, ends.

use http_body_util::BodyExt as _;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wharf_core::{Cover, EndReason, LockName, LockToken, PoolName, SessionId};
use wharf_store::{EVENTS_KEPT, EventPage, KeyRole, LockWish, NewKey, SetBack};

use super::{choice::tests::key, stream::Chunks, *};
use crate::service::tests::{Rig, ask, rig};

/// Longer than anything here waits for.
const LONG: Duration = Duration::from_secs(120);

struct Reader {
    chunks: Chunks,
    buffer: String,
}

/// id, event, data.
type Block = (Option<u64>, String, String);

impl Reader {
    async fn open(rig: &Rig, streams: &Streams, choice: Choice, from: Start) -> Self {
        let pump = streams.open(&rig.service, Caller::Anyone, choice, from).await.unwrap();
        Self {
            chunks: pump.start(),
            buffer: String::new(),
        }
    }

    /// The next block, comments and all; `None` at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                return Some(block);
            }
            let frame = timeout(LONG, self.chunks.frame())
                .await
                .expect("something within long")?;
            let data = frame.unwrap().into_data().unwrap();
            self.buffer.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    /// The next event or note.
    async fn next(&mut self) -> Option<Block> {
        loop {
            let text = self.block().await?;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let Some(data) = field("data: ") {
                let id = field("id: ").and_then(|id| id.parse().ok());
                return Some((id, field("event: ").unwrap_or_default(), data));
            }
        }
    }

    async fn numbers(&mut self, until: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        while numbers.last() != Some(&until) {
            let (id, event, data) = self.next().await.expect("an event");
            assert!(event.contains('.'), "{event} {data}");
            numbers.push(id.expect("a number"));
        }
        numbers
    }
}

async fn newest(rig: &Rig) -> u64 {
    rig.store.events(0, 1).await.unwrap().newest
}

/// A session from its beginning to its end: placed, active, ended.
async fn live(rig: &Rig) -> SessionId {
    let session = rig.service.open(ask()).await.unwrap().delivered().id;
    rig.service.end(session, EndReason::Released, None).await.unwrap();
    // The slot is free again.
    while rig.store.stats().await.unwrap().busy > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    session
}

/// So many events of a lock.
async fn renewals(rig: &Rig, count: u64) {
    let (name, token) = (LockName::default(), LockToken::from_uuid(Uuid::from_u128(7)));
    let wish = LockWish {
        name: name.clone(),
        token,
        holder: "me".to_owned(),
        description: String::new(),
        cover: Cover {
            pools: vec!["elsewhere".parse().unwrap()],
            operations: Vec::new(),
        },
        ttl: LONG * 1000,
        owner: None,
    };
    rig.store.acquire_lock(wish).await.unwrap();
    for _ in 1..count {
        rig.store.renew_lock(&name, token, LONG * 1000).await.unwrap();
    }
}

fn only(types: &str) -> Choice {
    Choice {
        types: choice::types(types).unwrap(),
        ..Choice::default()
    }
}

#[tokio::test(start_paused = true)]
async fn stream_cut_after_every_event_goes_on_without_loss_or_repeat() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    for _ in 0..5 {
        live(&rig).await;
    }
    let last = newest(&rig).await;
    assert!(last >= 15);
    for cut in 0..last {
        let mut reader = Reader::open(&rig, &streams, Choice::default(), Start::After(cut)).await;
        assert_eq!(
            reader.numbers(last).await,
            (cut + 1..=last).collect::<Vec<_>>(),
            "cut after {cut}"
        );
    }
    let mut oldest = Reader::open(&rig, &streams, Choice::default(), Start::Oldest).await;
    assert_eq!(oldest.numbers(last).await.len() as u64, last);
    // What comes while it is open comes too, once.
    let mut now = Reader::open(&rig, &streams, Choice::default(), Start::Now).await;
    let opening = now.block().await.unwrap();
    assert!(
        opening.contains(&format!("id: {last}")) && opening.contains("retry: "),
        "{opening}"
    );
    live(&rig).await;
    let later = newest(&rig).await;
    assert_eq!(now.numbers(later).await, (last + 1..=later).collect::<Vec<_>>());
    assert_eq!(oldest.numbers(later).await, (last + 1..=later).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn events_that_are_no_longer_kept_are_told_as_a_gap() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    renewals(&rig, EVENTS_KEPT + 500).await;
    let page = rig.store.events(0, 1).await.unwrap();
    assert!(page.oldest > 2, "nothing was forgotten");
    // The resumed one saw number 1, and nothing after it.
    let mut resumed = Reader::open(&rig, &streams, Choice::default(), Start::After(1)).await;
    let (id, event, data) = resumed.next().await.unwrap();
    let note: serde_json::Value = serde_json::from_str(&data).unwrap();
    assert_eq!((id, event.as_str()), (Some(page.oldest - 1), "gap"));
    assert_eq!(
        (&note["missed_from"], &note["missed_to"]),
        (&2.into(), &(page.oldest - 1).into())
    );
    let told = resumed.numbers(page.newest).await;
    assert_eq!(told, (page.oldest..=page.newest).collect::<Vec<_>>());
    // Whoever asks for the oldest gets it, without being told of what they never asked for.
    let mut oldest = Reader::open(&rig, &streams, Choice::default(), Start::Oldest).await;
    assert_eq!(oldest.next().await.unwrap().0, Some(page.oldest));
}

#[tokio::test(start_paused = true)]
async fn number_beyond_the_log_is_told_and_the_stream_goes_on() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    live(&rig).await;
    let last = newest(&rig).await;
    let mut reader = Reader::open(&rig, &streams, Choice::default(), Start::After(last + 50)).await;
    let (id, event, data) = reader.next().await.unwrap();
    assert_eq!((id, event.as_str()), (Some(last), "gap"));
    assert!(data.contains("beyond the newest event"), "{data}");
    live(&rig).await;
    let later = newest(&rig).await;
    assert_eq!(reader.numbers(later).await, (last + 1..=later).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn stream_is_told_that_the_log_was_set_back_and_goes_on_from_there() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    renewals(&rig, 5).await;
    let last = newest(&rig).await;
    let mut ahead = Reader::open(&rig, &streams, Choice::default(), Start::Oldest).await;
    let mut behind = Reader::open(&rig, &streams, Choice::default(), Start::After(last - 3)).await;
    ahead.numbers(last).await;
    behind.numbers(last).await;
    let nobody = streams.tail.take(EventPage {
        oldest: 1,
        newest: last,
        set_back: SetBack { times: 1, to: last - 2 },
        ..EventPage::default()
    });
    assert_eq!(nobody, last);
    for reader in [&mut ahead, &mut behind] {
        let (id, event, data) = reader.next().await.unwrap();
        assert_eq!((id, event.as_str()), (Some(last - 2), "gap"), "{data}");
        assert!(data.contains("lost the end of its log"), "{data}");
        assert_eq!(
            reader.numbers(last).await,
            [last - 1, last],
            "what has their numbers now"
        );
    }
    // One that comes now knows only what is.
    let mut late = Reader::open(&rig, &streams, Choice::default(), Start::After(last - 1)).await;
    assert_eq!(late.numbers(last).await, [last]);
}

#[tokio::test(start_paused = true)]
async fn client_that_takes_nothing_is_told_and_cut_off_and_others_are_not_disturbed() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    let cut = CancellationToken::new();
    let pump = streams
        .open(&rig.service, Caller::Anyone, Choice::default(), Start::Now)
        .await
        .unwrap();
    let stalled = Pump {
        cut: Some(Cut(cut.clone())),
        ..pump
    }
    .start();
    let mut good = Reader::open(&rig, &streams, Choice::default(), Start::Now).await;
    let first = newest(&rig).await;
    renewals(&rig, 3000).await;
    let last = newest(&rig).await;
    assert_eq!(good.numbers(last).await.len() as u64, last - first);
    let metrics = &rig.service.inner().metrics;
    assert_eq!((metrics.event_streams.get(), metrics.event_streams_slow.get()), (2, 0));
    let began = tokio::time::Instant::now();
    cut.cancelled().await;
    let took = began.elapsed();
    assert!(
        took >= Duration::from_secs(25) && took < Duration::from_secs(40),
        "{took:?}"
    );
    assert_eq!((metrics.event_streams.get(), metrics.event_streams_slow.get()), (1, 1));
    // Had it read in time, it would have found what was made for it, and why there is no more.
    let mut late = Reader {
        chunks: stalled,
        buffer: String::new(),
    };
    let mut count = 0;
    let mut end = String::new();
    while let Some((_, event, data)) = late.next().await {
        count += 1;
        end = format!("{event} {data}");
    }
    assert!(count <= 201, "{count} events were kept for somebody who does not read");
    assert!(end.starts_with("slow ") && end.contains("Last-Event-ID"), "{end}");
}

#[tokio::test(start_paused = true)]
async fn silent_and_filtered_streams_stay_alive_and_know_where_they_are() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    let mut reader = Reader::open(&rig, &streams, only("worker.lost"), Start::Oldest).await;
    assert!(reader.block().await.unwrap().contains("id: 0"));
    let began = tokio::time::Instant::now();
    let first = reader.block().await.unwrap();
    // The worker's own registration was not to be told.
    assert_eq!(first, format!(": alive\nid: {}", newest(&rig).await));
    assert_eq!(reader.block().await.unwrap(), ": alive");
    let took = began.elapsed();
    assert!(
        took > Duration::from_secs(29) && took < Duration::from_secs(32),
        "{took:?}"
    );
    // Many that are not told are worth a word at once, so that a resume does not read them again.
    renewals(&rig, 1500).await;
    let began = tokio::time::Instant::now();
    let word = reader.block().await.unwrap();
    assert!(
        word.starts_with(": alive\nid: ") && began.elapsed() < Duration::from_secs(5),
        "{word}"
    );
}

#[tokio::test(start_paused = true)]
async fn drain_ends_streams_with_a_word() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    let mut reader = Reader::open(&rig, &streams, Choice::default(), Start::Now).await;
    reader.block().await.unwrap();
    rig.phase.send_replace(Phase::Draining);
    let (_, event, data) = reader.next().await.unwrap();
    assert_eq!(
        (event.as_str(), data.as_str()),
        ("end", r#"{"type":"end","reason":"draining"}"#)
    );
    assert!(reader.next().await.is_none());
    drop(reader);
    rig.service.stop(LONG).await;
    assert_eq!(rig.service.inner().metrics.event_streams.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_revoked_key_ends() {
    let (rig, streams) = (rig(1, 10).await, Streams::new());
    let new = NewKey {
        id: key(5),
        name: "ci".to_owned(),
        hash: [0; 32],
        role: KeyRole::Client,
        max_sessions: None,
    };
    rig.store.create_key(new).await.unwrap();
    let caller = Caller::Key {
        id: key(5),
        role: KeyRole::Client,
    };
    let pump = streams
        .open(&rig.service, caller, Choice::default(), Start::Now)
        .await
        .unwrap();
    let mut reader = Reader {
        chunks: pump.start(),
        buffer: String::new(),
    };
    reader.block().await.unwrap();
    assert_eq!(reader.block().await.unwrap(), ": alive");
    rig.store.revoke_key(key(5)).await.unwrap();
    let (_, event, data) = reader.next().await.unwrap();
    assert!(event == "end" && data.contains("unauthorized"), "{event} {data}");
}

#[tokio::test(start_paused = true)]
async fn streams_are_counted_and_bounded_and_the_reader_leaves_with_the_last() {
    let rig = rig(1, 10).await;
    let streams = Streams {
        open: Arc::new(Semaphore::new(2)),
        ..Streams::new()
    };
    let open = async || {
        streams
            .open(&rig.service, Caller::Anyone, Choice::default(), Start::Now)
            .await
    };
    let (first, second) = (open().await.unwrap().start(), open().await.unwrap().start());
    let refusal = open().await.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::TooManyStreams);
    assert!(refusal.retry_after.is_some());
    let metrics = &rig.service.inner().metrics;
    assert_eq!(metrics.event_streams.get(), 2);
    drop((first, second));
    while metrics.event_streams.get() > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let left = rig.service.inner().tasks.len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(rig.service.inner().tasks.len(), left - 1, "the tail is still read");
    let mut again = Reader {
        chunks: open().await.unwrap().start(),
        buffer: String::new(),
    };
    let before = newest(&rig).await;
    live(&rig).await;
    assert_eq!(again.numbers(before + 1).await, [before + 1]);
}

#[test]
fn header_comes_before_the_query_and_nonsense_is_named() {
    let headers = |value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert("last-event-id", HeaderValue::from_static(value));
        headers
    };
    let none = HeaderMap::new();
    assert_eq!(from(&none, None).unwrap(), Start::Now);
    assert_eq!(from(&none, Some(0)).unwrap(), Start::Oldest);
    assert_eq!(from(&none, Some(9)).unwrap(), Start::After(9));
    assert_eq!(from(&headers("7"), Some(9)).unwrap(), Start::After(7));
    assert_eq!(from(&headers("0"), None).unwrap(), Start::After(0));
    assert_eq!(from(&headers(""), Some(9)).unwrap(), Start::After(9));
    for wrong in ["x", "-1", "+1", "1.5", "99999999999999999999", "18446744073709551615"] {
        assert!(
            from(&headers(wrong), None)
                .unwrap_err()
                .message
                .contains("Last-Event-ID"),
            "{wrong}"
        );
    }
    assert!(from(&none, Some(u64::MAX)).unwrap_err().message.contains("`after`"));
}

#[test]
fn only_clients_that_take_events_get_them() {
    let accepted = |value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(value));
        accepts_events(&headers).is_ok()
    };
    assert!(accepts_events(&HeaderMap::new()).is_ok());
    for taken in [
        "text/event-stream",
        "*/*",
        "text/*;q=0.1",
        "application/json, */*;q=0.5",
        "Text/Event-Stream",
    ] {
        assert!(accepted(taken), "{taken}");
    }
    for refused in ["application/json", "text/html", "text/event-stream;q=0", "*/*; q=0.0"] {
        assert!(!accepted(refused), "{refused}");
    }
}

#[test]
fn choice_is_made_from_valid_words_only() {
    let query = |session: Option<&str>, pool: Option<&str>| EventsQuery {
        session: session.map(str::to_owned),
        pool: pool.map(str::to_owned),
        ..EventsQuery::default()
    };
    let told = |wanted: &EventsQuery| choice(wanted, Caller::Anyone);
    let wanted = told(&query(Some("ses_00000000000000000000000000000001"), Some("default"))).unwrap();
    assert_eq!(wanted.pool, Some(PoolName::default()));
    assert!(
        told(&query(Some("wrk_1"), None))
            .unwrap_err()
            .message
            .contains("`session`")
    );
    assert!(told(&query(None, Some("NO"))).unwrap_err().message.contains("`pool`"));
}

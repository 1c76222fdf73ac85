//! The suite every journal must pass: each sentence of the port's contract, in one run against one server.
//!
//! `stores` is the suite of the store's port over such a journal.
//!
//! Its own file because engines call it from their tests: `conformance::check(&place_maker).await`. One run and not one
//! test per sentence: a real server takes longer to start than all of this.

pub mod stores;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{task::JoinSet, time::Instant};
use uuid::Uuid;
use wharf_core::{EndReason, KeyId, SessionId, Timestamp};

use crate::port::{ArchiveQuery, ArchiveRow, Checkpoint, Draft, Journal, JournalError, Page, Position, Tail, Writer};

/// One journal, which any number of processes may open.
#[async_trait]
pub trait Place: Send + Sync {
    /// One more instance, as another coordinator would have it.
    async fn open(&self) -> Arc<dyn Journal>;
}

/// Makes empty journals.
#[async_trait]
pub trait Places: Send + Sync {
    /// An empty one.
    async fn empty(&self) -> Box<dyn Place>;
}

const START: Position = Position { seq: 0, mark: None };

fn writer(n: u128) -> Writer {
    Writer(Uuid::from_u128(n))
}

fn draft(by: u128, number: u64) -> Draft {
    Draft {
        writer: writer(by),
        number,
        body: format!("{{\"by\":{by},\"number\":{number}}}"),
        at: None,
    }
}

fn position(page: &Page) -> Position {
    Position {
        seq: page.seq,
        mark: Some((page.writer, page.number)),
    }
}

fn places(tail: &Tail) -> Vec<(u64, u64)> {
    tail.pages.iter().map(|page| (page.seq, page.number)).collect()
}

async fn append(journal: &dyn Journal, after: Position, draft: &Draft) -> Tail {
    journal
        .append(after, draft)
        .await
        .expect("an append that nothing hinders")
}

/// Runs everything.
pub async fn check(makers: &dyn Places) {
    pages_have_places_and_times(&*makers.empty().await).await;
    second_attempt_is_answered_with_the_first(&*makers.empty().await).await;
    missed_pages_come_with_the_answer(&*makers.empty().await).await;
    many_writers_make_one_order(&*makers.empty().await).await;
    foreign_position_is_rewound(&*makers.empty().await).await;
    given_times_never_step_back(&*makers.empty().await).await;
    reads_are_paged(&*makers.empty().await).await;
    waiting_ends_with_a_page(&*makers.empty().await).await;
    checkpoints_only_grow_and_trim(&*makers.empty().await).await;
    archive_keeps_filters_and_prunes(&*makers.empty().await).await;
    any_text_comes_back_as_it_was(&*makers.empty().await).await;
}

async fn pages_have_places_and_times(place: &dyn Place) {
    let journal = place.open().await;
    assert!(journal.read(START, 10).await.expect("read").pages.is_empty());
    let mut at = START;
    for number in 1..=5 {
        let tail = append(&*journal, at, &draft(1, number)).await;
        assert_eq!(places(&tail), [(number, number)]);
        let page = &tail.pages[0];
        assert_eq!(
            (page.writer, page.body.as_str()),
            (writer(1), draft(1, number).body.as_str())
        );
        at = position(page);
    }
    let all = journal.read(START, 10).await.expect("read");
    assert_eq!(places(&all), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
    assert!(
        all.pages.is_sorted_by_key(|page| page.at),
        "time steps back: {:?}",
        all.pages
    );
    assert!(all.pages[4].at <= all.now && all.pages[0].at > Timestamp::default());
}

async fn second_attempt_is_answered_with_the_first(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let first = append(&*one, START, &draft(1, 1)).await;
    append(&*other, START, &draft(2, 1)).await;
    // The answer was lost; the same draft again, by the same or a new connection.
    for journal in [&one, &other] {
        let again = append(&**journal, START, &draft(1, 1)).await;
        assert_eq!(again.pages[0], first.pages[0]);
    }
    let all = one.read(START, 10).await.expect("read");
    assert_eq!(all.pages.len(), 2, "{:?}", all.pages);
}

async fn missed_pages_come_with_the_answer(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    let first = append(&*one, START, &draft(1, 1)).await;
    for number in 1..=3 {
        append(&*one, position(&first.pages[0]), &draft(1, number + 1)).await;
    }
    let tail = append(&*other, START, &draft(2, 1)).await;
    assert_eq!(places(&tail), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 1)]);
    assert_eq!(tail.pages[4].writer, writer(2));
}

async fn many_writers_make_one_order(place: &dyn Place) {
    const EACH: u64 = 40;
    let mut writers = JoinSet::new();
    for by in 1..=6 {
        let journal = place.open().await;
        writers.spawn(async move {
            let mut at = START;
            for number in 1..=EACH {
                let tail = append(&*journal, at, &draft(by, number)).await;
                let seqs = tail.pages.iter().map(|page| page.seq);
                assert!(
                    seqs.eq(at.seq + 1..=at.seq + tail.pages.len() as u64),
                    "gaps: {:?}",
                    places(&tail)
                );
                let own = tail.pages.last().expect("its own page");
                assert_eq!((own.writer, own.number), (writer(by), number));
                at = position(own);
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.expect("a writer failed");
    }
    let journal = place.open().await;
    let all = journal.read(START, 1000).await.expect("read");
    assert_eq!(all.pages.len() as u64, 6 * EACH);
    assert!(all.pages.iter().map(|page| page.seq).eq(1..=6 * EACH));
    let mut next = BTreeMap::new();
    for page in &all.pages {
        let number = next.entry(page.writer).or_insert(1);
        assert_eq!(page.number, *number, "a writer's own order");
        *number += 1;
    }
    assert!(all.pages.is_sorted_by_key(|page| page.at));
}

async fn foreign_position_is_rewound(place: &dyn Place) {
    let journal = place.open().await;
    let first = append(&*journal, START, &draft(1, 1)).await;
    let strange = Position {
        seq: 1,
        mark: Some((writer(9), 1)),
    };
    let beyond = Position {
        seq: 7,
        mark: Some((writer(1), 7)),
    };
    for wrong in [strange, beyond] {
        assert!(matches!(journal.read(wrong, 10).await, Err(JournalError::Rewound(seq)) if seq == wrong.seq));
        let refused = journal.append(wrong, &draft(1, 2)).await;
        assert!(
            matches!(refused, Err(JournalError::Rewound(seq)) if seq == wrong.seq),
            "{refused:?}"
        );
    }
    // Nothing was appended by the refused ones.
    let next = append(&*journal, position(&first.pages[0]), &draft(1, 2)).await;
    assert_eq!(places(&next), [(2, 2)]);
}

async fn given_times_never_step_back(place: &dyn Place) {
    let journal = place.open().await;
    let mut at = START;
    for (number, (given, kept)) in [(5_000, 5_000), (4_000, 5_000), (6_000, 6_000)].into_iter().enumerate() {
        let mut one = draft(1, number as u64 + 1);
        one.at = Some(Timestamp::from_micros(given));
        let tail = append(&*journal, at, &one).await;
        assert_eq!(tail.pages[0].at, Timestamp::from_micros(kept));
        at = position(&tail.pages[0]);
    }
}

async fn reads_are_paged(place: &dyn Place) {
    let journal = place.open().await;
    for number in 1..=5 {
        append(&*journal, START, &draft(1, number)).await;
    }
    let first = journal.read(START, 2).await.expect("read");
    assert_eq!((places(&first), first.is_partial), (vec![(1, 1), (2, 2)], true));
    let rest = journal.read(position(&first.pages[1]), 3).await.expect("read");
    assert_eq!((places(&rest), rest.is_partial), (vec![(3, 3), (4, 4), (5, 5)], false));
    let none = journal.read(position(&rest.pages[2]), 3).await.expect("read");
    assert!(none.pages.is_empty() && !none.is_partial);
}

/// Waiting is only a wake-up and may end early; what must not be is that it sleeps on although there is a page.
async fn waiting_ends_with_a_page(place: &dyn Place) {
    let (one, other) = (place.open().await, place.open().await);
    append(&*one, START, &draft(1, 1)).await;
    let started = Instant::now();
    tokio::time::timeout(Duration::from_secs(30), other.wait(0))
        .await
        .expect("there is a page");
    let waiting = {
        let other = other.clone();
        async move {
            loop {
                other.wait(1).await;
                let tail = other.read(START, 10).await.expect("read");
                if tail.pages.len() > 1 {
                    return;
                }
            }
        }
    };
    let write = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        append(&*one, START, &draft(1, 2)).await;
    };
    let both = async { tokio::join!(waiting, write) };
    tokio::time::timeout(Duration::from_secs(30), both)
        .await
        .expect("a page wakes");
    assert!(started.elapsed() < Duration::from_secs(60));
}

async fn checkpoints_only_grow_and_trim(place: &dyn Place) {
    let journal = place.open().await;
    assert_eq!(journal.checkpoint().await.expect("checkpoint"), None);
    let mut pages = Vec::new();
    for number in 1..=6 {
        pages.extend(append(&*journal, START, &draft(1, number)).await.pages.pop());
    }
    let checkpoint = |page: &Page, image: &str| Checkpoint {
        position: position(page),
        at: page.at,
        image: image.to_owned(),
    };
    let fourth = checkpoint(&pages[3], "{\"fourth\":true}");
    journal.keep(&fourth, 2).await.expect("keep");
    // An older one does not replace it, nor does its trimming go beyond what is kept.
    journal.keep(&checkpoint(&pages[2], "{}"), 99).await.expect("keep");
    assert_eq!(
        place.open().await.checkpoint().await.expect("checkpoint"),
        Some(fourth.clone())
    );
    let after = journal
        .read(fourth.position, 10)
        .await
        .expect("what follows the checkpoint is kept");
    assert_eq!(places(&after), [(5, 5), (6, 6)]);
    for gone in [START, position(&pages[0])] {
        assert!(
            matches!(journal.read(gone, 10).await, Err(JournalError::Rewound(_))),
            "{gone:?} was trimmed"
        );
    }
    let appended = append(&*journal, position(&pages[5]), &draft(1, 7)).await;
    assert_eq!(places(&appended), [(7, 7)]);
    // Everything trimmed: a reader at the boundary and a new page still agree.
    let last = &appended.pages[0];
    journal.keep(&checkpoint(last, "{}"), last.seq).await.expect("keep");
    let tail = append(&*journal, position(last), &draft(1, 8)).await;
    assert_eq!(places(&tail), [(8, 8)]);
    assert!(tail.pages[0].at >= last.at);
}

async fn archive_keeps_filters_and_prunes(place: &dyn Place) {
    let journal = place.open().await;
    let row = |n: u128| ArchiveRow {
        session: SessionId::from_uuid(Uuid::from_u128(n)),
        pool: if n.is_multiple_of(2) { "even" } else { "odd" }
            .parse()
            .expect("a pool"),
        operation: if n.is_multiple_of(3) { "third" } else { "other" }
            .parse()
            .expect("an operation"),
        owner: n.is_multiple_of(4).then(|| KeyId::from_uuid(Uuid::from_u128(4))),
        reason: if n.is_multiple_of(5) {
            EndReason::Killed
        } else {
            EndReason::Released
        },
        ended_at: Timestamp::from_micros(i64::try_from(n).expect("small") * 1_000_000),
        record: format!("{{\"n\":{n},\"text\":\"it's \\\"quoted\\\" ü\"}}"),
    };
    let rows: Vec<_> = (1..=30).map(row).collect();
    journal.archive(&rows).await.expect("archive");
    // Again, with other words: the first stay.
    let changed = ArchiveRow {
        record: "{}".to_owned(),
        ..row(7)
    };
    journal.archive(&[changed]).await.expect("archive");
    assert_eq!(
        journal.archived(rows[6].session).await.expect("archived"),
        Some(rows[6].record.clone())
    );
    let stranger = SessionId::from_uuid(Uuid::from_u128(99));
    assert_eq!(journal.archived(stranger).await.expect("archived"), None);

    let list = async |query: ArchiveQuery| {
        let found = journal.archived_list(&query).await.expect("list");
        let number = |text: &String| rows.iter().position(|row| row.record == *text).expect("one of ours") + 1;
        found.iter().map(number).collect::<Vec<_>>()
    };
    let any = || ArchiveQuery {
        limit: 100,
        ..ArchiveQuery::default()
    };
    let expected = |keep: &dyn Fn(usize) -> bool| (1..=30).filter(|n| keep(*n)).collect::<Vec<_>>();
    assert_eq!(list(any()).await, expected(&|_| true));
    let even = Some("even".parse().expect("a pool"));
    assert_eq!(
        list(ArchiveQuery {
            pool: even.clone(),
            ..any()
        })
        .await,
        expected(&|n| n % 2 == 0)
    );
    let third = Some("third".parse().expect("an operation"));
    assert_eq!(
        list(ArchiveQuery {
            operation: third.clone(),
            ..any()
        })
        .await,
        expected(&|n| n % 3 == 0)
    );
    let owner = Some(KeyId::from_uuid(Uuid::from_u128(4)));
    assert_eq!(list(ArchiveQuery { owner, ..any() }).await, expected(&|n| n % 4 == 0));
    let reason = Some(EndReason::Killed);
    assert_eq!(list(ArchiveQuery { reason, ..any() }).await, expected(&|n| n % 5 == 0));
    let both = ArchiveQuery {
        pool: even,
        operation: third,
        ..any()
    };
    assert_eq!(list(both).await, expected(&|n| n % 6 == 0));
    let page = ArchiveQuery {
        after: Some(rows[9].session),
        limit: 3,
        ..any()
    };
    assert_eq!(list(page.clone()).await, [11, 12, 13]);
    assert_eq!(
        list(ArchiveQuery {
            newest_first: true,
            ..page
        })
        .await,
        [9, 8, 7]
    );
    assert_eq!(
        list(ArchiveQuery {
            newest_first: true,
            limit: 2,
            ..any()
        })
        .await,
        [30, 29]
    );
    assert_eq!(list(ArchiveQuery { limit: 0, ..any() }).await, Vec::<usize>::new());

    let mut pruned = 0;
    loop {
        let went = journal
            .prune_archive(Timestamp::from_micros(10_000_000))
            .await
            .expect("prune");
        pruned += went;
        if went == 0 {
            break;
        }
    }
    assert_eq!(pruned, 10);
    assert_eq!(list(any()).await, expected(&|n| n > 10));
}

async fn any_text_comes_back_as_it_was(place: &dyn Place) {
    let journal = place.open().await;
    let texts = [
        r#"{"sql":"'; DROP TABLE wharf_pages; --","lua":"]]..os.exit()--","nul":"\u0000","quote":"\""}"#.to_owned(),
        format!("{{\"big\":\"{}\"}}", "äöü\\n".repeat(200_000)),
        "{\"emoji\":\"🚢\",\"percent\":\"%s %n $1 ?\"}".to_owned(),
    ];
    let mut at = START;
    for (index, text) in texts.iter().enumerate() {
        let one = Draft {
            body: text.clone(),
            ..draft(1, index as u64 + 1)
        };
        let tail = append(&*journal, at, &one).await;
        assert!(tail.pages[0].body == *text, "the text changed on its way");
        at = position(&tail.pages[0]);
    }
    let all = journal.read(START, 10).await.expect("read");
    assert!(
        all.pages.iter().map(|page| &page.body).eq(&texts),
        "the texts changed at rest"
    );
}

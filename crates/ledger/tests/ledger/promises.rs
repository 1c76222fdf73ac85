//! What the ledger promises beyond the port: images, rules that change, the archive, being due.

use std::time::Duration;

use crate::kit::{Fleet, coordinator, heartbeat, key, session, submission, worker};
use serde_json::{Value, json};
use wharf_core::{BrowserKind, EndReason, Epoch};
use wharf_ledger::{Answer, Ledger, Op, read_text};
use wharf_store::{Change, EVENTS_KEPT, StoreRules, Submitted};

fn reread(ledger: &Ledger) -> Ledger {
    let image = ledger.image().unwrap();
    let read = Ledger::from_image(&image).unwrap();
    assert_eq!(read.image().unwrap(), image);
    read.audit().unwrap();
    read
}

/// One that was active under an idempotency key, has ended and holds no slot.
fn retired(fleet: &mut Fleet, n: u128, name: &str) {
    let mut one = submission(n);
    one.idempotency_key = Some(name.to_owned());
    one.owner = Some(key(1));
    fleet.apply(Op::Submit {
        submission: Box::new(one),
    });
    let (session, epoch) = (session(n), Epoch(1));
    fleet.apply(Op::Activate { session, epoch });
    fleet.apply(Op::End {
        session,
        reason: EndReason::Released,
        detail: None,
    });
    fleet.apply(Op::Vacate { session, epoch });
}

#[test]
fn image_keeps_numbers_and_depth_of_a_clients_data() {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 9);
    let deep = (0..126).fold(json!(1), |inner, _| Value::Array(vec![inner]));
    // The last bits of these are what an approximate reader of numbers gets wrong.
    let data = json!({"deep": deep, "n": [0.1, 2.225_073_858_507_201e-308, 31_245_270_191_439_438u64, 122.416_294_033_786_58]});
    let mut one = submission(1);
    one.spec.data = data.clone();
    fleet.apply(Op::Submit {
        submission: Box::new(one),
    });
    let read = reread(&fleet.ledger);
    assert_eq!(read.session(session(1)).unwrap().spec.data, data);
}

#[test]
fn operation_with_data_as_deep_as_a_request_may_be_reads_back() {
    let deep = (0..126).fold(json!(1), |inner, _| Value::Array(vec![inner]));
    let body = json!({ "data": deep }).to_string();
    serde_json::from_str::<Value>(&body).expect("a request may be this deep");
    let mut one = submission(1);
    one.spec.data = deep;
    let op = Op::Submit {
        submission: Box::new(one),
    };
    let text = serde_json::to_string(&op).unwrap();
    assert!(
        serde_json::from_str::<Op>(&text).is_err(),
        "then `read_text` is needed no more"
    );
    assert_eq!(read_text::<Op>(&text).unwrap(), op);
    assert!(read_text::<Op>(&format!("{text} x")).is_err());
}

#[test]
fn image_keeps_a_lock_that_ends_beyond_all_calendars() {
    let mut fleet = Fleet::new();
    fleet.lock("exclusive", &[]);
    let token = fleet.ledger.locks(fleet.now)[0].lock.token;
    fleet.apply(Op::RenewLock {
        name: "exclusive".parse().unwrap(),
        token,
        ttl: Duration::MAX,
    });
    let read = reread(&fleet.ledger);
    assert_eq!(read.locks(fleet.now), fleet.ledger.locks(fleet.now));
}

#[test]
fn text_that_is_no_image_is_refused() {
    let image = Fleet::new().ledger.image().unwrap();
    assert!(Ledger::from_image("").is_err());
    assert!(Ledger::from_image(&format!("{image} x")).is_err());
    assert!(Ledger::from_image(&image.replace("\"version\":1", "\"version\":2")).is_err());
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    fleet.place(1, "session");
    let mut image: Value = serde_json::from_str(&fleet.ledger.image().unwrap()).unwrap();
    image["workers"] = json!([]);
    let error = Ledger::from_image(&image.to_string()).unwrap_err();
    assert!(error.to_string().contains("holds a lease on wrk_"), "{error}");
}

#[test]
fn time_does_not_step_back() {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    let latest = fleet.now;
    fleet.now = fleet.now.before(Duration::from_secs(9));
    fleet.place(1, "session");
    assert_eq!(fleet.ledger.now(), latest);
    assert_eq!(fleet.ledger.session(session(1)).unwrap().times.queued_at, latest);
}

#[test]
fn changed_rules_judge_what_is_there() {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    fleet.place(1, "session");
    fleet.wait(2..3, "session");
    fleet.advance(4);
    fleet.apply(Op::Sweep);
    assert!(!fleet.ledger.is_due(fleet.now));
    let rules = StoreRules {
        ticket_lease: Duration::from_secs(3),
        starting_grace: Duration::from_secs(2),
        ..StoreRules::default()
    };
    assert_eq!(fleet.apply(Op::Rules { rules }), Answer::Done);
    assert_eq!(reread(&fleet.ledger).rules(), rules);
    assert!(fleet.ledger.is_due(fleet.now));
    let Answer::Freed(freed) = fleet.apply(Op::Sweep) else {
        panic!("a sweep frees");
    };
    let ended: Vec<_> = freed.ended.iter().map(|ended| (ended.session, ended.reason)).collect();
    assert_eq!(
        ended,
        [
            (session(1), EndReason::LaunchFailed),
            (session(2), EndReason::Cancelled)
        ]
    );
    fleet.ledger.audit().unwrap();
}

#[test]
fn renewal_extends_old_tickets_and_ends_with_the_last() {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    fleet.place(1, "session");
    fleet.wait(2..4, "session");
    fleet.advance(6);
    assert_eq!(
        fleet.apply(Op::RenewTickets {
            coordinator: coordinator(1)
        }),
        Answer::Renewed(2)
    );
    fleet.apply(Op::Heartbeat {
        heartbeat: heartbeat(1, &[(1, 1)]),
    });
    fleet.advance(6);
    assert!(!fleet.ledger.is_due(fleet.now), "renewed six seconds ago");
    fleet.ledger = reread(&fleet.ledger);
    fleet.advance(3);
    fleet.apply(Op::Heartbeat {
        heartbeat: heartbeat(1, &[(1, 1)]),
    });
    fleet.apply(Op::Sweep);
    assert_eq!(fleet.ledger.tickets(coordinator(1)), 2);
    fleet.advance(1);
    assert!(fleet.ledger.is_due(fleet.now));
    fleet.apply(Op::Sweep);
    assert_eq!(fleet.ledger.tickets(coordinator(1)), 0);
    assert_eq!(
        fleet.ledger.session(session(3)).unwrap().reason(),
        Some(EndReason::Cancelled)
    );
    fleet.ledger.audit().unwrap();
}

#[test]
fn archived_session_is_known_by_its_key_until_the_history_is_over() {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    retired(&mut fleet, 1, "a");
    let found = fleet
        .ledger
        .archivable(fleet.now, Duration::ZERO, Some(coordinator(1)), 5);
    assert_eq!(found.iter().map(|record| record.id).collect::<Vec<_>>(), [session(1)]);
    assert!(
        fleet
            .ledger
            .archivable(fleet.now, Duration::from_secs(1), None, 5)
            .is_empty()
    );
    assert!(
        fleet
            .ledger
            .archivable(fleet.now, Duration::ZERO, Some(coordinator(2)), 5)
            .is_empty()
    );
    let sessions = vec![session(1), session(7)];
    fleet.apply(Op::Archived {
        sessions: sessions.clone(),
    });
    fleet.apply(Op::Archived { sessions });
    assert_eq!(fleet.ledger.session(session(1)), None);
    fleet.ledger = reread(&fleet.ledger);
    let mut again = submission(2);
    again.idempotency_key = Some("a".to_owned());
    let other_owner = fleet.apply(Op::Submit {
        submission: Box::new(again.clone()),
    });
    assert!(matches!(other_owner, Answer::Submitted(Submitted::Placed(_))));
    again.session = session(3);
    again.owner = Some(key(1));
    let submit = Op::Submit {
        submission: Box::new(again),
    };
    assert_eq!(fleet.apply(submit.clone()), Answer::KnownInArchive(session(1)));
    fleet.now = fleet.now + StoreRules::default().history;
    assert!(fleet.ledger.is_due(fleet.now));
    fleet.apply(Op::Sweep);
    fleet.register(1, &[BrowserKind::Chromium], 1);
    fleet.ledger.audit().unwrap();
    assert!(matches!(fleet.apply(submit), Answer::Submitted(Submitted::Placed(_))));
}

#[test]
fn nothing_that_lives_or_holds_a_slot_is_archived() {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 2);
    fleet.place(1, "session");
    fleet.place(2, "session");
    fleet.wait(3..4, "session");
    fleet.apply(Op::End {
        session: session(1),
        reason: EndReason::Released,
        detail: None,
    });
    fleet.apply(Op::Archived {
        sessions: (1..4).map(session).collect(),
    });
    assert_eq!(fleet.ledger.snapshot(fleet.now).sessions.len(), 3);
    assert!(fleet.ledger.archivable(fleet.now, Duration::ZERO, None, 9).is_empty());
}

#[test]
fn exactly_the_newest_events_are_kept() {
    let mut fleet = Fleet::new();
    fleet.register(1, &[BrowserKind::Chromium], 1);
    for n in 0..u128::from(EVENTS_KEPT) / 3 {
        retired(&mut fleet, n + 1, "k");
        fleet.apply(Op::Archived {
            sessions: vec![session(n + 1)],
        });
        fleet.now = fleet.now + StoreRules::default().history;
        fleet.apply(Op::Sweep);
        let news = fleet
            .ledger
            .apply(fleet.now, Op::RemoveWorker { worker: worker(1) })
            .news;
        fleet.register(1, &[BrowserKind::Chromium], 1);
        assert!(matches!(news.last(), None | Some(Change::Noted(_))));
    }
    let page = fleet.ledger.events(0, u32::MAX);
    assert_eq!(page.events.len() as u64, EVENTS_KEPT);
    assert_eq!(
        (page.oldest, page.events[0].number),
        (page.newest + 1 - EVENTS_KEPT, page.oldest)
    );
    assert_eq!(
        fleet.ledger.events(page.newest - 3, 2).events,
        page.events[page.events.len() - 3..][..2]
    );
    assert!(fleet.ledger.events(u64::MAX, 9).events.is_empty());
}

//! Programs that are told of their sessions: the answer travels, a failed begin is a failed lease, an end waits for nobody
//! who has left.

use std::collections::VecDeque;

use serde_json::{Value, json};
use wharf_driver::{CallFailed, Program};

use super::*;
use crate::LookError;

/// How a program takes a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begin {
    Answer,
    Refuse,
    Hang,
    Crash,
}

/// What the programs of a rig do: the begins in order, then always `Answer`; and what they were asked.
#[derive(Default)]
pub(super) struct Script {
    begins: Mutex<VecDeque<Begin>>,
    finish_hangs: AtomicBool,
    asked: Mutex<Vec<String>>,
}

impl Script {
    fn new(begins: &[Begin]) -> Arc<Self> {
        Arc::new(Self {
            begins: Mutex::new(begins.iter().copied().collect()),
            ..Self::default()
        })
    }

    fn asked(&self, what: &str) -> usize {
        self.asked.lock().iter().filter(|asked| *asked == what).count()
    }
}

async fn hang(limit: Duration) -> CallFailed {
    tokio::time::sleep(limit).await;
    let call = "POST /sessions".to_owned();
    CallFailed::TimedOut { call, limit }
}

#[async_trait]
impl Program for FakeBrowser {
    async fn begin(&self, data: &Value, limit: Duration) -> Result<Value, CallFailed> {
        let script = self.script.as_ref().unwrap();
        script.asked.lock().push("begin".to_owned());
        let begin = script.begins.lock().pop_front().unwrap_or(Begin::Answer);
        match begin {
            Begin::Answer => Ok(json!({"id": self.id.to_string(), "data": data})),
            Begin::Refuse => Err(CallFailed::Refused {
                call: "POST /sessions".to_owned(),
                answer: "status 500".to_owned(),
            }),
            Begin::Hang => Err(hang(limit).await),
            Begin::Crash => {
                self.exit.send_replace(Some(Exit::Crashed {
                    status: ExitStatus::Signal(11),
                    detail: "out of luck".into(),
                }));
                Err(CallFailed::Unreachable {
                    call: "POST /sessions".to_owned(),
                    cause: "connection reset".to_owned(),
                })
            }
        }
    }

    async fn look(&self, _: Duration) -> Result<Value, CallFailed> {
        Ok(json!({"id": self.id.to_string()}))
    }

    async fn finish(&self, limit: Duration) -> Result<(), CallFailed> {
        let script = self.script.as_ref().unwrap();
        script.asked.lock().push("finish".to_owned());
        if script.finish_hangs.load(Ordering::SeqCst) {
            return Err(hang(limit).await);
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn lease_carries_the_data_to_the_program_and_its_answer_back() {
    let script = Script::new(&[]);
    let mut rig = rig_with((1, 2, 0), 100, Some(script.clone())).await;
    let wish = LeaseRequest {
        data: json!({"job": 7}),
        ..wish(1)
    };
    let leased = rig.worker.lease(wish.clone()).await.unwrap();
    let answer = leased.answer.unwrap();
    assert_eq!(answer["data"], json!({"job": 7}));
    let looked = rig.worker.look(wish.session, Duration::from_secs(5)).await.unwrap();
    assert_eq!(looked["id"], answer["id"]);
    assert!(rig.worker.close(wish.session, wish.epoch).await);
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
    assert_eq!((script.asked("begin"), script.asked("finish")), (1, 1));
    let gone = rig.worker.look(wish.session, Duration::from_secs(5)).await;
    assert!(matches!(gone, Err(LookError::NotHeld)), "{gone:?}");
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn browser_that_is_no_program_is_neither_told_nor_looked_at() {
    let rig = rig(1, 2, 0, 100).await;
    let wish = wish(1);
    assert_eq!(rig.worker.lease(wish.clone()).await.unwrap().answer, None);
    let look = rig.worker.look(wish.session, Duration::from_secs(5)).await;
    assert!(matches!(look, Err(LookError::NoProgram)), "{look:?}");
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn failed_begin_fails_the_lease_kills_the_program_and_ends_no_session() {
    for (begin, cause) in [
        (Begin::Refuse, "status 500"),
        (Begin::Hang, "did not answer POST /sessions within 5s"),
        (Begin::Crash, "signal 11: out of luck"),
    ] {
        let script = Script::new(&[begin]);
        let mut rig = rig_with((1, 1, 0), 100, Some(script.clone())).await;
        rig.until("one warm", |s| s.warm == 1).await;
        let (first, again) = (wish(1), wish(2));
        match rig.worker.lease(first.clone()).await {
            Err(LeaseError::LaunchFailed(text)) => assert!(text.contains(cause), "{begin:?}: {text}"),
            other => panic!("{begin:?}: {:?}", other.map(|leased| leased.browser.id())),
        }
        // The next attempt gets another program at once, and the session was never said to have ended.
        let leased = rig.worker.lease(again.clone()).await.unwrap();
        assert_ne!(leased.browser.id(), rig.browser(0).id);
        // The failure was its coordinator's to tell: nothing of the first session is told by the worker.
        rig.worker.close(again.session, again.epoch).await;
        assert_eq!(
            rig.told.recv().await,
            Some(Told::Vacated(again.session, again.epoch)),
            "{begin:?}"
        );
        assert!(
            rig.driver.most_alive.load(Ordering::SeqCst) <= 1,
            "{begin:?}: more programs than max"
        );
        rig.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn program_closed_while_it_begins_is_withdrawn() {
    let script = Script::new(&[Begin::Hang]);
    let mut rig = rig_with((1, 1, 0), 100, Some(script)).await;
    let wish = wish(1);
    let close = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        rig.worker.close(wish.session, wish.epoch).await
    };
    let (leased, closed) = tokio::join!(rig.worker.lease(wish.clone()), close);
    assert!(closed && matches!(leased, Err(LeaseError::Withdrawn)));
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
    rig.until("replaced", |s| s.warm == 1).await;
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn wish_dropped_while_its_program_begins_leaves_nothing() {
    let script = Script::new(&[Begin::Hang]);
    let mut rig = rig_with((1, 1, 0), 100, Some(script)).await;
    let wish = wish(1);
    let session = wish.session;
    let lease = tokio::time::timeout(Duration::from_secs(1), rig.worker.lease(wish));
    assert!(lease.await.is_err());
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(session, Epoch(1))));
    rig.until("replaced", |s| s.warm == 1).await;
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn hanging_finish_delays_the_kill_by_its_limit_and_no_more() {
    let script = Script::new(&[]);
    script.finish_hangs.store(true, Ordering::SeqCst);
    let mut rig = rig_with((0, 1, 0), 100, Some(script.clone())).await;
    let wish = wish(1);
    rig.worker.lease(wish.clone()).await.unwrap();
    let from = tokio::time::Instant::now();
    rig.worker.close(wish.session, wish.epoch).await;
    assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
    let took = from.elapsed();
    assert!(
        (Duration::from_secs(5)..Duration::from_secs(6)).contains(&took),
        "{took:?}"
    );
    rig.finish().await;
}

#[tokio::test(start_paused = true)]
async fn crashed_or_hung_program_is_not_asked_to_finish() {
    for is_crash in [true, false] {
        let script = Script::new(&[]);
        script.finish_hangs.store(true, Ordering::SeqCst);
        let mut rig = rig_with((0, 1, 0), 100, Some(script.clone())).await;
        let wish = wish(1);
        rig.worker.lease(wish.clone()).await.unwrap();
        let reason = if is_crash {
            rig.browser(0).exit.send_replace(Some(Exit::Crashed {
                status: ExitStatus::Code(1),
                detail: String::new(),
            }));
            EndReason::BrowserCrashed
        } else {
            rig.browser(0).is_hung.store(true, Ordering::SeqCst);
            EndReason::BrowserHung
        };
        assert_eq!(rig.told.recv().await, Some(Told::Ended(wish.session, reason)));
        let from = tokio::time::Instant::now();
        assert_eq!(rig.told.recv().await, Some(Told::Vacated(wish.session, Epoch(1))));
        assert!(
            from.elapsed() < Duration::from_secs(1),
            "{reason}: {:?}",
            from.elapsed()
        );
        assert_eq!(script.asked("finish"), 0, "{reason}");
        rig.finish().await;
    }
}

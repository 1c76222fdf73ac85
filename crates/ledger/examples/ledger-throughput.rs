//! How many operations a second one ledger applies: `cargo run --release -p wharf-ledger --example ledger-throughput`.
//!
//! 5,000 sessions live, 2,000 wait (then a tenth and ten times of it, to see that size does not matter); then, round after round: one ends and leaves, whoever waits takes its slot and
//! becomes active, and somebody new joins the queue.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use uuid::Uuid;
use wharf_core::{
    BrowserKind, CoordinatorId, EndReason, Epoch, Operation, PoolName, SessionId, SessionSpec, Timestamp, WorkerId,
};
use wharf_ledger::{Answer, Ledger, Op};
use wharf_store::{Registration, StoreRules, Submission};

const ROUNDS: u128 = 20_000;

struct Grid {
    ledger: Ledger,
    now: Timestamp,
    submitted: u128,
    operations: u64,
    /// Who is active, the oldest first.
    active: VecDeque<(SessionId, Epoch)>,
}

impl Grid {
    fn apply(&mut self, op: Op) -> Answer {
        self.now = self.now + Duration::from_micros(50);
        self.operations += 1;
        self.ledger.apply(self.now, op).answer
    }

    fn new(workers: u32, live: u32, waiting: u32) -> Self {
        let mut grid = Self {
            ledger: Ledger::new(StoreRules {
                liveness_ttl: Duration::from_secs(3_600),
                ticket_lease: Duration::from_secs(3_600),
                ..StoreRules::default()
            }),
            now: Timestamp::from_micros(1_700_000_000_000_000),
            submitted: 0,
            operations: 0,
            active: VecDeque::new(),
        };
        for n in 0..workers {
            let registration = Registration {
                worker: WorkerId::from_uuid(Uuid::from_u128(u128::from(n))),
                pool: PoolName::default(),
                browsers: vec![BrowserKind::Chromium],
                slots: live / workers,
                address: String::new(),
                is_ready: true,
            };
            grid.apply(Op::Register { registration });
        }
        for _ in 0..live + waiting {
            grid.submit();
        }
        grid
    }

    fn submit(&mut self) {
        self.submitted += 1;
        let operation: Operation = ["session", "scrape", "pdf"][(self.submitted % 3) as usize]
            .parse()
            .unwrap_or_default();
        let submission = Box::new(Submission {
            session: SessionId::from_uuid(Uuid::from_u128(self.submitted)),
            coordinator: CoordinatorId::from_uuid(Uuid::from_u128(self.submitted % 3)),
            spec: SessionSpec {
                operation,
                ..SessionSpec::default()
            },
            owner: None,
            idempotency_key: None,
            queue_limit: u64::MAX,
        });
        if let Answer::Submitted(wharf_store::Submitted::Placed(record)) = self.apply(Op::Submit { submission }) {
            self.activate(record.id, record.epoch);
        }
    }

    fn activate(&mut self, session: SessionId, epoch: Epoch) {
        self.apply(Op::Activate { session, epoch });
        self.active.push_back((session, epoch));
    }

    /// Five operations, and six where a session is placed by dispatch and must be claimed.
    fn round(&mut self) {
        let Some((session, epoch)) = self.active.pop_front() else {
            return;
        };
        self.apply(Op::End {
            session,
            reason: EndReason::Released,
            detail: None,
        });
        if let Answer::Freed(freed) = self.apply(Op::Vacate { session, epoch }) {
            for placement in freed.placed {
                let (session, epoch) = (placement.session, placement.seat.epoch);
                self.apply(Op::Claim { session, epoch });
                self.activate(session, epoch);
            }
        }
        self.apply(Op::Archived {
            sessions: vec![session],
        });
        self.submit();
    }
}

fn main() {
    for (workers, live, waiting) in [
        (50, 5_000, 2_000),
        (100, 5_000, 2_000),
        (5, 500, 200),
        (1_000, 50_000, 20_000),
    ] {
        let mut grid = Grid::new(workers, live, waiting);
        let (operations, looks, start) = (grid.operations, grid.ledger.looks(), Instant::now());
        for _ in 0..ROUNDS {
            grid.round();
        }
        let seconds = start.elapsed().as_secs_f64();
        let done = (grid.operations - operations) as f64;
        let looks = (grid.ledger.looks() - looks) as f64 / done;
        let stats = grid.ledger.stats();
        println!(
            "{workers} workers, {} active, {} waiting: {:.0} operations/s, {:.0} sessions/s, {looks:.2} looks each",
            stats.active,
            stats.queued,
            done / seconds,
            ROUNDS as f64 / seconds,
        );
        let start = Instant::now();
        match grid.ledger.image() {
            Ok(image) => {
                let (bytes, written) = (image.len(), start.elapsed());
                let read = Ledger::from_image(&image).is_ok();
                let both = start.elapsed();
                println!(
                    "  image: {bytes} bytes, written in {written:?}, read back ({read}) in {:?}",
                    both - written
                );
            }
            Err(error) => println!("  {error}"),
        }
    }
}

//! A ledger with short hands, for tests that look at it from outside.

use std::time::Duration;

use uuid::Uuid;
use wharf_core::{
    BrowserKind, CoordinatorId, Cover, KeyId, LockToken, PoolName, SessionId, SessionSpec, Timestamp, WorkerId,
};
use wharf_ledger::{Answer, Ledger, Op};
use wharf_store::{LockWish, Registration, StoreRules, Submission, Submitted};

/// A ledger and its time.
pub struct Fleet {
    pub ledger: Ledger,
    pub now: Timestamp,
}

pub fn session(n: u128) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(n))
}

pub fn worker(n: u128) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(n))
}

pub fn coordinator(n: u128) -> CoordinatorId {
    CoordinatorId::from_uuid(Uuid::from_u128(n))
}

pub fn key(n: u128) -> KeyId {
    KeyId::from_uuid(Uuid::from_u128(n))
}

pub fn submission(n: u128) -> Submission {
    Submission {
        session: session(n),
        coordinator: coordinator(1),
        spec: SessionSpec::default(),
        owner: None,
        idempotency_key: None,
        queue_limit: 1_000_000,
    }
}

impl Fleet {
    pub fn new() -> Self {
        Self::with_rules(StoreRules::default())
    }

    pub fn with_rules(rules: StoreRules) -> Self {
        Self {
            ledger: Ledger::new(rules),
            now: Timestamp::from_micros(1_700_000_000_000_000),
        }
    }

    pub fn apply(&mut self, op: Op) -> Answer {
        self.ledger.apply(self.now, op).answer
    }

    pub fn advance(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
    }

    pub fn register(&mut self, n: u128, browsers: &[BrowserKind], slots: u32) {
        let registration = Registration {
            worker: worker(n),
            pool: PoolName::default(),
            browsers: browsers.to_vec(),
            slots,
            address: String::new(),
            is_ready: true,
        };
        self.apply(Op::Register { registration });
    }

    pub fn submit(&mut self, n: u128, browser: BrowserKind, operation: &str) -> Answer {
        let mut submission = Box::new(submission(n));
        submission.spec.browser = browser;
        submission.spec.operation = operation.parse().unwrap();
        self.apply(Op::Submit { submission })
    }

    /// A session that must find a slot.
    pub fn place(&mut self, n: u128, operation: &str) {
        let answer = self.submit(n, BrowserKind::Chromium, operation);
        assert!(matches!(answer, Answer::Submitted(Submitted::Placed(_))), "{answer:?}");
    }

    /// Sessions that must wait.
    pub fn wait(&mut self, numbers: std::ops::Range<u128>, operation: &str) {
        for n in numbers {
            let answer = self.submit(n, BrowserKind::Chromium, operation);
            assert!(
                matches!(answer, Answer::Submitted(Submitted::Queued { .. })),
                "{answer:?}"
            );
        }
    }

    pub fn lock(&mut self, name: &str, operations: &[&str]) {
        let wish = LockWish {
            name: name.parse().unwrap(),
            token: LockToken::from_uuid(Uuid::from_u128(1)),
            holder: "tests".to_owned(),
            description: String::new(),
            cover: Cover {
                pools: Vec::new(),
                operations: operations.iter().map(|name| name.parse().unwrap()).collect(),
            },
            ttl: Duration::from_secs(1_000),
            owner: None,
        };
        self.apply(Op::AcquireLock { wish });
    }
}

pub fn heartbeat(n: u128, held: &[(u128, u32)]) -> wharf_store::Heartbeat {
    wharf_store::Heartbeat {
        worker: worker(n),
        held: held
            .iter()
            .map(|(n, epoch)| (session(*n), wharf_core::Epoch(*epoch)))
            .collect(),
        is_circuit_open: false,
        is_ready: true,
        is_draining: false,
        warm: 0,
        launching: 0,
        load: wharf_store::Load::default(),
        wants_recycling: false,
    }
}

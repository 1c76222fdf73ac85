//! How many workers a pool should have: the numbers that `core::scale` decides by, from what the store knows.
//!
//! Its own file because the same answer goes to two places, `/v1/pool` and `/metrics`, and must be the same in both.

use std::collections::BTreeSet;

use wharf_core::{
    PoolName, WorkerId,
    scale::{Leaver, ScaleRules, ScaleView, Waiting, desired_workers, scale_down, servable},
};
use wharf_store::{LockView, PoolReport, StoreError, WorkerRecord};

use super::Service;
use crate::metrics::PoolLabel;

/// What whoever adds and removes machines needs to know of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaling {
    /// How many workers there should be.
    pub desired_workers: u64,
    /// The live ones, in the order in which they should go.
    pub scale_down: Vec<WorkerId>,
}

// === impl Service ===

impl Service {
    /// How many workers a pool should have, and which go first.
    pub async fn scaling(
        &self,
        pool: &PoolName,
        report: &PoolReport,
        locks: &[LockView],
    ) -> Result<Scaling, StoreError> {
        let workers = self.inner().store.workers(Some(pool)).await?;
        Ok(scaling(pool, report, locks, &workers))
    }

    /// Writes the number of every pool that has workers into the metrics.
    pub(crate) async fn measure_scaling(&self) -> Result<(), StoreError> {
        let store = &self.inner().store;
        let workers = store.workers(None).await?;
        let locks = store.locks().await?;
        let pools: BTreeSet<_> = workers.iter().map(|worker| worker.pool.clone()).collect();
        let mut desired = Vec::new();
        for pool in pools {
            let report = store.pool(&pool).await?;
            let of_pool: Vec<_> = workers.iter().filter(|worker| worker.pool == pool).cloned().collect();
            let scaling = scaling(&pool, &report, &locks, &of_pool);
            desired.push((pool, scaling.desired_workers));
        }
        // A pool that is gone must not be asked for for ever.
        let gauges = &self.inner().metrics.desired_workers;
        gauges.clear();
        for (pool, number) in desired {
            let label = PoolLabel { pool: pool.to_string() };
            gauges
                .get_or_create(&label)
                .set(i64::try_from(number).unwrap_or(i64::MAX));
        }
        Ok(())
    }
}

fn scaling(pool: &PoolName, report: &PoolReport, locks: &[LockView], workers: &[WorkerRecord]) -> Scaling {
    let covers: Vec<_> = locks
        .iter()
        .map(|view| &view.lock.cover)
        .filter(|cover| cover.covers_pool(pool))
        .collect();
    let operations = report.operations.iter().map(|one| Waiting {
        queued: one.queued,
        room: match covers.iter().any(|cover| cover.covers(pool, &one.operation)) {
            true => Some(0),
            false => one.limit.map(|limit| limit.saturating_sub(one.running)),
        },
    });
    let room = report.limit.map(|limit| limit.saturating_sub(report.running));
    let known: u64 = workers.iter().map(|worker| u64::from(worker.slots)).sum();
    let view = ScaleView {
        holding: report.running,
        waiting: servable(operations, room),
        slots: report.slots,
        workers: report.workers,
        last_slots: known.checked_div(workers.len() as u64),
    };
    Scaling {
        desired_workers: desired_workers(&ScaleRules::default(), &view),
        scale_down: scale_down(workers.iter().map(|worker| Leaver {
            worker: worker.id,
            state: worker.state,
            is_circuit_open: worker.is_circuit_open,
            busy: worker.busy,
            lifetime: worker.lifetime,
        })),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;
    use wharf_core::{BrowserKind, Cover, LockName, LockToken, Timestamp, WorkerState};
    use wharf_store::{Load, LockRecord, OperationReport};

    use super::*;

    fn worker(id: u128, state: WorkerState, busy: u32) -> WorkerRecord {
        WorkerRecord {
            id: WorkerId::from_uuid(Uuid::from_u128(id)),
            pool: PoolName::default(),
            browsers: vec![BrowserKind::Chromium],
            slots: 4,
            busy,
            lifetime: 0,
            state,
            is_circuit_open: false,
            warm: 0,
            launching: 0,
            load: Load::default(),
            address: String::new(),
            registered_at: Timestamp::from_micros(0),
            heard_at: Timestamp::from_micros(0),
        }
    }

    fn lock(cover: Cover) -> LockView {
        LockView {
            lock: LockRecord {
                name: LockName::default(),
                token: LockToken::from_uuid(Uuid::nil()),
                holder: "me".to_owned(),
                description: String::new(),
                cover,
                taken_at: Timestamp::from_micros(0),
                until: Timestamp::from_micros(1),
                owner: None,
            },
            running: 0,
        }
    }

    #[test]
    fn waiters_held_back_by_limits_and_locks_bring_no_workers() {
        let operation = |name: &str, running, queued, limit| OperationReport {
            operation: name.parse().unwrap(),
            running,
            queued,
            limit,
        };
        let report = PoolReport {
            queued: 20,
            running: 4,
            slots: 4,
            workers: 1,
            operations: vec![operation("agent", 2, 10, None), operation("scrape", 2, 10, Some(2))],
            ..PoolReport::default()
        };
        let workers = [worker(1, WorkerState::Available, 4), worker(2, WorkerState::Lost, 0)];
        let desired = |report: &PoolReport, locks: &[LockView]| {
            scaling(&PoolName::default(), report, locks, &workers).desired_workers
        };
        assert_eq!(desired(&report, &[]), 5, "14 and 3 spare, on workers of 4");
        let agents = lock(Cover {
            operations: vec!["agent".parse().unwrap()],
            ..Cover::default()
        });
        assert_eq!(desired(&report, &[agents]), 2, "4 and 1 spare");
        assert_eq!(desired(&report, &[lock(Cover::default())]), 2);
        let elsewhere = lock(Cover {
            pools: vec!["other".parse().unwrap()],
            ..Cover::default()
        });
        assert_eq!(desired(&report, &[elsewhere]), 5);
        let limited = PoolReport {
            limit: Some(6),
            ..report
        };
        assert_eq!(desired(&limited, &[]), 2, "6 and 2 spare");
        let order = scaling(&PoolName::default(), &limited, &[], &workers).scale_down;
        assert_eq!(order, [workers[0].id]);
    }
}

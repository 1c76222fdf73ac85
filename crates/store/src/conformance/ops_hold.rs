//! Random operations on limits, locks, keys and the queue as a whole, and everything an operator can see of them.
//!
//! Its own file because they name no session: they change who may be placed. Names are few, so that sequences meet their
//! own locks and keys again, with the right token and with a wrong one.

use proptest::prelude::*;
use wharf_core::{Cover, EndReason, LimitScope, Operation, PoolName};

use super::{
    kit::{key, limit_scope, lock_name, new_key, operation, pool, seconds, token, wish},
    ops::{freed_text, record_text},
};
use crate::{LockWish, NewKey, QueueFilter, Store, StoreError, Unlocking};

/// One random operation on what holds sessions back.
#[derive(Debug, Clone)]
pub(crate) enum HoldOp {
    SetLimit {
        pool: usize,
        scope: Option<usize>,
        max: Option<u64>,
    },
    Acquire {
        name: usize,
        token: u128,
        pools: usize,
        operations: usize,
        ttl: u64,
        owner: Option<u128>,
    },
    Renew {
        name: usize,
        token: u128,
        ttl: u64,
    },
    Release {
        name: usize,
        token: u128,
    },
    Force {
        name: usize,
    },
    CreateKey {
        key: u128,
        max: Option<u64>,
    },
    Revoke {
        key: u128,
    },
    Quota {
        key: u128,
        max: Option<u64>,
    },
    Used {
        key: u128,
    },
    Clear {
        pool: Option<usize>,
        operation: Option<usize>,
        owner: Option<u128>,
    },
}

pub(crate) fn hold_op() -> impl Strategy<Value = HoldOp> {
    let (name, token, ttl) = (|| 0usize..2, || 1u128..3, || 0u64..14);
    let most = || prop::option::weighted(0.7, 0u64..4);
    let owner = || prop::option::weighted(0.3, 1u128..4);
    let operation = || 0usize..3;
    prop_oneof![
        6 => (0usize..2, prop::option::weighted(0.7, operation()), most())
            .prop_map(|(pool, scope, max)| HoldOp::SetLimit { pool, scope, max }),
        5 => (name(), token(), 0usize..4, 0usize..5, ttl(), owner()).prop_map(
            |(name, token, pools, operations, ttl, owner)| HoldOp::Acquire {
                name, token, pools, operations, ttl, owner }),
        2 => (name(), token(), ttl()).prop_map(|(name, token, ttl)| HoldOp::Renew { name, token, ttl }),
        4 => (name(), token()).prop_map(|(name, token)| HoldOp::Release { name, token }),
        2 => name().prop_map(|name| HoldOp::Force { name }),
        3 => (1u128..4, most()).prop_map(|(key, max)| HoldOp::CreateKey { key, max }),
        1 => (1u128..4).prop_map(|key| HoldOp::Revoke { key }),
        2 => (1u128..4, most()).prop_map(|(key, max)| HoldOp::Quota { key, max }),
        1 => (1u128..4).prop_map(|key| HoldOp::Used { key }),
        1 => (prop::option::of(0usize..2), prop::option::of(operation()), owner())
            .prop_map(|(pool, operation, owner)| HoldOp::Clear { pool, operation, owner }),
    ]
}

pub(crate) fn pool_name(index: usize) -> PoolName {
    pool(["default", "other"][index])
}

pub(crate) fn operation_name(index: usize) -> Operation {
    operation(["session", "scrape", "pdf"][index])
}

/// None, one, the other, both; beyond that, only what nobody uses.
fn cover(pools: usize, operations: usize) -> Cover {
    let operations = match operations {
        0 => vec![],
        1 => vec![operation_name(1)],
        2 => vec![operation_name(0)],
        3 => vec![operation_name(2), operation_name(1), operation_name(1)],
        _ => vec![operation("never")],
    };
    let pools = match pools {
        0 => vec![],
        1 => vec![pool_name(0)],
        2 => vec![pool_name(1)],
        _ => vec![pool_name(1), pool_name(0)],
    };
    Cover { pools, operations }
}

impl HoldOp {
    /// Runs it and answers with everything it said.
    pub(crate) async fn apply(&self, store: &dyn Store) -> Result<String, StoreError> {
        Ok(match self.clone() {
            Self::SetLimit { pool, scope, max } => {
                let scope = scope.map_or(LimitScope::Pool, |index| limit_scope(operation_name(index).as_str()));
                freed_text(&store.set_limit(&pool_name(pool), scope, max).await?)
            }
            Self::Acquire {
                name,
                token: by,
                pools,
                operations,
                ttl,
                owner,
            } => {
                let wish = LockWish {
                    cover: cover(pools, operations),
                    ttl: seconds(ttl),
                    owner: owner.map(key),
                    ..wish(["exclusive", "other"][name], by)
                };
                format!("{:?}", store.acquire_lock(wish).await?)
            }
            Self::Renew { name, token: by, ttl } => {
                let renewal = store.renew_lock(&lock(name), token(by), seconds(ttl)).await?;
                format!("{renewal:?}")
            }
            Self::Release { name, token: by } => match store.release_lock(&lock(name), token(by)).await? {
                Unlocking::Released(freed) => freed_text(&freed),
                other => format!("{other:?}"),
            },
            Self::Force { name } => format!("{:?}", store.force_unlock(&lock(name)).await?),
            Self::CreateKey { key, max } => {
                let wish = NewKey {
                    max_sessions: max,
                    ..new_key(key)
                };
                format!("{:?}", store.create_key(wish).await?)
            }
            Self::Revoke { key: n } => format!("{:?}", store.revoke_key(key(n)).await?),
            Self::Quota { key: n, max } => format!("{:?}", store.set_quota(key(n), max).await?),
            Self::Used { key: n } => {
                store.key_used(key(n)).await?;
                format!("{:?}", store.key(key(n)).await?)
            }
            Self::Clear { pool, operation, owner } => {
                let filter = QueueFilter {
                    pool: pool.map(pool_name),
                    operation: operation.map(operation_name),
                    owner: owner.map(key),
                };
                freed_text(&store.clear_queue(filter, EndReason::Killed, "cleared").await?)
            }
        })
    }
}

fn lock(name: usize) -> wharf_core::LockName {
    lock_name(["exclusive", "other"][name])
}

/// All that the views say: limits, locks, keys, pools and queues.
pub(crate) async fn seen(store: &dyn Store) -> Result<String, StoreError> {
    let mut text = format!(
        "{:?}\n  {:?}\n  {:?}",
        store.limits().await?,
        store.locks().await?,
        store.keys().await?
    );
    for index in 0..2 {
        let report = store.pool(&pool_name(index)).await?;
        let queue = store.queue(&pool_name(index), 5).await?;
        let queue: Vec<_> = queue.into_iter().map(|record| record_text(Some(record))).collect();
        text.push_str(&format!("\n  {report:?}\n  {queue:?}"));
    }
    Ok(text)
}

//! Taking a lock, waiting until what runs under it has ended, and giving it back if whoever wanted it leaves.
//!
//! Its own file because a lock is held by somebody far away: from the first store call on, a value ([`TakenLock`]) owns
//! it, and dropping that value before the answer was sent gives the lock back. A holder who knows the token keeps it by
//! renewing; one who vanished loses it to its TTL.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use wharf_core::{ErrorCode, LockName, LockToken};
use wharf_store::{LockRecord, LockView, LockWish, Locking, Renewal, Unlocking};

use super::Service;
use crate::Refusal;

/// How often a lock that waits for its sessions looks again; ends wake it no sooner, since slots are freed later.
const LOOK: Duration = Duration::from_millis(50);

/// A lock on its way to its holder. Dropping it before [`TakenLock::delivered`] gives it back.
#[must_use = "dropping it gives the lock back"]
pub struct TakenLock {
    /// The lock and what still runs under it.
    pub view: LockView,
    guard: Guard,
}

struct Guard {
    service: Service,
    name: LockName,
    token: LockToken,
    is_armed: bool,
}

// === impl Service ===

impl Service {
    /// Takes a lock; with `drain`, answers when nothing that it covers runs any more, or gives it back.
    pub async fn lock(&self, wish: LockWish, drain: Option<Duration>) -> Result<TakenLock, Refusal> {
        // Armed before the store is asked: a caller who leaves during the call must not leave the lock behind.
        let mut guard = Guard {
            service: self.clone(),
            name: wish.name.clone(),
            token: wish.token,
            is_armed: true,
        };
        let ttl = wish.ttl;
        let view = match self.inner().store.acquire_lock(wish).await? {
            Locking::Taken(view) => view,
            Locking::Held(lock) => {
                guard.is_armed = false;
                return Err(Refusal::locked(&lock, "the lock is taken"));
            }
        };
        tracing::info!(lock = %view.lock.name, holder = view.lock.holder, cover = %view.lock.cover, "lock taken");
        let view = match drain {
            Some(limit) => self.drained(view, ttl, limit).await?,
            None => view,
        };
        Ok(TakenLock { view, guard })
    }

    /// Waits until nothing covered runs, renewing meanwhile; the holder gets the whole TTL from then on.
    async fn drained(&self, mut view: LockView, ttl: Duration, limit: Duration) -> Result<LockView, Refusal> {
        let deadline = Instant::now() + limit;
        let mut renewed = Instant::now();
        while view.running > 0 {
            if Instant::now() >= deadline {
                let message = format!(
                    "{} covered sessions still run after {limit:?}; the lock `{}` was given back",
                    view.running, view.lock.name
                );
                let refusal = Refusal::new(ErrorCode::LockNotDrained, message);
                return Err(Refusal {
                    limit: Some((0, view.running)),
                    ..refusal
                });
            }
            sleep_until((Instant::now() + LOOK).min(deadline)).await;
            if renewed.elapsed() > ttl / 3 {
                view = self.renew(&view.lock.name, view.lock.token, ttl).await?;
                renewed = Instant::now();
                continue;
            }
            let locks = self.inner().store.locks().await?;
            let own = locks.into_iter().find(|other| other.lock.token == view.lock.token);
            view = own.ok_or_else(|| Refusal::no_lock(&view.lock.name, "it was taken away while it drained"))?;
        }
        self.renew(&view.lock.name, view.lock.token, ttl).await
    }

    /// Makes a lock last longer.
    pub async fn renew(&self, name: &LockName, token: LockToken, ttl: Duration) -> Result<LockView, Refusal> {
        match self.inner().store.renew_lock(name, token, ttl).await? {
            Renewal::Renewed(view) => Ok(view),
            Renewal::NotYours(other) => Err(not_yours(name, other.as_ref())),
        }
    }

    /// Gives a lock back.
    pub async fn unlock(&self, name: &LockName, token: LockToken) -> Result<(), Refusal> {
        match self.inner().store.release_lock(name, token).await? {
            Unlocking::Released(freed) => {
                tracing::info!(lock = %name, served = freed.placed.len(), "lock released");
                Ok(())
            }
            Unlocking::NotYours(other) => Err(not_yours(name, other.as_ref())),
        }
    }

    /// Takes a lock away from whoever holds it.
    pub async fn force_unlock(&self, name: &LockName) -> Result<LockRecord, Refusal> {
        match self.inner().store.force_unlock(name).await? {
            Some((lock, freed)) => {
                tracing::warn!(lock = %name, holder = lock.holder, served = freed.placed.len(), "lock forced open");
                Ok(lock)
            }
            None => Err(Refusal::no_lock(name, "nobody holds it")),
        }
    }

    /// The locks that are held.
    pub async fn locks(&self) -> Result<Vec<LockView>, Refusal> {
        Ok(self.inner().store.locks().await?)
    }
}

fn not_yours(name: &LockName, other: Option<&LockRecord>) -> Refusal {
    match other {
        Some(lock) => Refusal::locked(lock, "the token is not its holder's"),
        None => Refusal::no_lock(name, "nobody holds it"),
    }
}

// === impl TakenLock ===

impl TakenLock {
    /// Its holder has the token.
    pub fn delivered(mut self) {
        self.guard.is_armed = false;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        let (service, name, token) = (self.service.clone(), self.name.clone(), self.token);
        self.service.inner().tasks.spawn(async move {
            if let Err(error) = service.inner().store.release_lock(&name, token).await {
                tracing::warn!(lock = %name, %error, "could not give the lock back; its TTL will");
            }
        });
    }
}

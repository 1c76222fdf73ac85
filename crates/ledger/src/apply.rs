//! From an operation to the rule that it stands for, and from what the rule says to the answer.
//!
//! Its own file because it is the whole list, and nothing else: one line for each operation.

use crate::{
    op::{Answer, Op},
    step::Step,
};

// === impl Step ===

impl Step<'_> {
    pub(crate) fn apply(&mut self, op: Op) -> Answer {
        match op {
            Op::Register { registration } => Answer::Registered(self.register(registration)),
            Op::Heartbeat { heartbeat } => Answer::Heartbeat(self.heartbeat(&heartbeat)),
            Op::Deregister { worker } => Answer::Freed(self.deregister(worker)),
            Op::DrainWorker { worker } => Answer::Worker(self.drain_worker(worker)),
            Op::RemoveWorker { worker } => Answer::Removed(self.remove_worker(worker)),
            Op::Submit { submission } => self.submit(*submission),
            Op::Claim { session, epoch } => Answer::Session(self.claim(session, epoch).map(Box::new)),
            Op::Activate { session, epoch } => Answer::Session(self.activate(session, epoch).map(Box::new)),
            Op::PlacementFailed { failure } => Answer::Replaced(self.placement_failed(failure)),
            Op::Touch { batch } => {
                batch.iter().for_each(|touch| self.touch(touch));
                Answer::Done
            }
            Op::End {
                session,
                reason,
                detail,
            } => Answer::Ended(self.end(session, reason, detail)),
            Op::Vacate { session, epoch } => Answer::Freed(self.vacate(session, epoch)),
            Op::RenewTickets { coordinator } => Answer::Renewed(self.book.renew_tickets(coordinator)),
            Op::ClearQueue { filter, reason, detail } => Answer::Freed(self.clear_queue(&filter, reason, &detail)),
            Op::Dispatch => Answer::Placed(self.dispatch(None)),
            Op::Sweep => Answer::Freed(self.sweep()),
            held => self.apply_hold(held),
        }
    }

    /// The operations that name no session and no worker.
    fn apply_hold(&mut self, op: Op) -> Answer {
        match op {
            Op::SetLimit { pool, scope, max } => Answer::Freed(self.set_limit(pool, scope, max)),
            Op::AcquireLock { wish } => Answer::Locking(self.acquire_lock(wish)),
            Op::RenewLock { name, token, ttl } => Answer::Renewal(self.renew_lock(&name, token, ttl)),
            Op::ReleaseLock { name, token } => Answer::Unlocking(self.release_lock(&name, token)),
            Op::ForceUnlock { name } => Answer::ForcedUnlock(self.force_unlock(&name)),
            Op::CreateKey { key } => Answer::Key(self.create_key(key)),
            Op::RevokeKey { key } => Answer::Revoked(self.revoke_key(key)),
            Op::SetQuota { key, max_sessions } => Answer::Key(self.set_quota(key, max_sessions)),
            Op::KeyUsed { key } => {
                self.key_used(key);
                Answer::Done
            }
            Op::Rules { rules } => {
                self.book.set_rules(rules);
                Answer::Done
            }
            Op::Archived { sessions } => {
                self.archived(&sessions);
                Answer::Done
            }
            _ => Answer::Done,
        }
    }
}

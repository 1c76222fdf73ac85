//! The suite every engine must pass: named scenarios for each sentence of the contract, and random operation sequences
//! run against an engine and the reference model in lock step.
//!
//! Layout:
//! - `kit`: the clock that tests move, the harness that opens an engine, short hands for building calls.
//! - [`scenarios`], [`scenarios_life`], [`scenarios_time`], [`scenarios_hold`], [`scenarios_lock`], [`scenarios_keys`],
//!   [`scenarios_queue`], [`scenarios_fleet`], [`scenarios_events`]: one test per promise, written by hand. [`crate::conformance_tests`] names
//!   them all in an engine's test file.
//! - `ops`, `ops_hold`: random operations and what they answer.
//! - `watch`: order (I2) and endings (I4), judged from what is seen only, sharing no code with any engine.
//! - [`lockstep`]: the runner.
//! - [`race`]: many threads at once against locks and limits.

mod kit;
pub mod lockstep;
mod ops;
mod ops_hold;
pub mod race;
pub mod scenarios;
pub mod scenarios_events;
pub mod scenarios_fleet;
pub mod scenarios_hold;
pub mod scenarios_keys;
pub mod scenarios_life;
pub mod scenarios_lock;
pub mod scenarios_queue;
pub mod scenarios_time;
mod watch;

pub use kit::{Harness, ManualClock, run};

/// Makes one `#[test]` per scenario for an engine: `conformance_tests!(MyHarness);`. Or, where a server takes longer to
/// start than a scenario, runs them all in one async test: `conformance_tests!(@all run MyHarness);`.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_tests!(@all tests $harness);
    };
    (@all $mode:ident $harness:expr) => {
        $crate::conformance_tests!(@each $mode $harness, scenarios:
            newcomer_is_placed_at_once_and_claimed
            newcomer_never_overtakes
            blocked_class_blocks_only_itself
            higher_priority_is_served_first
            full_queue_refuses_and_keeps_nothing
            unknown_pool_is_refused
            idempotent_submit_answers_the_same_session
            key_of_a_session_that_was_never_active_is_free_again
            waiting_session_passes_to_whoever_asks_again
            submit_of_a_known_id_answers_that_session
            raised_capacity_serves_waiters_at_once
            ready_worker_serves_waiters_at_once
            lists_are_paged
            lists_are_filtered
            record_reads_back_as_it_was_submitted
            changes_announce_placements_and_ends
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_life:
            claim_and_activate_refuse_old_placements
            end_twice_keeps_first_reason
            ended_session_keeps_its_slot_until_vacated
            stale_vacate_frees_nothing
            vacate_of_a_live_session_ends_it
            failed_placement_goes_elsewhere_at_its_old_place
            failed_placements_end_after_max_attempts
            failure_after_the_end_frees_the_slot
            absent_worker_costs_no_attempt_and_gets_nothing_until_it_reports
            least_loaded_worker_is_chosen
            drained_and_broken_workers_get_nothing
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_time:
            dead_waiter_blocks_nobody
            renewed_tickets_do_not_lapse
            queue_time_passes
            connect_idle_and_maximum_times_pass
            touch_keeps_a_session_alive
            unclaimed_placement_fails_and_frees_its_slot
            silent_worker_is_lost
            unknown_worker_must_register
            returning_worker_ends_its_past_life
            departing_worker_ends_its_sessions
            unreported_lease_is_dropped_after_the_grace
            placement_that_nobody_takes_up_is_cancelled_after_the_grace
            worker_is_told_what_to_end
            history_is_pruned_but_not_while_leased
            sweep_and_dispatch_are_idempotent
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_hold:
            raised_limit_serves_waiters_at_once
            lowered_limit_ends_nothing_and_lets_nobody_in
            operation_at_its_limit_holds_back_nobody_else
            waiters_of_a_full_class_keep_their_order_beside_a_limit
            pool_limit_counts_all_classes_and_operations
            limit_of_zero_lets_nobody_in
            ended_session_counts_for_a_limit_until_it_is_vacated
            worker_that_changes_pools_makes_room_in_the_old_one
            dead_waiter_at_a_limit_blocks_nobody
            timeout_that_races_with_a_grant_loses_no_slot
            duplicate_submission_takes_one_place
            limits_are_listed_by_pool_and_scope
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_queue:
            queue_is_listed_in_the_order_of_service
            queue_is_cleared_by_pool_operation_and_owner
            pool_report_counts_what_is_there
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_lock:
            lock_refuses_newcomers_and_names_its_holder
            waiters_stay_under_a_lock_and_are_served_in_order_at_its_release
            forced_unlock_serves_waiters
            expired_lock_holds_nobody_back
            sweep_forgets_an_expired_lock_and_serves_waiters
            overlapping_locks_hold_until_the_last_is_gone
            lock_covers_by_pool_and_operation
            locked_operation_holds_back_nobody_else
            failed_placement_waits_under_a_lock
            placement_made_before_the_lock_goes_on
            idempotent_retry_is_answered_under_a_lock
            second_taker_is_told_who_holds_it
            lock_is_renewed_by_its_holder_only
            release_by_a_stranger_changes_nothing
            new_lock_in_place_of_an_expired_one_serves_whom_it_does_not_cover
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_keys:
            quota_counts_waiting_sessions_and_slots_still_held
            refusal_by_quota_keeps_nothing
            idempotent_retry_is_answered_at_the_quota
            changed_quota_ends_nothing
            lock_is_told_before_the_quota
            idempotency_keys_are_each_owners_own
            sessions_are_listed_by_owner
            key_is_kept_once_and_read_back
            use_of_a_key_is_written_at_most_once_a_minute
            revoked_key_loses_its_sessions_and_its_locks
            revoked_key_is_admitted_no_more
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_fleet:
            drained_by_order_gets_nothing_and_is_told
            drain_order_survives_reports_and_is_told_until_it_leaves
            removed_worker_ends_its_sessions_and_must_register
            recycling_is_one_at_a_time
            recycling_alone_is_allowed_at_once
            recycling_does_not_wait_long_for_one_that_does_not_come_back
            session_without_a_browser_is_placed_elsewhere_when_its_worker_goes
            session_without_a_browser_keeps_its_place_when_its_worker_goes
            session_without_a_browser_ends_with_the_last_worker_that_could_serve_it
            load_is_reported
        );
        $crate::conformance_tests!(@each $mode $harness, scenarios_events:
            events_tell_a_session_s_life_in_order
            events_tell_of_workers_and_locks
            events_of_one_step_come_workers_locks_sessions_queues
            expired_lock_is_told_once
            refused_newcomers_leave_no_event
            events_resume_without_loss_or_repeat
            old_events_are_forgotten_and_the_page_says_so
        );
    };
    (@each run $harness:expr, $module:ident: $($name:ident)*) => {
        $(
            eprintln!(concat!("scenario ", stringify!($name)));
            $crate::conformance::$module::$name(&$harness).await;
        )*
    };
    (@each tests $harness:expr, $module:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::run($crate::conformance::$module::$name(&$harness));
            }
        )*
    };
}

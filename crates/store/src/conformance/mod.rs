//! The suite every engine must pass: named scenarios for each sentence of the contract, and random operation sequences
//! run against an engine and the reference model in lock step.
//!
//! Layout:
//! - `kit`: the clock that tests move, the harness that opens an engine, short hands for building calls.
//! - [`scenarios`], [`scenarios_life`], [`scenarios_time`]: one test per promise, written by hand. [`crate::conformance_tests`] names them
//!   all in an engine's test file.
//! - `ops`: random operations and what they answer.
//! - `watch`: order (I2) and endings (I4), judged from what is seen only, sharing no code with any engine.
//! - [`lockstep`]: the runner.

mod kit;
pub mod lockstep;
mod ops;
pub mod scenarios;
pub mod scenarios_life;
pub mod scenarios_time;
mod watch;

pub use kit::{Harness, ManualClock, run};

/// Makes one `#[test]` per scenario for an engine: `conformance_tests!(MyHarness);`
#[macro_export]
macro_rules! conformance_tests {
    ($harness:expr) => {
        $crate::conformance_tests!(@each $harness, scenarios:
            newcomer_is_placed_at_once_and_claimed
            newcomer_never_overtakes
            blocked_class_blocks_only_itself
            higher_priority_is_served_first
            full_queue_refuses_and_keeps_nothing
            unknown_pool_is_refused
            idempotent_submit_answers_the_same_session
            key_of_a_session_that_was_never_active_is_free_again
            submit_of_a_known_id_answers_that_session
            raised_capacity_serves_waiters_at_once
            ready_worker_serves_waiters_at_once
            lists_are_paged
            lists_are_filtered
            record_reads_back_as_it_was_submitted
            changes_announce_placements_and_ends
        );
        $crate::conformance_tests!(@each $harness, scenarios_life:
            claim_and_activate_refuse_old_placements
            end_twice_keeps_first_reason
            ended_session_keeps_its_slot_until_vacated
            stale_vacate_frees_nothing
            vacate_of_a_live_session_ends_it
            failed_placement_goes_elsewhere_at_its_old_place
            failed_placements_end_after_max_attempts
            failure_after_the_end_frees_the_slot
            least_loaded_worker_is_chosen
            drained_and_broken_workers_get_nothing
        );
        $crate::conformance_tests!(@each $harness, scenarios_time:
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
            worker_is_told_what_to_end
            history_is_pruned_but_not_while_leased
            sweep_and_dispatch_are_idempotent
        );
    };
    (@each $harness:expr, $module:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::conformance::run($crate::conformance::$module::$name(&$harness));
            }
        )*
    };
}

//! The system's clock: the one place that reads it.

use wharf_core::{Clock, Timestamp};

pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(jiff::Timestamp::now().as_microsecond())
    }
}

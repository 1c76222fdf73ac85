//! Waiting for something to become true, with patience from the environment.
//!
//! Its own file because it replaces every sleep in the tests: it returns as soon as the thing is true, and a slow
//! machine only needs a larger `WHARF_TEST_PATIENCE`.
//!
//! Invariant: a time-out says what was waited for and what was seen last.

use std::{
    fmt::Display,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

const PATIENCE_ENV: &str = "WHARF_TEST_PATIENCE";
const DEFAULT_PATIENCE: Duration = Duration::from_secs(20);
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// Longer pauses would show in the durations of the tests.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How long a test waits for what must happen: `WHARF_TEST_PATIENCE` in seconds, 20 by default.
#[must_use]
pub fn patience() -> Duration {
    let set = std::env::var(PATIENCE_ENV)
        .ok()
        .and_then(|text| text.trim_end_matches('s').parse().ok());
    set.map_or(DEFAULT_PATIENCE, Duration::from_secs)
}

/// Calls `probe` until it succeeds; after [`patience`] fails with `what` and the last error.
///
/// # Errors
/// When patience ran out.
pub async fn eventually<T>(what: impl Display, probe: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    eventually_within(patience(), what, probe).await
}

/// [`eventually`] with another patience.
///
/// # Errors
/// When patience ran out.
pub async fn eventually_within<T>(
    patience: Duration,
    what: impl Display,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut last = anyhow!("it was never tried");
    while let Some(left) = patience.checked_sub(started.elapsed()) {
        match tokio::time::timeout(left, probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = error,
            Err(_) => return Err(last.context(format!("waited {patience:?} for {what}; the last try hung"))),
        }
        tokio::time::sleep(pause.min(left)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    Err(last).with_context(|| format!("waited {patience:?} for {what}; last seen"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn eventually_third_try_succeeds() {
        let mut tries = 0;
        let value = eventually("three tries", async || {
            tries += 1;
            if tries < 3 {
                Err(anyhow!("only {tries}"))
            } else {
                Ok(tries)
            }
        })
        .await
        .unwrap();
        assert_eq!(value, 3);
    }

    #[tokio::test]
    async fn eventually_out_of_patience_says_what_and_last() {
        let never = async || -> Result<()> { Err(anyhow!("the queue holds 3")) };
        let error = eventually_within(Duration::from_millis(20), "an empty queue", never)
            .await
            .unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "waited 20ms for an empty queue; last seen: the queue holds 3"
        );
    }
}

//! One look at a grid, and what two looks tell.

use std::time::Instant;

use serde_json::Value;

use crate::client::http::{Call, CallError, Grid, query};

/// A grid at one instant.
pub(super) struct Picture {
    pub(super) pool: Value,
    pub(super) queue: Value,
    pub(super) recent: Value,
    /// The newest ended session of the look.
    newest: Option<String>,
    at: Instant,
}

/// Rows of the queue and of the past that are looked at.
const QUEUE_ROWS: &str = "50";
const RECENT_ROWS: &str = "200";

// === impl Picture ===

impl Picture {
    pub(super) fn look(grid: &Grid, pool: Option<&str>) -> Result<Self, CallError> {
        let get = |path: &str, more: &[(&str, Option<&str>)]| {
            let pairs: Vec<_> = [("pool", pool)].iter().chain(more).copied().collect();
            grid.call(&Call::Get, &format!("{path}{}", query(&pairs)))
        };
        let recent = get("/v1/pool/recent", &[("limit", Some(RECENT_ROWS))])?;
        Ok(Self {
            pool: get("/v1/pool", &[])?,
            queue: get("/v1/queue", &[("limit", Some(QUEUE_ROWS))])?,
            newest: recent["sessions"][0]["ended_at"].as_str().map(str::to_owned),
            recent,
            at: Instant::now(),
        })
    }

    /// Sessions that ended per second since an earlier look; `None` if they were more than a look can see.
    pub(super) fn ended_per_second(&self, before: &Self) -> Option<f64> {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(0.001);
        let known = before.latest_end();
        let rows = self.recent["sessions"].as_array()?;
        let new = rows
            .iter()
            .filter(|row| row["ended_at"].as_str() > known.as_deref())
            .count();
        let is_all_new = new == rows.len() && before.newest.is_some() && new >= 200;
        (!is_all_new).then_some(new as f64 / seconds)
    }

    fn latest_end(&self) -> Option<String> {
        let rows = self.recent["sessions"].as_array()?;
        rows.iter()
            .filter_map(|row| row["ended_at"].as_str())
            .max()
            .map(str::to_owned)
    }

    /// What ended lately, by reason, most frequent first.
    pub(super) fn reasons(&self) -> Vec<(String, usize)> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for row in self.recent["sessions"].as_array().into_iter().flatten() {
            let reason = row["reason"].as_str().unwrap_or("?");
            match counts.iter_mut().find(|(name, _)| name == reason) {
                Some((_, count)) => *count += 1,
                None => counts.push((reason.to_owned(), 1)),
            }
        }
        counts.sort_by(|(a, n), (b, m)| m.cmp(n).then(a.cmp(b)));
        counts
    }

    /// The middle of the waits of what ended lately, in seconds.
    pub(super) fn median_wait(&self) -> Option<f64> {
        let rows = self.recent["sessions"].as_array()?;
        let mut waits: Vec<f64> = rows.iter().filter_map(|row| row["wait_time"].as_f64()).collect();
        waits.sort_by(f64::total_cmp);
        waits.get(waits.len() / 2).copied()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    pub(in crate::client::top) fn picture(at: Instant, ends: &[(&str, &str)]) -> Picture {
        let rows: Vec<_> = ends
            .iter()
            .map(|(at, reason)| json!({"ended_at": at, "reason": reason, "wait_time": 0.5}))
            .collect();
        Picture {
            pool: json!({
                "pool": "default", "max": 4, "effective_max": 4, "running": 2, "queued": 1, "available": 2, "warm": 1,
                "launching": 0, "workers": 1, "active": 2, "starting": 0, "limit": null, "locks": [],
                "operations": [{"operation": "scrape", "running": 2, "queued": 1, "limit": 2}],
                "holders": [
                    {"session": "ses_b", "status": "active", "operation": "scrape", "held_for": 3.0, "description": ""},
                    {"session": "ses_a", "status": "active", "operation": "agent", "held_for": 9.0, "description": "x"},
                ],
            }),
            queue: json!({"waiting": [{"position": 1, "session": "ses_c", "operation": "scrape", "wait_time": 1.0}]}),
            newest: rows.first().and_then(|row| row["ended_at"].as_str().map(str::to_owned)),
            recent: json!({"sessions": rows}),
            at,
        }
    }

    #[test]
    fn rates_and_reasons_are_told_from_two_looks() {
        let now = Instant::now();
        let before = picture(now, &[("2026-01-01T00:00:01Z", "released")]);
        let after = picture(
            now + Duration::from_secs(2),
            &[
                ("2026-01-01T00:00:03Z", "released"),
                ("2026-01-01T00:00:02Z", "idle_timeout"),
                ("2026-01-01T00:00:01Z", "released"),
            ],
        );
        assert_eq!(after.ended_per_second(&before), Some(1.0));
        assert_eq!(
            after.reasons(),
            [("released".to_owned(), 2), ("idle_timeout".to_owned(), 1)]
        );
        assert_eq!(after.median_wait(), Some(0.5));
        assert_eq!(picture(now, &[]).ended_per_second(&before), Some(0.0));
    }
}

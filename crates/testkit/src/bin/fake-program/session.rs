//! The one session: made, looked at, ended.
//!
//! Its own file because it is the honest part. A new session silently replaces the old one, as seed 000's program does.

use std::{
    fs,
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

/// None or one.
#[derive(Debug, Default)]
pub struct Sessions(Mutex<Option<Value>>);

// === impl Sessions ===

impl Sessions {
    pub fn create(&self, data: Value) -> Value {
        // The kernel's own generator: no dependency, and different in every process.
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        let session = json!({"id": id.trim(), "created_at": now(), "data": data});
        *self.lock() = Some(session.clone());
        session
    }

    pub fn get(&self, id: &str) -> Option<Value> {
        self.lock().clone().filter(|session| session["id"] == id)
    }

    pub fn delete(&self, id: &str) -> bool {
        self.lock().take_if(|session| session["id"] == id).is_some()
    }

    pub fn status(&self) -> Value {
        let session = self.lock();
        let id = session.as_ref().map_or(Value::Null, |session| session["id"].clone());
        json!({"available": session.is_none(), "session_id": id})
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// RFC 3339, to the second.
fn now() -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "a stand-in for a foreign program has the system's clock"
    )]
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The civil date of a day since 1970 (the usual algorithm with years that begin in March).
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (
        year + era * 400 + u64::from(month <= 2),
        month,
        of_year - (153 * shifted + 2) / 5 + 1,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(20_454), (2026, 1, 1));
    }

    #[test]
    fn a_new_session_replaces_the_old_one() {
        let sessions = Sessions::default();
        let one = sessions.create(json!(1));
        let two = sessions.create(json!(2));
        let id = |session: &Value| session["id"].as_str().unwrap().to_owned();
        assert_eq!(sessions.get(&id(&one)), None);
        assert_eq!(sessions.get(&id(&two)), Some(two.clone()));
        assert!(sessions.delete(&id(&two)) && !sessions.delete(&id(&two)));
    }
}

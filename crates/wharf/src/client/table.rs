//! Answers as people read them: aligned columns, spans and times in short words.
//!
//! Its own file because every listing looks alike. Numbers keep their unit; what is not there is a dash.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

/// A column: its heading, and how a row is asked for it.
pub type Column = (&'static str, fn(&Value) -> String);

/// The rows of a listing as text, or the words for an empty one.
pub fn table(rows: &[Value], columns: &[Column], none: &str) -> String {
    if rows.is_empty() {
        return format!("{none}\n");
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(columns.iter().map(|(heading, _)| *heading));
    for row in rows {
        table.add_row(columns.iter().map(|(_, cell)| cell(row)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut text = String::new();
    for line in table.lines() {
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A value as a word.
pub fn word(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        // What clients wrote must not steer the terminal.
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.chars().map(|c| if c.is_control() { '·' } else { c }).collect(),
        other => other.to_string(),
    }
}

/// At most so many characters.
pub fn short(text: String, most: usize) -> String {
    if text.chars().count() <= most {
        return text;
    }
    let mut cut: String = text.chars().take(most.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Seconds as people say them: `0.4s`, `12s`, `3m 5s`, `2h 10m`, `4d 3h`.
pub fn span(value: &Value) -> String {
    let Some(seconds) = value.as_f64() else {
        return "-".to_owned();
    };
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..=9 => format!("{seconds:.1}s"),
        10..=59 => format!("{whole}s"),
        60..=3599 => format!("{}m {}s", whole / 60, whole % 60),
        3600..=86_399 => format!("{}h {}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d {}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// A point in time, to the second.
pub fn time(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text
            .split('.')
            .next()
            .unwrap_or(text)
            .trim_end_matches('Z')
            .replace('T', " "),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spans_are_short_words() {
        for (seconds, text) in [
            (0.04, "0.0s"),
            (9.94, "9.9s"),
            (59.9, "59s"),
            (185.0, "3m 5s"),
            (7800.0, "2h 10m"),
            (356_400.0, "4d 3h"),
        ] {
            assert_eq!(span(&json!(seconds)), text);
        }
        assert_eq!(span(&Value::Null), "-");
    }

    #[test]
    fn columns_are_aligned_and_hostile_text_is_tamed() {
        let rows = [json!({"a": "x", "b": 1}), json!({"a": "long\u{1b}[31m", "b": 22})];
        let columns: [Column; 2] = [("A", |row| word(&row["a"])), ("B", |row| word(&row["b"]))];
        assert_eq!(
            table(&rows, &columns, "none"),
            "A          B\nx          1\nlong·[31m  22\n"
        );
        assert_eq!(table(&[], &columns, "nothing waits"), "nothing waits\n");
    }

    #[test]
    fn times_lose_their_fraction() {
        assert_eq!(time(&json!("2026-11-15T23:00:01.123456Z")), "2026-11-15 23:00:01");
    }
}

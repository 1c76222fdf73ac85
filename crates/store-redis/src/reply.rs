//! The scripts' answers, read.
//!
//! Its own file because Redis answers in untyped lists. Invariant: a list that is not exactly what the script promises,
//! or pages that do not follow each other, are [`JournalError::Corrupt`], never a guess.

use redis::Value;
use uuid::Uuid;
use wharf_core::Timestamp;
use wharf_journal::{JournalError, Page, Writer};

pub(crate) fn corrupt(what: impl std::fmt::Display) -> JournalError {
    JournalError::Corrupt(format!("the journal on redis makes no sense: {what}"))
}

/// The parts of a script's answer that begins with 'ok'; what else it may begin with, as the error it stands for.
pub(crate) fn accepted(value: Value, after: u64, pages_key: &str) -> Result<Vec<Value>, JournalError> {
    let mut parts = list(value)?.into_iter();
    let status = text(parts.next().unwrap_or_default())?;
    let rest: Vec<Value> = parts.collect();
    let part = |index: usize| text(rest.get(index).cloned().unwrap_or_default());
    match status.as_str() {
        "ok" => Ok(rest),
        "rewound" => Err(JournalError::Rewound(after)),
        "lost" => Err(corrupt(format_args!(
            "pages up to {} of {pages_key} are gone and so is the checkpoint that stood for them (does maxmemory-policy \
             evict?); restore a backup, or remove all keys of this prefix to begin anew",
            part(0)?
        ))),
        "hole" => Err(corrupt(format_args!(
            "pages between {} and {} of {pages_key} are missing (does maxmemory-policy evict?); restore a backup, or \
             remove all keys of this prefix to begin anew",
            part(0)?,
            part(1)?
        ))),
        "late" => Err(corrupt(format_args!(
            "a writer asks for an older page of its own than its number {}, and that page is no longer there",
            part(0)?
        ))),
        other => Err(corrupt(format_args!("a script answered {other:?}"))),
    }
}

/// The pages of a stream's part.
pub(crate) fn pages(value: Value) -> Result<Vec<Page>, JournalError> {
    list(value)?.into_iter().map(page).collect()
}

/// Whether pages follow each other, beginning right after a place.
pub(crate) fn check_order(pages: &[Page], after: u64) -> Result<(), JournalError> {
    for (page, expected) in pages.iter().zip(after + 1..) {
        if page.seq != expected {
            return Err(corrupt(format_args!(
                "page {expected} is missing, {} follows",
                page.seq
            )));
        }
    }
    Ok(())
}

fn page(value: Value) -> Result<Page, JournalError> {
    let mut entry = list(value)?.into_iter();
    let id = text(entry.next().unwrap_or_default())?;
    let seq = id
        .strip_suffix("-0")
        .and_then(|seq| seq.parse().ok())
        .ok_or_else(|| corrupt(format_args!("a page is called {id:?}")))?;
    let fields = list(entry.next().unwrap_or_default())?;
    let Ok([_, at, _, writer, _, number, _, body]) = <[Value; 8]>::try_from(fields) else {
        return Err(corrupt(format_args!(
            "page {seq} has other fields than at, writer, number, body"
        )));
    };
    Ok(Page {
        seq,
        at: time(at)?,
        writer: self::writer(writer)?,
        number: number_of(number)?,
        body: text(body)?,
    })
}

pub(crate) fn list(value: Value) -> Result<Vec<Value>, JournalError> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(corrupt(format_args!("a list was expected, not {}", kind(&other)))),
    }
}

pub(crate) fn text(value: Value) -> Result<String, JournalError> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| corrupt("a text is not UTF-8")),
        Value::SimpleString(text) => Ok(text),
        Value::Okay => Ok("OK".to_owned()),
        other => Err(corrupt(format_args!("a text was expected, not {}", kind(&other)))),
    }
}

pub(crate) fn number_of(value: Value) -> Result<u64, JournalError> {
    match value {
        Value::Int(number) => u64::try_from(number).map_err(|_| corrupt(format_args!("{number} is below zero"))),
        other => {
            let text = text(other)?;
            text.parse().map_err(|_| corrupt(format_args!("{text:?} is no number")))
        }
    }
}

pub(crate) fn time(value: Value) -> Result<Timestamp, JournalError> {
    let text = text(value)?;
    let micros = text.parse().map_err(|_| corrupt(format_args!("{text:?} is no time")))?;
    Ok(Timestamp::from_micros(micros))
}

pub(crate) fn writer(value: Value) -> Result<Writer, JournalError> {
    let text = text(value)?;
    let id = Uuid::try_parse(&text).map_err(|_| corrupt(format_args!("{text:?} is no writer")))?;
    Ok(Writer(id))
}

/// What kind of value; its content may be long, and is not for logs.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a text",
        Value::Array(_) => "a list",
        _ => "something else",
    }
}

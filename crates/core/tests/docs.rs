//! The reference pages that are made from core's tables: what is printed for users is what the code says.
//!
//! Each page holds one block between `<!-- generated -->` and `<!-- /generated -->`. A stale block fails here;
//! `UPDATE_DOCS=1 cargo test -p wharf-core --test docs` writes it anew. The prose around it is written by hand.

use std::{fmt::Write as _, fs, path::Path};

use wharf_core::{EndReason, ErrorCode, ErrorSource, Retry};

const BEGIN: &str = "<!-- generated -->\n";
const END: &str = "<!-- /generated -->";

#[test]
fn error_codes_page_is_fresh() {
    let mut table = String::from("| code | status | source | retry | what to do |\n|---|---|---|---|---|\n");
    for code in ErrorCode::ALL {
        let (source, retry) = (source(code.source()), retry(code.retry()));
        let (status, advice) = (code.status(), code.advice());
        writeln!(table, "| `{code}` | {status} | {source} | {retry} | {advice} |").unwrap();
    }
    compare("error-codes.md", &table);
}

#[test]
fn end_reasons_page_is_fresh() {
    let mut table = String::from("| reason | close code | close frame says |\n|---|---|---|\n");
    for reason in EndReason::ALL {
        let close = reason.close();
        writeln!(table, "| `{reason}` | {} | {reason}: {} |", close.code, close.sentence).unwrap();
    }
    compare("end-reasons.md", &table);
}

/// Every reason is also in the guide, where users look for what to do.
#[test]
fn guide_explains_every_end_reason() {
    let page = docs("guide/when-sessions-end.md");
    let text = fs::read_to_string(&page).unwrap();
    for reason in EndReason::ALL {
        let row = format!("\n| `{reason}` |");
        assert!(
            text.contains(&row),
            "docs/guide/when-sessions-end.md has no row for `{reason}`: add one that says what to do"
        );
    }
}

fn compare(page: &str, table: &str) {
    let path = docs("reference").join(page);
    let text = fs::read_to_string(&path).expect("the page is there");
    let (before, rest) = text
        .split_once(BEGIN)
        .expect("the page has a line `<!-- generated -->`");
    let (block, after) = rest.split_once(END).expect("the page has a line `<!-- /generated -->`");
    if block == table {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).expect("the page can be written");
        return;
    }
    panic!(
        "docs/reference/{page} is stale; run `UPDATE_DOCS=1 cargo test -p wharf-core --test docs`. It should be:\n{table}"
    );
}

fn docs(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)
}

/// As JSON spells it.
fn source(source: ErrorSource) -> String {
    serde_json::to_string(&source)
        .expect("an enum is JSON")
        .trim_matches('"')
        .to_owned()
}

fn retry(retry: Retry) -> String {
    serde_json::to_string(&retry)
        .expect("an enum is JSON")
        .trim_matches('"')
        .to_owned()
}

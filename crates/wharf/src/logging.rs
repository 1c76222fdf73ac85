//! Log lines: text with colour on a terminal, JSON elsewhere. Queries and secrets never get here.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, Settings};

/// Starts logging to stderr. A filter that makes no sense is said and replaced by `info`.
pub fn start(settings: &Settings) {
    let filter = EnvFilter::try_new(&settings.log).unwrap_or_else(|error| {
        eprintln!("wharf: log (`{}`) makes no sense: {error}; using info", settings.log);
        EnvFilter::new("info")
    });
    let is_terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let text = match settings.log_format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => is_terminal,
    };
    if text {
        builder.with_ansi(is_terminal).with_target(false).init();
    } else {
        builder
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .init();
    }
}

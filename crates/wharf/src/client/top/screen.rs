//! How a picture looks: a line of counts, a bar of slots, the sessions that hold them, and who waits.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize as _},
    text::{Line, Span as Text},
    widgets::{Block, Gauge, Paragraph, Row, Table},
};
use serde_json::Value;

use super::{News, picture::Picture};
use crate::client::{
    pool::rows,
    table::{short, span, word},
};

/// How the sessions are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Longest held first.
    Held,
    /// By operation.
    Operation,
}

/// What is on the screen.
pub(super) struct View {
    url: String,
    picture: Picture,
    per_second: Option<f64>,
    trouble: Option<String>,
    pub(super) is_paused: bool,
    pub(super) order: Order,
}

// === impl Order ===

impl Order {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Held => Self::Operation,
            Self::Operation => Self::Held,
        }
    }
}

// === impl View ===

impl View {
    pub(super) const fn new(url: String, picture: Picture) -> Self {
        Self {
            url,
            picture,
            per_second: None,
            trouble: None,
            is_paused: false,
            order: Order::Held,
        }
    }

    /// A new picture, or the news that there is none.
    pub(super) fn take(&mut self, news: News) {
        match news {
            Ok(picture) if !self.is_paused => {
                self.per_second = picture.ended_per_second(&self.picture);
                self.picture = picture;
                self.trouble = None;
            }
            Ok(_) => {}
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let waiting = rows(&self.picture.queue["waiting"]);
        let queue_height = u16::try_from(waiting.len().clamp(1, 8)).unwrap_or(8) + 2;
        let [head, bar, ends, sessions, queue, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(queue_height),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_head(frame, head);
        self.draw_bar(frame, bar);
        self.draw_ends(frame, ends);
        self.draw_sessions(frame, sessions);
        draw_queue(frame, queue, &waiting, &self.picture.pool);
        let keys = "q leave   space pause   s order";
        let foot_line = match &self.trouble {
            Some(trouble) => Line::from(short(trouble.clone(), usize::from(foot.width))).red(),
            None if self.is_paused => Line::from(format!("PAUSED   {keys}")).yellow(),
            None => Line::from(keys).dim(),
        };
        frame.render_widget(foot_line, foot);
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let pool = &self.picture.pool;
        let n = |name: &str| word(&pool[name]);
        let mut parts = vec![
            Text::from("wharf ").bold(),
            Text::from(format!("{}  pool {}  ", self.url, n("pool"))),
            Text::from(format!("{} running", n("running"))).green(),
            Text::from(format!("  {} starting  ", n("starting"))),
            match pool["queued"].as_u64() {
                Some(0) | None => Text::from("0 queued"),
                Some(queued) => Text::from(format!("{queued} queued")).yellow(),
            },
            Text::from(format!(
                "  browsers: {} warm, {} launching  workers: {}",
                n("warm"),
                n("launching"),
                n("workers")
            )),
        ];
        if let Some(lock) = rows(&pool["locks"]).first() {
            parts.push(
                Text::from(format!("  LOCKED by {}", short(word(&lock["holder"]), 30)))
                    .red()
                    .bold(),
            );
        }
        frame.render_widget(Line::from(parts), area);
    }

    fn draw_bar(&self, frame: &mut Frame<'_>, area: Rect) {
        let pool = &self.picture.pool;
        let number = |name: &str| pool[name].as_u64().unwrap_or_default();
        let (running, most) = (number("running"), number("effective_max"));
        let ratio = if most == 0 { 0.0 } else { running as f64 / most as f64 };
        let style = if ratio >= 1.0 {
            Style::new().yellow()
        } else {
            Style::new().green()
        };
        let gauge = Gauge::default()
            .gauge_style(style)
            .ratio(ratio.clamp(0.0, 1.0))
            .label(format!("{running} of {most} slots"));
        frame.render_widget(gauge, area);
    }

    fn draw_ends(&self, frame: &mut Frame<'_>, area: Rect) {
        let rate = match self.per_second {
            Some(rate) => format!("{rate:.1} sessions/s"),
            None => "- sessions/s".to_owned(),
        };
        let wait = self
            .picture
            .median_wait()
            .map(|wait| format!("median wait {wait:.2} s"))
            .unwrap_or_default();
        let reasons: Vec<_> = self
            .picture
            .reasons()
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        let text = format!("{rate}   {wait}   ended lately: {}", reasons.join(", "));
        frame.render_widget(Line::from(text), area);
    }

    fn draw_sessions(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut holders = rows(&self.picture.pool["holders"]);
        let held = |row: &Value| row["held_for"].as_f64().unwrap_or_default();
        holders.sort_by(|a, b| match self.order {
            Order::Held => held(b).total_cmp(&held(a)),
            Order::Operation => word(&a["operation"])
                .cmp(&word(&b["operation"]))
                .then(held(b).total_cmp(&held(a))),
        });
        let lines = holders.iter().map(|row| {
            Row::new([
                word(&row["session"]),
                word(&row["status"]),
                word(&row["operation"]),
                span(&row["held_for"]),
                word(&row["description"]),
            ])
        });
        let widths = [
            Constraint::Length(37),
            Constraint::Length(9),
            Constraint::Length(16),
            Constraint::Length(9),
            Constraint::Min(10),
        ];
        let header = Row::new(["SESSION", "STATUS", "OPERATION", "HELD", "DESCRIPTION"]).bold();
        let title = format!(" {} hold a slot ", holders.len());
        let table = Table::new(lines, widths)
            .header(header)
            .block(Block::bordered().title(title));
        frame.render_widget(table, area);
    }
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, waiting: &[Value], pool: &Value) {
    let title = format!(" {} wait ", word(&pool["queued"]));
    let block = Block::bordered().title(title);
    if waiting.is_empty() {
        frame.render_widget(Paragraph::new("nobody waits").block(block), area);
        return;
    }
    let lines = waiting.iter().map(|row| {
        Row::new([
            word(&row["position"]),
            word(&row["session"]),
            word(&row["operation"]),
            span(&row["wait_time"]),
            word(&row["description"]),
        ])
    });
    let widths = [
        Constraint::Length(6),
        Constraint::Length(37),
        Constraint::Length(16),
        Constraint::Length(9),
        Constraint::Min(10),
    ];
    frame.render_widget(Table::new(lines, widths).block(block), area);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::client::{http::CallError, top::picture::tests::picture};

    fn drawn(view: &View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(110, 16)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn picture_shows_counts_holders_and_waiters() {
        let view = View::new("http://grid".to_owned(), picture(Instant::now(), &[("t", "released")]));
        let text = drawn(&view);
        for part in [
            "2 running",
            "1 queued",
            "2 of 4 slots",
            "ses_a",
            "ses_b",
            "ses_c",
            "released 1",
            "q leave",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(text.find("ses_a") < text.find("ses_b"), "longest held first\n{text}");
    }

    #[test]
    fn grid_that_is_gone_is_told_and_the_last_picture_stays() {
        let mut view = View::new("http://grid".to_owned(), picture(Instant::now(), &[]));
        view.take(Err(CallError::Strange("it is gone".to_owned())));
        let text = drawn(&view);
        assert!(text.contains("it is gone") && text.contains("ses_a"), "{text}");
        view.take(Ok(picture(Instant::now(), &[])));
        assert!(!drawn(&view).contains("it is gone"));
    }
}

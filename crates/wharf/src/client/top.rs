//! `wharf top`: sessions, queue, browsers and rates, live in the terminal.
//!
//! Its own file because it is the only command that stays. A thread looks at the grid, the terminal shows the last
//! picture: a grid that answers slowly, or not at all, never freezes the keys. Rates are told from two pictures, by the
//! clock of whoever looks.

mod picture;
mod screen;

use std::{
    io::IsTerminal as _,
    sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use clap::ArgMatches;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use serde_json::json;

use super::{
    Failure, Outcome, Output, given,
    http::{CallError, Grid},
    pool, span,
    table::table,
};
use picture::Picture;
use screen::{Order, View};

const INTERVAL: Duration = Duration::from_secs(1);
/// Faster than this is load, not a view.
const SHORTEST: Duration = Duration::from_millis(100);
/// How long a key press may take to be seen.
const KEYS_TICK: Duration = Duration::from_millis(50);

pub(super) fn run(grid: &Grid, matches: &ArgMatches) -> Outcome {
    let interval = match given(matches, "interval") {
        Some(text) => span("interval", text)?.max(SHORTEST),
        None => INTERVAL,
    };
    let pool = given(matches, "pool").map(str::to_owned);
    // A grid that is not there is told plainly, before the screen is taken.
    let first = Picture::look(grid, pool.as_deref())?;
    let is_once =
        matches.get_flag("once") || super::deepest(matches).get_flag("json") || !std::io::stdout().is_terminal();
    if is_once {
        let mut text = pool::summary(&first.pool);
        text.push('\n');
        text.push_str(&table(
            &pool::rows(&first.pool["holders"]),
            pool::HOLDERS,
            "nobody holds a slot",
        ));
        text.push('\n');
        text.push_str(&table(
            &pool::rows(&first.queue["waiting"]),
            pool::WAITERS,
            "nobody waits",
        ));
        return Ok(Output::new(json!({"pool": first.pool, "queue": first.queue}), text));
    }
    watch(grid, pool, interval, first)?;
    Ok(Output::new(json!(null), ""))
}

type News = Result<Picture, CallError>;

fn watch(grid: &Grid, pool: Option<String>, interval: Duration, first: Picture) -> Result<(), Failure> {
    let (tell, news) = sync_channel::<News>(1);
    let shown = grid.url().to_owned();
    thread::scope(|scope| {
        scope.spawn(move || look_on(grid, pool.as_deref(), interval, &tell));
        // Also restores the terminal when we panic; the receiver's end ends the thread.
        let mut terminal = ratatui::try_init().map_err(|error| Failure::Local(format!("the terminal: {error}")))?;
        let outcome = show(&mut terminal, View::new(shown, first), &news);
        drop(news);
        ratatui::restore();
        outcome
    })
}

/// Looks again and again until nobody listens.
fn look_on(grid: &Grid, pool: Option<&str>, interval: Duration, tell: &SyncSender<News>) {
    loop {
        let began = Instant::now();
        if tell.send(Picture::look(grid, pool)).is_err() {
            return;
        }
        thread::sleep(interval.saturating_sub(began.elapsed()));
    }
}

fn show(terminal: &mut ratatui::DefaultTerminal, mut view: View, news: &Receiver<News>) -> Result<(), Failure> {
    let local = |error: std::io::Error| Failure::Local(format!("the terminal: {error}"));
    loop {
        terminal.draw(|frame| view.draw(frame)).map_err(local)?;
        loop {
            match news.try_recv() {
                Ok(picture) => {
                    view.take(picture);
                    break;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            if !event::poll(KEYS_TICK).map_err(local)? {
                continue;
            }
            match event::read().map_err(local)? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char(' ') => view.is_paused = !view.is_paused,
                    KeyCode::Char('s') => view.order = Order::next(view.order),
                    _ => continue,
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            break;
        }
    }
}

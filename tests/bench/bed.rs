//! The test bed: grids with everything in memory, recipes for the direct side, progress on a terminal.
//!
//! Its own file because all benchmarks stand on it. Run directories (profiles) lie on tmpfs for both sides, the
//! grid's database on disk where it would be in life.

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use wharf_testkit::{BrowserUnderTest, Grid, GridBuilder, eventually_within};

use crate::{
    direct::Recipe,
    machine::{load_average, raise_file_limit},
    options::Options,
    page_server,
};

const MEMORY: &str = "/dev/shm";
/// A machine that compiles beside us is slow, not broken.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// After the pool is full again: what the browsers still do by themselves.
const SETTLE: Duration = Duration::from_millis(150);
/// A leak check may have much to say; the table has room for its beginning.
const LONGEST_NOTE: usize = 240;

pub struct Bed {
    pub quick: bool,
    pub page: String,
    memory: PathBuf,
    disk: TempDir,
    grids: usize,
    recipes: Vec<(BrowserUnderTest, Arc<Recipe>)>,
    terminal: bool,
    leftovers: Vec<String>,
}

// === impl Bed ===

impl Bed {
    pub async fn new(options: &Options) -> Result<Self> {
        let files = raise_file_limit();
        let memory = PathBuf::from(MEMORY);
        let bed = Self {
            quick: options.quick,
            page: page_server::start()?,
            memory: if memory.is_dir() { memory } else { std::env::temp_dir() },
            disk: tempfile::Builder::new().prefix("wharf-bench-").tempdir()?,
            grids: 0,
            recipes: Vec::new(),
            terminal: std::io::stderr().is_terminal(),
            leftovers: Vec::new(),
        };
        bed.say(&format!("at most {files} open files"));
        Ok(bed)
    }

    /// One of two numbers, by mode.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// A grid to be configured further: defaults of the product, profiles in memory, database on disk.
    pub fn grid(&mut self, browser: BrowserUnderTest) -> GridBuilder {
        self.grids += 1;
        let database = self.disk.path().join(format!("wharf-{}.db", self.grids));
        Grid::builder()
            .browser(browser)
            .home_in(&self.memory)
            .store(&format!("sqlite:{}", database.display()))
            .spare(1)
            .patience(PATIENCE)
    }

    /// How a grid starts this browser; looked up once.
    pub async fn recipe(&mut self, browser: BrowserUnderTest) -> Result<Arc<Recipe>> {
        if let Some((_, recipe)) = self.recipes.iter().find(|(known, _)| *known == browser) {
            return Ok(Arc::clone(recipe));
        }
        let grid = self.grid(browser).slots(1).min(1).spare(0).start().await?;
        warm(&grid, 1).await?;
        let recipe = Arc::new(Recipe::learn(&grid, &self.memory)?);
        self.finish(grid).await;
        self.recipes.push((browser, Arc::clone(&recipe)));
        Ok(recipe)
    }

    /// Ends a grid with the leak check. What it finds is reported beside the figures and does not void them.
    pub async fn finish(&mut self, grid: Grid) {
        let ended = grid.finish().await;
        self.note_leftovers(ended);
    }

    /// The same for what was ended by others.
    pub fn note_leftovers(&mut self, ended: Result<()>) {
        if let Err(error) = ended {
            let text = format!("{error:#}").replace('\n', " ");
            self.leftovers.push(text.chars().take(LONGEST_NOTE).collect());
        }
    }

    /// What leak checks have found since the last call.
    pub fn take_leftovers(&mut self) -> Vec<String> {
        std::mem::take(&mut self.leftovers)
    }

    /// The browsers measured.
    pub fn engines(&self) -> Vec<PathBuf> {
        let real = self.recipes.iter().filter(|(kind, _)| *kind != BrowserUnderTest::Fake);
        real.map(|(_, recipe)| recipe.program.clone()).collect()
    }

    /// Tells a person at a terminal what is going on; silent elsewhere.
    pub fn say(&self, what: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{what} · load {}", load_average());
            let _ = std::io::stderr().flush();
        }
    }

    pub fn done(&self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Waits until so many browsers are warm and none is on its way, then a moment.
pub async fn warm(grid: &Grid, count: u32) -> Result<()> {
    eventually_within(PATIENCE, format!("{count} warm browsers"), async || {
        let metrics = grid.metrics().await?;
        let number = |name: &str| metrics.get(name).with_context(|| format!("there is no metric {name}"));
        let (ready, coming) = (
            number("wharf_browsers{state=\"warm\"}")?,
            number("wharf_workers_pending")?,
        );
        ensure!(
            ready >= f64::from(count) && coming == 0.0,
            "{ready} warm, {coming} coming"
        );
        Ok(())
    })
    .await?;
    tokio::time::sleep(SETTLE).await;
    Ok(())
}

/// Waits until so many requests are queued.
pub async fn queued(grid: &Grid, count: f64) -> Result<()> {
    eventually_within(PATIENCE, format!("{count} in the queue"), async || {
        let depth = grid.metric("wharf_queue_depth").await?;
        ensure!(depth >= count, "{depth} are queued");
        Ok(())
    })
    .await
}

/// The address of the only browser of a grid, as it wrote it down itself.
pub fn only_endpoint(grid: &Grid) -> Result<String> {
    let files: Vec<_> = grid.session_dirs().iter().filter_map(|dir| endpoint(dir)).collect();
    ensure!(files.len() == 1, "expected one browser, found {files:?}");
    Ok(files[0].clone())
}

fn endpoint(dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(dir.join("profile/DevToolsActivePort")).ok()?;
    let (port, path) = text.trim().split_once('\n')?;
    Some(format!("ws://127.0.0.1:{port}{path}"))
}

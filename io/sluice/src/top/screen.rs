//! The live table: a loop over keys, samples and redraws.

use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::rates::{TopBy, TopSort};
use super::view::{self, ORDERS, TopView};
use super::{TopReport, TopWatch};

/// Shows the live table until `q` or a signal, then restores the terminal, also after a panic
/// (with ratatui's hook).
pub(super) fn run(
    watch: TopWatch,
    by: TopBy,
    sort: TopSort,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut screen = TopScreen::new(watch, by, sort);
    // The first sample comes before the screen is cleared, so that an error is a plain message.
    screen.sample_first()?;
    end_on_signals()?;
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let outcome = screen.show(&mut terminal, interval);
    ratatui::restore();
    outcome
}

/// Ends the process on a signal, from a separate thread. The loop cannot do it: when the terminal
/// is closed, crossterm's poll reads end of file in a busy loop and never returns.
fn end_on_signals() -> anyhow::Result<()> {
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot watch for signals")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // If the terminal is closed, an error cannot be shown.
            let _ = ratatui::try_restore();
            // The exit status of a shell for a program that a signal ended.
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

struct TopScreen {
    watch: TopWatch,
    by: TopBy,
    view: TopView,
    report: Option<TopReport>,
}

impl TopScreen {
    fn new(watch: TopWatch, by: TopBy, sort: TopSort) -> TopScreen {
        let view = TopView { sort, reversed: false, problem: None, table: TableState::default() };
        TopScreen { watch, by, view, report: None }
    }

    fn show(&mut self, terminal: &mut DefaultTerminal, interval: Duration) -> anyhow::Result<()> {
        // The first rates come early, so that the screen is not empty for a whole interval.
        let mut due = Instant::now() + interval.min(Duration::from_millis(300));
        loop {
            terminal.draw(|frame| view::draw(frame, self.report.as_ref(), &mut self.view))?;
            let wait = due.saturating_duration_since(Instant::now());
            if event::poll(wait)?
                && let Event::Key(key) = event::read()?
                && self.press(key)
            {
                return Ok(());
            }
            if Instant::now() >= due {
                self.sample();
                due = (due + self.watch.pause(interval)).max(Instant::now());
            }
        }
    }

    fn sample_first(&mut self) -> anyhow::Result<()> {
        self.watch.sample()?.context("the recording contains no frame").map(drop)
    }

    /// Takes a sample; an error is shown and the next sample retries.
    fn sample(&mut self) {
        match self.watch.sample() {
            Ok(None) => self.view.problem = Some("end of the recording".into()),
            Ok(Some(status)) => {
                self.view.problem = None;
                let TopView { sort, reversed, .. } = self.view;
                self.report = Some(self.watch.report(status, self.by, sort, reversed));
            }
            Err(error) => self.view.problem = Some(format!("{error:#}")),
        }
    }

    /// Handles a key; returns true to quit.
    fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if key.kind == KeyEventKind::Release => {}
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if control => return true,
            KeyCode::Char('j') => self.by = TopBy::Job,
            KeyCode::Char('u') => self.by = TopBy::User,
            KeyCode::Char('c') => self.by = TopBy::Class,
            KeyCode::Char('n') => self.by = TopBy::Client,
            KeyCode::Char('r') => self.view.reversed = !self.view.reversed,
            KeyCode::Left => self.view.sort = neighbour(self.view.sort, ORDERS.len() - 1),
            KeyCode::Right => self.view.sort = neighbour(self.view.sort, 1),
            KeyCode::Up => self.view.table.select_previous(),
            KeyCode::Down => self.view.table.select_next(),
            KeyCode::PageUp => self.view.table.scroll_up_by(PAGE),
            KeyCode::PageDown => self.view.table.scroll_down_by(PAGE),
            _ => {}
        }
        self.arrange();
        false
    }

    /// Recomputes the rows of the last two samples after a key, without a new sample.
    fn arrange(&mut self) {
        if let Some(report) = self.report.take() {
            let TopView { sort, reversed, .. } = self.view;
            self.report = Some(self.watch.report(report.status, self.by, sort, reversed));
        }
    }
}

/// Number of rows of page up and page down.
const PAGE: u16 = 10;

/// Returns the order `steps` to the right of `sort`, cyclically.
fn neighbour(sort: TopSort, steps: usize) -> TopSort {
    let at = ORDERS.iter().position(|order| *order == sort).unwrap_or(0);
    ORDERS[(at + steps) % ORDERS.len()]
}

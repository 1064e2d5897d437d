//! Formats a report, with the same cells on the screen and in plain text.

use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as TableRow, Table, TableState};
use ratatui::{Frame, text::Span};

use super::TopReport;
use super::rates::{TopBy, TopRow, TopSort};
use super::table;

/// A column: its head, its sort order, its width on the screen (with room for the arrow in its
/// head), its cell.
struct TopColumn {
    head: &'static str,
    sort: Option<TopSort>,
    width: u16,
    cell: fn(&TopRow) -> String,
}

const fn column(
    head: &'static str,
    sort: Option<TopSort>,
    width: u16,
    cell: fn(&TopRow) -> String,
) -> TopColumn {
    TopColumn { head, sort, width, cell }
}

/// The columns after the name. Without WAITING and RUNNING they fit 80 characters.
const COLUMNS: [TopColumn; 9] = [
    column("READ MB/s", Some(TopSort::Read), 10, |row| mb(row.read_bytes_per_s)),
    column("WRITTEN MB/s", Some(TopSort::Written), 13, |row| mb(row.written_bytes_per_s)),
    column("OPS/s", Some(TopSort::Ops), 8, |row| row.ops_per_s.to_string()),
    column("QUEUE", Some(TopSort::Queue), 7, |row| known(row.queue_ns_mean, span)),
    column("LATENCY", Some(TopSort::Latency), 8, |row| known(row.latency_ns_mean, span)),
    column("WAITING", None, 7, |row| known(row.queued, whole)),
    column("RUNNING", None, 7, |row| row.running.to_string()),
    column("SLOTS", Some(TopSort::Slots), 6, |row| known(row.slots, whole)),
    column("THROTTLED", None, 9, |row| if row.throttled { "yes".into() } else { String::new() }),
];

/// Minimum width of a screen with the columns WAITING and RUNNING.
const WIDE: u16 = 96;
/// Minimum width of a name.
const NAME_WIDTH: u16 = 12;

/// The orders that the arrow keys select, in the order of the columns.
pub(super) const ORDERS: [TopSort; 8] = [
    TopSort::Name,
    TopSort::Load,
    TopSort::Read,
    TopSort::Written,
    TopSort::Ops,
    TopSort::Queue,
    TopSort::Latency,
    TopSort::Slots,
];

/// Formats the report as a table of plain text.
pub(super) fn plain(report: &TopReport) -> String {
    let mut head = vec![name_head(report.by)];
    head.extend(COLUMNS.iter().map(|column| column.head));
    let right: Vec<_> = (1..COLUMNS.len()).collect();
    let rows = report.rows.iter().map(|row| {
        let cells = COLUMNS.iter().map(|column| (column.cell)(row));
        std::iter::once(row.name.clone()).chain(cells).collect()
    });
    let mut text = table::aligned(&head, &right, rows);
    if let Some(note) = &report.note {
        text += note;
        text.push('\n');
    }
    text
}

/// The state of the live view besides the report.
#[derive(Debug)]
pub(super) struct TopView {
    pub(super) sort: TopSort,
    pub(super) reversed: bool,
    /// The reason why the report is not updated, if any.
    pub(super) problem: Option<String>,
    pub(super) table: TableState,
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, report: Option<&TopReport>, view: &mut TopView) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(2), Constraint::Length(1)])
            .areas(frame.area());
    let mut head = report.map(summary).unwrap_or_default();
    if let Some(trouble) = &view.problem {
        head.truncate(1);
        head.push(Line::styled(trouble.clone(), Style::new().fg(Color::Red)));
    }
    frame.render_widget(ratatui::widgets::Paragraph::new(head), top);
    if let Some(report) = report {
        let table = live_table(report, view, middle.width >= WIDE);
        frame.render_stateful_widget(table, middle, &mut view.table);
    }
    frame.render_widget(keys(), bottom);
}

/// Formats two lines about the proxy as a whole, and one with the remark.
fn summary(report: &TopReport) -> Vec<Line<'static>> {
    let status = &report.status;
    let state = match (status.draining, status.scheduling) {
        (true, _) => "draining",
        (_, false) => "not scheduling",
        _ => "up",
    };
    let sum = |count: fn(&TopRow) -> u64| report.rows.iter().map(count).sum();
    let first = format!(
        "sluice {} pid {}  {state} {}  {} connections  {} threads  {} MB/s  {} ops/s",
        status.version,
        status.pid,
        uptime(status.t_ns),
        status.connections,
        status.threads.started,
        mb(sum(|row| row.read_bytes_per_s + row.written_bytes_per_s)),
        sum(|row| row.ops_per_s),
    );
    let targets = status.targets.iter().map(|target| {
        let held = report.slots.get(&target.name).copied().unwrap_or(0);
        let cut = match target.reservation_shortfall_ppm / 10_000 {
            0 => String::new(),
            percent => format!(", reservations cut by {percent} %"),
        };
        format!(
            "{}: {held} of {} slots, {} waiting, writes {}{cut}",
            target.name, target.slots_max, target.queued, target.write_mode
        )
    });
    let second = targets.collect::<Vec<_>>().join("  |  ");
    let note = report.note.clone().map(|note| Line::styled(note, Style::new().fg(Color::Yellow)));
    [first.into(), second.into()].into_iter().chain(note).collect()
}

fn live_table<'r>(report: &'r TopReport, view: &TopView, wide: bool) -> Table<'r> {
    let arrow = if view.reversed { '▲' } else { '▼' };
    let marked = |head: &str, sort: Option<TopSort>| {
        if sort == Some(view.sort) { format!("{arrow}{head}") } else { head.into() }
    };
    let name = match view.sort {
        TopSort::Load => format!("{} (load{arrow})", name_head(report.by)),
        _ => marked(name_head(report.by), Some(TopSort::Name)),
    };
    let narrow = |column: &&TopColumn| !["WAITING", "RUNNING"].contains(&column.head);
    let columns: Vec<_> = COLUMNS.iter().filter(|column| wide || narrow(column)).collect();
    let heads = columns.iter().map(|c| right(marked(c.head, c.sort)));
    let head = std::iter::once(Cell::new(name)).chain(heads);
    let rows = report.rows.iter().map(|row| {
        let cells = columns.iter().map(|column| right((column.cell)(row)));
        let cells = std::iter::once(Cell::new(row.name.as_str())).chain(cells);
        TableRow::new(cells).style(row_style(row))
    });
    let widths = columns.iter().map(|column| Constraint::Length(column.width));
    Table::new(rows, std::iter::once(Constraint::Min(NAME_WIDTH)).chain(widths))
        .header(TableRow::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn right(text: String) -> Cell<'static> {
    Cell::new(Line::from(text).right_aligned())
}

/// Returns the style of a row: throttled in yellow, idle dimmed, as the columns show, too.
fn row_style(row: &TopRow) -> Style {
    match row {
        TopRow { throttled: true, .. } => Style::new().fg(Color::Yellow),
        TopRow { ops_per_s: 0, queued: Some(0) | None, running: 0, .. } => {
            Style::new().fg(Color::DarkGray)
        }
        _ => Style::new(),
    }
}

fn keys() -> Line<'static> {
    let keys = "j job  u user  c class  n client  ←→ sort  r reverse  ↑↓ move  q quit";
    Line::from(Span::styled(keys, Style::new().add_modifier(Modifier::REVERSED)))
}

fn name_head(by: TopBy) -> &'static str {
    match by {
        TopBy::Job => "JOB",
        TopBy::User => "USER",
        TopBy::Class => "CLASS",
        TopBy::Client => "CLIENT",
    }
}

/// Formats a figure, or a dash if it is unknown.
fn known(figure: Option<u64>, text: fn(u64) -> String) -> String {
    figure.map_or("-".into(), text)
}

fn whole(number: u64) -> String {
    number.to_string()
}

/// Formats megabytes with one decimal; less than that is `<0.1`, not 0.
fn mb(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        1..50_000 => "<0.1".into(),
        _ => {
            let tenths = (bytes + 50_000) / 100_000;
            format!("{}.{}", tenths / 10, tenths % 10)
        }
    }
}

/// Formats a span of time with at least three digits and one unit.
fn span(nanos: u64) -> String {
    let (unit, size) = match nanos {
        0 => return "0".into(),
        1..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => ("µs", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    let (whole, hundredths) = (nanos / size, nanos % size * 100 / size);
    match whole {
        0..10 => format!("{whole}.{hundredths:02}{unit}"),
        10..100 => format!("{whole}.{}{unit}", hundredths / 10),
        _ => format!("{whole}{unit}"),
    }
}

fn uptime(t_ns: u64) -> String {
    let s = t_ns / 1_000_000_000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use api::{ProxyStatus, TargetReport, Threads};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn report() -> TopReport {
        let bully = TopRow {
            name: "bully".into(),
            written_bytes_per_s: 1_234_560_000,
            ops_per_s: 1177,
            queue_ns_mean: Some(12_345_678),
            latency_ns_mean: Some(104_000_000),
            queued: Some(12),
            running: 4,
            slots: Some(64),
            throttled: true,
            ..TopRow::default()
        };
        let victim = TopRow {
            name: "victim".into(),
            read_bytes_per_s: 4_096,
            ops_per_s: 1,
            queue_ns_mean: Some(0),
            latency_ns_mean: Some(850),
            queued: Some(0),
            slots: Some(0),
            ..TopRow::default()
        };
        let target = TargetReport {
            name: "/scratch".into(),
            slots_max: 64,
            queued: 12,
            write_mode: "paced".into(),
            ..TargetReport::default()
        };
        let status = ProxyStatus {
            version: "0.1.0".into(),
            pid: 42,
            t_ns: 3_725_000_000_000,
            scheduling: true,
            threads: Threads { started: 4, max: 256 },
            connections: 3,
            targets: vec![target],
            ..ProxyStatus::default()
        };
        let slots = [("/scratch".into(), 60)].into();
        TopReport { by: TopBy::Job, t_ns: 1, rows: vec![bully, victim], slots, note: None, status }
    }

    fn screen(view: &mut TopView, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, Some(&report()), view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(|y| line(y).trim_end().to_string()).collect()
    }

    fn view() -> TopView {
        TopView {
            sort: TopSort::Load,
            reversed: false,
            problem: None,
            table: TableState::default(),
        }
    }

    #[test]
    fn a_table_of_plain_text_has_every_column() {
        assert_eq!(
            plain(&report()),
            "JOB     READ MB/s  WRITTEN MB/s  OPS/s   QUEUE  LATENCY  WAITING  RUNNING  SLOTS  THROTTLED\n\
             bully           0        1234.6   1177  12.3ms    104ms       12        4     64  yes\n\
             victim       <0.1             0      1       0    850ns        0        0      0\n"
        );
    }

    #[test]
    fn what_nobody_knows_is_a_dash_and_told_why() {
        let row = TopRow { name: "a".into(), ops_per_s: 7, running: 2, ..TopRow::default() };
        let report = TopReport { rows: vec![row], note: Some("not scheduling".into()), ..report() };
        assert_eq!(
            plain(&report),
            "JOB  READ MB/s  WRITTEN MB/s  OPS/s  QUEUE  LATENCY  WAITING  RUNNING  SLOTS  THROTTLED\n\
             a            0             0      7      -        -        -        2      -\n\
             not scheduling\n"
        );
        let lines = summary(&report);
        assert_eq!(lines.last().unwrap().to_string(), "not scheduling");
    }

    #[test]
    fn the_screen_shows_the_proxy_the_rows_and_the_keys() {
        let lines = screen(&mut view(), 120, 8);
        assert_eq!(
            lines[0],
            "sluice 0.1.0 pid 42  up 1h02m  3 connections  4 threads  1234.6 MB/s  1178 ops/s"
        );
        assert_eq!(lines[1], "/scratch: 60 of 64 slots, 12 waiting, writes paced");
        assert!(lines[3].starts_with("JOB (load▼) "), "{}", lines[3]);
        assert!(lines[4].starts_with("bully "), "{}", lines[4]);
        assert!(lines[4].contains("1234.6"), "{}", lines[4]);
        assert!(lines[5].starts_with("victim "), "{}", lines[5]);
        assert!(lines[7].ends_with("q quit"), "{}", lines[7]);
    }

    #[test]
    fn the_column_that_orders_the_rows_is_marked() {
        let lines = screen(&mut TopView { sort: TopSort::Ops, reversed: true, ..view() }, 120, 8);
        assert!(lines[3].starts_with("JOB "), "{}", lines[3]);
        assert!(lines[3].contains("▲OPS/s"), "{}", lines[3]);
    }

    #[test]
    fn on_80_characters_every_head_is_whole_and_what_waits_and_runs_is_left_out() {
        let lines = screen(&mut TopView { sort: TopSort::Written, ..view() }, 80, 8);
        let heads: Vec<_> = lines[3].split_whitespace().collect();
        let expected = "JOB READ MB/s ▼WRITTEN MB/s OPS/s QUEUE LATENCY SLOTS THROTTLED";
        assert_eq!(heads, expected.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn a_proxy_that_does_not_answer_leaves_the_last_rows_and_says_so() {
        let trouble = Some("cannot connect".to_string());
        let lines = screen(&mut TopView { problem: trouble, ..view() }, 120, 8);
        assert_eq!(lines[1], "cannot connect");
        assert!(lines[4].starts_with("bully "), "{}", lines[4]);
    }

    #[test]
    fn a_tiny_terminal_is_no_panic() {
        for (width, height) in [(1, 1), (10, 3), (30, 5)] {
            screen(&mut view(), width, height);
        }
    }

    #[test]
    fn spans_and_amounts_are_short() {
        let spans =
            [0, 7, 1_500, 15_000, 150_000, 999_999, 1_000_000, 2_340_000_000, 600_000_000_000];
        let shown = spans.map(span);
        assert_eq!(
            shown,
            ["0", "7ns", "1.50µs", "15.0µs", "150µs", "999µs", "1.00ms", "2.34s", "600s"]
        );
        assert_eq!([0, 1, 50_000, 949_999, 950_000].map(mb), ["0", "<0.1", "0.1", "0.9", "1.0"]);
        assert_eq!(
            [5, 65, 3_600, 90_000].map(|s| uptime(s * 1_000_000_000)),
            ["5s", "1m05s", "1h00m", "1d01h"]
        );
    }
}

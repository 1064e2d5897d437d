//! Charts as SVG: stacked panels of lines for what happens over time.
//!
//!   panel 1 ─╮ one time axis,
//!   panel 2 ─╯ one legend
//!
//! A light background and large plain letters, since the charts end up in documents
//! and on projectors. What a value means is the caller's to say, in titles and units.

mod jobs;

use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub use jobs::{JobSeries, job_chart};

/// Panels of lines above each other with one time axis.
pub struct LineChart {
    /// The heading above the panels.
    pub title: String,
    /// A smaller line below the heading.
    pub subtitle: String,
    /// The legend; a line's `series` is an index into it.
    pub series: Vec<String>,
    /// From the top down.
    pub panels: Vec<ChartPanel>,
    /// Moments marked through all panels, in seconds, with what happened then.
    pub marks: Vec<(f64, String)>,
}

/// One panel of a [`LineChart`].
pub struct ChartPanel {
    /// What is shown and its unit.
    pub title: String,
    /// A logarithmic scale, for values that differ by powers of ten; none may be below 0.
    pub logarithmic: bool,
    /// The lines of the panel.
    pub lines: Vec<ChartLine>,
}

/// One line of a [`ChartPanel`].
pub struct ChartLine {
    /// Which of the legend.
    pub series: usize,
    /// Seconds and value, by time.
    pub points: Vec<(f64, f64)>,
}

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// What is to be shown has no picture.
    #[error("cannot draw {}: {what}", path.display())]
    Draw {
        /// The file that was asked for.
        path: PathBuf,
        /// What the drawing said.
        what: String,
    },
    /// The file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file that was to be written.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Writes `chart` as an SVG file.
///
/// # Errors
/// If it cannot be drawn or written.
pub fn line_chart(path: &Path, chart: &LineChart) -> Result<(), ChartError> {
    let height = LINES_TOP + chart.panels.len() as i32 * PANEL_HEIGHT + MARGIN;
    save(path, height, |root| draw_panels(root, chart))
}

type ChartArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawnChart = Result<(), DrawingAreaErrorKind<std::io::Error>>;

fn save(
    path: &Path,
    height: i32,
    draw: impl Fn(&ChartArea<'_>) -> DrawnChart,
) -> Result<(), ChartError> {
    let mut svg = String::new();
    {
        let size = (WIDTH as u32, height as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let drawn = root.fill(&WHITE).and_then(|()| draw(&root)).and_then(|()| root.present());
        drawn.map_err(|error| ChartError::Draw { path: path.into(), what: error.to_string() })?;
    }
    std::fs::write(path, svg).map_err(|source| ChartError::Write { path: path.into(), source })
}

fn draw_panels(root: &ChartArea<'_>, chart: &LineChart) -> DrawnChart {
    heading(root, &chart.title, &chart.subtitle)?;
    legend(root, &chart.series, HEADING_HEIGHT)?;
    let points = chart.panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let end = points.map(|(at, _)| *at).fold(0.0, f64::max).max(1e-9);
    for (index, panel) in chart.panels.iter().enumerate() {
        let top = LINES_TOP + index as i32 * PANEL_HEIGHT;
        let area = root.clone().shrink((0, top), (WIDTH, PANEL_HEIGHT));
        draw_panel(&area, panel, 0.0..end, &chart.marks)?;
        if index == 0 {
            label_marks(root, &chart.marks, end, top)?;
        }
    }
    Ok(())
}

fn draw_panel(
    area: &ChartArea<'_>,
    panel: &ChartPanel,
    time: Range<f64>,
    marks: &[(f64, String)],
) -> DrawnChart {
    text(area, &panel.title, (LINES_LEFT, 4), 16, INK, HPos::Left, VPos::Top)?;
    let scale = AxisScale::of(panel);
    let mut chart = ChartBuilder::on(area)
        .margin_top(PANEL_TITLE)
        .margin_right(LINES_RIGHT)
        .set_label_area_size(LabelAreaPosition::Left, LINES_LEFT)
        .set_label_area_size(LabelAreaPosition::Bottom, PANEL_FOOT)
        .build_cartesian_2d(time, scale.range.clone())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .label_style((FONT, 14).into_font().color(&FAINT))
        .y_labels(scale.labels)
        .y_label_formatter(&|y| short(scale.value(*y)))
        .x_label_formatter(&|x| format!("{} s", short(*x)))
        .draw()?;
    for (at, _) in marks {
        let line = [(*at, scale.range.start), (*at, scale.range.end)];
        chart.draw_series([PathElement::new(line, FAINT.stroke_width(1))])?;
    }
    for line in &panel.lines {
        draw_line(&mut chart, line, &scale)?;
    }
    Ok(())
}

type ChartAxes<'a> = Cartesian2d<RangedCoordf64, RangedCoordf64>;

fn draw_line<'a>(
    chart: &mut ChartContext<'_, SVGBackend<'a>, ChartAxes<'a>>,
    line: &ChartLine,
    scale: &AxisScale,
) -> DrawnChart {
    let points = line.points.iter().map(|(at, value)| (*at, scale.position(*value)));
    chart.draw_series(LineSeries::new(points, color(line.series).stroke_width(3)))?;
    Ok(())
}

fn label_marks(root: &ChartArea<'_>, marks: &[(f64, String)], end: f64, top: i32) -> DrawnChart {
    let width = f64::from(WIDTH - LINES_LEFT - LINES_RIGHT);
    for (at, what) in marks {
        let x = LINES_LEFT + (at / end * width).round() as i32;
        text(root, what, (x + 6, top + PANEL_TITLE + 2), 14, FAINT, HPos::Left, VPos::Top)?;
    }
    Ok(())
}

/// The vertical scale of a panel, in values or in their decimal logarithms.
struct AxisScale {
    logarithmic: bool,
    range: Range<f64>,
    labels: usize,
}

impl AxisScale {
    fn of(panel: &ChartPanel) -> AxisScale {
        let values = || panel.lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value);
        let largest = values().fold(0.0, f64::max);
        if !panel.logarithmic {
            let range = 0.0..round_scale(largest).1;
            return AxisScale { logarithmic: false, range, labels: 6 };
        }
        let positive = values().filter(|value| *value > 0.0);
        let smallest = positive.fold(f64::INFINITY, f64::min).min(largest.max(1.0));
        let start = smallest.log10().floor();
        let end = largest.max(1.0).log10().ceil().max(start + 1.0);
        AxisScale { logarithmic: true, range: start..end, labels: (end - start) as usize + 1 }
    }

    fn position(&self, value: f64) -> f64 {
        if !self.logarithmic {
            return value;
        }
        if value > 0.0 { value.log10().max(self.range.start) } else { self.range.start }
    }

    fn value(&self, position: f64) -> f64 {
        if self.logarithmic { 10f64.powf(position) } else { position }
    }
}

fn heading(root: &ChartArea<'_>, title: &str, subtitle: &str) -> DrawnChart {
    text(root, title, (MARGIN, 16), 24, INK, HPos::Left, VPos::Top)?;
    text(root, subtitle, (MARGIN, 48), 15, FAINT, HPos::Left, VPos::Top)
}

fn legend(root: &ChartArea<'_>, series: &[String], y: i32) -> DrawnChart {
    let mut x = MARGIN;
    for (index, name) in series.iter().enumerate() {
        root.draw(&Rectangle::new([(x, y), (x + 16, y + 14)], color(index).filled()))?;
        text(root, name, (x + 22, y + 7), 15, INK, HPos::Left, VPos::Center)?;
        x += 22 + 9 * name.chars().count() as i32 + 24;
    }
    Ok(())
}

fn text(
    area: &ChartArea<'_>,
    content: &str,
    at: (i32, i32),
    size: u32,
    color: RGBColor,
    h: HPos,
    v: VPos,
) -> DrawnChart {
    let style = (FONT, size).into_font().color(&color).pos(Pos::new(h, v));
    area.draw(&Text::new(content.to_owned(), at, style))
}

/// A step of 1, 2 or 5 times a power of ten, and the first multiple of it that covers `largest`.
fn round_scale(largest: f64) -> (f64, f64) {
    let largest = if largest > 0.0 { largest } else { 1.0 };
    let unit = 10f64.powf((largest / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().map(|s| s * unit).find(|s| s * 6.0 >= largest).unwrap_or(unit);
    (step, (largest / step).ceil() * step)
}

/// Three significant figures, and k or M for thousands and millions.
pub fn short(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        v if v >= 999_500.0 => (value / 1e6, "M"),
        v if v >= 9_995.0 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        0.0 => 0,
        v if v < 0.1 => 3,
        _ => 2,
    };
    let number = format!("{value:.digits$}");
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => &number,
    };
    format!("{number}{suffix}")
}

fn color(series: usize) -> RGBColor {
    PALETTE[series % PALETTE.len()]
}

/// Distinct to eyes that do not tell red from green (Okabe and Ito's order, darkened for white).
const PALETTE: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(224, 224, 224);
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";

const WIDTH: i32 = 1040;
const MARGIN: i32 = 28;
const HEADING_HEIGHT: i32 = 78;
const LINES_TOP: i32 = 112;
const LINES_LEFT: i32 = 70;
const LINES_RIGHT: i32 = 30;
const PANEL_HEIGHT: i32 = 270;
const PANEL_TITLE: i32 = 30;
const PANEL_FOOT: i32 = 34;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shortened_to_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.042, "0.042"),
            (4.2, "4.2"),
            (12.34, "12.3"),
            (348.0, "348"),
            (5000.0, "5000"),
            (348_123.0, "348k"),
            (2_060_000.0, "2.06M"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn a_scale_covers_its_largest_value_in_round_steps() {
        assert_eq!(round_scale(4.2), (1.0, 5.0));
        assert_eq!(round_scale(11.0), (2.0, 12.0));
        assert_eq!(round_scale(348.0), (100.0, 400.0));
        assert_eq!(round_scale(0.0), (0.2, 1.0));
    }

    #[test]
    fn a_logarithmic_panel_spans_whole_powers_of_ten_and_keeps_zero_at_its_foot() {
        let points = vec![(0.0, 0.0), (1.0, 30.0), (2.0, 5000.0)];
        let lines = vec![ChartLine { series: 0, points }];
        let scale = AxisScale::of(&ChartPanel { title: String::new(), logarithmic: true, lines });
        assert_eq!((scale.range.clone(), scale.labels), (1.0..4.0, 4));
        assert_eq!(scale.position(0.0), 1.0);
        assert_eq!(scale.value(3.0), 1000.0);
    }
}

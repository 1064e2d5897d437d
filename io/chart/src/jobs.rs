//! What each job had over time, a panel for each run: of a scenario, a replay, a measurement.
//!
//! ```text
//!   series of each job ─► bins ─► lines ─┬─ panel: ours
//!                                        └─ panel: fifo …     one legend: jobs
//! ```

use std::path::Path;

use crate::{ChartError, ChartLine, ChartPanel, LineChart, line_chart};

/// A job's name, and its requests and bytes of each second.
pub type JobSeries = (String, Vec<(u64, u64)>);

/// Number of the palette's colours; further jobs are one line together.
const LINES_MAX: usize = 6;
/// A line below the largest divided by this cannot be distinguished from the axis.
const SEEN_MIN: u64 = 30;
/// More points than this are no more to be seen.
const POINTS_MAX: usize = 400;

/// Writes panels, each with the same jobs in the same order, as an SVG file; in MB/s if
/// `bytes` are of interest and every job's are to be seen, else in requests.
///
/// # Errors
/// If it cannot be drawn or written.
pub fn job_chart(
    path: &Path,
    title: &str,
    subtitle: &str,
    panels: &[(String, Vec<JobSeries>)],
    bytes: bool,
) -> Result<(), ChartError> {
    let Some((_, first)) = panels.first() else { return Ok(()) };
    let bytes = bytes && can_be_seen(first);
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    let unit = if bytes { "MB/s" } else { "requests/s" };
    let panel = |(name, jobs): &(String, Vec<JobSeries>)| ChartPanel {
        title: format!("{name}: {unit}"),
        logarithmic: false,
        lines: lines(jobs, bytes),
    };
    let chart = LineChart {
        title: title.into(),
        subtitle: subtitle.into(),
        series: legend(&names),
        panels: panels.iter().map(panel).collect(),
        marks: Vec::new(),
    };
    line_chart(path, &chart)
}

/// Whether no job that asked for something moves so little that its line would lie on the axis.
fn can_be_seen(jobs: &[JobSeries]) -> bool {
    let sums = jobs.iter().map(|(_, series)| {
        series.iter().fold((0, 0), |sum, (requests, bytes)| (sum.0 + requests, sum.1 + bytes))
    });
    let moved: Vec<u64> = sums.filter(|sum| sum.0 > 0).map(|sum| sum.1).collect();
    let (least, most) = (moved.iter().min(), moved.iter().max());
    least.zip(most).is_some_and(|(least, most)| least.saturating_mul(SEEN_MIN) >= *most)
}

fn legend(names: &[&str]) -> Vec<String> {
    let own = separate_jobs(names.len());
    let mut series: Vec<String> = names[..own].iter().map(|name| name.to_string()).collect();
    if own < names.len() {
        series.push(format!("{} others", names.len() - own));
    }
    series
}

fn separate_jobs(jobs: usize) -> usize {
    if jobs <= LINES_MAX { jobs } else { LINES_MAX - 1 }
}

fn lines(jobs: &[JobSeries], bytes: bool) -> Vec<ChartLine> {
    let own = separate_jobs(jobs.len());
    let seconds = jobs.iter().map(|(_, series)| series.len()).max().unwrap_or(0);
    let mut sums = vec![vec![0.0; seconds]; own + usize::from(own < jobs.len())];
    for (number, (_, series)) in jobs.iter().enumerate() {
        let sum = &mut sums[number.min(own)];
        for (second, (requests, moved)) in series.iter().enumerate() {
            sum[second] += if bytes { *moved as f64 / 1e6 } else { *requests as f64 };
        }
    }
    let each = seconds.div_ceil(POINTS_MAX).max(1);
    let points = |sum: &Vec<f64>| {
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let at = |bin: usize, part: &[f64]| (bin * each) as f64 + part.len() as f64 / 2.0;
        sum.chunks(each).enumerate().map(|(bin, part)| (at(bin, part), mean(part))).collect()
    };
    let line = |(series, sum): (usize, &Vec<f64>)| ChartLine { series, points: points(sum) };
    sums.iter().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(count: usize, seconds: usize) -> Vec<JobSeries> {
        (0..count).map(|number| (format!("j{number}"), vec![(10, 2_000_000); seconds])).collect()
    }

    #[test]
    fn jobs_beyond_the_colours_are_one_line() {
        let found = lines(&jobs(8, 3), false);
        assert_eq!(found.len(), LINES_MAX);
        assert_eq!(found[0].points, [(0.5, 10.0), (1.5, 10.0), (2.5, 10.0)]);
        assert_eq!(found[5].points, [(0.5, 30.0), (1.5, 30.0), (2.5, 30.0)]);
        assert_eq!(legend(&["a"; 8])[5], "3 others");
        assert_eq!(lines(&jobs(6, 3), true)[5].points[0], (0.5, 2.0));
    }

    #[test]
    fn a_job_of_small_requests_is_seen_by_their_number() {
        let small = ("small".into(), vec![(1_000, 4_096_000)]);
        let large = |bytes| ("large".into(), vec![(100, bytes)]);
        let idle = ("idle".into(), vec![(0, 0)]);
        assert!(can_be_seen(&[small.clone(), large(100_000_000), idle]));
        assert!(!can_be_seen(&[small, large(200_000_000)]));
        assert!(!can_be_seen(&[]));
    }

    #[test]
    fn a_long_run_is_drawn_by_means_of_several_seconds() {
        let found = lines(&jobs(1, 1001), false);
        assert_eq!(found[0].points.len(), 334);
        assert_eq!((found[0].points[0], found[0].points[333]), ((1.5, 10.0), (1000.0, 10.0)));
    }
}

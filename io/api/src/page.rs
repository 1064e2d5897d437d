//! A page of metrics in Prometheus's text format, version 0.0.4.
//!
//! ```text
//!   page.family(&TARGET_QUEUED).line(&["disk"], 3)  ─►  # HELP sluice_target_queued Requests …
//!                                                      # TYPE sluice_target_queued gauge
//!                                                      sluice_target_queued{target="disk"} 3
//! ```
//!
//! Written by hand: the format is a dozen rules, and a crate for it would require a registry of
//! names besides the one table. Numbers are integers in the units of the table (nanoseconds, parts
//! per million) and are printed exactly, without floats.

use std::fmt::Write as _;

use crate::metrics::{Metric, MetricKind, MetricUnit};

/// A page of metrics with their values, as text.
#[derive(Debug, Default)]
pub struct MetricsPage {
    text: String,
}

/// The lines of one metric, which the format requires to be together.
#[derive(Debug)]
pub struct MetricFamily<'p> {
    page: &'p mut MetricsPage,
    metric: &'static Metric,
    is_begun: bool,
}

impl MetricsPage {
    /// The content type of the page.
    pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

    /// Makes an empty page.
    pub fn new() -> MetricsPage {
        MetricsPage::default()
    }

    /// Starts a metric; once for each on a page. Without lines nothing is written.
    pub fn family(&mut self, metric: &'static Metric) -> MetricFamily<'_> {
        MetricFamily { page: self, metric, is_begun: false }
    }

    /// Adds a metric without labels.
    pub fn single(&mut self, metric: &'static Metric, value: u64) {
        self.family(metric).line(&[], value);
    }

    /// Returns the whole text.
    pub fn finish(self) -> String {
        self.text
    }
}

impl MetricFamily<'_> {
    /// Adds one value, in nanoseconds if the unit is seconds and in parts per million if it is a
    /// ratio.
    ///
    /// # Panics
    /// If the number of values differs from the number of labels, or the metric is a histogram.
    pub fn line(&mut self, labels: &[&str], value: u64) {
        assert!(self.metric.kind != MetricKind::Histogram, "{} has buckets", self.metric.name);
        self.begin();
        self.name("", labels, None);
        self.value(value);
    }

    /// Adds one histogram: for each bound, ascending, the count of values up to it and above the
    /// previous bound; the count above all bounds; and the sum.
    ///
    /// # Panics
    /// If the number of values differs from the number of labels, or the metric is not a histogram.
    pub fn histogram(&mut self, labels: &[&str], buckets: &[(u64, u64)], beyond: u64, sum: u64) {
        assert!(self.metric.kind == MetricKind::Histogram, "{} has none", self.metric.name);
        self.begin();
        let mut count = 0;
        for (bound, within) in buckets {
            count += within;
            self.name("_bucket", labels, Some(&in_unit(self.metric.unit, *bound)));
            self.count(count);
        }
        count += beyond;
        self.name("_bucket", labels, Some("+Inf"));
        self.count(count);
        self.name("_sum", labels, None);
        self.value(sum);
        self.name("_count", labels, None);
        self.count(count);
    }

    fn begin(&mut self) {
        if std::mem::replace(&mut self.is_begun, true) {
            return;
        }
        let Metric { name, kind, help, .. } = self.metric;
        let text = &mut self.page.text;
        *text += &format!("# HELP {name}");
        for line in *help {
            text.push(' ');
            escape(text, line.trim(), false);
        }
        *text += &format!("\n# TYPE {name} {}\n", kind.name());
    }

    fn name(&mut self, suffix: &str, labels: &[&str], bound: Option<&str>) {
        let Metric { name, labels: names, .. } = self.metric;
        assert_eq!(labels.len(), names.len(), "{name} has the labels {names:?}");
        let text = &mut self.page.text;
        text.push_str(name);
        text.push_str(suffix);
        let bound = bound.map(|bound| ("le", bound));
        let pairs = names.iter().copied().zip(labels.iter().copied()).chain(bound);
        let mut before = '{';
        for (name, value) in pairs {
            text.push(before);
            text.push_str(name);
            text.push_str("=\"");
            escape(text, value, true);
            text.push('"');
            before = ',';
        }
        if before == ',' {
            text.push('}');
        }
    }

    fn value(&mut self, value: u64) {
        let value = in_unit(self.metric.unit, value);
        self.page.text.push(' ');
        self.page.text.push_str(&value);
        self.page.text.push('\n');
    }

    fn count(&mut self, count: u64) {
        // Writing to a string does not fail.
        let _ = writeln!(self.page.text, " {count}");
    }
}

/// Formats a value in its unit.
fn in_unit(unit: MetricUnit, value: u64) -> String {
    let decimal = |per: u64, digits: usize| {
        let text = format!("{}.{:0digits$}", value / per, value % per);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match unit {
        MetricUnit::Count | MetricUnit::Bytes => value.to_string(),
        MetricUnit::Seconds => decimal(1_000_000_000, 9),
        MetricUnit::Ratio => decimal(1_000_000, 6),
    }
}

/// Escapes backslashes and ends of lines, and quotes within labels.
fn escape(text: &mut String, plain: &str, is_label: bool) {
    for c in plain.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if is_label => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{
        DRAINING, JOB_QUEUE, JOB_REQUESTS, TARGET_CUT, TARGET_QUEUE, TARGET_SIZE,
    };

    fn lines(page: MetricsPage) -> Vec<String> {
        page.finish().lines().filter(|l| !l.starts_with('#')).map(String::from).collect()
    }

    #[test]
    fn a_metric_says_once_what_it_is() {
        let mut page = MetricsPage::new();
        page.single(&DRAINING, 1);
        let text = "# HELP sluice_proxy_draining 1 from SIGTERM on, 0 before.\n\
                    # TYPE sluice_proxy_draining gauge\nsluice_proxy_draining 1\n";
        assert_eq!(page.finish(), text);
        let mut page = MetricsPage::new();
        page.family(&TARGET_SIZE);
        assert_eq!(page.finish(), "");
    }

    #[test]
    fn a_label_may_hold_any_text() {
        let mut page = MetricsPage::new();
        page.family(&JOB_REQUESTS).line(&["/a b", "q\"u\\o\nte"], 7);
        let line = r#"sluice_job_requests_total{target="/a b",jobid="q\"u\\o\nte"} 7"#;
        assert_eq!(lines(page), [line]);
    }

    #[test]
    fn times_are_exact_seconds_and_parts_are_parts_of_one() {
        let mut page = MetricsPage::new();
        let mut family = page.family(&JOB_QUEUE);
        for time in [0, 1, 1_500_000_000, u64::MAX] {
            family.line(&["t", "j"], time);
        }
        page.family(&TARGET_CUT).line(&["t"], 250_000);
        let lines = lines(page);
        let values: Vec<_> = lines.iter().map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(values, ["0", "0.000000001", "1.5", "18446744073.709551615", "0.25"]);
    }

    #[test]
    fn buckets_add_up_from_the_smallest_to_all() {
        let mut page = MetricsPage::new();
        let buckets = [(1_024, 3), (2_048, 0), (4_096, 2)];
        page.family(&TARGET_QUEUE).histogram(&["t", "read", "device"], &buckets, 1, 20_000);
        let of = |suffix: &str, le: &str, value: &str| {
            let labels = r#"target="t",kind="read",lane="device""#;
            format!("sluice_target_queue_seconds{suffix}{{{labels}{le}}} {value}")
        };
        let expected = [
            of("_bucket", ",le=\"0.000001024\"", "3"),
            of("_bucket", ",le=\"0.000002048\"", "3"),
            of("_bucket", ",le=\"0.000004096\"", "5"),
            of("_bucket", ",le=\"+Inf\"", "6"),
            of("_sum", "", "0.00002"),
            of("_count", "", "6"),
        ];
        assert_eq!(lines(page), expected);
    }

    #[test]
    #[should_panic(expected = "has the labels")]
    fn a_line_has_all_labels_of_its_metric() {
        MetricsPage::new().family(&JOB_REQUESTS).line(&["t"], 1);
    }
}

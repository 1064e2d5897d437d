//! Parses a page of metrics.
//!
//! ```text
//!   # TYPE sluice_target_queued gauge          ─► Gauge
//!   sluice_target_queued{target="disk"} 3      ─► Sample: name, kind, labels, "3"
//! ```
//!
//! Pages are Sluice's own, so this reads the output of [`api::MetricsPage`] and skips unknown
//! lines, which a later version may have.

use std::collections::HashMap;

/// One value of the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetricSample<'p> {
    pub(super) name: &'p str,
    pub(super) kind: SampleKind,
    pub(super) labels: Vec<(&'p str, String)>,
    /// The text of the value on the page.
    pub(super) value: &'p str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleKind {
    /// It only grows; includes the count and the sum of a histogram.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Parses the values of a page, without the buckets of histograms.
pub(super) fn samples(page: &str) -> Vec<MetricSample<'_>> {
    let mut types = HashMap::new();
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            types.extend(of.split_once(' '));
        } else if !line.starts_with('#') {
            found.extend(sample(line, &types));
        }
    }
    found
}

fn sample<'p>(line: &'p str, types: &HashMap<&str, &str>) -> Option<MetricSample<'p>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let part =
        |suffix| name.strip_suffix(suffix).and_then(|of| types.get(of)) == Some(&"histogram");
    let kind = match types.get(name) {
        Some(&"counter") => SampleKind::Counter,
        Some(&"gauge") => SampleKind::Gauge,
        None if part("_sum") || part("_count") => SampleKind::Counter,
        _ => return None,
    };
    Some(MetricSample { name, kind, labels, value: value.trim() })
}

/// Parses labels up to their closing brace; returns them and the rest of the line.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.strip_prefix(',').unwrap_or(rest).split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), quoted.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.push((name, value));
        rest = &quoted[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use api::MetricsPage;
    use api::metrics::{INFO, JOB_QUEUE, TARGET_QUEUE, TARGET_QUEUED};

    use super::*;

    #[test]
    fn what_a_page_says_is_read_back() {
        let mut page = MetricsPage::new();
        page.family(&TARGET_QUEUED).line(&["a}b"], 3);
        page.family(&JOB_QUEUE).line(&["/a b", "q\"u\\o\nte"], 1_500_000_000);
        page.family(&TARGET_QUEUE).histogram(&["t", "read", "device"], &[(1024, 3)], 2, 7_000);
        let page = page.finish();
        let told: Vec<_> = samples(&page)
            .into_iter()
            .map(|s| {
                (s.name, s.kind, s.labels.into_iter().map(|l| l.1).collect::<Vec<_>>(), s.value)
            })
            .collect();
        let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        let of = words(&["t", "read", "device"]);
        let expected = [
            ("sluice_target_queued", SampleKind::Gauge, words(&["a}b"]), "3"),
            (
                "sluice_job_queue_seconds_total",
                SampleKind::Counter,
                words(&["/a b", "q\"u\\o\nte"]),
                "1.5",
            ),
            ("sluice_target_queue_seconds_sum", SampleKind::Counter, of.clone(), "0.000007"),
            ("sluice_target_queue_seconds_count", SampleKind::Counter, of, "5"),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_no_line_of_a_page_is_passed_over() {
        let mut page = MetricsPage::new();
        page.family(&INFO).line(&["proxy", "1"], 1);
        let page = page.finish() + "x\nx{\nx{a\nx{a=\"b\nx{a=\"b\"\nunknown 7\n\n# EOF\n";
        assert_eq!(samples(&page).len(), 1);
    }
}

//! Formats a metrics page as InfluxDB's line protocol.
//!
//! ```text
//!   sluice_target_queued{target="fs"} 3  ─► sluice_target_queued,host=node1,target=fs value=3 1767…
//! ```
//!
//! All values are floats: a field's type is that of its first value, and a gauge may be 0 before
//! it is 0.5. Labels are tags; InfluxDB refuses empty tags, so they are omitted.

use super::samples::MetricSample;

/// Formats one line, of a host at a time in seconds since 1970.
pub(super) fn line(sample: &MetricSample<'_>, host: &str, at_s: u64) -> String {
    let mut line = escaped(sample.name, ", ");
    let host = ("host", host);
    let labels = sample.labels.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in std::iter::once(host).chain(labels).filter(|(_, v)| !v.is_empty()) {
        line += &format!(",{}={}", escaped(name, ",= "), escaped(value, ",= "));
    }
    line + &format!(" value={} {at_s}\n", sample.value)
}

/// Escapes the special characters. Line ends and backslashes, which have no escape at the end of a
/// value, become `_`.
fn escaped(text: &str, special: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\\' => escaped.push('_'),
            c if special.contains(c) => escaped.extend(['\\', c]),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::samples::SampleKind;

    #[test]
    fn labels_are_tags_and_may_hold_any_text() {
        let labels = vec![("target", "a b,c=d\\".to_owned()), ("jobid", String::new())];
        let name = "sluice_job_requests_total";
        let sample = MetricSample { name, kind: SampleKind::Counter, labels, value: "7" };
        let line = line(&sample, "node1", 1_767_225_600);
        let expected =
            "sluice_job_requests_total,host=node1,target=a\\ b\\,c\\=d_ value=7 1767225600\n";
        assert_eq!(line, expected);
    }
}

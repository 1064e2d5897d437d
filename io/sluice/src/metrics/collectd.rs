//! Formats a metrics page as lines of collectd's exec plugin.
//!
//! ```text
//!   sluice_target_bytes_total{target="fs",kind="read",lane="device"} 12
//!     ─► PUTVAL "HOST/sluice-proxy/derive-target_bytes_total.fs.read.device" interval=10 N:12
//! ```
//!
//! A counter is a `derive`, which is a whole number: counters in seconds are written in
//! nanoseconds. An identifier has at most 127 bytes in each part and no slash; a longer part is
//! cut and ends with a hash of the whole, so that two never collide.

use super::samples::{MetricSample, SampleKind};

/// The host and process of the values.
#[derive(Clone, Debug)]
pub(super) struct CollectdOrigin {
    pub(super) host: String,
    /// Distinguishes the processes of one host.
    pub(super) instance: String,
    pub(super) interval_s: f64,
}

/// Formats one line; `None` for a value that is not a number for collectd.
pub(super) fn line(sample: &MetricSample<'_>, origin: &CollectdOrigin) -> Option<String> {
    let stem = sample.name.strip_prefix(api::metrics::PREFIX).unwrap_or(sample.name);
    // The count of a histogram of times is not a time.
    let is_time = stem.contains("_seconds") && !stem.ends_with("_count");
    let (kind, stem, value) = match sample.kind {
        SampleKind::Gauge => ("gauge", stem.to_owned(), sample.value.to_owned()),
        SampleKind::Counter if is_time => {
            ("derive", stem.replace("_seconds", "_nanoseconds"), nanoseconds(sample.value)?)
        }
        SampleKind::Counter => ("derive", stem.to_owned(), sample.value.to_owned()),
    };
    value.parse::<f64>().ok()?;
    let labels = sample.labels.iter().map(|(_, value)| value.as_str());
    let words: Vec<_> = std::iter::once(stem.as_str()).chain(labels).collect();
    let CollectdOrigin { host, instance, interval_s } = origin;
    let kind = part(&format!("{kind}-{}", words.join(".")));
    let (host, plugin) = (part(host), part(&format!("sluice-{instance}")));
    Some(format!("PUTVAL \"{host}/{plugin}/{kind}\" interval={interval_s} N:{value}\n"))
}

/// Converts decimal seconds to whole nanoseconds, exactly.
fn nanoseconds(seconds: &str) -> Option<String> {
    let (whole, part) = seconds.split_once('.').unwrap_or((seconds, ""));
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<9}").get(..9)?.parse().ok()?;
    Some(whole.checked_mul(1_000_000_000)?.checked_add(part)?.to_string())
}

/// Makes one part of an identifier.
fn part(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    let name: String = text.chars().map(|c| if plain(c) { c } else { '_' }).collect();
    if name == text && name.len() <= PART_BYTES_MAX {
        return name;
    }
    let digest = format!("~{:016x}", fnv1a(text.as_bytes()));
    let most = name.len().min(PART_BYTES_MAX - digest.len());
    format!("{}{digest}", &name[..most])
}

/// Computes the hash of Fowler, Noll and Vo, which is the same in every version of this program.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Limit of a part: collectd's DATA_MAX_NAME_LEN is 128 with its final zero byte.
const PART_BYTES_MAX: usize = 127;

#[cfg(test)]
mod tests {
    use super::*;

    fn put(name: &str, kind: SampleKind, label: &str, value: &str) -> Option<String> {
        let labels = vec![("jobid", label.to_owned())];
        let origin =
            CollectdOrigin { host: "node1".into(), instance: "proxy".into(), interval_s: 10.0 };
        line(&MetricSample { name, kind, labels, value }, &origin)
    }

    #[test]
    fn counters_are_whole_derives_and_gauges_as_they_are() {
        let line = put("sluice_job_requests_total", SampleKind::Counter, "a.1", "7").unwrap();
        let expected =
            "PUTVAL \"node1/sluice-proxy/derive-job_requests_total.a.1\" interval=10 N:7\n";
        assert_eq!(line, expected);
        let line = put("sluice_job_cost_seconds_total", SampleKind::Counter, "a.1", "1.5").unwrap();
        assert!(
            line.ends_with("/derive-job_cost_nanoseconds_total.a.1\" interval=10 N:1500000000\n")
        );
        let line = put("sluice_scrape_seconds", SampleKind::Gauge, "x", "0.25").unwrap();
        assert!(line.ends_with("/gauge-scrape_seconds.x\" interval=10 N:0.25\n"), "{line}");
        let line = put("sluice_target_queue_seconds_count", SampleKind::Counter, "t", "5").unwrap();
        assert!(
            line.ends_with("/derive-target_queue_seconds_count.t\" interval=10 N:5\n"),
            "{line}"
        );
        assert_eq!(put("sluice_job_cost_seconds_total", SampleKind::Counter, "a", "x"), None);
    }

    #[test]
    fn what_an_identifier_cannot_hold_stays_apart() {
        let of = |label: &str| {
            put("sluice_job_requests_total", SampleKind::Counter, label, "7").unwrap()
        };
        assert_ne!(of("a/b"), of("a b"));
        let long = |end: &str| of(&("x".repeat(200) + end));
        assert_ne!(long("1"), long("2"));
        for line in [of("a/b\"\n"), long("1")] {
            let id = line.split('"').nth(1).unwrap();
            let parts: Vec<_> = id.split('/').collect();
            assert_eq!(parts.len(), 3, "{line}");
            assert!(parts.iter().all(|part| part.len() <= 127), "{line}");
        }
    }

    #[test]
    fn seconds_become_nanoseconds_exactly() {
        for (seconds, ns) in
            [("0", "0"), ("0.000000001", "1"), ("18446744073.709551615", "18446744073709551615")]
        {
            assert_eq!(nanoseconds(seconds).as_deref(), Some(ns));
        }
        assert_eq!(nanoseconds("18446744074"), None);
    }
}

//! Computes rates between two samples of counters, by job, user, class or client.

use std::collections::BTreeMap;

use api::{ConnectionInfo, Connections, WireClasses, WireSubject, WireSubjects, WireUsage};
use serde::{Deserialize, Serialize};

/// The grouping of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TopBy {
    /// One row per batch job.
    Job,
    /// One row per user id.
    User,
    /// One row per class of the rules.
    Class,
    /// One row per client node.
    Client,
}

/// The order of the rows, largest first; names in alphabetical order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TopSort {
    /// The name of the row.
    Name,
    /// Bytes read per second.
    Read,
    /// Bytes written per second.
    Written,
    /// Backend operations per second.
    Ops,
    /// Time in the queue.
    Queue,
    /// Mean latency, including the queue.
    Latency,
    /// Mean number of slots in use.
    Slots,
    /// Bytes read and written per second, then operations per second.
    Load,
}

/// The proxy's counters at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TopSample {
    pub(crate) subjects: WireSubjects,
    pub(crate) classes: WireClasses,
    /// The subjects are connections, as the proxy does not schedule.
    pub(crate) of_connections: bool,
}

/// One row: the current service of a job, user, class or client. Means are over the requests that
/// completed between the two samples, zero if there were none. Figures that only a scheduler has
/// are `None` without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct TopRow {
    /// The job, user, class or node; `-` if there is none.
    pub(crate) name: String,
    /// Payload read per second.
    pub(crate) read_bytes_per_s: u64,
    /// Payload written per second.
    pub(crate) written_bytes_per_s: u64,
    /// Backend operations per second.
    pub(crate) ops_per_s: u64,
    /// Mean time of a request in the queue.
    pub(crate) queue_ns_mean: Option<u64>,
    /// Mean time from a request's arrival to its reply, including the queue.
    pub(crate) latency_ns_mean: Option<u64>,
    /// The number of requests that wait now.
    pub(crate) queued: Option<u64>,
    /// Requests at the backend now; without a scheduler, all requests without a reply.
    pub(crate) running: u64,
    /// Slots in use now.
    pub(crate) slots: Option<u64>,
    /// Whether the head of a queue waits for a meter now (throttled).
    pub(crate) throttled: bool,
}

/// Computes the rows between two samples, unordered: one for each name in the later sample.
pub(crate) fn rows(
    earlier: &TopSample,
    now: &TopSample,
    by: TopBy,
    user_name: &mut dyn FnMut(u32) -> String,
) -> Vec<TopRow> {
    let (sums, span_ns) = match by {
        TopBy::Class => (by_class(earlier, now), span(earlier.classes.t_ns, now.classes.t_ns)),
        _ => {
            let sums = by_subject(earlier, now, by, user_name);
            (sums, span(earlier.subjects.t_ns, now.subjects.t_ns))
        }
    };
    let row = |(name, usage)| TopRow::new(name, &usage, span_ns, !now.of_connections);
    sums.into_iter().map(row).collect()
}

/// Returns the time between two samples; after a restart, the time since the start.
fn span(earlier_ns: u64, now_ns: u64) -> u64 {
    now_ns.checked_sub(earlier_ns).unwrap_or(now_ns)
}

fn by_class(earlier: &TopSample, now: &TopSample) -> BTreeMap<String, WireUsage> {
    let mut sums = BTreeMap::<_, WireUsage>::new();
    let before: BTreeMap<_, _> =
        earlier.classes.classes.iter().map(|c| ((&c.target, c.id), &c.usage)).collect();
    for class in &now.classes.classes {
        let name = match class.key.as_str() {
            "" => class.rule.clone(),
            key => format!("{} {key}", class.rule),
        };
        let usage = between(before.get(&(&class.target, class.id)), &class.usage);
        sums.entry(name).or_default().add(&usage);
    }
    sums
}

fn by_subject(
    earlier: &TopSample,
    now: &TopSample,
    by: TopBy,
    user_name: &mut dyn FnMut(u32) -> String,
) -> BTreeMap<String, WireUsage> {
    let mut sums = BTreeMap::<_, WireUsage>::new();
    let before: BTreeMap<_, _> =
        earlier.subjects.subjects.iter().map(|s| ((&s.target, s.id), &s.usage)).collect();
    for subject in &now.subjects.subjects {
        let name = match by {
            TopBy::User => user_name(subject.uid),
            TopBy::Client => subject.nid.clone(),
            TopBy::Job | TopBy::Class if subject.job.is_empty() => "-".into(),
            TopBy::Job | TopBy::Class => subject.job.clone(),
        };
        let usage = between(before.get(&(&subject.target, subject.id)), &subject.usage);
        sums.entry(name).or_default().add(&usage);
    }
    sums
}

/// Returns the usage between two samples; all of it if there is no earlier one.
fn between(earlier: Option<&&WireUsage>, now: &WireUsage) -> WireUsage {
    earlier.map_or(*now, |earlier| now.since(earlier))
}

/// Orders the rows by `sort`, equal rows by name, so that they keep their positions.
pub(crate) fn order(rows: &mut [TopRow], sort: TopSort, reversed: bool) {
    rows.sort_by(|a, b| {
        let bytes = |row: &TopRow| row.read_bytes_per_s + row.written_bytes_per_s;
        let order = match sort {
            TopSort::Name => std::cmp::Ordering::Equal,
            TopSort::Read => b.read_bytes_per_s.cmp(&a.read_bytes_per_s),
            TopSort::Written => b.written_bytes_per_s.cmp(&a.written_bytes_per_s),
            TopSort::Ops => b.ops_per_s.cmp(&a.ops_per_s),
            TopSort::Queue => b.queue_ns_mean.cmp(&a.queue_ns_mean),
            TopSort::Latency => b.latency_ns_mean.cmp(&a.latency_ns_mean),
            TopSort::Slots => b.slots.cmp(&a.slots),
            TopSort::Load => (bytes(b), b.ops_per_s).cmp(&(bytes(a), a.ops_per_s)),
        };
        let order = order.then_with(|| a.name.cmp(&b.name));
        if reversed { order.reverse() } else { order }
    });
}

impl TopSample {
    /// Builds a sample of a proxy without scheduling: each connection counts for its first attach.
    pub(crate) fn of_connections(all: Connections) -> TopSample {
        let subject = |connection: ConnectionInfo| {
            let first = connection.attaches.into_iter().next().unwrap_or_default();
            let totals = connection.totals;
            WireSubject {
                id: connection.id,
                target: String::new(),
                job: first.job,
                uid: first.uid,
                gid: first.gid,
                nid: connection.nid,
                usage: WireUsage {
                    read_bytes: totals.read_bytes,
                    written_bytes: totals.written_bytes,
                    ops: totals.ops,
                    requests: totals.requests,
                    running: connection.tags,
                    ..WireUsage::default()
                },
            }
        };
        let t_ns = all.t_ns;
        // A connection without an attach has no user yet.
        let attached = all.connections.into_iter().filter(|c| !c.attaches.is_empty());
        let subjects = WireSubjects { t_ns, subjects: attached.map(subject).collect() };
        TopSample {
            subjects,
            classes: WireClasses { t_ns, ..WireClasses::default() },
            of_connections: true,
        }
    }
}

impl TopRow {
    fn new(name: String, usage: &WireUsage, span_ns: u64, scheduled: bool) -> TopRow {
        let per_s = |count| ratio(count, 1_000_000_000, span_ns);
        let known = |figure| scheduled.then_some(figure);
        TopRow {
            name,
            read_bytes_per_s: per_s(usage.read_bytes),
            written_bytes_per_s: per_s(usage.written_bytes),
            ops_per_s: per_s(usage.ops),
            queue_ns_mean: known(ratio(usage.queue_ns, 1, usage.requests)),
            latency_ns_mean: known(ratio(usage.queue_ns + usage.service_ns, 1, usage.requests)),
            queued: known(usage.queued),
            running: usage.running,
            slots: known(usage.slots),
            throttled: usage.throttled,
        }
    }
}

/// Computes `count` × `times` ÷ `by`, rounded down; zero if `by` is zero.
fn ratio(count: u64, times: u64, by: u64) -> u64 {
    let product = u128::from(count) * u128::from(times);
    product.checked_div(u128::from(by)).map_or(0, |q| u64::try_from(q).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use api::{Attach, ProxyTotals, WireClass};

    use super::*;

    fn subject(id: u64, job: &str, uid: u32, nid: &str, usage: WireUsage) -> WireSubject {
        let (job, nid) = (job.into(), nid.into());
        WireSubject { id, target: "t".into(), job, uid, gid: 0, nid, usage }
    }

    fn sample(t_ns: u64, subjects: Vec<WireSubject>, classes: Vec<WireClass>) -> TopSample {
        let (subjects, classes) = (WireSubjects { t_ns, subjects }, WireClasses { t_ns, classes });
        TopSample { subjects, classes, of_connections: false }
    }

    fn read(read_bytes: u64, requests: u64) -> WireUsage {
        let (queue_ns, service_ns) = (requests * 100, requests * 900);
        WireUsage {
            read_bytes,
            ops: requests,
            requests,
            queue_ns,
            service_ns,
            ..WireUsage::default()
        }
    }

    fn named(rows: &[TopRow]) -> Vec<(&str, u64)> {
        rows.iter().map(|row| (row.name.as_str(), row.read_bytes_per_s)).collect()
    }

    #[test]
    fn rates_and_means_are_over_the_time_between_the_samples() {
        let before = sample(1_000_000_000, vec![subject(1, "a", 5, "n1", read(1000, 10))], vec![]);
        let now = sample(3_000_000_000, vec![subject(1, "a", 5, "n1", read(9000, 50))], vec![]);
        let rows = rows(&before, &now, TopBy::Job, &mut |_| unreachable!());
        let expected = TopRow {
            name: "a".into(),
            read_bytes_per_s: 4000,
            ops_per_s: 20,
            queue_ns_mean: Some(100),
            latency_ns_mean: Some(1000),
            queued: Some(0),
            slots: Some(0),
            ..TopRow::default()
        };
        assert_eq!(rows, [expected]);
    }

    #[test]
    fn subjects_are_summed_up_by_what_is_asked_for() {
        let before = sample(0, vec![], vec![]);
        let subjects = vec![
            subject(1, "a", 5, "n1", read(100, 1)),
            subject(2, "a", 6, "n2", read(20, 1)),
            subject(3, "", 5, "n2", read(3, 1)),
        ];
        let now = sample(1_000_000_000, subjects, vec![]);
        let rows = |by| rows(&before, &now, by, &mut |uid| format!("u{uid}"));
        assert_eq!(named(&rows(TopBy::Job)), [("-", 3), ("a", 120)]);
        assert_eq!(named(&rows(TopBy::User)), [("u5", 103), ("u6", 20)]);
        assert_eq!(named(&rows(TopBy::Client)), [("n1", 100), ("n2", 23)]);
    }

    #[test]
    fn a_class_is_named_by_its_rule_and_key() {
        let class = |id, key: &str, usage| WireClass {
            id,
            target: "t".into(),
            rule: "jobs".into(),
            key: key.into(),
            weight: 1,
            usage,
        };
        let before = sample(0, vec![], vec![class(1, "jobid=a", read(50, 1))]);
        let classes = vec![class(1, "jobid=a", read(80, 2)), class(2, "", read(7, 1))];
        let now = sample(1_000_000_000, vec![], classes);
        let rows = rows(&before, &now, TopBy::Class, &mut |_| unreachable!());
        assert_eq!(named(&rows), [("jobs", 7), ("jobs jobid=a", 30)]);
    }

    #[test]
    fn without_scheduling_a_connection_stands_for_whom_it_first_attached() {
        let connection = |id, jobs: &[&str], read_bytes| ConnectionInfo {
            id,
            nid: "n1".into(),
            attaches: jobs.iter().map(|job| Attach { job: (*job).into(), ..attach() }).collect(),
            tags: 3,
            totals: ProxyTotals { read_bytes, ops: 5, ..ProxyTotals::default() },
            ..ConnectionInfo::default()
        };
        let sample =
            |t_ns, connections| TopSample::of_connections(Connections { t_ns, connections });
        let before = sample(0, vec![connection(1, &["a"], 50)]);
        let all = [connection(1, &["a", "b"], 80), connection(2, &["a"], 7), connection(3, &[], 0)];
        let now = sample(1_000_000_000, all.to_vec());
        let rows = |by| rows(&before, &now, by, &mut |uid| format!("u{uid}"));
        let row = TopRow {
            name: "a".into(),
            read_bytes_per_s: 37,
            ops_per_s: 5,
            running: 6,
            ..TopRow::default()
        };
        assert_eq!(rows(TopBy::Job), std::slice::from_ref(&row));
        assert_eq!(rows(TopBy::User), [TopRow { name: "u5".into(), ..row.clone() }]);
        assert_eq!(rows(TopBy::Client), [TopRow { name: "n1".into(), ..row }]);
        assert_eq!(rows(TopBy::Class), []);
    }

    fn attach() -> Attach {
        Attach { uid: 5, ..Attach::default() }
    }

    #[test]
    fn a_proxy_that_was_started_again_shows_no_nonsense() {
        let before = sample(90_000_000_000, vec![subject(1, "a", 5, "n", read(5000, 9))], vec![]);
        let now = sample(2_000_000_000, vec![subject(1, "a", 5, "n", read(400, 2))], vec![]);
        let rows = rows(&before, &now, TopBy::Job, &mut |_| unreachable!());
        assert_eq!(named(&rows), [("a", 200)]);
    }

    #[test]
    fn rows_are_ordered_and_equals_keep_their_names_order() {
        let row = |name: &str, read_bytes_per_s, ops_per_s| TopRow {
            name: name.into(),
            read_bytes_per_s,
            ops_per_s,
            ..TopRow::default()
        };
        let mut rows = [row("c", 5, 0), row("b", 0, 9), row("a", 5, 0), row("d", 0, 1)];
        let mut names = |sort, reversed| {
            order(&mut rows, sort, reversed);
            rows.iter().map(|row| row.name.as_str()).collect::<String>()
        };
        assert_eq!(names(TopSort::Load, false), "acbd");
        assert_eq!(names(TopSort::Ops, false), "bdac");
        assert_eq!(names(TopSort::Name, false), "abcd");
        assert_eq!(names(TopSort::Name, true), "dcba");
    }
}

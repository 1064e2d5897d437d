//! The table of all metrics that a process of Sluice exports to Prometheus.
//!
//! ```text
//!   metrics! { … } ─┬─► a constant for each name ─► Page (proxy, mount, controller) ─► GET /metrics
//!                   └─► SECTIONS ─► docs/METRICS.md
//! ```
//!
//! A line of a [`MetricsPage`](crate::MetricsPage) can be written for a metric of this table only, with
//! exactly its labels; so code and documentation agree.
//!
//! Labels are bounded: targets, kinds and lanes are few, and only the jobs and users with the
//! most recent cost have series of their own; all others are summed up as `other`. The label of
//! a job is `jobid`, as in rules: Prometheus adds a label `job` of its own to every series.

/// The behaviour of a metric over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only grows while the process runs.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// Counts of values up to each bound, their number and their sum.
    Histogram,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// A number of things, which the metric names.
    Count,
    /// An amount of data in bytes.
    Bytes,
    /// Seconds; pages take nanoseconds.
    Seconds,
    /// A part of 1; pages take parts per million.
    Ratio,
}

/// One metric without its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The whole name, as scrapes show it.
    pub name: &'static str,
    /// The behaviour of its value.
    pub kind: MetricKind,
    /// The unit of its value.
    pub unit: MetricUnit,
    /// The names of its labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// The lines of its description.
    pub help: &'static [&'static str],
}

/// The prefix of every name.
pub const PREFIX: &str = "sluice_";

/// Makes constants and their table from one text.
macro_rules! metrics {
    ($($title:literal: $about:literal {
        $($(#[doc = $help:literal])+ $id:ident = $name:literal, $kind:ident, $unit:ident,
            [$($label:literal),*];)+
    })+) => {
        $($(
            $(#[doc = $help])+
            pub static $id: Metric = Metric {
                name: $name,
                kind: MetricKind::$kind,
                unit: MetricUnit::$unit,
                labels: &[$($label),*],
                help: &[$($help),+],
            };
        )+)+

        /// Every metric, by what it is about: a title, a sentence, the metrics.
        pub static SECTIONS: &[(&str, &str, &[&Metric])] = &[$(($title, $about, &[$(&$id),+])),+];
    };
}

metrics! {
    "Processes": "Exported by every process of Sluice." {
        /// Constant 1; the labels say what runs. `role` is `proxy`, `mount` or `controller`.
        INFO = "sluice_build_info", Gauge, Count, ["role", "version"];
        /// Time at which the process started, in seconds since 1970.
        START = "process_start_time_seconds", Gauge, Seconds, [];
        /// Processor time used by all threads of the process.
        CPU = "process_cpu_seconds_total", Counter, Seconds, [];
        /// Resident memory of the process.
        MEMORY = "process_resident_memory_bytes", Gauge, Bytes, [];
        /// Time that the previous scrape took to answer.
        SCRAPE = "sluice_scrape_seconds", Gauge, Seconds, [];
    }
    "Proxies": "Totals of a proxy over all clients." {
        /// Open client connections.
        CONNECTIONS = "sluice_proxy_connections", Gauge, Count, [];
        /// Amount in use of each bounded resource that all clients share: `connections`,
        /// `sessions`, `open_files`, `locks` (ranges) and `memory` (bytes). The label is the key of
        /// the configuration without `_max`.
        BOUND_USED = "sluice_proxy_bound_used", Gauge, Count, ["bound"];
        /// Maximum of each of these resources.
        BOUND_MAX = "sluice_proxy_bound_max", Gauge, Count, ["bound"];
        /// Requests that were refused because a resource or the client's part of it was used up.
        /// The log names the clients; if many clients are refused, raise the bound.
        BOUND_REFUSED = "sluice_proxy_bound_refused_total", Counter, Count, ["bound"];
        /// Idle connections and abandoned sessions that were closed to make room for others.
        RECLAIMED = "sluice_proxy_reclaimed_total", Counter, Count, ["bound"];
        /// Threads that serve requests.
        THREADS = "sluice_proxy_threads", Gauge, Count, [];
        /// Maximum number of these threads. If `sluice_proxy_threads` stays at it, calls to the
        /// backend hang.
        THREADS_MAX = "sluice_proxy_threads_max", Gauge, Count, [];
        /// 1 from SIGTERM on, 0 before.
        DRAINING = "sluice_proxy_draining", Gauge, Count, [];
        /// 1 if the controller replied to the last call, 0 if it did not reply or refused the call;
        /// absent without a controller.
        LINK_UP = "sluice_proxy_controller_up", Gauge, Count, [];
        /// Time since the last reply of the controller.
        CONTROLLER_REPLY_AGE = "sluice_proxy_controller_last_reply_age_seconds", Gauge, Seconds, [];
        /// Calls to the controller: `answered`, `refused` or `unanswered`.
        LINK_CALLS = "sluice_proxy_controller_calls_total", Counter, Count, ["outcome"];
        /// 1 while another proxy reports under the same name.
        LINK_DUPLICATE = "sluice_proxy_controller_duplicate", Gauge, Count, [];
        /// Leases that mounts hold, with those of mounts that are gone and not forgotten yet.
        LEASES = "sluice_proxy_leases", Gauge, Count, [];
        /// Mounts that may hold leases.
        LEASE_HOLDERS = "sluice_proxy_lease_holders", Gauge, Count, [];
        /// Leases that were recalled for a change of another client.
        LEASE_RECALLS = "sluice_proxy_lease_recalls_total", Counter, Count, [];
        /// Recalls that the mount has answered. The others ended with the mount's term.
        LEASE_RETURNS = "sluice_proxy_lease_returns_total", Counter, Count, [];
        /// How often a mount did not answer a recall within `lease_recall_limit`.
        LEASE_EXPELLED = "sluice_proxy_lease_expelled_total", Counter, Count, [];
        /// The longest time from a recall to its answer since the start of the proxy.
        LEASE_RECALL_MAX = "sluice_proxy_lease_recall_max_seconds", Gauge, Seconds, [];
        /// Requests that wait until leases are returned. They hold no slot.
        LEASE_WAITING = "sluice_proxy_lease_waiting_requests", Gauge, Count, [];
        /// Requests answered, including attaches and refused requests.
        REQUESTS = "sluice_proxy_requests_total", Counter, Count, [];
        /// Requests answered with an error. Many are harmless, such as a name that does not exist.
        ERRORS = "sluice_proxy_errors_total", Counter, Count, [];
        /// Requests cancelled by their client while they waited.
        CANCELLED = "sluice_proxy_cancelled_total", Counter, Count, [];
        /// Payload read.
        READ_BYTES = "sluice_proxy_read_bytes_total", Counter, Bytes, [];
        /// Payload written.
        WRITTEN_BYTES = "sluice_proxy_written_bytes_total", Counter, Bytes, [];
        /// Backend operations; a directory entry that is listed with its attributes counts as one.
        OPERATIONS = "sluice_proxy_operations_total", Counter, Count, [];
    }
    "Targets": "A target is a backend with its own scheduler. The label `kind` has the kinds of \
                rules (`opcode={…}`). The label `lane` is `cached` for requests that are served from \
                memory, and `device` for all others." {
        /// Requests completed.
        TARGET_REQUESTS =
            "sluice_target_requests_total", Counter, Count, ["target", "kind", "lane"];
        /// Backend operations.
        TARGET_OPERATIONS =
            "sluice_target_operations_total", Counter, Count, ["target", "kind", "lane"];
        /// Payload moved, of kinds that carry data.
        TARGET_BYTES = "sluice_target_bytes_total", Counter, Bytes, ["target", "kind", "lane"];
        /// Time that requests waited in the queue.
        TARGET_QUEUE = "sluice_target_queue_seconds", Histogram, Seconds, ["target", "kind", "lane"];
        /// Time from dispatch to completion of requests. Up to 16 reads from memory are counted
        /// together, each with the time of all of them.
        TARGET_SERVICE =
            "sluice_target_service_seconds", Histogram, Seconds, ["target", "kind", "lane"];
        /// Requests that wait in the queue.
        TARGET_QUEUED = "sluice_target_queued", Gauge, Count, ["target"];
        /// Device slots in use.
        TARGET_SLOTS = "sluice_target_slots_in_use", Gauge, Count, ["target"];
        /// Current number of device slots, D of SFQ(D). It is below the configured `slots_max`
        /// while the key `latency_target` lowers it.
        TARGET_SLOTS_MAX = "sluice_target_slots_max", Gauge, Count, ["target"];
        /// Fraction of the reserved rates that could not be served in the last second. If it is
        /// above 0, the reservations exceed what the target can do; lower them.
        TARGET_CUT = "sluice_target_reservation_shortfall_ratio", Gauge, Ratio, ["target"];
        /// Jobs that have a file open at this target or had one open recently.
        TARGET_JOBS = "sluice_target_jobs", Gauge, Count, ["target"];
        /// Size of the file system.
        TARGET_SIZE = "sluice_target_size_bytes", Gauge, Bytes, ["target"];
        /// Space of the file system that is free for users.
        TARGET_FREE = "sluice_target_free_bytes", Gauge, Bytes, ["target"];
        /// Maximum number of files of the file system.
        TARGET_FILES = "sluice_target_files_max", Gauge, Count, ["target"];
        /// Number of files that can still be created.
        TARGET_FILES_FREE = "sluice_target_files_free", Gauge, Count, ["target"];
        /// Age of the previous four values. It grows while the backend hangs.
        TARGET_SPACE_AGE = "sluice_target_space_age_seconds", Gauge, Seconds, ["target"];
    }
    "Jobs": "Each of the 50 jobs with the highest recent cost at a target has a series. `other` is \
             the sum of all other jobs, `none` of all requests without a job. The series of a job \
             starts at 0. If the job leaves the 50 and returns, its series continues at the last \
             value. So the rates of all series add up to the rate of the target. A job that is \
             named `other` or `none` is counted as `other`." {
        /// Payload read.
        JOB_READ_BYTES = "sluice_job_read_bytes_total", Counter, Bytes, ["target", "jobid"];
        /// Payload written.
        JOB_WRITTEN_BYTES = "sluice_job_written_bytes_total", Counter, Bytes, ["target", "jobid"];
        /// Backend operations of all kinds.
        JOB_OPERATIONS = "sluice_job_operations_total", Counter, Count, ["target", "jobid"];
        /// Backend operations that neither read nor write a file.
        JOB_METADATA = "sluice_job_metadata_operations_total", Counter, Count, ["target", "jobid"];
        /// Requests completed.
        JOB_REQUESTS = "sluice_job_requests_total", Counter, Count, ["target", "jobid"];
        /// Time that these requests waited in the queue, summed up.
        JOB_QUEUE = "sluice_job_queue_seconds_total", Counter, Seconds, ["target", "jobid"];
        /// Time from dispatch to completion of these requests, summed up.
        JOB_SERVICE = "sluice_job_service_seconds_total", Counter, Seconds, ["target", "jobid"];
        /// Cost of these requests: the time for which they occupy the target. Weights divide it.
        JOB_COST = "sluice_job_cost_seconds_total", Counter, Seconds, ["target", "jobid"];
    }
    "Users": "The same series for the 50 users with the highest recent cost at a target; `uid` is \
              the number of the user." {
        /// Payload read.
        USER_READ_BYTES = "sluice_user_read_bytes_total", Counter, Bytes, ["target", "uid"];
        /// Payload written.
        USER_WRITTEN_BYTES = "sluice_user_written_bytes_total", Counter, Bytes, ["target", "uid"];
        /// Backend operations of all kinds.
        USER_OPERATIONS = "sluice_user_operations_total", Counter, Count, ["target", "uid"];
        /// Backend operations that neither read nor write a file.
        USER_METADATA = "sluice_user_metadata_operations_total", Counter, Count, ["target", "uid"];
        /// Requests completed.
        USER_REQUESTS = "sluice_user_requests_total", Counter, Count, ["target", "uid"];
        /// Time that these requests waited in the queue, summed up.
        USER_QUEUE = "sluice_user_queue_seconds_total", Counter, Seconds, ["target", "uid"];
        /// Time from dispatch to completion of these requests, summed up.
        USER_SERVICE = "sluice_user_service_seconds_total", Counter, Seconds, ["target", "uid"];
        /// Cost of these requests: the time for which they occupy the target. Weights divide it.
        USER_COST = "sluice_user_cost_seconds_total", Counter, Seconds, ["target", "uid"];
    }
    "Mounts": "Work of a mount for the programs that use it." {
        /// Constant 1; `source` is what is mounted, `at` the directory.
        MOUNT_INFO = "sluice_mount_info", Gauge, Count, ["source", "at"];
        /// Requests to the proxies of the mount, by result: `ok` or `error`. Many errors are
        /// harmless, such as a name that does not exist.
        MOUNT_CALLS = "sluice_mount_calls_total", Counter, Count, ["outcome"];
        /// Connections made to a proxy, including the first ones.
        MOUNT_CONNECTED = "sluice_mount_connects_total", Counter, Count, ["source"];
        /// Connections to a proxy that are down. Requests wait until they are back.
        MOUNT_LOST = "sluice_mount_connections_down", Gauge, Count, ["source"];
        /// Files that programs have open.
        MOUNT_FILES = "sluice_mount_open_files", Gauge, Count, [];
        /// Files and directories of the mount that the kernel knows.
        MOUNT_NODES = "sluice_mount_known_files", Gauge, Count, [];
        /// Bytes written through the page cache that no proxy has confirmed yet.
        MOUNT_BEHIND = "sluice_mount_write_behind_bytes", Gauge, Bytes, [];
        /// Files and directories of which the mount holds leases.
        MOUNT_LEASES = "sluice_mount_leases", Gauge, Count, [];
        /// Recalls of leases that came from the proxy.
        MOUNT_RECALLS = "sluice_mount_lease_recalls_total", Counter, Count, [];
        /// Longest time from a recall to its answer since the mount began.
        MOUNT_RECALL_MAX = "sluice_mount_lease_recall_max_seconds", Gauge, Seconds, [];
        /// Requests that were answered under leases, without a message to the proxy; `call` is
        /// `lookup`, `getattr`, `list` or `open`.
        MOUNT_LOCAL = "sluice_mount_local_replies_total", Counter, Count, ["call"];
    }
    "Controllers": "Decisions and state of a controller. `GET /v1/proxies` lists the proxies. A \
                    proxy with several targets counts once at each." {
        /// Term of the leader; increases with each start of a controller and each election.
        CONTROLLER_TERM = "sluice_controller_term", Gauge, Count, [];
        /// Constant 1; `version` is the version of the rules of all proxies, `none` until rules are
        /// stored.
        CONTROLLER_RULES = "sluice_controller_rules_info", Gauge, Count, ["version"];
        /// Proxies that hold shares at the target, including unreachable ones.
        /// The target `*` stands for limits, which are one over all targets of a proxy.
        CONTROLLER_PROXIES = "sluice_controller_proxies", Gauge, Count, ["target"];
        /// Proxies without a report for 5 s. Their share is not reassigned.
        CONTROLLER_UNREACHABLE = "sluice_controller_unreachable_proxies", Gauge, Count, ["target"];
        /// Proxies that have not acknowledged their last assignment. If this persists, assignments
        /// do not arrive.
        CONTROLLER_UNACKED = "sluice_controller_unacked_proxies", Gauge, Count, ["target"];
        /// Scopes (limits, reservations and weights by key) that are divided over proxies.
        CONTROLLER_SCOPES = "sluice_controller_scopes", Gauge, Count, [];
        /// Reports received from proxies: `accepted`; `rejected` because the table of proxies is full;
        /// `duplicate` because a proxy of the same name started later.
        CONTROLLER_REPORTS = "sluice_controller_reports_total", Counter, Count, ["outcome"];
        /// Assignments sent, one for each target of a reply.
        CONTROLLER_ASSIGNMENTS = "sluice_controller_assignments_total", Counter, Count, [];
        /// Usage received with reports: `counted`, `duplicate` of an earlier report, `failed`, or
        /// `dropped` because the queue was full. Proxies report usage again until it is counted.
        CONTROLLER_USAGE = "sluice_controller_usage_reports_total", Counter, Count, ["outcome"];
        /// Minutes of usage that were written to the ledger (`ok`) or could not be written
        /// (`error`).
        CONTROLLER_COMMITS = "sluice_controller_ledger_commits_total", Counter, Count, ["outcome"];
        /// Proxies whose usage counters are in memory.
        CONTROLLER_LEDGER_PROXIES = "sluice_controller_ledger_proxies", Gauge, Count, [];
        /// Usage counters in memory, one for each subject at each proxy.
        CONTROLLER_LEDGER_LINES = "sluice_controller_ledger_lines", Gauge, Count, [];
        /// Jobs, users, groups and other subjects whose sums are in memory.
        CONTROLLER_LEDGER_SUBJECTS = "sluice_controller_ledger_subjects", Gauge, Count, [];
        /// Size of the ledger on disk, with its write-ahead log.
        CONTROLLER_LEDGER_BYTES = "sluice_controller_ledger_bytes", Gauge, Bytes, [];
        /// Decay accounts with usage: `all`, and those whose key is `throttled`.
        CONTROLLER_DECAYS = "sluice_controller_decay_accounts", Gauge, Count, ["level"];
        /// Reservations that have not ended: `active`, and `scheduled` with those that wait.
        CONTROLLER_RESERVATIONS = "sluice_controller_reservations", Gauge, Count, ["state"];
        /// The part of what can be reserved of a resource that is promised now, by kind and name:
        /// `target` for the bytes of a target, `metadata` for its operations, `proxy network` for what
        /// its proxies move (`network`), `pool` for all reservations (`pool`).
        CONTROLLER_PROMISED = "sluice_controller_promised_ratio", Gauge, Ratio, ["kind", "name"];
        /// What can be reserved of a resource now, in bytes or operations per second, by `direction`.
        CONTROLLER_RESERVABLE =
            "sluice_controller_reservable_per_second", Gauge, Count, ["kind", "name", "direction"];
        /// Reservations that ended since nobody claimed them in their window.
        CONTROLLER_LAPSED = "sluice_controller_reservations_lapsed_total", Counter, Count, [];
        /// Reservations, of rows and of classes of rules, that are not served their rates while their
        /// requests wait; 0 if all are.
        CONTROLLER_LATE = "sluice_controller_late_reservations", Gauge, Count, ["target"];
        /// The time in which any reservation of the target was late, since the controller leads.
        CONTROLLER_LATE_TIME =
            "sluice_controller_late_reservations_seconds_total", Counter, Seconds, ["target"];
        /// Events: `published`; `unpersisted`, published but not written to disk; `dropped` because
        /// the queue was full.
        CONTROLLER_EVENTS = "sluice_controller_events_total", Counter, Count, ["outcome"];
        /// Deliveries of events `by` the `command` or the `webhook`: `delivered`, `failed`,
        /// `dropped` because the queue was full, and `retried` for each retry.
        CONTROLLER_DELIVERIES =
            "sluice_controller_event_deliveries_total", Counter, Count, ["by", "outcome"];
        /// Messages waiting for each thread: `plan` divides limits, `store` stores rules, tokens
        /// and proxies, `usage` keeps the ledger and the decay accounts, `events` writes events.
        CONTROLLER_QUEUED = "sluice_controller_queued", Gauge, Count, ["queue"];
        /// Maximum number of messages that may wait. Further ones are refused, and their senders
        /// retry.
        CONTROLLER_QUEUE_MAX = "sluice_controller_queue_max", Gauge, Count, ["queue"];
        /// Amount in use of each bounded resource that all callers share: `connections`,
        /// `body_bytes` (bytes of long bodies in transfer) and `event_streams`.
        CONTROLLER_BOUND_USED = "sluice_controller_bound_used", Gauge, Count, ["bound"];
        /// Maximum of each of these resources. A single address gets a third at most, and less
        /// while others use some.
        CONTROLLER_BOUND_MAX = "sluice_controller_bound_max", Gauge, Count, ["bound"];
        /// Requests that were refused because a resource or the caller's part of it was used up.
        /// The log names the callers.
        CONTROLLER_BOUND_REFUSED = "sluice_controller_bound_refused_total", Counter, Count, ["bound"];
    }
}

/// The text of docs/METRICS.md.
pub fn markdown() -> String {
    let mut text = String::from(INTRODUCTION);
    for (title, about, metrics) in SECTIONS {
        text += &format!("\n## {title}\n\n{about}\n\n| name | type | unit | labels | meaning |\n");
        text += "|---|---|---|---|---|\n";
        for metric in *metrics {
            let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let help: Vec<_> = metric.help.iter().map(|line| line.trim()).collect();
            text += &format!(
                "| `{}` | {} | {} | {} | {} |\n",
                metric.name,
                metric.kind.name(),
                metric.unit.name(),
                labels.join(", "),
                help.join(" "),
            );
        }
    }
    text
}

impl MetricKind {
    /// Returns the name in the text format.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

impl MetricUnit {
    const fn name(self) -> &'static str {
        match self {
            MetricUnit::Count => "",
            MetricUnit::Bytes => "bytes",
            MetricUnit::Seconds => "seconds",
            MetricUnit::Ratio => "0 to 1",
        }
    }
}

const INTRODUCTION: &str = "\
<!-- Made from io/api/src/metrics.rs by `sluice docs metrics`. Do not edit. -->

# Metrics

A proxy and a controller serve metrics as Prometheus text at `/metrics` of their API. A proxy and a
mount also serve them at an address of their own if one is configured:

    curl --unix-socket /run/sluice/proxy.sock http://sluice/metrics
    curl http://127.0.0.1:5650/metrics                  of a controller
    sluice proxy --metrics http://127.0.0.1:9400 …      or  metrics = \"http://127.0.0.1:9400\"
    sluice mount … -o metrics=http://127.0.0.1:9401     or  metrics=unix:///run/sluice/scratch.sock

Everybody who can connect to such an address can read the names of jobs and the numbers of users: on
127.0.0.1 every user of the machine, on any other address everybody who can reach it. With tokens, a
controller requires one of role `read` (docs/ACCESS.md). For Prometheus:

    scrape_configs:
      - job_name: sluice
        static_configs: [{targets: ['127.0.0.1:9400', '127.0.0.1:9401', '127.0.0.1:5650']}]

The directory dashboard/grafana has dashboards to import: overview, targets, jobs, users, metadata,
proxies, mounts, controller.

For collectd and InfluxDB 1, `sluice metrics` exports the same names; run one for each process:

    Exec \"nobody\" \"sluice\" \"metrics\" \"collectd\" \"http://127.0.0.1:9400\"      in collectd.conf
    sluice metrics influx http://127.0.0.1:9400 --to http://127.0.0.1:8086 --database sluice

Counters of collectd are whole numbers, so it receives counters of seconds in nanoseconds, named
`…_nanoseconds_total`. Both receive the count and the sum of histograms, without buckets.

Counters start at 0 with their process. Histograms have buckets at 1.024 µs and twice the previous
bound up to 68.7 s.
";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all() -> impl Iterator<Item = &'static Metric> {
        SECTIONS.iter().flat_map(|(_, _, metrics)| metrics.iter().copied())
    }

    #[test]
    fn the_document_in_the_repository_is_the_one_made_from_the_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/METRICS.md");
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == markdown(), "docs/METRICS.md is out of date: sluice docs metrics > it");
    }

    #[test]
    fn every_name_is_there_once_and_says_prefix_unit_and_kind() {
        let names: BTreeSet<_> = all().map(|metric| metric.name).collect();
        assert_eq!(names.len(), all().count());
        for metric in all() {
            let name = metric.name;
            let is_customary = ["process_start_time", "process_cpu", "process_resident_memory"]
                .iter()
                .any(|stem| name.starts_with(stem));
            assert!(is_customary || name.starts_with(PREFIX), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(stem.ends_with("_bytes"), metric.unit == MetricUnit::Bytes, "{name}");
            assert_eq!(stem.ends_with("_seconds"), metric.unit == MetricUnit::Seconds, "{name}");
            assert_eq!(stem.ends_with("_ratio"), metric.unit == MetricUnit::Ratio, "{name}");
        }
    }

    #[test]
    fn no_label_is_one_that_prometheus_gives_itself() {
        for label in all().flat_map(|metric| metric.labels) {
            assert!(!["job", "instance", "le", "quantile"].contains(label), "{label}");
        }
    }
}

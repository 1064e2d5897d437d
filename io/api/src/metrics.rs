//! The one table of metrics: what each process of Sluice tells Prometheus.
//!
//! ```text
//!   metrics! { … } ─┬─► a constant for each name ─► Page (proxy, mount, controller) ─► GET /metrics
//!                   └─► SECTIONS ─► docs/METRICS.md
//! ```
//!
//! A line of a [`Page`](crate::Page) can be written for a metric of this table only, with
//! exactly its labels; so what is served and what is documented cannot part.
//!
//! Labels are bounded: targets, kinds and lanes by nature, jobs and users to those that used
//! most lately, each with all others as `other` beside them. The job's label is `jobid`, as in
//! rules: Prometheus gives every series a label `job` of its own, for what it scraped.

/// What the value of a metric does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the process lives.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How many were at most so large, for several sizes; their number and their sum.
    Histogram,
}

/// What the value of a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Things, named by the metric.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds; pages take nanoseconds.
    Seconds,
    /// A part of 1; pages take parts per million.
    Ratio,
}

/// One metric: everything about it but its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The whole name.
    pub name: &'static str,
    /// What its value does.
    pub kind: MetricKind,
    /// What its value counts.
    pub unit: MetricUnit,
    /// The names of its labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// The lines of its description.
    pub help: &'static [&'static str],
}

/// What every name begins with.
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
    "Processes": "Told by every process of Sluice." {
        /// 1; the labels say what runs. `role` is `proxy`, `mount` or `controller`.
        INFO = "sluice_info", Gauge, Count, ["role", "version"];
        /// How long it has run.
        UPTIME = "sluice_uptime_seconds", Gauge, Seconds, [];
        /// Processor time that it used, of all its threads.
        CPU = "sluice_cpu_seconds_total", Counter, Seconds, [];
        /// Memory that it has.
        MEMORY = "sluice_memory_bytes", Gauge, Bytes, [];
        /// How long the last page of metrics but this one took to make.
        SCRAPE = "sluice_scrape_seconds", Gauge, Seconds, [];
    }
    "Proxies": "What a proxy answered, to all together." {
        /// Connections now.
        CONNECTIONS = "sluice_proxy_connections", Gauge, Count, [];
        /// How much is in use of what all clients share: `connections`, `sessions`, `open_files`,
        /// `locks` (ranges) and `memory` (bytes).
        BOUND_USED = "sluice_proxy_bound_used", Gauge, Count, ["bound"];
        /// The most that may be in use.
        BOUND_MAX = "sluice_proxy_bound_max", Gauge, Count, ["bound"];
        /// How often somebody was refused more of it. The log names who; if that is no single
        /// client, the bound is too low.
        BOUND_REFUSED = "sluice_proxy_bound_refused_total", Counter, Count, ["bound"];
        /// Idle connections and abandoned sessions that ended because others needed their places.
        TAKEN_BACK = "sluice_proxy_taken_back_total", Counter, Count, ["bound"];
        /// Threads that serve requests.
        THREADS = "sluice_proxy_threads", Gauge, Count, [];
        /// The most there may be. As many at work as this means that calls hang.
        THREADS_MAX = "sluice_proxy_threads_max", Gauge, Count, [];
        /// 1 from SIGTERM on, 0 before.
        DRAINING = "sluice_proxy_draining", Gauge, Count, [];
        /// 1 while the controller answers, 0 while it does not or refuses; none without a controller.
        LINK_UP = "sluice_proxy_controller_up", Gauge, Count, [];
        /// How long ago its last answer came.
        LINK_AGE = "sluice_proxy_controller_order_age_seconds", Gauge, Seconds, [];
        /// Calls to it: `answered`, `refused`, or `unanswered`.
        LINK_CALLS = "sluice_proxy_controller_calls_total", Counter, Count, ["outcome"];
        /// 1 while another proxy reports under the same name.
        LINK_DUPLICATE = "sluice_proxy_controller_duplicate", Gauge, Count, [];
        /// Requests answered; attaches, and those refused at once, are among them.
        REQUESTS = "sluice_proxy_requests_total", Counter, Count, [];
        /// Requests answered with an error. Many are harmless: a name that is not there.
        ERRORS = "sluice_proxy_errors_total", Counter, Count, [];
        /// Requests that their client gave up while they waited.
        CANCELLED = "sluice_proxy_cancelled_total", Counter, Count, [];
        /// Payload read.
        READ_BYTES = "sluice_proxy_read_bytes_total", Counter, Bytes, [];
        /// Payload written.
        WRITTEN_BYTES = "sluice_proxy_written_bytes_total", Counter, Bytes, [];
        /// Backend operations; an entry listed with its attributes is one.
        OPERATIONS = "sluice_proxy_operations_total", Counter, Count, [];
    }
    "Targets": "A target is a backend with a scheduler of its own. Kinds are those of rules \
                (`opcode={…}`); the lane `cached` is what memory answers, `device` the rest." {
        /// Requests completed.
        TARGET_REQUESTS =
            "sluice_target_requests_total", Counter, Count, ["target", "kind", "lane"];
        /// Backend operations.
        TARGET_OPERATIONS =
            "sluice_target_operations_total", Counter, Count, ["target", "kind", "lane"];
        /// Payload moved, of kinds that move any.
        TARGET_BYTES = "sluice_target_bytes_total", Counter, Bytes, ["target", "kind", "lane"];
        /// How long requests waited for their turn.
        TARGET_QUEUE = "sluice_target_queue_seconds", Histogram, Seconds, ["target", "kind", "lane"];
        /// How long requests took once their turn had come. Up to 16 reads that memory answers
        /// are told of together and count the time of all.
        TARGET_SERVICE =
            "sluice_target_service_seconds", Histogram, Seconds, ["target", "kind", "lane"];
        /// Requests waiting now.
        TARGET_QUEUED = "sluice_target_queued", Gauge, Count, ["target"];
        /// Device slots held now.
        TARGET_SLOTS = "sluice_target_slots_held", Gauge, Count, ["target"];
        /// Device slots there are: D of SFQ(D), as it is now.
        TARGET_SLOTS_MAX = "sluice_target_slots_max", Gauge, Count, ["target"];
        /// The part of the reserved rates that could not be kept in the last second: above 0
        /// where more is reserved than the target gives.
        TARGET_CUT = "sluice_target_promises_cut_ratio", Gauge, Ratio, ["target"];
        /// Jobs that have a file here now or had one not long ago.
        TARGET_JOBS = "sluice_target_jobs", Gauge, Count, ["target"];
        /// The size of the file system.
        TARGET_SIZE = "sluice_target_size_bytes", Gauge, Bytes, ["target"];
        /// What of it is free for users.
        TARGET_FREE = "sluice_target_free_bytes", Gauge, Bytes, ["target"];
        /// Files that there can be.
        TARGET_FILES = "sluice_target_files_max", Gauge, Count, ["target"];
        /// Files that could still be made.
        TARGET_FILES_FREE = "sluice_target_files_free", Gauge, Count, ["target"];
        /// How old the last four are. A backend that hangs lets them grow old.
        TARGET_SPACE_AGE = "sluice_target_space_age_seconds", Gauge, Seconds, ["target"];
    }
    "Jobs": "The 50 jobs that cost each target most lately have a line each; `other` is all \
             others together, `none` what belongs to no job. A line begins at 0 when its job gets \
             it, and goes on where it was when the job comes back to it, so the rates of all \
             lines are together the rate of the target. Real jobs of these two names are always \
             among the others." {
        /// Payload read.
        JOB_READ_BYTES = "sluice_job_read_bytes_total", Counter, Bytes, ["target", "jobid"];
        /// Payload written.
        JOB_WRITTEN_BYTES = "sluice_job_written_bytes_total", Counter, Bytes, ["target", "jobid"];
        /// Backend operations of all kinds.
        JOB_OPERATIONS = "sluice_job_operations_total", Counter, Count, ["target", "jobid"];
        /// Those of them that neither read nor write a file.
        JOB_METADATA = "sluice_job_metadata_operations_total", Counter, Count, ["target", "jobid"];
        /// Requests completed.
        JOB_REQUESTS = "sluice_job_requests_total", Counter, Count, ["target", "jobid"];
        /// Time that these requests waited for their turn, summed up.
        JOB_QUEUE = "sluice_job_queue_seconds_total", Counter, Seconds, ["target", "jobid"];
        /// Time that they took once their turn had come.
        JOB_SERVICE = "sluice_job_service_seconds_total", Counter, Seconds, ["target", "jobid"];
        /// What they cost the target: the time of its that the scheduler divides.
        JOB_COST = "sluice_job_cost_seconds_total", Counter, Seconds, ["target", "jobid"];
    }
    "Users": "The same for the 50 users that cost each target most lately, by their number." {
        /// Payload read.
        USER_READ_BYTES = "sluice_user_read_bytes_total", Counter, Bytes, ["target", "uid"];
        /// Payload written.
        USER_WRITTEN_BYTES = "sluice_user_written_bytes_total", Counter, Bytes, ["target", "uid"];
        /// Backend operations of all kinds.
        USER_OPERATIONS = "sluice_user_operations_total", Counter, Count, ["target", "uid"];
        /// Those of them that neither read nor write a file.
        USER_METADATA = "sluice_user_metadata_operations_total", Counter, Count, ["target", "uid"];
        /// Requests completed.
        USER_REQUESTS = "sluice_user_requests_total", Counter, Count, ["target", "uid"];
        /// Time that these requests waited for their turn, summed up.
        USER_QUEUE = "sluice_user_queue_seconds_total", Counter, Seconds, ["target", "uid"];
        /// Time that they took once their turn had come.
        USER_SERVICE = "sluice_user_service_seconds_total", Counter, Seconds, ["target", "uid"];
        /// What they cost the target: the time of its that the scheduler divides.
        USER_COST = "sluice_user_cost_seconds_total", Counter, Seconds, ["target", "uid"];
    }
    "Mounts": "What a mount did for the programs that use it." {
        /// 1; the labels say what is mounted where.
        MOUNT_INFO = "sluice_mount_info", Gauge, Count, ["source", "at"];
        /// Requests to its proxies, by what came of them: `ok` or `error`. Many errors are
        /// harmless: a name that is not there.
        MOUNT_CALLS = "sluice_mount_calls_total", Counter, Count, ["outcome"];
        /// Times that a connection to a proxy was made, the first ones too.
        MOUNT_CONNECTED = "sluice_mount_connected_total", Counter, Count, ["source"];
        /// Connections that a proxy should have and has not now: requests wait for it.
        MOUNT_LOST = "sluice_mount_connections_lost", Gauge, Count, ["source"];
        /// Files that programs have open.
        MOUNT_FILES = "sluice_mount_open_files", Gauge, Count, [];
        /// Files and directories that the kernel knows of it.
        MOUNT_NODES = "sluice_mount_known_files", Gauge, Count, [];
        /// Bytes that programs wrote through the page cache and that no proxy has confirmed yet.
        MOUNT_BEHIND = "sluice_mount_behind_bytes", Gauge, Bytes, [];
    }
    "Controllers": "What a controller decides and keeps. A proxy counts once for each of its \
                    targets; `GET /v1/proxies` names them." {
        /// The term that it leads in: higher after each start and each election.
        CONTROLLER_TERM = "sluice_controller_term", Gauge, Count, [];
        /// 1; the label is the version of the rules of all proxies, `none` until somebody decides
        /// them.
        CONTROLLER_RULES = "sluice_controller_rules_info", Gauge, Count, ["version"];
        /// Proxies that have a part of the target's limits, or may have.
        CONTROLLER_PROXIES = "sluice_controller_proxies", Gauge, Count, ["target"];
        /// Those of them that have not answered for five seconds: what they may be using is given
        /// to nobody.
        CONTROLLER_SILENT = "sluice_controller_silent_proxies", Gauge, Count, ["target"];
        /// Those of them that have not acknowledged their last order. For long, it is a sign that
        /// orders do not arrive.
        CONTROLLER_BEHIND = "sluice_controller_behind_proxies", Gauge, Count, ["target"];
        /// Limits, reservations and weights by key that are divided now.
        CONTROLLER_SCOPES = "sluice_controller_scopes", Gauge, Count, [];
        /// Reports of proxies: `taken`, `refused` as of one proxy too many, or `duplicate` as of a
        /// proxy whose name another one has that began later.
        CONTROLLER_REPORTS = "sluice_controller_reports_total", Counter, Count, ["outcome"];
        /// Orders that were sent, one for each target of an answer.
        CONTROLLER_ORDERS = "sluice_controller_orders_total", Counter, Count, [];
        /// Usage that came with reports: `counted`, `known` before, `failed`, or `no room` in the
        /// queue. Whatever was not counted is told again.
        CONTROLLER_USAGE = "sluice_controller_usage_reports_total", Counter, Count, ["outcome"];
        /// Minutes of usage that were written to the ledger's file, by `ok` and `error`.
        CONTROLLER_COMMITS = "sluice_controller_ledger_commits_total", Counter, Count, ["outcome"];
        /// Proxies whose counters are in memory.
        CONTROLLER_LEDGER_PROXIES = "sluice_controller_ledger_proxies", Gauge, Count, [];
        /// Lines of usage of these proxies in memory: who was served at which of them.
        CONTROLLER_LEDGER_LINES = "sluice_controller_ledger_lines", Gauge, Count, [];
        /// Jobs, users, groups and so on in memory, whose usage is added up.
        CONTROLLER_LEDGER_SUBJECTS = "sluice_controller_ledger_subjects", Gauge, Count, [];
        /// The ledger's file with its write-ahead log.
        CONTROLLER_LEDGER_BYTES = "sluice_controller_ledger_bytes", Gauge, Bytes, [];
        /// Keys of decays that used anything: `held` back now, and `all`.
        CONTROLLER_DECAYS = "sluice_controller_decay_accounts", Gauge, Count, ["which"];
        /// Events: `told`, of these `unkept` where they could not be written to disk; `lost` where
        /// there was no room.
        CONTROLLER_EVENTS = "sluice_controller_events_total", Counter, Count, ["outcome"];
        /// Events for others, `by` the `command` or the `webhook`: `done`, `failed`, `dropped`
        /// where there was no room, and attempts made `again`.
        CONTROLLER_DELIVERIES =
            "sluice_controller_event_deliveries_total", Counter, Count, ["by", "outcome"];
        /// What waits now for each of its threads: `plan` decides, `store` keeps decisions,
        /// `usage` keeps the ledger and the accounts of decays, `events` writes events.
        CONTROLLER_QUEUED = "sluice_controller_queued", Gauge, Count, ["queue"];
        /// The most that may wait there; what is above is refused and comes again.
        CONTROLLER_QUEUE_MAX = "sluice_controller_queue_max", Gauge, Count, ["queue"];
        /// How much is in use of what those who call share: `connections`, `body_bytes` of long
        /// bodies under way, and `event_streams`.
        CONTROLLER_BOUND_USED = "sluice_controller_bound_used", Gauge, Count, ["bound"];
        /// The most that may be in use. One address gets a third of it while others use nothing.
        CONTROLLER_BOUND_MAX = "sluice_controller_bound_max", Gauge, Count, ["bound"];
        /// How often somebody was refused more of it. The log names who.
        CONTROLLER_BOUND_REFUSED = "sluice_controller_bound_refused_total", Counter, Count, ["bound"];
    }
}

/// The text of docs/METRICS.md.
pub fn markdown() -> String {
    let mut text = String::from(INTRODUCTION);
    for (title, about, metrics) in SECTIONS {
        text += &format!("\n## {title}\n\n{about}\n\n| name | kind | unit | labels | |\n");
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
    /// As the text format names it.
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
            MetricUnit::Ratio => "part of 1",
        }
    }
}

const INTRODUCTION: &str = "\
<!-- Made from io/api/src/metrics.rs by `sluice docs metrics`. Do not edit. -->

# Metrics

A proxy and a controller serve them as Prometheus text with their other calls, and a proxy and a
mount at a place of their own where they are told to:

    curl --unix-socket /run/sluice/proxy.sock http://sluice/metrics
    curl http://127.0.0.1:5650/metrics                  a controller's
    sluice proxy --metrics http://127.0.0.1:9400 …      or  metrics = \"http://127.0.0.1:9400\"
    sluice mount … -o metrics=http://127.0.0.1:9401     or  metrics=unix:///run/sluice/scratch.sock

Whoever can connect reads the names of jobs and the numbers of users; on 127.0.0.1 that is every
user of the machine, on any other address whoever reaches it. For Prometheus:

    scrape_configs:
      - job_name: sluice
        static_configs: [{targets: ['127.0.0.1:9400', '127.0.0.1:9401', '127.0.0.1:5650']}]

dashboard/grafana has dashboards to import: overview, targets, jobs, users, metadata, proxies,
mounts, controller.
For collectd and InfluxDB 1 the same names go through `sluice metrics`, one for each process that
is asked:

    Exec \"nobody\" \"sluice\" \"metrics\" \"collectd\" \"http://127.0.0.1:9400\"      in collectd.conf
    sluice metrics influx http://127.0.0.1:9400 --to http://127.0.0.1:8086 --database sluice

collectd gets counters in seconds as whole nanoseconds, `…_nanoseconds_total`; both get number and
sum of histograms, and no buckets.

Counters begin at 0 with their process. Histograms have a bucket for each power of two from
1.024 µs to 68.7 s.
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
            assert!(name.starts_with(PREFIX), "{name}");
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

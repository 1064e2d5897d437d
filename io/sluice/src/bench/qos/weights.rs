//! Shares: two jobs with weights w : 1, both always with more than 2 D requests queued.
//!
//! Weights promise a division of the service only while both sides ask for more than
//! they get, so each job keeps far more in flight than the slots can hold, and what is
//! queued at the dispatcher is looked at all through the span: the least that was seen
//! stands beside the result. The share is that of the charged cost, or of the bytes
//! where `cost = "bytes"`, as the control API counts them.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::Usage;
use model::Bytes;

use super::super::work::Op;
use super::Run;
use super::bed::{KeepCold, Proxy, Setup};
use super::job::{Job, Part};
use super::table::{Row, Table, figures};

/// What the two jobs do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    CachedReads,
    WriteRead,
    WriteMixed,
}

struct Case {
    load: Load,
    /// Keys of the target.
    target: &'static str,
    name: &'static str,
    in_bytes: bool,
}

const CASES: &[Case] = &[
    Case { load: Load::CachedReads, target: "", name: "read : read, cached", in_bytes: false },
    Case {
        load: Load::WriteRead,
        target: "slots_max = 2\nwrite_mode = \"direct\"",
        name: "write : read, direct",
        in_bytes: false,
    },
    Case {
        load: Load::WriteMixed,
        target: "slots_max = 2\nwrite_mode = \"direct\"",
        name: "write : random read/write, direct",
        in_bytes: false,
    },
    Case {
        load: Load::WriteRead,
        target: "slots_max = 2\nwrite_mode = \"dontcache\"",
        name: "write : read, dontcache",
        in_bytes: false,
    },
    Case {
        load: Load::WriteMixed,
        target: "slots_max = 2\nwrite_mode = \"dontcache\"",
        name: "write : random read/write, dontcache",
        in_bytes: false,
    },
    Case {
        load: Load::CachedReads,
        target: "cost = \"bytes\"",
        name: "read : read, cached, cost = bytes",
        in_bytes: true,
    },
    Case {
        load: Load::WriteRead,
        target: "slots_max = 2\nwrite_mode = \"direct\"\ncost = \"bytes\"",
        name: "write : read, direct, cost = bytes",
        in_bytes: true,
    },
];

/// Measures every case at every weight.
pub(crate) fn measure(run: &Run<'_>, table: &mut Table) -> anyhow::Result<()> {
    table.note(
        "each job keeps 4096 requests in flight on each of 4 connections, reads of 1 KiB where \
         the page cache answers, else of 16 KiB, as `tags_max` and `bytes_in_flight_max` allow; the first run with `threads = 1`, the others with \
         `slots_max = 2`: either way one such request at a time",
    );
    table.progress("making files");
    let bed = &run.bed;
    let warm = bed.file("warm", WARM_LEN)?;
    let cold = bed.file("cold", COLD_LEN)?;
    bed.file("a/written0", WRITTEN_LEN)?;
    bed.file("b/written0", WRITTEN_LEN)?;
    for (index, case) in CASES.iter().enumerate() {
        if !run.wants(case.name) {
            continue;
        }
        let setup = Setup { top: case.top(), target: case.target, ..Setup::default() };
        let proxy = match bed.proxy(&format!("w{index}"), &setup) {
            Ok(proxy) => proxy,
            Err(error) => {
                table.note(format!("{}: {error:#}", case.name));
                continue;
            }
        };
        measure_case(run, case, &proxy, (&warm, &cold), table).context(case.name)?;
    }
    Ok(())
}

fn measure_case(
    run: &Run<'_>,
    case: &Case,
    proxy: &Proxy,
    (warm, cold): (&File, &File),
    table: &mut Table,
) -> anyhow::Result<()> {
    let slots = match case.load {
        Load::CachedReads => 1,
        _ => proxy.slots_max()?,
    };
    let _kept_cold = match case.load {
        Load::CachedReads => {
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            None
        }
        _ => Some(KeepCold::start(cold)?),
    };
    proxy.api.set_rules(&rules(1))?;
    let (a, b) = case.parts(proxy);
    let (mut a, mut b) = (Job::start(&a)?, Job::start(&b)?);
    for weight in WEIGHTS {
        table.progress(&format!("{}, {weight} : 1", case.name));
        proxy.api.set_rules(&rules(weight))?;
        run.bed.wait(SETTLE)?;
        a.cut()?;
        b.cut()?;
        let seen = watch(run, proxy)?;
        let (a, b) = (a.cut()?, b.cut()?);
        a.check()?;
        b.check()?;
        let mut row = case.row(weight, slots, &seen);
        let rates = format!("{:.0} and {:.0} MB/s", a.mb_per_sec(), b.mb_per_sec());
        row.beside = format!("{rates}; {}", row.beside);
        table.add(row);
    }
    Ok(())
}

/// What two classes were served within the span, and their least backlogs.
struct Seen {
    usage: [Usage; 2],
    queued_min: [u64; 2],
}

fn watch(run: &Run<'_>, proxy: &Proxy) -> anyhow::Result<Seen> {
    let time = run.time(30, 5);
    let end = Instant::now() + time;
    let began = usage(proxy)?;
    let mut queued_min = began.map(|usage| usage.queued);
    while Instant::now() < end {
        run.bed.wait((time / SAMPLES).min(end.saturating_duration_since(Instant::now())))?;
        let now = usage(proxy)?;
        for (least, now) in queued_min.iter_mut().zip(now) {
            *least = (*least).min(now.queued);
        }
    }
    let ended = usage(proxy)?;
    let usage = [ended[0].since(&began[0]), ended[1].since(&began[1])];
    Ok(Seen { usage, queued_min })
}

/// Both classes at one moment.
fn usage(proxy: &Proxy) -> anyhow::Result<[Usage; 2]> {
    let classes = proxy.api.classes()?.classes;
    let of = |job: &str| {
        let key = format!("jobid={job}");
        let class = classes.iter().find(|class| class.key == key);
        class.map(|class| class.usage).with_context(|| format!("no class of job {job}"))
    };
    Ok([of("a")?, of("b")?])
}

impl Case {
    /// What the jobs a and b do.
    fn parts(&self, proxy: &Proxy) -> (Vec<Part>, Vec<Part>) {
        let part = |job: &str, op| {
            let mut plan = proxy.plan("x", job, op, self.size());
            let (data, len) = match self.load {
                Load::CachedReads => ("warm", WARM_LEN),
                _ => ("cold", COLD_LEN),
            };
            plan.file_size = if op == Op::Randwrite { WRITTEN_LEN } else { len };
            plan.depth = IN_FLIGHT;
            Part { plan, dir: job.into(), data: data.into() }
        };
        let each = |job, ops: [Op; CONNECTIONS]| -> Vec<Part> {
            ops.into_iter().map(|op| part(job, op)).collect()
        };
        let one = |job, op| each(job, [op; CONNECTIONS]);
        match self.load {
            Load::CachedReads => (one("a", Op::Randread), one("b", Op::Randread)),
            Load::WriteRead => (one("a", Op::Randwrite), one("b", Op::Randread)),
            Load::WriteMixed => {
                let mixed = [Op::Randread, Op::Randwrite, Op::Randread, Op::Randwrite];
                (one("a", Op::Randwrite), each("b", mixed))
            }
        }
    }

    /// One thread for what the page cache answers: there the service is processor time, and
    /// the generators need a processor too, or replies pile up behind the sockets and nothing
    /// waits for its turn.
    fn top(&self) -> &'static str {
        if self.load == Load::CachedReads { "threads = 1\n" } else { "" }
    }

    /// Small, so that the work is the proxy's and the device's and not that of moving bytes
    /// through sockets, which keeps the generators from keeping up.
    fn size(&self) -> Bytes {
        if self.load == Load::CachedReads { Bytes::kib(1) } else { Bytes::kib(16) }
    }

    /// What the weights divide.
    fn share(&self, usage: &Usage) -> f64 {
        if self.in_bytes {
            return (usage.read_bytes + usage.written_bytes) as f64;
        }
        usage.cost_ns as f64
    }

    fn row(&self, weight: u32, slots: u64, seen: &Seen) -> Row {
        let [a, b] = [0, 1].map(|job| self.share(&seen.usage[job]));
        let ratio = a / b.max(1.0);
        let error = (ratio / f64::from(weight) - 1.0) * 100.0;
        let within = if self.in_bytes { 2.0 } else { 1.0 };
        let [queued_a, queued_b] = seen.queued_min;
        let backlogged = queued_a.min(queued_b) > 2 * slots;
        let mut beside = format!("least queued {queued_a} and {queued_b}, D {slots}");
        if !backlogged {
            beside.push_str(": not always backlogged");
        }
        let unit = if self.in_bytes { "bytes" } else { "charged cost" };
        Row {
            case: format!("{}, {weight} : 1", self.name),
            target: format!("within {within} % in {unit}"),
            reached: format!("{ratio:.3} : 1, {error:+.2} %"),
            met: Some(error.abs() <= within),
            beside,
            figures: figures([
                ("weight", weight.into()),
                ("ratio", ratio),
                ("error_percent", error),
                ("queued_min_a", queued_a as f64),
                ("queued_min_b", queued_b as f64),
                ("slots_max", slots as f64),
                ("requests_a", seen.usage[0].requests as f64),
                ("requests_b", seen.usage[1].requests as f64),
                ("cost_ns_a", seen.usage[0].cost_ns as f64),
                ("cost_ns_b", seen.usage[1].cost_ns as f64),
                ("bytes_a", (seen.usage[0].read_bytes + seen.usage[0].written_bytes) as f64),
                ("bytes_b", (seen.usage[1].read_bytes + seen.usage[1].written_bytes) as f64),
            ]),
        }
    }
}

fn rules(weight: u32) -> String {
    let rule = |job, weight| {
        format!(
            "[[rule]]\nname = \"{job}\"\nmatch = \"jobid={{{job}}}\"\nper = [\"jobid\"]\n\
             weight = {weight}\n\n"
        )
    };
    rule("a", weight) + &rule("b", 1)
}

const WEIGHTS: [u32; 5] = [2, 4, 8, 16, 32];
const IN_FLIGHT: usize = 4096;
/// Of a job. What one connection may have in flight is 15 ms of work where the page cache answers,
/// and a generator that missed its turn for so long left its job without a backlog.
const CONNECTIONS: usize = 4;
const WARM_LEN: Bytes = Bytes::mib(256);
/// So large that what was read once is hardly asked for again before it is dropped.
const COLD_LEN: Bytes = Bytes::mib(2048);
const WRITTEN_LEN: Bytes = Bytes::mib(512);
/// New weights count from the next request on; what is queued by the old ones goes first.
const SETTLE: Duration = Duration::from_secs(1);
const SAMPLES: u32 = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(cost_ns: [u64; 2], queued: u64) -> Seen {
        let usage = cost_ns.map(|cost_ns| Usage { cost_ns, ..Usage::default() });
        Seen { usage, queued_min: [queued, 100] }
    }

    #[test]
    fn a_share_is_met_within_one_percent_of_the_charged_cost() {
        let row = CASES[0].row(4, 8, &seen([4_036, 1_000], 17));
        assert_eq!((row.reached.as_str(), row.met), ("4.036 : 1, +0.90 %", Some(true)));
        assert_eq!(row.beside, "least queued 17 and 100, D 8");
        let row = CASES[0].row(4, 8, &seen([4_044, 1_000], 16));
        assert_eq!(row.met, Some(false));
        assert_eq!(row.beside, "least queued 16 and 100, D 8: not always backlogged");
    }

    #[test]
    fn the_rules_are_rules() {
        let rules = model::RuleSet::parse(&rules(8)).unwrap();
        assert_eq!(rules.rules[0].weight.get(), 8);
        assert_eq!(rules.rules[1].weight.get(), 1);
    }

    #[test]
    fn every_weight_of_the_promise_and_more_than_two_slots_worth_in_flight() {
        assert_eq!(WEIGHTS, [2, 4, 8, 16, 32]);
        assert!(
            CASES.iter().all(|case| !case.target.contains("slots_max = 2") || IN_FLIGHT > 5 * 2)
        );
    }
}

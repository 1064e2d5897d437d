//! A victim beside a bully: how long small operations take while another job writes.
//!
//!   victim  4 KiB reads (cached, uncached) or write + fsync, one in flight
//!   bully   16 × 1 MiB writes in flight that fill a new file, as a checkpoint does
//!   proxy   unscheduled, cached writes │ weight and slots │ and a limit at the bully's former rate
//!
//! The bully's generator stands for other machines and goes behind everything else; the
//! victim alone shows what of its p99 is this machine's own.
//!
//! A new file matters: where its blocks are allocated in the transaction that a victim's
//! fsync commits, ext4 and others write its data first.
//!
//! The three proxies serve the same directory in turn, round after round. Between two
//! runs everything is flushed, or what one left dirty would be the next one's load.

use std::fs::File;
use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;

use super::super::figures::judge::median;
use super::super::work::WorkOp;
use super::QosRun;
use super::bed::{KeepCold, QosProxy, QosSetup};
use super::job::{QosJob, QosJobPart};
use super::table::{QosRow, QosTable, figures};

/// What the victim does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QosVictim {
    CachedRead,
    UncachedRead,
    Fsync,
}

/// How it is served.
struct VictimSetup {
    name: &'static str,
    bully: bool,
    no_schedule: bool,
    limited: bool,
}

/// Figures of the victim and its bully in one run.
pub(super) struct QosSample {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) ops_per_sec: f64,
    pub(super) bully_mb_per_sec: f64,
}

/// The first is what the others are held against; the last says what this machine itself does.
const WAYS: [VictimSetup; 4] = [
    VictimSetup { name: "no scheduling", bully: true, no_schedule: true, limited: false },
    VictimSetup { name: "weight and slots", bully: true, no_schedule: false, limited: false },
    VictimSetup { name: "weight, slots and limit", bully: true, no_schedule: false, limited: true },
    VictimSetup { name: "alone", bully: false, no_schedule: true, limited: false },
];
const VICTIMS: [QosVictim; 3] = [QosVictim::CachedRead, QosVictim::UncachedRead, QosVictim::Fsync];

/// Measures each victim in each way, in interleaved rounds.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    table.progress("making files");
    let bed = &run.bed;
    let warm = bed.file("warm", WARM_LEN)?;
    let cold = bed.file("cold", COLD_LEN)?;
    let bully = bed.file("bully/written0", Bytes::ZERO)?;
    bed.file("victim/written0", WARM_LEN)?;
    let mut proxies: Vec<QosProxy> = Vec::new();
    let mut limit = String::new();
    for (index, way) in WAYS.iter().enumerate() {
        let rules = if way.limited { format!("{RULES}{limit}") } else { RULES.into() };
        let target = if way.no_schedule { "write_mode = \"cached\"" } else { "" };
        let setup =
            QosSetup { target, rules: &rules, no_schedule: way.no_schedule, ..QosSetup::default() };
        proxies.push(bed.proxy(&format!("v{index}"), &setup).context(way.name)?);
        if way.no_schedule && way.bully {
            table.progress("the bully's rate without scheduling");
            let sample = one(run, way, &proxies[index], QosVictim::CachedRead, &warm, &cold)?;
            let rate = sample.bully_mb_per_sec.round().max(1.0);
            limit = format!("limit = {{ write = \"{rate}MB/s\" }}\n");
            table.note(format!("the limit is the bully's rate without scheduling: {rate} MB/s"));
        }
    }
    let status = proxies[1].api.status()?;
    let mode = status.targets.first().map_or("?", |target| &target.write_mode);
    table.note(format!("the default write mode here is {mode}"));
    let rounds = run.rounds(5, 2);
    let mut samples: Vec<Vec<QosSample>> = Vec::new();
    samples.resize_with(VICTIMS.len() * WAYS.len(), Vec::new);
    for round in 0..rounds {
        for (v, victim) in VICTIMS.into_iter().enumerate() {
            for turn in 0..WAYS.len() {
                let w = (round + turn) % WAYS.len();
                if !run.wants(victim.name()) {
                    continue;
                }
                table.progress(&format!("round {round}: {}, {}", victim.name(), WAYS[w].name));
                bully.set_len(0).and_then(|()| bully.sync_all()).context("flushing")?;
                let sample = one(run, &WAYS[w], &proxies[w], victim, &warm, &cold)?;
                samples[v * WAYS.len() + w].push(sample);
            }
        }
    }
    for (v, victim) in VICTIMS.into_iter().enumerate() {
        let of = |w: usize| &samples[v * WAYS.len() + w][..];
        for (w, way) in WAYS.iter().enumerate() {
            if !of(w).is_empty() {
                let case = format!("{}, {}", victim.name(), way.name);
                table.add(row(case, !way.no_schedule, of(w), of(0)));
            }
        }
    }
    Ok(())
}

fn one(
    run: &QosRun<'_>,
    way: &VictimSetup,
    proxy: &QosProxy,
    victim: QosVictim,
    warm: &File,
    cold: &File,
) -> anyhow::Result<QosSample> {
    std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
    let _kept_cold = match victim {
        QosVictim::UncachedRead => Some(KeepCold::start(cold)?),
        _ => None,
    };
    let mut plan = proxy.plan("x", "bully", WorkOp::Write, Bytes::mib(1));
    (plan.depth, plan.file_size) = (16, BULLY_LEN);
    let part = QosJobPart { plan, dir: "bully".into(), data: String::new() };
    let parts = if way.bully { vec![part] } else { Vec::new() };
    let mut bully = QosJob::start_behind(&parts)?;
    let (op, data, len) = match victim {
        QosVictim::CachedRead => (WorkOp::Randread, "warm", WARM_LEN),
        QosVictim::UncachedRead => (WorkOp::Randread, "cold", COLD_LEN),
        QosVictim::Fsync => (WorkOp::Fsync, "", WARM_LEN),
    };
    let mut plan = proxy.plan("x", "victim", op, Bytes::kib(4));
    plan.file_size = len;
    let mut job = QosJob::start(&[QosJobPart { plan, dir: "victim".into(), data: data.into() }])?;
    run.bed.wait(SETTLE)?;
    bully.cut()?;
    job.cut()?;
    run.bed.wait(run.time(5, 2))?;
    let (bully, job) = (bully.cut()?, job.cut()?);
    bully.check().context("bully")?;
    job.check().context("victim")?;
    // A victim that never came round in the span waited for at least all of it.
    let at_least = if job.score.ops == 0 { job.gap.as_secs_f64() * 1e6 } else { 0.0 };
    Ok(QosSample {
        p50_us: job.latency_us(0.5).max(at_least),
        p99_us: job.latency_us(0.99).max(at_least),
        ops_per_sec: job.score.ops as f64 / job.span.as_secs_f64(),
        bully_mb_per_sec: bully.mb_per_sec(),
    })
}

/// What the rounds of one way came to, compared with those without scheduling if this is
/// `guaranteed`.
pub(super) fn row(
    case: String,
    guaranteed: bool,
    samples: &[QosSample],
    unscheduled: &[QosSample],
) -> QosRow {
    let middle = |samples: &[QosSample], figure: fn(&QosSample) -> f64| {
        median(samples.iter().map(figure).collect()).unwrap_or(f64::NAN)
    };
    let p99 = middle(samples, |sample| sample.p99_us);
    let pairs = samples.iter().zip(unscheduled);
    let ratios = pairs.map(|(with, without)| with.p99_us / without.p99_us);
    let ratio = median(ratios.collect()).unwrap_or(f64::NAN);
    let p50 = middle(samples, |sample| sample.p50_us);
    let ops = middle(samples, |sample| sample.ops_per_sec);
    let bully = middle(samples, |sample| sample.bully_mb_per_sec);
    let reached = match guaranteed {
        true => format!("p99 {}, 1/{:.1}", micros(p99), 1.0 / ratio),
        false => format!("p99 {}", micros(p99)),
    };
    QosRow {
        case,
        target: if guaranteed { "p99 ≤ 1/5 of no scheduling's".into() } else { "–".into() },
        reached,
        met: guaranteed.then_some(ratio <= 0.2),
        beside: format!("median {}, {ops:.0} ops/s; bully {bully:.0} MB/s", micros(p50)),
        figures: figures([
            ("p50_us", p50),
            ("p99_us", p99),
            ("p99_ratio", ratio),
            ("ops_per_sec", ops),
            ("bully_mb_per_sec", bully),
            ("rounds", samples.len() as f64),
        ]),
    }
}

impl QosVictim {
    fn name(self) -> &'static str {
        match self {
            QosVictim::CachedRead => "4 KiB reads, cached",
            QosVictim::UncachedRead => "4 KiB reads, uncached",
            QosVictim::Fsync => "4 KiB write + fsync",
        }
    }
}

pub(crate) fn micros(us: f64) -> String {
    if us < 10_000.0 { format!("{us:.0} µs") } else { format!("{:.1} ms", us / 1e3) }
}

/// 32 of the built-in 64 slots: one write of 1 MiB at the device, and room beside it. Without
/// that a weight decides only who goes next when one of the bully's writes has ended.
pub(crate) const RULES: &str = "\
[[rule]]
name = \"victim\"
match = \"jobid={victim}\"
per = [\"jobid\"]
weight = 8

[[rule]]
name = \"bully\"
match = \"jobid={bully}\"
per = [\"jobid\"]
weight = 1
slots = 32
";
const WARM_LEN: Bytes = Bytes::mib(64);
const COLD_LEN: Bytes = Bytes::mib(1024);
/// More than the kernel lets be dirty (a fifth of the memory), or cached writes would never
/// meet the device and their victim would be spared; and more than a run can write.
const BULLY_LEN: Bytes = Bytes::mib(24 << 10);
/// Long enough for cached writes to get there.
const SETTLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_prefer_the_victim() {
        let rules = model::RuleSet::parse(RULES).unwrap();
        assert_eq!([0, 1].map(|rule| rules.rules[rule].weight.get()), [8, 1]);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let sample =
            |p99_us| QosSample { p50_us: 1.0, p99_us, ops_per_sec: 1.0, bully_mb_per_sec: 1.0 };
        let without = [100.0, 1_000.0, 10_000.0].map(sample);
        let with = [20.0, 190.0, 9_000.0].map(sample);
        let row = row("fsync".into(), true, &with, &without);
        assert_eq!((row.reached.as_str(), row.met), ("p99 190 µs, 1/5.0", Some(true)));
    }
}

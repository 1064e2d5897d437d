//! Two mounts, each of a job of its own, with weights w : 1.
//!
//! The proxy is the narrow place: two slots of the device, and a limit on the whole export that
//! is less than the kernel and fio can ask for. Otherwise the heavy job's queue is empty now and
//! then, and there is nothing to divide. 64 requests of 16 KiB for each job, past the page cache.

use anyhow::Context as _;
use model::Bytes;

use super::super::QosRun;
use super::super::bed::{KeepCold, QosProxy, QosSetup};
use super::super::mounted::{ENDLESS, QosFio, QosMount, on};
use super::super::shares::{SETTLE, SharesResult, WEIGHTS, rules, watch};
use super::super::table::QosTable;

struct MountWeightsCase {
    name: &'static str,
    target: &'static str,
    shared: SharesResult,
}

const CASES: [MountWeightsCase; 3] = [
    MountWeightsCase {
        name: "mounts, write : read, direct",
        target: "slots_max = 2\nwrite_mode = \"direct\"",
        shared: SharesResult::Cost,
    },
    MountWeightsCase {
        name: "mounts, write : read, dontcache",
        target: "slots_max = 2\nwrite_mode = \"dontcache\"",
        shared: SharesResult::Cost,
    },
    MountWeightsCase {
        name: "mounts, write : read, direct, cost = bytes",
        target: "slots_max = 2\nwrite_mode = \"direct\"\ncost = \"bytes\"",
        shared: SharesResult::Bytes,
    },
];

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    if !CASES.iter().any(|case| run.wants(case.name)) {
        return Ok(());
    }
    table.progress("making files");
    let cold = run.bed.file("read", LEN)?;
    run.bed.file("written", LEN)?;
    for (index, case) in CASES.iter().enumerate() {
        if !run.wants(case.name) {
            continue;
        }
        let setup = QosSetup { target: case.target, ..QosSetup::default() };
        match run.bed.proxy(&format!("m{index}"), &setup) {
            Ok(proxy) => {
                let _kept_cold = KeepCold::start(&cold)?;
                measure_case(run, case, &proxy, table).context(case.name)?;
            }
            Err(error) => table.note(format!("{}: {error:#}", case.name)),
        }
    }
    Ok(())
}

fn measure_case(
    run: &QosRun<'_>,
    case: &MountWeightsCase,
    proxy: &QosProxy,
    table: &mut QosTable,
) -> anyhow::Result<()> {
    let slots = proxy.slots_max()?;
    let mounts = ["a", "b"]
        .map(|job| QosMount::start(&run.bed, proxy, job, &format!("allow_other,job=fixed:{job}")));
    let [a, b] = mounts;
    let (a, b) = (a?, b?);
    proxy.api.set_rules(&narrow(1))?;
    let load = |job: &str, kind: &str, file: &std::path::Path| {
        let len = LEN.get();
        let words = format!("--rw={kind} --bs=16k --size={len} {LOAD} {ENDLESS} {}", on(file));
        QosFio::start(&run.bed, job, FIRST, &words)
    };
    let mut jobs =
        [load("a", "randwrite", &a.join("written"))?, load("b", "randread", &b.join("read"))?];
    for weight in WEIGHTS {
        table.progress(&format!("{}, {weight} : 1", case.name));
        proxy.api.set_rules(&narrow(weight))?;
        run.bed.wait(SETTLE + SETTLE)?;
        jobs.iter_mut().try_for_each(QosFio::check)?;
        let seen = watch(run, proxy)?;
        jobs.iter_mut().try_for_each(QosFio::check)?;
        let mut row = seen.row(case.name, case.shared, weight, slots);
        let [a, b] = seen.mb_per_sec();
        row.beside = format!("{a:.1} and {b:.1} MB/s; {}", row.beside);
        table.add(row);
    }
    Ok(())
}

/// The jobs' weights, and the limit that both pay.
fn narrow(weight: u32) -> String {
    rules(weight) + "[[meter]]\nname = \"export\"\nrate = \"40MB/s\"\n"
}

/// Each job has 64 requests in flight, as many as the kernel keeps of one mount in the
/// background.
const LOAD: &str = "--direct=1 --ioengine=libaio --iodepth=32 --numjobs=2";
/// Before the proxy's threads: who asks late has nothing queued.
const FIRST: i32 = -10;
/// So large that what was read once is hardly asked for again before it is dropped.
const LEN: Bytes = Bytes::mib(1024);

#[cfg(test)]
mod tests {
    #[test]
    fn the_rules_are_rules() {
        let rules = model::RuleSet::parse(&super::narrow(8)).unwrap();
        assert_eq!((rules.rules[0].weight.get(), rules.meters.len()), (8, 1));
    }
}

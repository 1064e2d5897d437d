//! Shares: two jobs with weights w : 1, both always with more than 2 D requests queued.
//!
//! Weights guarantee a division of the service only while both sides ask for more than
//! they get, so each job keeps far more in flight than the slots can hold, and what is
//! queued at the dispatcher is sampled all through the span: the least sample is reported
//! beside the result. The share is that of the charged cost, or of the bytes
//! where `cost = "bytes"`, as the control API counts them.

use std::fs::File;

use anyhow::Context as _;
use model::Bytes;

use super::super::work::WorkOp;
use super::QosRun;
use super::bed::{KeepCold, QosProxy, QosSetup};
use super::job::{QosJob, QosJobPart};
use super::shares::{SETTLE, SharesResult, WEIGHTS, rules, watch};
use super::table::QosTable;

/// What the two jobs do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WeightsLoad {
    CachedReads,
    WriteRead,
    WriteMixed,
}

struct WeightsCase {
    load: WeightsLoad,
    /// Keys of the target.
    target: &'static str,
    name: &'static str,
    shared: SharesResult,
}

const CASES: &[WeightsCase] = &[
    WeightsCase {
        load: WeightsLoad::CachedReads,
        target: "",
        name: "read : read, cached",
        shared: SharesResult::Cost,
    },
    WeightsCase {
        load: WeightsLoad::WriteRead,
        target: "slots_max = 2\nwrite_mode = \"direct\"",
        name: "write : read, direct",
        shared: SharesResult::Cost,
    },
    WeightsCase {
        load: WeightsLoad::WriteMixed,
        target: "slots_max = 2\nwrite_mode = \"direct\"",
        name: "write : random read/write, direct",
        shared: SharesResult::Cost,
    },
    WeightsCase {
        load: WeightsLoad::WriteRead,
        target: "slots_max = 2\nwrite_mode = \"dontcache\"",
        name: "write : read, dontcache",
        shared: SharesResult::Cost,
    },
    WeightsCase {
        load: WeightsLoad::WriteMixed,
        target: "slots_max = 2\nwrite_mode = \"dontcache\"",
        name: "write : random read/write, dontcache",
        shared: SharesResult::Cost,
    },
    WeightsCase {
        load: WeightsLoad::CachedReads,
        target: "cost = \"bytes\"",
        name: "read : read, cached, cost = bytes",
        shared: SharesResult::Bytes,
    },
    WeightsCase {
        load: WeightsLoad::WriteRead,
        target: "slots_max = 2\nwrite_mode = \"direct\"\ncost = \"bytes\"",
        name: "write : read, direct, cost = bytes",
        shared: SharesResult::Bytes,
    },
];

/// Measures every case at every weight.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
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
        let setup = QosSetup { top: case.top(), target: case.target, ..QosSetup::default() };
        let proxy = match bed.proxy(&format!("w{index}"), &setup) {
            Ok(proxy) => proxy,
            Err(error) => {
                table.note(format!("{}: {error:#}", case.name));
                continue;
            }
        };
        measure_case(run, case, &proxy, &warm, &cold, table).context(case.name)?;
    }
    Ok(())
}

fn measure_case(
    run: &QosRun<'_>,
    case: &WeightsCase,
    proxy: &QosProxy,
    warm: &File,
    cold: &File,
    table: &mut QosTable,
) -> anyhow::Result<()> {
    let slots = match case.load {
        WeightsLoad::CachedReads => 1,
        _ => proxy.slots_max()?,
    };
    let _kept_cold = match case.load {
        WeightsLoad::CachedReads => {
            std::io::copy(&mut warm.try_clone()?, &mut std::io::sink()).context("warming")?;
            None
        }
        _ => Some(KeepCold::start(cold)?),
    };
    proxy.api.set_rules(&rules(1))?;
    let (a, b) = case.parts(proxy);
    let (mut a, mut b) = (QosJob::start(&a)?, QosJob::start(&b)?);
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
        let mut row = seen.row(case.name, case.shared, weight, slots);
        let rates = format!("{:.0} and {:.0} MB/s", a.mb_per_sec(), b.mb_per_sec());
        row.beside = format!("{rates}; {}", row.beside);
        table.add(row);
    }
    Ok(())
}

impl WeightsCase {
    /// What the jobs a and b do.
    fn parts(&self, proxy: &QosProxy) -> (Vec<QosJobPart>, Vec<QosJobPart>) {
        let part = |job: &str, op| {
            let mut plan = proxy.plan("x", job, op, self.size());
            let (data, len) = match self.load {
                WeightsLoad::CachedReads => ("warm", WARM_LEN),
                _ => ("cold", COLD_LEN),
            };
            plan.file_size = if op == WorkOp::Randwrite { WRITTEN_LEN } else { len };
            plan.depth = IN_FLIGHT;
            QosJobPart { plan, dir: job.into(), data: data.into() }
        };
        let each = |job, ops: [WorkOp; CONNECTIONS]| -> Vec<QosJobPart> {
            ops.into_iter().map(|op| part(job, op)).collect()
        };
        let one = |job, op| each(job, [op; CONNECTIONS]);
        match self.load {
            WeightsLoad::CachedReads => (one("a", WorkOp::Randread), one("b", WorkOp::Randread)),
            WeightsLoad::WriteRead => (one("a", WorkOp::Randwrite), one("b", WorkOp::Randread)),
            WeightsLoad::WriteMixed => {
                let mixed =
                    [WorkOp::Randread, WorkOp::Randwrite, WorkOp::Randread, WorkOp::Randwrite];
                (one("a", WorkOp::Randwrite), each("b", mixed))
            }
        }
    }

    /// One thread for what the page cache answers: there the service is processor time, and
    /// the generators need a processor too, or replies pile up behind the sockets and nothing
    /// waits for its turn.
    fn top(&self) -> &'static str {
        if self.load == WeightsLoad::CachedReads { "threads = 1\n" } else { "" }
    }

    /// Small, so that the work is the proxy's and the device's and not that of moving bytes
    /// through sockets, which keeps the generators from keeping up.
    fn size(&self) -> Bytes {
        if self.load == WeightsLoad::CachedReads { Bytes::kib(1) } else { Bytes::kib(16) }
    }
}

const IN_FLIGHT: usize = 4096;
/// Of a job. What one connection may have in flight is 15 ms of work where the page cache answers,
/// and a generator that missed its turn for so long left its job without a backlog.
const CONNECTIONS: usize = 4;
const WARM_LEN: Bytes = Bytes::mib(256);
/// So large that what was read once is hardly asked for again before it is dropped.
const COLD_LEN: Bytes = Bytes::mib(2048);
const WRITTEN_LEN: Bytes = Bytes::mib(512);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_of_the_guarantee_and_more_than_two_slots_worth_in_flight() {
        assert_eq!(WEIGHTS, [2, 4, 8, 16, 32]);
        assert!(
            CASES.iter().all(|case| !case.target.contains("slots_max = 2") || IN_FLIGHT > 5 * 2)
        );
    }
}

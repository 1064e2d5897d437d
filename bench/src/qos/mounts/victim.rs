//! A victim's small operations on one mount, beside a job that writes 16 × 1 MiB on another.
//!
//! fio's writers write past the page cache of their mount, so there are 16 requests in flight
//! all the time, as of a checkpoint on several nodes. They fill new files. Ways, rounds and
//! ratios are those of the measurement `victim`.

use std::fs::File;
use std::time::Duration;

use anyhow::Context as _;
use model::Bytes;

use super::super::QosRun;
use super::super::bed::{KeepCold, QosProxy, QosSetup};
use super::super::mounted::{QosFio, QosLatency, QosMount, for_time, on};
use super::super::table::QosTable;
use super::super::victim::{QosSample, RULES, row};

#[derive(Clone, Copy)]
struct MountVictim {
    name: &'static str,
    /// What fio does, and in which file.
    load: &'static str,
    file: &'static str,
    of: QosLatency,
}

const VICTIMS: [MountVictim; 3] = [
    MountVictim {
        name: "mount, 4 KiB reads, cached by the proxy",
        load: "--rw=randread --direct=1 --size=64m",
        file: "warm",
        of: QosLatency::Read,
    },
    MountVictim {
        name: "mount, 4 KiB reads, uncached",
        load: "--rw=randread --direct=1 --size=1g",
        file: "cold",
        of: QosLatency::Read,
    },
    MountVictim {
        name: "mount, 4 KiB write + fdatasync",
        load: "--rw=randwrite --fdatasync=1 --size=64m",
        file: "saved",
        of: QosLatency::Sync,
    },
];

struct MountVictimSetup {
    name: &'static str,
    bully: bool,
    no_schedule: bool,
}

/// The first is what the others are held against; the last says what this machine itself does.
const WAYS: [MountVictimSetup; 3] = [
    MountVictimSetup { name: "no scheduling", bully: true, no_schedule: true },
    MountVictimSetup { name: "weight and slots", bully: true, no_schedule: false },
    MountVictimSetup { name: "alone", bully: false, no_schedule: true },
];

/// A proxy and both mounts of it. Dropped in this order.
struct MountVictimStand {
    victim: QosMount,
    bully: QosMount,
    _proxy: QosProxy,
}

struct MountVictimData {
    warm: File,
    cold: File,
}

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let wanted: Vec<MountVictim> = VICTIMS.into_iter().filter(|v| run.wants(v.name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    table.progress("making files");
    let data = MountVictimData {
        warm: run.bed.file("warm", WARM_LEN)?,
        cold: run.bed.file("cold", COLD_LEN)?,
    };
    run.bed.file("saved", WARM_LEN)?;
    std::fs::create_dir_all(run.bed.export().join("bully")).context("cannot make a directory")?;
    let mut stands = Vec::new();
    for (index, way) in WAYS.iter().enumerate() {
        stands.push(MountVictimStand::start(run, index, way).context(way.name)?);
    }
    let rounds = run.rounds(5, 1);
    for victim in wanted {
        let mut samples: [Vec<QosSample>; WAYS.len()] = [const { Vec::new() }; WAYS.len()];
        for round in 0..rounds {
            for turn in 0..WAYS.len() {
                let w = (round + turn) % WAYS.len();
                table.progress(&format!("round {round}: {}, {}", victim.name, WAYS[w].name));
                samples[w].push(one(run, victim, &WAYS[w], &stands[w], &data)?);
            }
        }
        for (w, way) in WAYS.iter().enumerate() {
            let case = format!("{}, {}", victim.name, way.name);
            table.add(row(case, !way.no_schedule, &samples[w], &samples[0]));
        }
    }
    Ok(())
}

impl MountVictimStand {
    fn start(
        run: &QosRun<'_>,
        index: usize,
        way: &MountVictimSetup,
    ) -> anyhow::Result<MountVictimStand> {
        let target = if way.no_schedule { "write_mode = \"cached\"" } else { "" };
        let setup =
            QosSetup { target, rules: RULES, no_schedule: way.no_schedule, ..QosSetup::default() };
        let proxy = run.bed.proxy(&format!("mv{index}"), &setup)?;
        let mount = |job: &str| {
            let options = format!("allow_other,job=fixed:{job}");
            QosMount::start(&run.bed, &proxy, &format!("{job}{index}"), &options)
        };
        Ok(MountVictimStand { victim: mount("victim")?, bully: mount("bully")?, _proxy: proxy })
    }
}

fn one(
    run: &QosRun<'_>,
    victim: MountVictim,
    way: &MountVictimSetup,
    stand: &MountVictimStand,
    data: &MountVictimData,
) -> anyhow::Result<QosSample> {
    clear(run)?;
    std::io::copy(&mut data.warm.try_clone()?, &mut std::io::sink()).context("warming")?;
    let _kept_cold = match victim.file {
        "cold" => Some(KeepCold::start(&data.cold)?),
        _ => None,
    };
    let span = for_time(SETTLE, run.time(5, 2));
    let directory = stand.bully.join("bully").display().to_string();
    let bully = match way.bully {
        true => {
            let words = format!("--directory={directory} {BULLY} {span}");
            Some(QosFio::start(&run.bed, "bully", BEHIND, &words)?)
        }
        false => None,
    };
    let file = on(&stand.victim.join(victim.file));
    let words = format!("--ioengine=psync --bs=4k {} {file} {span}", victim.load);
    let victims = QosFio::start(&run.bed, "victim", 0, &words)?.finish(&run.bed)?;
    let bully = bully.map(|bully| bully.finish(&run.bed)).transpose()?;
    Ok(QosSample {
        p50_us: victims.latency_us(victim.of, "50.000000")?,
        p99_us: victims.latency_us(victim.of, "99.000000")?,
        ops_per_sec: victims.ops_per_sec(),
        bully_mb_per_sec: bully.map_or(0.0, |bully| bully.mb_per_sec()),
    })
}

/// Takes the bully's files away and flushes the rest, or what one run left dirty would be the
/// next one's load.
fn clear(run: &QosRun<'_>) -> anyhow::Result<()> {
    let folder = run.bed.export().join("bully");
    for entry in std::fs::read_dir(&folder).context("cannot list the bully's files")? {
        let path = entry.context("cannot list the bully's files")?.path();
        std::fs::remove_file(path).context("cannot remove a bully's file")?;
    }
    let folder = File::open(&folder).context("cannot open the bully's directory")?;
    rustix::fs::syncfs(&folder).context("cannot flush")
}

/// 16 new files, one write in flight in each.
const BULLY: &str = "--ioengine=psync --rw=write --bs=1m --direct=1 --numjobs=16 --size=1g";
/// The bully stands for other machines and goes behind everything else.
const BEHIND: i32 = 10;
const WARM_LEN: Bytes = Bytes::mib(64);
const COLD_LEN: Bytes = Bytes::mib(1024);
/// Long enough for cached writes to get to the device.
const SETTLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

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

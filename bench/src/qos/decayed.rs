//! The guarantees of a decay: the sawtooth of the source, and where use settles with a half-life.
//!
//! ```text
//!   user 1: dd-like writes, all that he gets ─┐            bytes, operations ▲ B ──┐   ┌──
//!   user 2: 8 MB/s, below his part ───────────┼► proxy ►                     │     │   │
//!   user 3: creates and removes ──────────────┘   ▲ rates                    │   f └───┘
//!                                             controller                     └────────────► minutes
//! ```
//!
//! The period is a minute in place of a day. The mean of a period is (X + B·t_detect +
//! f·(P − t₁))/P: X is what the period's entitlement lets through, B the full speed, f the floor,
//! and t₁ = X/B + t_detect when the floor is reached.

mod user;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;

use super::QosRun;
use super::bed::QosProxy;
use super::controlled::{QosController, proxies};
use super::table::{QosRow, QosTable, figures};
use chart::{ChartLine, ChartPanel, LineChart, line_chart};
use user::{DecayedUser, DecayedWork};

/// Measures decays with a period and with a half-life, and draws them.
pub(crate) fn measure(
    run: &QosRun<'_>,
    table: &mut QosTable,
    out: Option<&Path>,
) -> anyhow::Result<()> {
    let mut panels = Vec::new();
    if run.wants("step") {
        step(run, table, &mut panels)?;
    }
    if run.wants("half-life") {
        half_life(run, table, &mut panels)?;
    }
    let Some(out) = out else { return Ok(()) };
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let chart = LineChart {
        title: "Decay: limits that follow past usage".into(),
        subtitle: "one proxy and its controller; a period, and a half-life, of a minute".into(),
        series: vec!["user 1".into(), "user 2".into(), "user 3".into(), "formula".into()],
        panels,
        marks: Vec::new(),
    };
    Ok(line_chart(&out.join("qos-decay.svg"), &chart)?)
}

/// What one user had at the end of each second: bytes and operations since the beginning.
type Samples = Vec<(Duration, [u64; 2])>;

/// One sawtooth: full speed, what a period lets through, and the floor.
struct Saw {
    case: &'static str,
    unit: &'static str,
    full: f64,
    quota: f64,
    floor: f64,
}

impl Saw {
    /// The rate of each second, and what to make of each period, counted from its beginning.
    fn judge(&self, table: &mut QosTable, rates: &[f64]) {
        let period = rates.len() as f64;
        // The first second that is clearly not at full speed any more, by the middle of both, and
        // the next is not either: the disk may stop for one.
        let middle = (self.full + self.floor) / 2.0;
        let held = |two: &[f64]| two.iter().all(|rate| *rate < middle);
        let at_floor = rates.windows(2).skip(3).position(held).map(|at| at + 3);
        let Some(at_floor) = at_floor else {
            table.note(format!("{}: never held back", self.case));
            return;
        };
        // Part of that second was at full speed still.
        let part = ((rates[at_floor] - self.floor) / (self.full - self.floor)).clamp(0.0, 1.0);
        let reached = at_floor as f64 + part;
        let detect = reached - self.quota / self.full;
        let formula = (self.quota + self.full * detect + self.floor * (period - reached)) / period;
        let mean = rates.iter().sum::<f64>() / period;
        let off = (mean / formula - 1.0) * 100.0;
        table.add(QosRow {
            case: self.case.into(),
            target: format!("{formula:.2} {} within 5 %; held back within 3 s", self.unit),
            reached: format!("{mean:.2} ({off:+.1} %), after {detect:.1} s"),
            met: Some(off.abs() <= 5.0 && (-0.5..3.0).contains(&detect)),
            beside: format!("full speed for {reached:.1} s, then {} {}", self.floor, self.unit),
            figures: figures([
                ("mean", mean),
                ("formula", formula),
                ("detect_s", detect),
                ("full_speed_s", reached),
            ]),
        });
        let back = rates[1];
        table.add(QosRow {
            case: format!("{}, second after the period began", self.case),
            target: format!("{} {} within 10 %", self.full, self.unit),
            reached: format!("{back:.1}"),
            met: Some((back / self.full - 1.0).abs() <= 0.1),
            beside: String::new(),
            figures: figures([("rate", back)]),
        });
    }
}

fn step(
    run: &QosRun<'_>,
    table: &mut QosTable,
    panels: &mut Vec<ChartPanel>,
) -> anyhow::Result<()> {
    let periods: u64 = if run.is_quick() { 1 } else { 3 };
    let (bed, rules) = (&run.bed, format!("{CLASSES}{STEP}"));
    let controller = QosController::start(bed, "step")?;
    let version = controller.client.set_rules(&rules)?.version;
    let proxies = proxies(bed, 1, &controller.url, &version)?;
    let proxy = &proxies[0];
    let works = [
        (1, DecayedWork::Write { per_sec: None }),
        (2, DecayedWork::Write { per_sec: Some(8) }),
        (3, DecayedWork::Names),
    ];
    user::prepare(&bed.export(), &works)?;
    let into_period = || {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Duration::from_nanos((since.as_nanos() % (PERIOD.as_nanos())) as u64)
    };
    table.progress("step: a period begins");
    bed.wait(PERIOD.saturating_sub(into_period()))?;
    let users = works.map(|(uid, work)| DecayedUser::start(&proxy.address, uid, work));
    let users = users.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let seconds = PERIOD.as_secs() * periods;
    let all = watch(run, table, "step", proxy, &[1, 2, 3], seconds)?;
    users.into_iter().try_for_each(DecayedUser::end)?;
    let [writer, paced, names] = &all[..] else { unreachable!("three users") };
    let (bytes, ops) =
        (|samples: &Samples| rates(samples, 0), |samples: &Samples| rates(samples, 1));
    let (writer, paced, names) = (bytes(writer), bytes(paced), ops(names));
    for nth in 0..periods as usize {
        let of = |rates: &[f64]| {
            let span = PERIOD.as_secs() as usize;
            rates[nth * span..((nth + 1) * span).min(rates.len())].to_vec()
        };
        WRITES.judge(table, &of(&writer));
        NAMES.judge(table, &of(&names));
    }
    let mean = paced.iter().skip(2).sum::<f64>() / (paced.len() - 2) as f64;
    table.add(QosRow {
        case: "step: another user, who asks for less than his part".into(),
        target: "8.39 MB/s, 1 % less at most".into(),
        reached: format!("{mean:.2} MB/s"),
        met: Some(mean >= 8.0 * 1.048_576 * 0.99),
        beside: "writes of 1 MiB, 8 a second; entitled to 10 MB/s".into(),
        figures: figures([("mb_per_sec", mean)]),
    });
    panels.push(panel("written, MB/s (period of a minute)", &[(0, &writer), (1, &paced)]));
    panels.push(panel("created and removed, operations/s", &[(2, &names)]));
    Ok(())
}

fn half_life(
    run: &QosRun<'_>,
    table: &mut QosTable,
    panels: &mut Vec<ChartPanel>,
) -> anyhow::Result<()> {
    let (bed, rules) = (&run.bed, format!("{CLASSES}{HALF_LIFE}"));
    let controller = QosController::start(bed, "half-life")?;
    let version = controller.client.set_rules(&rules)?.version;
    let proxies = proxies(bed, 1, &controller.url, &version)?;
    let works = [(1, DecayedWork::Write { per_sec: None })];
    user::prepare(&bed.export(), &works)?;
    let seconds = run.time(480, 240).as_secs().max(120);
    let user = DecayedUser::start(&proxies[0].address, 1, DecayedWork::Write { per_sec: None })?;
    let all = watch(run, table, "half-life", &proxies[0], &[1], seconds)?;
    user.end()?;
    let rates = rates(&all[0], 0);
    let last = &rates[rates.len() - 60..];
    let mean = last.iter().sum::<f64>() / last.len() as f64;
    let settles = settles(MAX / ENTITLED, 2.0) * ENTITLED;
    let off = (mean / settles - 1.0) * 100.0;
    table.add(QosRow {
        case: "half-life: always asks for more, last minute".into(),
        target: format!("{settles:.2} MB/s within 5 %"),
        reached: format!("{mean:.2} MB/s ({off:+.1} %)"),
        met: Some(off.abs() <= 5.0),
        beside: format!("{seconds} s, entitled to {ENTITLED} MB/s, at most {MAX} MB/s, κ = 2"),
        figures: figures([("mb_per_sec", mean), ("settles", settles)]),
    });
    let line = vec![settles; rates.len()];
    panels.push(panel("written, MB/s (half-life of a minute)", &[(0, &rates), (3, &line)]));
    Ok(())
}

/// Where ρ = top · 2^(−κ(ρ−1)), by halves.
fn settles(top: f64, steepness: f64) -> f64 {
    let (mut low, mut high) = (1.0, top);
    for _ in 0..60 {
        let ratio = f64::midpoint(low, high);
        match top * (-steepness * (ratio - 1.0)).exp2() > ratio {
            true => low = ratio,
            false => high = ratio,
        }
    }
    low
}

/// Samples of each user's class, one a second.
fn watch(
    run: &QosRun<'_>,
    table: &QosTable,
    case: &str,
    proxy: &QosProxy,
    uids: &[u32],
    seconds: u64,
) -> anyhow::Result<Vec<Samples>> {
    let began = Instant::now();
    let mut all = vec![Samples::new(); uids.len()];
    for second in 0..=seconds {
        let classes = proxy.api.classes()?;
        let at = Duration::from_nanos(classes.t_ns);
        for (samples, uid) in all.iter_mut().zip(uids) {
            let key = format!("uid={uid}");
            let usage = classes.classes.iter().find(|class| class.key == key);
            let usage = usage.map(|class| [class.usage.written_bytes, class.usage.ops]);
            samples.push((at, usage.unwrap_or_default()));
        }
        table.progress(&format!("{case}: {second} of {seconds} s"));
        let due = began + Duration::from_secs(second + 1);
        run.bed.wait(due.saturating_duration_since(Instant::now()))?;
    }
    Ok(all)
}

/// What came each second: MB/s of bytes, or operations/s.
fn rates(samples: &Samples, what: usize) -> Vec<f64> {
    let unit = if what == 0 { 1e6 } else { 1.0 };
    let rate = |two: &[(Duration, [u64; 2])]| {
        let span = (two[1].0 - two[0].0).as_secs_f64();
        two[1].1[what].saturating_sub(two[0].1[what]) as f64 / span / unit
    };
    samples.windows(2).map(rate).collect()
}

fn panel(title: &str, lines: &[(usize, &[f64])]) -> ChartPanel {
    let line = |(series, rates): &(usize, &[f64])| ChartLine {
        series: *series,
        points: rates.iter().enumerate().map(|(at, rate)| (at as f64, *rate)).collect(),
    };
    ChartPanel { title: title.into(), logarithmic: false, lines: lines.iter().map(line).collect() }
}

const PERIOD: Duration = Duration::from_secs(60);
/// Of the half-life, in MB/s.
const ENTITLED: f64 = 10.0;
const MAX: f64 = 40.0;
const WRITES: Saw =
    Saw { case: "step: writes", unit: "MB/s", full: 40.0, quota: 600.0, floor: 2.0 };
const NAMES: Saw = Saw {
    case: "step: creates and removes",
    unit: "ops/s",
    full: 400.0,
    quota: 6_000.0,
    floor: 20.0,
};
const CLASSES: &str = "[[rule]]\nname = \"users\"\nper = [\"uid\"]\n";
const STEP: &str = "
[[decay]]
name = \"writers\"
per = [\"uid\"]
resource = \"write\"
entitlement = \"10MB/s\"
max = \"40MB/s\"
floor = \"2MB/s\"
mode = \"period\"
period = \"1min\"
update_interval = \"1s\"

[[decay]]
name = \"storms\"
match = \"uid={3}\"
per = [\"uid\"]
resource = \"metadata\"
entitlement = \"100ops/s\"
max = \"400ops/s\"
floor = \"20ops/s\"
mode = \"period\"
period = \"1min\"
update_interval = \"1s\"
";
const HALF_LIFE: &str = "
[[decay]]
name = \"writers\"
per = [\"uid\"]
resource = \"write\"
entitlement = \"10MB/s\"
max = \"40MB/s\"
floor = \"1MB/s\"
mode = \"decay\"
half_life = \"1min\"
steepness = \"2\"
hysteresis = \"1%\"
update_interval = \"1s\"
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_settles_where_the_worked_table_says() {
        for (steepness, wanted) in [(1.0, 2.82), (2.0, 2.12), (3.0, 1.82), (4.0, 1.65)] {
            let settled = settles(10.0, steepness);
            assert!((settled - wanted).abs() < 0.01, "κ = {steepness}: {settled}");
        }
    }
}

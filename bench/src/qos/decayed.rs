//! Limits that follow past usage: the sawtooth of the source, and where use settles with a
//! half-life: a group of figures.
//!
//! ```text
//!   user 1: dd-like writes, all that is let through ─┐            units ▲ B ──┐   ┌──
//!   user 2: 8 blocks/s, below the entitlement ───────┼► proxy ►          │     │   │
//!   user 3: creates and removes ─────────────────────┘   ▲ rates         │   f └───┘
//!                                                    controller          └───────────► minutes
//! ```
//!
//! The period is a minute in place of a day. One period is a round, from its begin; some seconds of
//! the next one show full speed again.

mod saw;
mod user;

use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;

use super::super::figures::groups::{FigureGroup, FigureRun};
use super::super::figures::row::{FigureBound, FigureRow, FigureSample, sample};
use super::super::figures::sink::FigureSink;
use super::super::figures::sources::FigureProgram;
use super::backend::SLOW;
use super::bed::{QosProxy, QosTestBed};
use super::controllers::{QosController, proxies, proxies_of};
use super::mounted::QosMount;
use super::slow::{SlowBackend, SlowRate};
use saw::{Saw, SawFound, SawPoint};
use user::{DecayedUser, DecayedWork};

/// Limits that follow past usage.
pub(crate) const GROUP: FigureGroup = FigureGroup {
    name: "decay",
    title: "Limits that follow past usage",
    what: "A controller and one proxy, or two. On `sluice-mount` the users are threads on a mount of the \
           proxy, and `sluice-slow` is in front of the slow backend of 150 MB/s. In a period of a minute a user writes all that is \
           let through (40 MB/s, then 2 MB/s), a second one asks for less than the entitlement, and \
           a third creates and removes files (400/s, then 20/s). `of formula` is the mean of the \
           period over the one of docs/algorithms/decay.md; `detect` is the time from when the \
           entitled amount had been served to the floor, and `stalled` the seconds before at less \
           than half of full speed. `back` is the second second of the next period, `back after` \
           the time until full speed. `settled` is the mean of the last minute over the rate at \
           which limit and use agree.",
    sources: &["bench/src/qos/decayed.rs"],
    programs: &[FigureProgram::Proxy, FigureProgram::Mount, FigureProgram::Controller],
    rows: || vec![step_row(), half_life_row()],
    measure,
};

fn measure(run: &FigureRun<'_>, sink: &mut FigureSink) -> anyhow::Result<()> {
    let bed = || QosTestBed::make(Some(run.dir), run.sluice, run.stop);
    sink.round_of(&step_row(), |who| step(&bed()?, who))?;
    let row = half_life_row();
    sink.round_of(&row, |_| half_life(&bed()?, run.time(&row)))
}

fn step_row() -> FigureRow {
    let what = "a period of a minute: 600 MB or 6,000 operations at full speed, then the floor";
    let seconds = (PERIOD_S + BACK_S) as f64;
    let row = FigureRow::new("decay/step", what, &STEPS).rounds(2, seconds);
    let near = |value, percent| FigureBound::Near { value, percent };
    STEPS.into_iter().fold(row, |row, who| {
        row.goal(who, "write_of_formula_ratio", near(1.0, 5.0))
            .goal(who, "write_detect_s", FigureBound::Most(3.0))
            .goal(who, "metadata_of_formula_ratio", near(1.0, 5.0))
            .goal(who, "metadata_detect_s", FigureBound::Most(3.0))
            .goal(who, "second_user_loss_percent", FigureBound::Most(1.0))
            .goal(who, "write_back_mb_per_s", near(WRITES.full, 10.0))
            .goal(who, "metadata_back_ops_per_s", near(NAMES.full, 10.0))
    })
}

/// Writers and names at each proxy, and the user below the entitlement at the first.
fn step(bed: &QosTestBed, who: &str) -> anyhow::Result<FigureSample> {
    let count = if who == TWO_PROXIES { 2 } else { 1 };
    let slow = match who {
        SLOW_BACKEND => Some(SlowBackend::start(bed, "slow", SlowRate::Bytes(SLOW), 1)?),
        _ => None,
    };
    let dir = slow.as_ref().map_or_else(|| bed.export(), |slow| slow.dir().to_path_buf());
    let rules = format!("{CLASSES}{STEP}");
    let controller = QosController::start(bed, "step")?;
    let version = controller.client.set_rules(&rules)?.version;
    let proxies = proxies_of(bed, &dir, count, &controller.url, &version)?;
    let mount = match who {
        MOUNTED => Some(QosMount::start(bed, &proxies[0], "users", "allow_other")?),
        _ => None,
    };
    let everywhere = [(1, DecayedWork::Write { per_sec: None }), (3, DecayedWork::Names)];
    let paced = (2, DecayedWork::Write { per_sec: Some(PACED_PER_S) });
    let seat = |at: usize, (uid, work)| user::DecayedSeat { uid, work, number: at };
    let mut seats = vec![(0, seat(0, paced))];
    for at in 0..count {
        seats.extend(everywhere.map(|one| (at, seat(at, one))));
    }
    seats.iter().try_for_each(|(_, seat)| user::prepare(&dir, seat))?;

    let left = Duration::from_secs(PERIOD_S).saturating_sub(into_period());
    let began = Instant::now() + left;
    bed.wait(left)?;
    let mut watch = DecayWatch::begin(bed, &proxies, began)?;
    let users = seats.iter().map(|(at, seat)| match &mount {
        Some(mount) => DecayedUser::start_on(mount.root(), seat),
        None => DecayedUser::start(&proxies[*at].address, seat),
    });
    let users = users.collect::<anyhow::Result<Vec<_>>>()?;
    watch.go_on_for(PERIOD_S + BACK_S)?;
    users.into_iter().try_for_each(DecayedUser::end)?;

    let (writer, paced, names) = (watch.bytes(0), watch.bytes(1), watch.ops(2));
    let period = PERIOD_S as usize;
    let mut found = FigureSample::new();
    for (name, unit, saw, points) in
        [("write", "mb", WRITES, &writer), ("metadata", "ops", NAMES, &names)]
    {
        let SawFound { mean, formula, entitled_s, detect_s, stalled_s } =
            saw.judge(&points[..=period]).with_context(|| name.to_owned())?;
        let next = &points[period..];
        found.extend([
            (format!("{name}_of_formula_ratio"), mean / formula),
            (format!("{name}_mean_{unit}_per_s"), mean),
            (format!("{name}_formula_{unit}_per_s"), formula),
            (format!("{name}_full_speed_s"), entitled_s + detect_s),
            (format!("{name}_detect_s"), detect_s),
            (format!("{name}_stalled_s"), stalled_s),
            (format!("{name}_back_{unit}_per_s"), rate(next[1], next[2])),
            (format!("{name}_back_after_s"), saw.back_after(next[0], next[BACK_S as usize])),
        ]);
    }
    // After two seconds, in which what was saved goes at once.
    let had = rate(paced[2], paced[period]);
    let asks = f64::from(PACED_PER_S) * user::BLOCK as f64 / 1e6;
    found.extend(sample([
        ("second_user_loss_percent", (1.0 - had / asks) * 100.0),
        ("second_user_mb_per_s", had),
    ]));
    Ok(found)
}

/// How long ago a period began.
fn into_period() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_nanos((since.as_nanos() % u128::from(PERIOD_S * 1_000_000_000)) as u64)
}

fn half_life_row() -> FigureRow {
    let what = format!(
        "a half-life of a minute, entitled to {ENTITLED} MB/s, at most {MAX}: three users who always \
         ask for more, with κ = 1, 2 and 4"
    );
    let row = FigureRow::new("decay/half-life", &what, &[SLUICE]).rounds(2, 240.0);
    HALF_LIVES.iter().fold(row, |row, one| {
        row.goal(SLUICE, one.measure, FigureBound::Near { value: 1.0, percent: 5.0 })
    })
}

/// Users 1, 2 and 3 write under a decay of their own each.
fn half_life(bed: &QosTestBed, time: Duration) -> anyhow::Result<FigureSample> {
    let controller = QosController::start(bed, "half-life")?;
    let version = controller.client.set_rules(&half_life_rules())?.version;
    let proxies = proxies(bed, 1, &controller.url, &version)?;
    let work = DecayedWork::Write { per_sec: None };
    let seats = [1, 2, 3].map(|uid| user::DecayedSeat { uid, work, number: 0 });
    seats.iter().try_for_each(|seat| user::prepare(&bed.export(), seat))?;
    let mut watch = DecayWatch::begin(bed, &proxies, Instant::now())?;
    let users = seats.iter().map(|seat| DecayedUser::start(&proxies[0].address, seat));
    let users = users.collect::<anyhow::Result<Vec<_>>>()?;
    watch.go_on_for(time.as_secs())?;
    users.into_iter().try_for_each(DecayedUser::end)?;
    let mut found = FigureSample::new();
    for (user, HalfLife { steepness, measure }) in HALF_LIVES.iter().enumerate() {
        let points = watch.bytes(user);
        let last = points.len() - 1;
        let mean = rate(points[last - LAST_S.min(last)], points[last]);
        let settles = settles(MAX / ENTITLED, (*steepness).into()) * ENTITLED;
        found.insert((*measure).into(), mean / settles);
        found.insert(format!("k{steepness}_mb_per_s"), mean);
        found.insert(format!("k{steepness}_settles_mb_per_s"), settles);
    }
    Ok(found)
}

/// A user's decay, and the measure of where it settles.
struct HalfLife {
    steepness: u32,
    measure: &'static str,
}

const HALF_LIVES: [HalfLife; 3] = [
    HalfLife { steepness: 1, measure: "k1_settled_ratio" },
    HalfLife { steepness: 2, measure: "k2_settled_ratio" },
    HalfLife { steepness: 4, measure: "k4_settled_ratio" },
];

fn half_life_rules() -> String {
    let rule = |(at, one): (usize, &HalfLife)| {
        let (uid, steepness) = (at + 1, one.steepness);
        format!(
            "\n[[decay]]\nname = \"writer{uid}\"\nmatch = \"uid={{{uid}}}\"\n{HALF_LIFE}\
             steepness = \"{steepness}\"\n"
        )
    };
    HALF_LIVES.iter().enumerate().map(rule).fold(CLASSES.into(), |text, rule| text + &rule)
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

/// What users had at the end of each second, at all proxies together.
struct DecayWatch<'a> {
    bed: &'a QosTestBed,
    proxies: &'a [QosProxy],
    began: Instant,
    samples: Vec<DecaySample>,
}

/// When, by the first proxy's clock, and what each of users 1 to 3 had: bytes and operations.
type DecaySample = (Duration, [[u64; 2]; 3]);

impl<'a> DecayWatch<'a> {
    fn begin(
        bed: &'a QosTestBed,
        proxies: &'a [QosProxy],
        began: Instant,
    ) -> anyhow::Result<DecayWatch<'a>> {
        let mut watch = DecayWatch { bed, proxies, began, samples: Vec::new() };
        watch.take()?;
        Ok(watch)
    }

    /// Takes a sample at the end of each of the first `seconds` seconds.
    fn go_on_for(&mut self, seconds: u64) -> anyhow::Result<()> {
        for second in 1..=seconds {
            let due = self.began + Duration::from_secs(second);
            self.bed.wait(due.saturating_duration_since(Instant::now()))?;
            self.take()?;
        }
        Ok(())
    }

    fn take(&mut self) -> anyhow::Result<()> {
        let mut sample = DecaySample::default();
        for (number, proxy) in self.proxies.iter().enumerate() {
            let classes = proxy.api.classes()?;
            if number == 0 {
                sample.0 = Duration::from_nanos(classes.t_ns);
            }
            for (at, had) in sample.1.iter_mut().enumerate() {
                let key = format!("uid={}", at + 1);
                for class in classes.classes.iter().filter(|class| class.key == key) {
                    had[0] += class.usage.written_bytes;
                    had[1] += class.usage.ops;
                }
            }
        }
        self.samples.push(sample);
        Ok(())
    }

    /// Megabytes of a user, by seconds since the first sample.
    fn bytes(&self, user: usize) -> Vec<SawPoint> {
        self.points(|sample| sample.1[user][0] as f64 / 1e6)
    }

    /// Operations of a user, by seconds since the first sample.
    fn ops(&self, user: usize) -> Vec<SawPoint> {
        self.points(|sample| sample.1[user][1] as f64)
    }

    fn points(&self, amount: impl Fn(&DecaySample) -> f64) -> Vec<SawPoint> {
        let Some(first) = self.samples.first() else { return Vec::new() };
        let point = |one: &DecaySample| {
            ((one.0.saturating_sub(first.0)).as_secs_f64(), amount(one) - amount(first))
        };
        self.samples.iter().map(point).collect()
    }
}

fn rate(from: SawPoint, to: SawPoint) -> f64 {
    (to.1 - from.1) / (to.0 - from.0)
}

const SLUICE: &str = "sluice";
const TWO_PROXIES: &str = "sluice-two-proxies";
/// The users are processes on a mount.
const MOUNTED: &str = "sluice-mount";
/// The proxy is in front of the slow backend.
const SLOW_BACKEND: &str = "sluice-slow";
const STEPS: [&str; 4] = [SLUICE, TWO_PROXIES, MOUNTED, SLOW_BACKEND];
const PERIOD_S: u64 = 60;
/// Seconds of the next period.
const BACK_S: u64 = 4;
/// Blocks of the user below the entitlement: 8.39 MB/s of 10.
const PACED_PER_S: u32 = 8;
/// What counts of a half-life's round, in seconds.
const LAST_S: usize = 60;
/// Of the half-life, in MB/s.
const ENTITLED: f64 = 10.0;
const MAX: f64 = 40.0;
/// In MB.
const WRITES: Saw = Saw { full: 40.0, entitled: 600.0, floor: 2.0 };
/// In operations.
const NAMES: Saw = Saw { full: 400.0, entitled: 6_000.0, floor: 20.0 };
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
const HALF_LIFE: &str = "per = [\"uid\"]
resource = \"write\"
entitlement = \"10MB/s\"
max = \"40MB/s\"
floor = \"1MB/s\"
mode = \"decay\"
half_life = \"1min\"
hysteresis = \"1%\"
update_interval = \"1s\"
";

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Amount, Identity, JobId, Nid, OpKind, PathSet, Rate, Time};
    use plan::DecayAccounts;
    use rules::RuleSet;

    use super::*;

    #[test]
    fn use_settles_where_the_worked_table_says() {
        for (steepness, wanted) in [(1.0, 2.82), (2.0, 2.12), (3.0, 1.82), (4.0, 1.65)] {
            let settled = settles(10.0, steepness);
            assert!((settled - wanted).abs() < 0.01, "κ = {steepness}: {settled}");
        }
    }

    /// Without a machine: what the rules come to for users who always have what is let through.
    #[test]
    fn use_settles_within_the_time_of_its_row() {
        let rules = Arc::new(RuleSet::parse(&half_life_rules()).unwrap());
        let seconds = half_life_row().seconds as usize;
        for (at, HalfLife { steepness, .. }) in HALF_LIVES.iter().enumerate() {
            let settles = settles(MAX / ENTITLED, (*steepness).into()) * ENTITLED;
            // A minute of the accounts may begin at any second of the round.
            for begin in 0..60 {
                let served = model_of(&rules, at as u32 + 1, begin, seconds);
                let last = &served[seconds - LAST_S..];
                let mean = last.iter().sum::<u64>() as f64 / 1e6 / LAST_S as f64;
                let off = (mean / settles - 1.0).abs();
                assert!(off < 0.02, "κ = {steepness}, {begin} s: {mean} of {settles}");
            }
        }
    }

    fn model_of(rules: &Arc<RuleSet>, uid: u32, begin: u64, seconds: usize) -> Vec<u64> {
        let at = |second: usize| {
            Time::from_nanos((20_500 * 86_400 + begin + second as u64) * 1_000_000_000)
        };
        let job = JobId::new("dd").unwrap();
        let user = Identity { job, uid, gid: 1, projid: None, nid: Nid::local() };
        let mut decays = DecayAccounts::new(Arc::clone(rules), at(0));
        let mut limit = (MAX * 1e6) as u64;
        let mut served = Vec::new();
        for second in 0..seconds {
            while let Some((_, rate)) = decays.poll_rate(at(second)) {
                limit = rate.map_or(limit, Rate::per_sec);
            }
            served.push(limit);
            let amount = Amount::new(limit, 1);
            decays.record(&user, PathSet::default(), OpKind::Write, amount, at(second));
        }
        served
    }
}

//! One period of a sawtooth beside its formula.
//!
//! ```text
//!   B ──────┬───┐                 X = area up to t: what a period lets through at full speed
//!           │   │ detect
//!   f       │   └────────────     mean = (X + B · detect + f · (P − X/B − detect)) / P
//!   0       t                P
//! ```
//!
//! Detection counts from when X had been served, and not from when the rate first fell: a disk that
//! stalls before then makes t later, and is counted as a stall. The mean hardly feels it (f for each
//! second), but a limit that came too early it does.

use anyhow::Context as _;

/// Full speed, what a period lets through, and the floor, in units and units/s.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saw {
    pub(super) full: f64,
    pub(super) entitled: f64,
    pub(super) floor: f64,
}

/// What one period came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SawFound {
    /// Units/s over the whole period.
    pub(super) mean: f64,
    /// The mean by the formula.
    pub(super) formula: f64,
    /// From the begin until the entitled amount was served, in seconds.
    pub(super) entitled_s: f64,
    /// From there until the floor, in seconds.
    pub(super) detect_s: f64,
    /// Time before the entitled amount was served at less than half of full speed, in seconds.
    pub(super) stalled_s: f64,
}

/// A time in seconds, and the units that had been served by then.
pub(super) type SawPoint = (f64, f64);

impl Saw {
    /// Judges a period by what had been served at the end of each second; it begins at (0, 0).
    pub(super) fn judge(&self, points: &[SawPoint]) -> anyhow::Result<SawFound> {
        let Saw { full, entitled, floor } = *self;
        let seconds = || points.windows(2).map(|two| (two[0], two[1]));
        let rate = |from: SawPoint, to: SawPoint| (to.1 - from.1) / (to.0 - from.0);
        let (period, all) = *points.last().context("no samples")?;
        let used = seconds().position(|(_, to)| to.1 >= entitled);
        let used = used.with_context(|| {
            format!("only {all:.0} of the entitled {entitled} were served in the period")
        })?;
        let (before, after) = (points[used], points[used + 1]);
        let entitled_s = before.0 + (entitled - before.1) / rate(before, after);
        let held =
            seconds().skip(used).find(|(from, to)| rate(*from, *to) < f64::midpoint(full, floor));
        let (_, held) = held.context("it was never held back")?;
        // Full speed and then the floor come to what was served until the end of that second.
        let span = held.0 - entitled_s;
        let detect_s = ((held.1 - entitled - floor * span) / (full - floor)).clamp(0.0, span);
        let at_floor = period - entitled / full - detect_s;
        let formula = (entitled + full * detect_s + floor * at_floor) / period;
        let stalled = seconds().take(used).filter(|(from, to)| rate(*from, *to) < full / 2.0);
        let stalled_s = stalled.fold(0.0, |sum, (from, to)| sum + to.0 - from.0);
        Ok(SawFound { mean: all / period, formula, entitled_s, detect_s, stalled_s })
    }

    /// How long the floor went on after `from`, if there was full speed from then until `to`.
    pub(super) fn back_after(&self, from: SawPoint, to: SawPoint) -> f64 {
        let span = to.0 - from.0;
        ((self.full * span - (to.1 - from.1)) / (self.full - self.floor)).clamp(0.0, span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAW: Saw = Saw { full: 40.0, entitled: 600.0, floor: 2.0 };

    fn served(rate: impl Fn(usize) -> f64) -> Vec<SawPoint> {
        let mut sum = 0.0;
        let mut points = vec![(0.0, 0.0)];
        for second in 0..60 {
            sum += rate(second);
            points.push((second as f64 + 1.0, sum));
        }
        points
    }

    fn near(found: f64, wanted: f64) -> bool {
        (found - wanted).abs() < 1e-9
    }

    #[test]
    fn a_saw_of_the_formula_is_that_of_the_formula() {
        // Full speed for 16.5 s: 1.5 s to detect.
        let found = SAW.judge(&served(|second| match second {
            0..16 => 40.0,
            16 => 21.0,
            _ => 2.0,
        }));
        let found = found.unwrap();
        assert!(near(found.entitled_s, 15.0) && near(found.detect_s, 1.5), "{found:?}");
        assert!(near(found.mean, found.formula) && near(found.stalled_s, 0.0), "{found:?}");
    }

    #[test]
    fn a_disk_that_stalls_is_not_taken_for_the_floor() {
        let found = SAW.judge(&served(|second| match second {
            5 | 6 => 1.0,
            0..18 => 40.0,
            _ => 2.0,
        }));
        let found = found.unwrap();
        assert!(near(found.stalled_s, 2.0) && near(found.entitled_s, 16.95), "{found:?}");
        assert!(near(found.detect_s, 1.05), "{found:?}");
        assert!((found.mean / found.formula - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn a_limit_that_came_too_early_is_less_than_the_formula() {
        let found = SAW.judge(&served(|second| if second < 14 { 39.0 } else { 2.0 })).unwrap();
        assert!(found.mean / found.formula < 0.95, "{found:?}");
    }

    #[test]
    fn too_much_at_the_floor_is_more_than_the_formula() {
        let found = SAW.judge(&served(|second| if second < 16 { 40.0 } else { 4.0 })).unwrap();
        assert!(found.mean / found.formula > 1.1, "{found:?}");
    }

    #[test]
    fn full_speed_is_back_when_the_floor_ends() {
        let back = SAW.back_after((60.0, 700.0), (64.0, 700.0 + 0.5 * 2.0 + 3.5 * 40.0));
        assert!(near(back, 0.5), "{back}");
    }

    #[test]
    fn without_a_floor_or_the_entitled_amount_nothing_is_judged() {
        assert!(SAW.judge(&served(|_| 40.0)).is_err());
        assert!(SAW.judge(&served(|_| 9.0)).is_err());
    }
}

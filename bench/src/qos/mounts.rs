//! The guarantees as programs on mounts see them.
//!
//!   weights    two mounts of jobs with weights w : 1, both always backlogged
//!   victim     p99 of 4 KiB reads and of fdatasync beside 16 × 1 MiB writers
//!   neighbour  two jobs of one mount, one with a limit of 1 MB/s and 64 writers
//!   return     from a killed proxy's return to the first call that ends well
//!
//! The raw messages' counterparts of the first two are `weights` and `victim`. Here fio asks,
//! the kernel and `sluice mount` are in between, and everything shares this machine's
//! processors.

mod neighbour;
mod returns;
mod victim;
mod weights;

use super::QosRun;
use super::table::QosTable;

/// Measures neighbour, return, victim and weights on mounts.
pub(crate) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    neighbour::measure(run, table)?;
    returns::measure(run, table)?;
    victim::measure(run, table)?;
    weights::measure(run, table)
}

/// The value that a part of all lie below: 0.5 is the median. Between two values it is linear.
fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    below + (above - below) * at.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_between_the_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(
            [0.0, 0.25, 0.5, 1.0].map(|part| quantile(&values, part)),
            [1.0, 1.75, 2.5, 4.0]
        );
        assert!(quantile(&[], 0.5).is_nan());
    }
}

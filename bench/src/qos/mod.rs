//! The promises of scheduling, measured: groups of figures on proxies of their own.
//!
//! ```text
//!   bed (directory, proxies) + backend (slow, or the disk) + jobs that compete ─► samples
//! ```
//!
//! Each starts proxies over a new directory, with rules it writes, and stops and removes
//! everything at its end.

mod backend;
mod bed;
pub(crate) mod blocked;
pub(crate) mod controlled;
mod cost;
pub(crate) mod costs;
pub(crate) mod decayed;
mod job;
pub(crate) mod limits;
mod memory;
mod metadata_server;
mod mounted;
pub(crate) mod neighbour;
pub(crate) mod node;
pub(crate) mod patterns;
pub(crate) mod promises;
pub(crate) mod returns;
mod scrape;
mod shares;
mod slow;
pub(crate) mod total;
pub(crate) mod victim;
pub(crate) mod weights;
mod write_modes;

/// Raises the limit of open files to its maximum: one guarantee concerns thousands of connections.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::Nofile).maximum;
    // Without it the case that needs them says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most });
}

/// The value that a part of all are below: 0.5 is the median. Between two values it is linear.
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

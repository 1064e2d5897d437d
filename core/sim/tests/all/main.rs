//! The tests of the simulator, as one program.

#![allow(clippy::unwrap_used)]

mod baselines;
mod random;
mod replay;
mod scenarios;
mod sessions;
mod wrong_scenarios;

//! The tests of the calendar of reservations, as one program.

#![allow(clippy::unwrap_used)]

mod accounts;
mod day;
mod fit;
mod jobs;
mod life;
mod loss;
mod moves;
mod oracle;
mod phases;
mod props;
mod queue;
mod restore;
mod rules;
mod sent;
mod stages;

//! The tests of the scheduler, as one program. Without the feature `observation` those are left out
//! that are about figures.

#![allow(clippy::unwrap_used)]

#[cfg(feature = "observation")]
mod accounts;
#[cfg(feature = "observation")]
mod activity;
mod calls;
mod closes;
mod dependent_rules;
#[cfg(feature = "observation")]
mod donations;
mod entitlements;
mod grants;
#[cfg(feature = "observation")]
mod held;
mod lanes;
mod many_classes;
mod named_cases;
mod props;
mod published;
mod reservations;
mod rule_changes;
mod rule_edits;
mod server;
mod targets;

//! The tests of the scheduler, as one program.

#![allow(clippy::unwrap_used)]

mod accounts;
mod activity;
mod calls;
mod closes;
mod dependent_rules;
mod donations;
mod grants;
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

//! The checks detect faults: worlds in which one half of the session breaks a rule on purpose.

use super::{SessionBug, SessionFaults, SessionWorld};

/// The first violation that any of the first seeds finds with this bug.
fn found(bug: SessionBug) -> String {
    let faults = SessionFaults { bug: Some(bug), ..SessionFaults::default() };
    first_violation(faults)
}

fn first_violation(faults: SessionFaults) -> String {
    let run = |seed| SessionWorld::new(seed, faults).run(STEPS).violation;
    (0..SEEDS).find_map(run).map(|violation| violation.what).unwrap_or_default()
}

#[test]
fn a_reply_cache_that_forgets_is_seen() {
    let what = found(SessionBug::ForgetsReplies);
    assert!(what.contains("was executed 2 times"), "{what}");
}

#[test]
fn a_connection_that_is_bound_too_early_is_seen() {
    let what = found(SessionBug::BindsEarly);
    let is_seen = what.contains("was executed after one of connection")
        || what.contains("arrived while the call before it is being executed");
    assert!(is_seen, "{what}");
}

#[test]
fn a_watermark_above_what_is_durable_is_seen() {
    let what = found(SessionBug::CommitsEarly);
    assert!(what.contains("can be lost, and is a write below the watermark"), "{what}");
}

#[test]
fn a_call_in_doubt_that_is_sent_to_the_new_session_is_seen() {
    let what = found(SessionBug::ResendsToNewSession);
    assert!(what.contains("was executed 2 times"), "{what}");
}

#[test]
fn a_mount_that_does_not_look_at_verifiers_is_seen() {
    let what = found(SessionBug::IgnoresVerifier);
    assert!(what.contains("can be lost, and is"), "{what}");
}

/// A mount cannot distinguish a session that its own lost Tsession has begun from the one that it had.
#[test]
fn a_session_that_is_resumed_before_its_client_knows_of_it_is_seen() {
    let faults = SessionFaults { resumes_unconfirmed: true, ..SessionFaults::default() };
    assert!(!first_violation(faults).is_empty());
}

/// Each channel counts for itself since when its proxy is silent.
#[test]
fn a_session_that_moves_while_a_channel_is_connected_is_seen() {
    let faults = SessionFaults { moves_while_connected: true, ..SessionFaults::default() };
    let what = first_violation(faults);
    assert!(what.contains("was executed after one of"), "{what}");
}

const SEEDS: u64 = 200;
const STEPS: u64 = 2_000;

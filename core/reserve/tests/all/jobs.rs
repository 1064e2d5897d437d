//! Registered jobs: whose they are, which attempt counts, bounds, and what a store has of them.

use std::collections::BTreeMap;

use model::{JobId, Time};
use proptest::prelude::*;
use sluice_reserve::{
    JobChange, JobError, JobRecord, JobRegistration, JobRegistry, JobSecret, RegistrationOutcome,
};

use crate::life::{at, secs};

fn job(name: &str) -> JobId {
    JobId::new(name).unwrap()
}

fn of(name: &str, uid: u32, attempt: u32) -> JobRegistration {
    JobRegistration { job: job(name), uid, attempt, ..JobRegistration::default() }
}

fn secret(text: &str) -> JobSecret {
    JobSecret::new(text.into())
}

fn register(
    table: &mut JobRegistry,
    new: JobRegistration,
) -> Result<RegistrationOutcome, JobError> {
    let number = table.iter().count();
    table.register(new, secret(&format!("secret {number}")), at(10))
}

#[test]
fn later_attempt_replaces_an_earlier_one_and_has_another_secret() {
    let mut table = JobRegistry::default();
    assert_eq!(
        table.register(of("7", 1, 0), secret("a"), at(1)),
        Ok(RegistrationOutcome::Registered)
    );
    assert_eq!(
        table.register(of("7", 1, 0), secret("b"), at(2)),
        Ok(RegistrationOutcome::Unchanged)
    );
    let more = JobRegistration { nodes: vec!["n2".into(), "n1".into()], ..of("7", 1, 0) };
    assert_eq!(table.register(more, secret("c"), at(3)), Ok(RegistrationOutcome::Changed));
    let has = table.get(&job("7")).unwrap();
    assert_eq!((has.secret.text(), has.registered), ("a", at(1)), "it is the same attempt");
    assert!(has.has_node("n1") && has.has_node("n2") && !has.has_node("n3"));
    assert_eq!(
        table.register(of("7", 1, 2), secret("d"), at(4)),
        Ok(RegistrationOutcome::Registered)
    );
    let has = table.get(&job("7")).unwrap();
    assert_eq!((has.secret.text(), has.has_node("n1")), ("d", false));
    assert!(matches!(
        table.register(of("7", 1, 1), secret("e"), at(5)),
        Err(JobError::Superseded { has: 2, given: 1, .. })
    ));
    for attempt in [2, 3] {
        let other = table.register(of("7", 9, attempt), secret("f"), at(6));
        assert!(matches!(other, Err(JobError::OfAnother { uid: 1, .. })));
    }
}

#[test]
fn end_of_an_earlier_attempt_changes_nothing() {
    let mut table = JobRegistry::default();
    register(&mut table, of("7", 1, 2)).unwrap();
    table.take_changed();
    assert_eq!(table.end(&job("7"), Some(1)), None);
    assert_eq!(table.end(&job("8"), None), None);
    assert!(table.get(&job("7")).is_some() && table.take_changed().is_empty());
    assert!(table.end(&job("7"), Some(2)).is_some());
    assert_eq!(table.take_changed(), [JobChange::Ended(job("7"))]);
    // registered again, it is another registration
    table.register(of("7", 1, 2), secret("new"), at(11)).unwrap();
    assert_eq!(table.get(&job("7")).unwrap().secret.text(), "new");
}

#[test]
fn jobs_are_dropped_an_hour_after_their_end() {
    let mut table = JobRegistry::default();
    let ends = |name: &str, ends| JobRegistration { ends: Some(at(ends)), ..of(name, 1, 0) };
    register(&mut table, ends("a", 100)).unwrap();
    register(&mut table, ends("b", 200)).unwrap();
    register(&mut table, of("c", 1, 0)).unwrap();
    assert!(table.expire(9, at(3_699)).is_empty());
    // another end counts instead of the one before
    assert_eq!(register(&mut table, ends("b", 300)), Ok(RegistrationOutcome::Changed));
    let expired: Vec<_> =
        table.expire(9, at(3_850)).into_iter().map(|record| record.registration.job).collect();
    assert_eq!(expired, [job("a")]);
    assert_eq!(table.expire(9, Time::MAX).len(), 1);
    assert!(table.get(&job("c")).is_some(), "it has no end");
    let late = table.register(ends("d", 100), secret("x"), at(3_700));
    assert_eq!(late, Err(JobError::HasEnded));
}

#[test]
fn wrong_values_and_what_is_beyond_a_bound_are_refused() {
    let mut table = JobRegistry::default();
    assert_eq!(register(&mut table, of("", 1, 0)), Err(JobError::NoName));
    let account = Some("a".repeat(129));
    let long = JobRegistration { account, ..of("a", 1, 0) };
    assert_eq!(register(&mut table, long), Err(JobError::AccountName(129)));
    let nodes = |count: usize| (0..count).map(|number| format!("n{number:06}")).collect();
    let wide = JobRegistration { nodes: nodes(65_537), ..of("a", 1, 0) };
    assert_eq!(register(&mut table, wide), Err(JobError::Nodes(65_537)));
    for number in 0..JobRegistry::RUNS_MAX {
        register(&mut table, of(&format!("run.{number}"), 1, 0)).unwrap();
    }
    assert_eq!(register(&mut table, of("run.x", 1, 0)), Err(JobError::Runs { uid: 1 }));
    register(&mut table, of("run.x", 2, 0)).unwrap();
    register(&mut table, of("x", 1, 0)).unwrap();
    let mut of_run = JobRegistration { nodes: nodes(4_000), ..of("run.1", 1, 0) };
    assert_eq!(register(&mut table, of_run.clone()), Ok(RegistrationOutcome::Changed));
    of_run.job = job("run.2");
    assert_eq!(register(&mut table, of_run), Err(JobError::RunNodes(8_000)));
    table.end(&job("run.0"), None);
    register(&mut table, of("run.x1", 1, 0)).unwrap();
    // each name has 7 bytes
    let mut all = 40_000;
    for number in 0.. {
        let wide = JobRegistration { nodes: nodes(65_536), ..of(&format!("w{number}"), 1, 0) };
        match register(&mut table, wide) {
            Ok(_) => all += 655_360,
            Err(error) => {
                assert_eq!(error, JobError::NodeBytes(all));
                break;
            }
        }
    }
    assert!(all <= JobRegistry::NODE_BYTES_MAX && all + 655_360 > JobRegistry::NODE_BYTES_MAX);
}

#[test]
fn table_of_jobs_has_a_bound() {
    let mut table = JobRegistry::default();
    for number in 0..JobRegistry::JOBS_MAX {
        table.register(of(&number.to_string(), 1, 0), secret("s"), at(1)).unwrap();
    }
    assert_eq!(table.register(of("x", 1, 0), secret("s"), at(1)), Err(JobError::Full));
    assert_eq!(
        table.register(of("7", 1, 1), secret("s"), at(1)),
        Ok(RegistrationOutcome::Registered)
    );
    table.end(&job("8"), None);
    assert_eq!(
        table.register(of("x", 1, 0), secret("s"), at(1)),
        Ok(RegistrationOutcome::Registered)
    );
}

#[test]
fn secret_of_a_job_is_not_printed() {
    let mut table = JobRegistry::default();
    table.register(of("7", 1, 0), secret("hidden"), at(1)).unwrap();
    let changes = table.take_changed();
    let shown = format!("{table:?} {changes:?}");
    assert!(shown.contains("JobSecret") && !shown.contains("hidden"), "{shown}");
    assert!(serde_json::to_string(&changes).unwrap().contains("hidden"), "it is on record");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// What a store has of the changes is what the table has, and makes the same table again.
    #[test]
    fn records_of_changes_make_the_table_again(
        calls in prop::collection::vec((0..4u8, 0..6u8, 0..3u32, 0..3_000usize, 0..200u64), 1..60)
    ) {
        let mut table = JobRegistry::default();
        let mut stored: BTreeMap<JobId, JobRecord> = BTreeMap::new();
        for (nth, (what, which, attempt, nodes, time)) in calls.into_iter().enumerate() {
            let (name, now) = (format!("{}{which}", if which > 3 { "run." } else { "" }), at(nth as u64 * 100));
            match what {
                0 | 1 => {
                    let nodes = (0..nodes).map(|number| format!("n{number}")).collect();
                    let ends = (time > 100).then(|| now + secs(time));
                    let new = JobRegistration { nodes, ends, ..of(&name, 1, attempt) };
                    let _ = table.register(new, secret(&nth.to_string()), now);
                }
                2 => drop(table.end(&job(&name), Some(attempt))),
                _ => drop(table.expire(2, now)),
            }
            let changes = table.take_changed();
            let text = serde_json::to_string(&changes).unwrap();
            let read: Vec<JobChange> = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&read, &changes);
            read.into_iter().for_each(|change| change.apply(&mut stored));
            prop_assert!(table.iter().eq(stored.values()));
        }
        let mut again = JobRegistry::restored(stored.into_values());
        prop_assert!(again.iter().eq(table.iter()));
        prop_assert_eq!(again.expire(99, Time::MAX), table.expire(99, Time::MAX));
        prop_assert_eq!(again.take_changed(), table.take_changed());
    }
}

//! Phases, time limits, dead nodes and failed prologs: reservations begin and end with their jobs.

use std::fs;

use api::{WireReservation, WireReservationState};

use super::reserved::ReservedSite;
use super::{USER, until};
use crate::entrusted::text;

/// The reservation of a job, and those of its phases.
fn with_phases(site: &ReservedSite, job: u32) -> (Vec<WireReservation>, Vec<WireReservation>) {
    site.reservations(job).into_iter().partition(|held| held.phase_of.is_none())
}

/// Asserts that the first attempt of a job has ended without a credit: it had used nothing.
fn assert_ended_without_credit(site: &ReservedSite, job: u32) {
    let key = format!("slurm-{job}-0");
    let all = site.reservations(job);
    let first = all.iter().find(|held| held.idempotency_key.as_ref() == Some(&key));
    let first = first.unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(first.state, WireReservationState::Undefined, "{first:?}");
    assert_eq!((first.ended.as_deref(), first.credit), (Some("completed"), Some(0)), "{first:?}");
}

#[test]
fn phases_stand_in_the_calendar_with_their_job_and_go_with_it() {
    let Some(mut site) = ReservedSite::start("slurm-phases", "") else { return };
    let phases = "[[phase]]\nstart = \"2min\"\nduration = \"60s\"\nwrite = \"30MB/s\"\n";
    fs::write(site.slurm.cluster.path("work/phases.toml"), phases).unwrap();
    let options =
        ["-N1", "-t10", "--qos-bw=5MB/s:write", "--qos-time=5min", "--qos-phases=phases.toml"];
    let job = site.submit_with(&options, "true");
    site.until_began();
    let (whole, phases) = with_phases(&site, job);
    assert_eq!((whole.len(), phases.len()), (1, 1), "{whole:?} {phases:?}");
    assert_eq!(whole[0].state, WireReservationState::Active);
    assert!(whole[0].claimed_ns.is_some(), "{whole:?}");
    assert_eq!(phases[0].phase_of, Some(whole[0].id));
    let apart = phases[0].start_ns.unwrap().abs_diff(whole[0].start_ns.unwrap());
    assert_eq!(apart, 120_000_000_000, "{phases:?}");
    assert_eq!(phases[0].state, WireReservationState::Scheduled);
    site.go();
    site.slurm.cluster.until_job(job, "COMPLETED");
    until("nothing is left of the job that ended", || site.has_nothing_left());
    fs::remove_file(site.slurm.cluster.path("work/go")).unwrap();

    // one that waits and is cancelled
    site.others_have_all_but(2);
    site.follow();
    let waits = site.submit_with(&options, "true");
    until("it is planned with its phase", || {
        let (whole, phases) = with_phases(&site, waits);
        let is_planned = |held: &WireReservation| held.state == WireReservationState::Scheduled;
        whole.iter().any(is_planned) && phases.iter().any(is_planned)
    });
    site.slurm.cluster.admin(&format!("scancel {waits}"));
    until("nothing is left of the cancelled job", || site.has_nothing_left());
}

#[test]
fn a_time_limit_and_a_dead_node_end_the_reservation_and_a_requeued_job_has_a_new_one() {
    let Some(mut site) = ReservedSite::start("slurm-ends", "") else { return };
    site.follow();
    // slurmctld reads time limits twice a minute: the rest goes on meanwhile
    let options = ["-N1", "-t10", "--qos-bw=20MB/s:write", "--requeue"];
    let late = site.submit_with(&[&["-w", "cn2"], &options[..]].concat(), "true");
    site.until_began();
    site.slurm.cluster.end_time_now(late);

    // the node that dies is another one
    let job = site.submit_with(&[&["-x", "cn2"], &options[..]].concat(), "true");
    site.until_began();
    let node = site.slurm.cluster.job_field(job, "NodeList");
    let at: usize = node.strip_prefix("cn").unwrap().parse().unwrap();
    site.slurm.cluster.kill_node(at - 1);
    site.slurm.cluster.admin(&format!("scontrol update nodename={node} state=down reason=dead"));
    until("it waits again", || site.slurm.cluster.job_field(job, "JobState") == "PENDING");
    until("the first attempt has ended", || !site.is_registered(job));
    assert_ended_without_credit(&site, job);

    site.start_again(job);
    let all = site.reservations(job);
    let key = format!("slurm-{job}-1");
    let second = all.iter().find(|held| held.idempotency_key.as_ref() == Some(&key));
    let second = second.unwrap_or_else(|| panic!("{all:?}"));
    assert_eq!(second.state, WireReservationState::Active, "{second:?}");
    assert_eq!(site.admin.job(&job.to_string()).unwrap().attempt, 1);
    let credit = site.admin.credit(&format!("user={USER}")).unwrap();
    assert_eq!(credit.bytes, 0, "{credit:?}");

    site.slurm.cluster.until_job(late, "TIMEOUT");
    until("the late one has ended at the controller", || !site.is_registered(late));
    assert_ended_without_credit(&site, late);
    site.go();
    site.slurm.cluster.until_job(job, "COMPLETED");
    until("nothing is left", || site.has_nothing_left());
}

#[test]
fn a_job_whose_prolog_failed_is_registered_by_follow_and_its_node_may_have_the_token() {
    let Some(mut site) = ReservedSite::start("slurm-late", "") else { return };
    let hook = "hooks/prolog_slurmctld.sh";
    site.slurm.set(hook, "\"$SLUICE\" slurm prolog-slurmctld 2>&1", "false");
    let job = site.submit("true");
    site.until_began();
    assert!(!site.is_registered(job));
    site.follow();
    until("follow registers it", || site.is_registered(job));
    let known = site.admin.job(&job.to_string()).unwrap();
    let node = site.slurm.cluster.job_field(job, "NodeList");
    assert_eq!((known.user, &known.nodes), (USER, &vec![node.clone()]));
    let held = site.reservations(job);
    assert_eq!((held.len(), held[0].state), (1, WireReservationState::Active), "{held:?}");
    assert!(held[0].claimed_ns.is_some(), "{held:?}");

    // as an administrator runs the node's prolog once more
    let token = site.slurm.cluster.path(&format!("jobs/{job}/token"));
    assert!(!token.exists());
    let program = site.slurm.cluster.path("fake/sluice");
    let mut prolog = site.slurm.cluster.command(0, text(&program));
    prolog.env("SLURMD_NODENAME", &node).env("SLURM_JOB_ID", job.to_string());
    let done = prolog.env("SLURM_JOB_UID", USER.to_string()).args(["slurm", "prolog"]).output();
    let done = done.unwrap();
    assert!(token.exists(), "{}", String::from_utf8_lossy(&done.stderr));

    site.go();
    site.slurm.cluster.until_job(job, "COMPLETED");
    until("nothing is left", || site.has_nothing_left());
    until("the token is removed", || !token.exists());
}

//! Arrays: each task reserves for itself, and the next one is planned ahead.

use std::fs;

use api::{WireReservation, WireReservationState};

use super::reserved::{REQUEST, ReservedSite};
use super::{USER, until};

/// What may be reserved of the target, in bytes/s.
const POOL: u64 = 85_000_000;

/// The job ID of a task such as `7_3`, once Slurm has made it a job of its own.
fn id_of(site: &ReservedSite, task: &str) -> String {
    let shown = site.slurm.cluster.admin(&format!("scontrol -o show job {task}"));
    let id = shown.split(' ').find_map(|word| word.strip_prefix("JobId="));
    id.unwrap_or_else(|| panic!("{task}: {shown}")).to_owned()
}

/// The reservations of the user that have not ended.
fn held(site: &ReservedSite) -> Vec<WireReservation> {
    site.admin.reservations(&format!("user={USER}")).unwrap().reservations
}

/// What is promised of the target at most, now and later.
fn most_promised(site: &ReservedSite) -> u64 {
    let calendar = site.admin.calendar("").unwrap();
    let steps = calendar.resources.iter().filter(|of| of.name == "fs").flat_map(|of| &of.steps);
    steps.map(|step| step.write_per_sec).max().unwrap_or(0)
}

#[test]
fn tasks_of_an_array_run_as_their_bandwidth_allows_and_leave_nothing() {
    let Some(mut site) = ReservedSite::start("slurm-array", "") else { return };
    site.follow();
    let options = ["--array=0-2", "-N1", "-t10", "--qos-bw=40MB/s:write"];
    let script = "touch began.$SLURM_ARRAY_TASK_ID; \
                  until [ -e go.$SLURM_ARRAY_TASK_ID ]; do sleep 0.05; done";
    let array = site.slurm.sbatch(&options, script);
    let work = |name: String| site.slurm.cluster.path(&format!("work/{name}"));
    let begun = || -> Vec<u32> {
        assert!(most_promised(&site) <= POOL, "{:?}", held(&site));
        (0..3).filter(|task| work(format!("began.{task}")).exists()).collect()
    };
    until("two tasks run", || begun().len() == 2);
    until("the third one is planned", || {
        let of_state = |state| held(&site).iter().filter(|held| held.state == state).count();
        begun().len() == 2
            && of_state(WireReservationState::Active) == 2
            && of_state(WireReservationState::Scheduled) == 1
    });
    let jobs: Vec<_> = held(&site).into_iter().filter_map(|held| held.job).collect();
    assert!(
        (0..3).all(|task| jobs.contains(&id_of(&site, &format!("{array}_{task}")))),
        "{jobs:?}"
    );

    fs::write(work(format!("go.{}", begun()[0])), "").unwrap();
    until("the third one runs in the place of the first", || begun().len() == 3);
    (0..3).for_each(|task| fs::write(work(format!("go.{task}")), "").unwrap());
    until("all are completed", || {
        assert!(most_promised(&site) <= POOL, "{:?}", held(&site));
        let shown = site.slurm.cluster.admin(&format!("scontrol -o show job {array}"));
        shown.lines().filter(|line| line.contains(" JobState=COMPLETED ")).count() == 3
    });
    until("nothing is left", || site.has_nothing_left());
}

#[test]
fn the_next_task_of_an_array_is_planned_and_those_that_are_cancelled_leave_nothing() {
    let Some(mut site) = ReservedSite::start_with("slurm-next", "hold_after = \"0s\"\n", false)
    else {
        return;
    };
    let all_nodes = site.slurm.sbatch(&["-N4", "--exclusive", "-t10"], "sleep 600");
    site.slurm.cluster.until_job(all_nodes, "RUNNING");
    site.follow();
    let array = site.slurm.sbatch(&[&["--array=0-9"], &REQUEST[..]].concat(), "true");
    let task = |at: u32| format!("{array}_{at}");
    // the jobs that have a reservation are this task alone
    let is_planned = |at: u32| {
        let jobs: Vec<_> = held(&site).into_iter().map(|held| held.job).collect();
        let shown = site.slurm.cluster.admin(&format!("scontrol -o show job {}", task(at)));
        let is_own = shown.contains(&format!(" ArrayTaskId={at} "));
        is_own && jobs == [Some(id_of(&site, &task(at)))]
    };
    until("the first task is planned", || is_planned(0));
    site.slurm.cluster.admin(&format!("scancel {}", task(0)));
    until("the second task is planned, and the first has nothing left", || is_planned(1));
    site.slurm.cluster.admin(&format!("scancel {array}"));
    until("no reservation is left", || held(&site).is_empty());

    // what never fits: all tasks are held, and only the first had to become a job for that
    let options = ["--array=0-9", "-N1", "-t10", "--qos-bw=90MB/s:write"];
    let large = site.slurm.sbatch(&options, "true");
    until("all tasks are held", || {
        let shown = site.slurm.cluster.admin(&format!("squeue -h -r -j {large} -o %r"));
        shown.lines().count() == 10 && shown.lines().all(|reason| reason == "JobHeldAdmin")
    });
    let shown = site.slurm.cluster.admin(&format!("scontrol -o show job {large}"));
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(shown.contains("held: the reservation does not fit"), "{shown}");
    assert!(shown.contains(&format!("held: so is task {large}_0 of this array")), "{shown}");
}

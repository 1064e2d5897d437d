//! An hour of the jobs of `examples/day`: what was promised holds, and the targets are used.

#[path = "../../examples/day/jobs.rs"]
mod jobs;
#[path = "../../examples/day/run.rs"]
mod run;
#[path = "../../examples/day/schedulers.rs"]
mod schedulers;

use jobs::day_of_jobs;
use run::simulate;
use schedulers::{CalendarScheduler, Conservative, JobQueue};

#[test]
fn calendar_keeps_its_promises_where_easy_does_not_and_uses_as_much() {
    let jobs = day_of_jobs(1, 1, 90);
    let calendar = simulate(&jobs, &mut CalendarScheduler::new());
    let easy = simulate(&jobs, &mut JobQueue::easy());
    assert!(calendar.promised > jobs.len() / 3, "{calendar:?}");
    assert_eq!(calendar.slips, 0, "{calendar:?}");
    assert!(easy.slips > 0, "{easy:?}");
    assert!(calendar.used_ppm + 20_000 >= easy.used_ppm, "{calendar:?} {easy:?}");
    // the baselines are what they are meant to be
    let conservative = simulate(&jobs, &mut Conservative::new());
    assert_eq!((conservative.promised, conservative.slips), (jobs.len(), 0));
    let fcfs = simulate(&jobs, &mut JobQueue::first_come_first_served());
    assert!(fcfs.used_ppm < easy.used_ppm && fcfs.mean_wait_s > easy.mean_wait_s, "{fcfs:?}");
    let is_slower = fcfs.slowdown > easy.slowdown && fcfs.slowdown_95 > easy.slowdown_95;
    assert!(is_slower, "{fcfs:?} {easy:?}");
}

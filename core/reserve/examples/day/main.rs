//! A day of jobs, planned by the calendar and by three schedulers of batch systems.
//!
//! ```text
//!   cargo run --release -p sluice-reserve --example day [SEED [HOURS [OFFERED_PERCENT]]]
//! ```
//!
//! The jobs are those of a published model (see `jobs.rs`); each is a load on 1 to 128 of 128 targets.
//! All schedulers get the same jobs. Printed are the use of the targets until the last job came, the
//! wait, the bounded slowdown, and of the starts that were promised how many were later.

mod jobs;
mod run;
mod schedulers;

use jobs::day_of_jobs;
use run::{DayReport, simulate};
use schedulers::{CalendarScheduler, Conservative, JobQueue, Scheduler};

fn main() {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (seed, hours) = (args.next().unwrap_or(1), args.next().unwrap_or(24));
    let percent = args.next().unwrap_or(90);
    let jobs = day_of_jobs(seed, hours, percent);
    let schedulers: [(&str, Box<dyn Scheduler>); 4] = [
        ("calendar", Box::new(CalendarScheduler::new())),
        ("FCFS", Box::new(JobQueue::first_come_first_served())),
        ("EASY", Box::new(JobQueue::easy())),
        ("conservative", Box::new(Conservative::new())),
    ];
    println!(
        "seed {seed}: {} jobs in {hours} h offer {percent} % of {} targets",
        jobs.len(),
        jobs::TARGETS
    );
    println!(
        "| scheduler | use | mean wait | bounded slowdown: mean, 95 % | promised starts | later |"
    );
    for (name, mut scheduler) in schedulers {
        let DayReport { used_ppm, mean_wait_s, slowdown, slowdown_95, promised, slips } =
            simulate(&jobs, scheduler.as_mut());
        println!(
            "| {name} | {:.1} % | {mean_wait_s:.0} s | {slowdown:.1}, {slowdown_95:.1} | {promised} | {slips} |",
            used_ppm as f64 / 1e4
        );
    }
}

//! The gate: a batch job starts when `sluice slurm start` lets it, one of srun when PrologSlurmctld does.

use super::{SlurmSetUp, SlurmSite, USER, until};

const REQUEST: [&str; 2] = ["-N1", "--qos-bw=10MB/s:write"];
const NOT_YET: &str = "echo reservation 7 starts later >&2; exit 3";
/// Waits until the test lets it go on.
const WAITS: &str = "echo $$ >$3.waits; until [ -e go ]; do sleep 0.05; done";

fn site() -> Option<SlurmSite> {
    SlurmSite::start(SlurmSetUp { gate: true, ..SlurmSetUp::default() })
}

#[test]
fn batch_job_that_is_refused_is_pending_with_the_reason_and_starts_when_it_is_let() {
    let Some(site) = site() else { return };
    site.does("start", NOT_YET);
    let job = site.sbatch(&REQUEST, "echo ran");
    until("it is refused", || site.cluster.job_field(job, "Reason").contains("pre_run"));
    assert_eq!(site.cluster.job_field(job, "JobState"), "PENDING");
    assert_ne!(site.cluster.job_field(job, "Priority"), "0", "it is not held");
    let shown = site.cluster.admin(&format!("scontrol -o show job {job}"));
    assert!(shown.contains("reservation 7 starts later"), "{shown}");
    let nodes = site.cluster.admin("sinfo -h -t idle -o %D");
    assert_eq!(nodes.trim(), "4", "no node is drained");

    // its user can undo the begin time, and the gate refuses again
    let number = format!("jobid={job}");
    until("it is refused again", || {
        site.run(USER, &["scontrol", "update", &number, "StartTime=now"]);
        site.calls().len() > 1
    });
    site.does("start", "exit 0");
    site.cluster.start_now(job);
    assert_eq!(site.output_of(job, "COMPLETED"), "ran\n");
    // it ran as SlurmUser, never as root
    assert!(site.calls().iter().all(|call| !call.starts_with("0 ")), "{:?}", site.calls());
}

#[test]
fn srun_waits_for_its_prolog_and_needs_no_burst_buffer() {
    let Some(site) =
        SlurmSite::start(SlurmSetUp { gate: true, hooks: true, ..SlurmSetUp::default() })
    else {
        return;
    };
    site.does("prolog-slurmctld", "until [ -e go ]; do sleep 0.05; done");
    let mut words = site.cluster.command(USER, "srun");
    let mut srun = words.args(REQUEST).args(["sh", "-c", "touch ran"]).spawn().unwrap();
    let calls = |hook: &str| site.calls().iter().filter(|call| call.contains(hook)).count();
    until("it waits", || calls("prolog-slurmctld") == 1);
    site.does("prolog-slurmctld", "exit 0");
    let plain = site.run(USER, &["srun", "-N1", "true"]);
    assert!(plain.ok, "{}", plain.errors);
    assert!(srun.try_wait().unwrap().is_none());
    assert!(!site.cluster.path("work/ran").exists());
    std::fs::write(site.cluster.path("fake/go"), "").unwrap();
    assert!(srun.wait().unwrap().success());
    assert!(site.cluster.path("work/ran").exists());
    assert_eq!(calls("slurm start"), 0, "Slurm's burst buffers are for batch jobs");

    // status 3 and 4 end it, whatever FAIL says, and others do not
    for (status, starts) in [(3, false), (4, false), (1, true)] {
        site.does("prolog-slurmctld", &format!("exit {status}"));
        let ran = site.run(USER, &["srun", REQUEST[0], REQUEST[1], "true"]);
        assert_eq!(ran.ok, starts, "status {status}: {}", ran.errors);
    }
}

#[test]
fn cancelled_job_leaves_no_process_that_waits_and_another_is_let_in() {
    let Some(site) = site() else { return };
    site.does("start", WAITS);
    let job = site.sbatch(&REQUEST, "echo ran");
    let waits = site.cluster.path(&format!("fake/{job}.waits"));
    until("it waits", || std::fs::read_to_string(&waits).is_ok_and(|pid| pid.ends_with('\n')));
    assert_eq!(site.cluster.job_field(job, "JobState"), "CONFIGURING");
    // of this cluster's folder, whatever its number outside of the namespace
    let waiting = format!("slurm start {job}");
    assert!(runs(&site, &waiting));
    assert!(site.run(USER, &["scancel", &job.to_string()]).ok);
    site.cluster.until_job(job, "CANCELLED");
    until("nothing waits for it", || !runs(&site, &waiting));

    site.does("start", "exit 0");
    let next = site.sbatch(&REQUEST, "echo ran");
    assert_eq!(site.output_of(next, "COMPLETED"), "ran\n");
}

#[test]
fn failed_start_is_what_the_setting_says_and_a_cluster_restart_keeps_waiting_jobs() {
    let Some(mut site) = site() else { return };
    site.does("start", "echo no controller >&2; exit 1");
    let job = site.sbatch(&REQUEST, "echo ran");
    assert_eq!(site.output_of(job, "COMPLETED"), "ran\n", "the default is start");

    site.set("etc/burst_buffer.lua", "ON_FAILURE = \"start\"", "ON_FAILURE = \"wait\"");
    let job = site.sbatch(&REQUEST, "echo ran");
    until("it is refused", || site.cluster.job_field(job, "Reason").contains("pre_run"));
    let shown = site.cluster.admin(&format!("scontrol -o show job {job}"));
    assert!(shown.contains("status 1: no controller"), "{shown}");
    let word = site.cluster.job_field(job, "AdminComment");
    site.cluster.restart_controller();
    assert_eq!(site.cluster.job_field(job, "AdminComment"), word);
    site.does("start", "exit 0");
    site.cluster.start_now(job);
    assert_eq!(site.output_of(job, "COMPLETED"), "ran\n");

    // one that never ends is ended, and counts as failed
    site.set("etc/burst_buffer.lua", "ON_FAILURE = \"wait\"", "ON_FAILURE = \"start\"");
    site.set("etc/burst_buffer.lua", "LIMIT_S = 540", "LIMIT_S = 1");
    site.does("start", WAITS);
    let job = site.sbatch(&REQUEST, "echo ran");
    assert_eq!(site.output_of(job, "COMPLETED"), "ran\n");
}

#[test]
fn slurmctld_answers_and_starts_other_jobs_while_many_wait() {
    let Some(site) = site() else { return };
    site.does("start", WAITS);
    let jobs: Vec<u32> =
        (0..10).map(|_| site.sbatch(&["-N1", "--qos-bw=1MB/s:write"], "true")).collect();
    // not all: docs/decisions/0022-slurm.md, "One script that waits may delay another"
    until("several wait", || site.calls().len() >= 2);
    let plain = site.run(USER, &["srun", "-N1", "true"]);
    assert!(plain.ok, "{}", plain.errors);
    assert!(jobs.iter().all(|job| site.cluster.job_field(*job, "JobState") != "COMPLETED"));
    // how soon the others are asked for is Slurm's own: it took minutes on a busy machine
    site.cluster.admin(&format!("scancel --user={USER}"));
    until("no job is left", || site.cluster.admin("squeue -h").is_empty());
}

/// Whether a process of this cluster has these words in its command line.
fn runs(site: &SlurmSite, words: &str) -> bool {
    let folder = site.cluster.path("fake");
    std::fs::read_dir("/proc").unwrap().any(|process| {
        let line = std::fs::read(process.unwrap().path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(words) && line.contains(folder.to_str().unwrap())
    })
}

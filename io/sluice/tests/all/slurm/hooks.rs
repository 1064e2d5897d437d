//! Prologs and epilogs over the life of a job, and the environment of its tasks.

use super::{SlurmSetUp, SlurmSite, USER, until};

fn site() -> Option<SlurmSite> {
    SlurmSite::start(SlurmSetUp { hooks: true, ..SlurmSetUp::default() })
}

/// Has the node's prolog write a token as `sluice slurm prolog` does, and its epilog remove it.
fn with_tokens(site: &SlurmSite) {
    let place = site.cluster.path("jobs");
    let place = place.display();
    let write = format!(
        "d={place}/$SLURM_JOB_ID; mkdir -p $d; echo slc_$SLURM_JOB_ID >$d/token; \
         chown -R $SLURM_JOB_UID $d; chmod 700 $d; chmod 400 $d/token"
    );
    site.does("prolog", &write);
    site.does("epilog", &format!("rm -rf {place}/$SLURM_JOB_ID"));
}

/// Shell commands that write what a task has into a file of its own, which is there when it is whole.
fn shows(file: &str) -> String {
    let shown = "env | grep ^SLUICE_ | sort; cat \"$SLUICE_TOKEN_FILE\"";
    format!("({shown}) >{file}.new 2>&1; mv {file}.new {file}")
}

#[test]
fn tasks_have_the_path_of_the_token_of_their_job_which_others_cannot_read() {
    let Some(site) = site() else { return };
    with_tokens(&site);
    let script = format!(
        "{}; srun sh -c '{}'; until [ -e go ]; do sleep 0.05; done",
        shows("of-script"),
        shows("of-step")
    );
    let job = site.sbatch(&["-N1", "--qos-bw=10MB/s:write"], &script);
    let token = site.cluster.path(&format!("jobs/{job}/token"));
    let one = format!(
        "SLUICE_CONTROLLER=http://192.0.2.1:5650\nSLUICE_TOKEN_FILE={}\nslc_{job}\n",
        token.display()
    );
    // of the batch script, and of a step by srun: not on one output, where messages of srun may be, too
    for file in ["of-script", "of-step"] {
        let path = site.cluster.path(&format!("work/{file}"));
        until(&format!("{file} is written"), || path.exists());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), one, "{file}");
    }
    let stranger = site.run(super::STRANGER, &["cat", token.to_str().unwrap()]);
    assert!(!stranger.ok && stranger.text.is_empty(), "{}{}", stranger.text, stranger.errors);

    // a job that is submitted within another one has not that one's, and keeps what its user has set
    let inherited = format!("SLUICE_TOKEN_FILE={}", token.display());
    site.does("prolog", "exit 0");
    let said = site.run(
        USER,
        &[
            "env",
            &inherited,
            "SLUICE_CONTROLLER=http://192.0.2.2:1",
            "srun",
            "-N1",
            "sh",
            "-c",
            "env | grep ^SLUICE_",
        ],
    );
    assert_eq!(said.text, "SLUICE_CONTROLLER=http://192.0.2.2:1\n", "{}", said.errors);

    std::fs::write(site.cluster.path("work/go"), "").unwrap();
    site.cluster.until_job(job, "COMPLETED");
    until("the token is removed", || !token.exists());
}

#[test]
fn hooks_run_in_order_and_their_failures_fail_no_job_unless_a_setting_says_so() {
    let Some(site) = site() else { return };
    let job = site.sbatch(&["-N2", "--qos-bw=10MB/s:write"], "true");
    site.cluster.until_job(job, "COMPLETED");
    for hook in ["epilog-slurmctld", "epilog"] {
        site.until_called(&format!("slurm {hook} {job}"));
    }
    until("both nodes have both", || site.calls().len() == 6);
    let calls = site.calls();
    assert!(calls[0].ends_with(&format!("slurm prolog-slurmctld {job}")), "{calls:?}");
    assert!(!calls[0].starts_with("0 "), "as SlurmUser: {calls:?}");
    let prologs = |node: &str| format!("0 {node} restart=0 slurm prolog {job}");
    for node in ["cn1", "cn2"] {
        assert!(calls[1..3].contains(&prologs(node)), "{calls:?}");
    }

    for hook in ["prolog", "epilog", "prolog-slurmctld", "epilog-slurmctld"] {
        site.does(hook, "echo no controller >&2; exit 1");
    }
    let said = site.run(USER, &["srun", "-N1", "--qos-bw=10MB/s:write", "echo", "ran"]);
    assert_eq!(said.text, "ran\n", "{}", said.errors);
    until("all nodes are idle", || site.cluster.admin("sinfo -h -t idle -o %D").trim() == "4");

    site.set("hooks/prolog.sh", "FAIL=no", "FAIL=yes");
    let job = site.sbatch(&["-N1", "--qos-bw=10MB/s:write"], "true");
    until("it is requeued", || site.cluster.job_field(job, "Restarts") != "0");
    assert_eq!(site.cluster.admin("sinfo -h -t drain -o %D").trim(), "1");
}

#[test]
fn job_that_is_cancelled_requeued_late_or_on_a_dead_node_ends_at_the_controller() {
    let Some(mut site) = site() else { return };
    // slurmctld reads time limits twice a minute: the rest goes on meanwhile
    let late = long(&site, "cn2");
    site.cluster.end_time_now(late);

    let cancelled = long(&site, "cn1");
    assert!(site.run(USER, &["scancel", &cancelled.to_string()]).ok);
    site.until_called(&format!("slurm epilog-slurmctld {cancelled}"));

    let requeued = long(&site, "cn1");
    assert!(site.run(USER, &["scontrol", "requeue", &requeued.to_string()]).ok);
    // the restart that is about to come is counted before the epilogs of the attempt that ends
    for hook in ["epilog-slurmctld", "epilog"] {
        site.until_called(&format!("restart=1 slurm {hook} {requeued}"));
    }
    until("it is pending", || site.cluster.job_field(requeued, "JobState") == "PENDING");
    // later than the second in which slurmd revoked the credential of the first attempt: a start within
    // it is refused by slurmd, and the job fails
    site.cluster.admin(&format!("scontrol update jobid={requeued} StartTime=now+2seconds"));
    site.until_called(&format!("restart=1 slurm prolog-slurmctld {requeued}"));
    site.cluster.until_job(requeued, "RUNNING");
    assert_eq!(site.cluster.job_field(requeued, "AdminComment"), "sluice:bw=10MB/s:write");

    // its slurmd dies, and Slurm learns that the node is down
    site.cluster.kill_node(0);
    site.cluster.admin("scontrol update nodename=cn1 state=down reason=dead");
    let ends = |hook: &str| ends_of(&site, hook, requeued);
    until("it ends for the second time", || ends("epilog-slurmctld") == 2);
    until("it is pending", || site.cluster.job_field(requeued, "JobState") == "PENDING");
    assert_eq!(ends("epilog"), 1, "the dead node ran no epilog");
    assert!(site.run(USER, &["scancel", &requeued.to_string()]).ok);

    site.cluster.until_job(late, "TIMEOUT");
    site.until_called(&format!("slurm epilog-slurmctld {late}"));
    site.cluster.start_node(0);
    until("the node is back", || site.cluster.admin("sinfo -h -t idle -o %D").trim() == "4");
}

/// A job that runs on a node until something ends it.
fn long(site: &SlurmSite, node: &str) -> u32 {
    let options = ["-N1", "-w", node, "--qos-bw=10MB/s:write", "--requeue"];
    let job = site.sbatch(&options, "sleep 600");
    site.cluster.until_job(job, "RUNNING");
    job
}

/// How often a hook has run for a job.
fn ends_of(site: &SlurmSite, hook: &str, job: u32) -> usize {
    let words = format!("slurm {hook} {job}");
    site.calls().iter().filter(|call| call.ends_with(&words)).count()
}

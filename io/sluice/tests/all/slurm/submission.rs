//! What a user asks for at submission: options, licences and GRES, accepted or refused on the terminal.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{STRANGER, SlurmSetUp, SlurmSite, USER};
use crate::common::skip;

/// Options that are refused, and what the message names.
const REFUSED: &[(&[&str], &[&str])] = &[
    (&["--qos-bw=fast"], &["--qos-bw", "\"fast\"", "500MB/s"]),
    (&["--qos-bw=0MB/s"], &["--qos-bw", "\"0MB/s\""]),
    (&["--qos-bw=1GB/s:up"], &["--qos-bw", "\"1GB/s:up\"", "read or write"]),
    (&["--qos-bw=1GB/s:"], &["--qos-bw", "\"1GB/s:\"", "read or write"]),
    (&["--qos-bw=1MB/s", "--qos-time=soon"], &["--qos-time", "\"soon\"", "10min"]),
    (&["--qos-bw=1MB/s", "--qos-time=10ms"], &["--qos-time", "\"10ms\"", "1s or more"]),
    (&["--qos-bw=1MB/s", "--qos-path=../x"], &["--qos-path", "\"../x\"", "\"..\""]),
    (&["--qos-bw=1MB/s", "--qos-phases=none.toml"], &["--qos-phases", "\"none.toml\""]),
    (&["--qos-time=10min"], &["--qos-time needs --qos-bw"]),
    (&["--qos-bw=1MB/s", "--qos-time=2min", "--time=1"], &["\"2min\"", "time limit of 1 min"]),
    (&["--qos-bw=100MB/s:write", "-L", "lustreqos:10"], &["needs 100 licences", "lustreqos:10"]),
];

#[test]
fn options_are_refused_on_the_terminal_of_each_command_with_the_value_at_fault() {
    let Some(site) = SlurmSite::start(SlurmSetUp::default()) else { return };
    for (options, parts) in REFUSED {
        for command in ["srun", "sbatch", "salloc"] {
            let mut words = vec![command, "-N1"];
            words.extend(*options);
            words.extend(if command == "sbatch" { &["--wrap", "true"][..] } else { &["true"] });
            site.run(USER, &words).refused_with(parts);
        }
        let lines: String = options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
        let lines = lines.replace("-L\n#SBATCH ", "-L ");
        let script = site.cluster.path("work/refused.sh");
        fs::write(&script, format!("#!/bin/sh\n#SBATCH -N1\n{lines}true\n")).unwrap();
        site.run(USER, &["sbatch", "refused.sh"]).refused_with(parts);
    }
}

#[test]
fn accepted_options_become_licences_gres_and_one_word_of_the_admin_comment() {
    let Some(site) = SlurmSite::start(SlurmSetUp::default()) else { return };
    let field = |job: u32, name: &str| site.cluster.job_field(job, name);
    let phases = "[[phase]]\nstart = \"1min\"\n";
    fs::write(site.cluster.path("work/phases.toml"), phases).unwrap();
    let script = "#!/bin/sh\n#SBATCH -H -N2 --qos-bw=100MB/s:write --qos-time=10min\n\
                  #SBATCH --qos-path='/mnt/a b;c' --qos-phases=phases.toml\ntrue\n";
    fs::write(site.cluster.path("work/job.sh"), script).unwrap();
    let said = site.run(USER, &["sbatch", "--parsable", "job.sh"]);
    assert!(said.ok, "{}", said.errors);
    let job = said.text.trim().parse().unwrap();
    assert_eq!(field(job, "Licenses"), "lustreqos:100");
    assert_eq!(field(job, "TresPerNode"), "gres:qoslustre:50000000");
    assert_eq!(
        field(job, "AdminComment"),
        "sluice:bw=100MB/s:write;time=10min;path=/mnt/a%20b%3Bc;\
         phases=%5B%5Bphase%5D%5D%0Astart%20%3D%20%221min%22%0A"
    );

    for command in ["srun", "salloc"] {
        let said = site.run(USER, &[command, "-N1", "--qos-bw=10MB/s:read", "true"]);
        assert!(said.ok, "{command}: {}", said.errors);
    }

    // without a direction the rate is for each of both, so it takes its licences twice
    let both = site.sbatch(&["-H", "-N1", "--qos-bw=1.5MB/s"], "true");
    assert_eq!(field(both, "Licenses"), "lustreqos:3");
    assert_eq!(field(both, "AdminComment"), "sluice:bw=1.5MB/s");

    // a job without a request is left as it is, and one with licences alone has no word
    let plain = site.sbatch(&["-H", "-N1"], "true");
    assert_eq!(field(plain, "AdminComment"), "");
    let options = ["-H", "-N1", "-L", "lustreqos:100", "--gres=qoslustre:100M"];
    let licences = site.sbatch(&options, "true");
    assert_eq!(field(licences, "AdminComment"), "");

    // each task of an array has the request, and each component of a heterogeneous job its own
    let array = site.sbatch(&["-H", "--array=1-3", "-N1", "--qos-bw=10MB/s:read"], "true");
    let shown = site.cluster.admin(&format!("scontrol -o show job {array}"));
    assert!(shown.contains("AdminComment=sluice:bw=10MB/s:read "), "{shown}");
    let mixed = site.sbatch(&["-H", "-N1", ":", "-N2", "--qos-bw=10MB/s:read"], "true");
    assert_eq!(field(mixed, "AdminComment"), "");
    assert_eq!(field(mixed + 1, "AdminComment"), "sluice:bw=10MB/s:read");

    // phases that fill what slurmctld would keep are refused with their size
    let long = format!("[[phase]]\n# {}\n", "\u{1}".repeat(16_000));
    fs::write(site.cluster.path("work/long.toml"), long).unwrap();
    let words = ["sbatch", "-N1", "--qos-bw=1MB/s", "--qos-phases=long.toml", "--wrap", "true"];
    site.run(USER, &words).refused_with(&["--qos-phases", "16384"]);
}

#[test]
fn licences_and_gres_are_checked_against_each_other_and_against_the_total() {
    let Some(site) = SlurmSite::start(SlurmSetUp::default()) else { return };
    let srun = |options: &[&str]| site.run(USER, &[&["srun"], options, &["true"]].concat());
    let seed = srun(&["-N1", "--gres=qoslustre:100M", "-L", "lustreqos:100"]);
    assert!(seed.ok, "{}", seed.errors);

    let half = srun(&["-N1", "--gres=qoslustre:50M", "-L", "lustreqos:100"]);
    half.refused_with(&["1 node x", "52.4 MB/s", "100 MB/s", "--gres=qoslustre:100M"]);
    // 5 %: 95 MB/s of two nodes are enough for 100 licences, and 93 are not
    let two =
        |gres: &str| srun(&["-N2", &format!("--gres=qoslustre:{gres}"), "-L", "lustreqos:100"]);
    assert!(two("47500000").ok);
    two("46500000").refused_with(&["2 nodes x", "93.0 MB/s", "100 MB/s"]);
    srun(&["-N1", "-L", "lustreqos:100"]).refused_with(&["without GRES", "qoslustre:100M"]);
    srun(&["-N1", "--gres=qoslustre:100M"]).refused_with(&["without licences", "lustreqos:104"]);
    // without -N the check is for one node, whichever number Slurm would choose
    srun(&["-n4", "--gres=qoslustre:50M", "-L", "lustreqos:100"]).refused_with(&["1 node x"]);

    // more than there are is refused, more than are free waits
    assert!(!srun(&["-N2", "--qos-bw=1001MB/s:write"]).ok);
    assert_eq!(site.cluster.admin("squeue -h -t pending"), "", "it does not wait for ever");
    let first = site.sbatch(&["-N1", "--qos-bw=900MB/s:write"], "sleep 600");
    site.cluster.until_job(first, "RUNNING");
    let second = site.sbatch(&["-N1", "--qos-bw=200MB/s:write"], "true");
    crate::common::until("it waits for licences", || {
        site.cluster.job_field(second, "Reason") == "Licenses"
    });
    site.cluster.admin(&format!("scancel {first}"));
    site.cluster.until_job(second, "COMPLETED");
}

#[test]
fn request_of_a_waiting_job_is_changed_by_nobody_but_operators() {
    let Some(site) = SlurmSite::start(SlurmSetUp::default()) else { return };
    let job = site.sbatch(&["-H", "-N2", "--qos-bw=10MB/s:write"], "true");
    let plain = site.sbatch(&["-H", "-N1"], "true");
    let kept = |name: &str| site.cluster.job_field(job, name);
    let before = ["Licenses", "TresPerNode", "AdminComment", "NumNodes"].map(kept);
    for change in [
        "Licenses=lustreqos:1",
        "Licenses=",
        "AdminComment=sluice:bw=9GB/s",
        "Gres=x",
        "NumNodes=1",
    ] {
        for user in [USER, STRANGER] {
            let words = ["scontrol", "update", &format!("jobid={job}"), change];
            assert!(!site.run(user, &words).ok, "{change} by {user}");
        }
    }
    assert_eq!(["Licenses", "TresPerNode", "AdminComment", "NumNodes"].map(kept), before);
    for change in ["Licenses=lustreqos:10", "AdminComment=sluice:bw=9GB/s"] {
        let words = ["scontrol", "update", &format!("jobid={plain}"), change];
        assert!(!site.run(USER, &words).ok, "{change} of a job without a request");
    }
    assert!(site.run(USER, &["scontrol", "update", &format!("jobid={job}"), "Comment=x"]).ok);
    site.cluster.admin(&format!("scontrol update jobid={job} Licenses=lustreqos:11"));
    assert_eq!(site.cluster.job_field(job, "Licenses"), "lustreqos:11", "an operator may");

    let Some(program) = forging_program(&site.cluster.path("work")) else { return };
    let forge = |user: u32| site.run(user, &[program.as_str(), "hello sluice:bw=9GB/s"]);
    assert!(!forge(USER).ok, "Slurm lets users give an admin comment");
    let said = forge(0);
    assert!(said.ok, "{}", said.errors);
    let forged = said.text.trim().parse().unwrap();
    assert_eq!(site.cluster.job_field(forged, "AdminComment"), "hello");
}

/// A program that submits a held job with the admin comment that it is given, which no command can.
fn forging_program(place: &Path) -> Option<String> {
    let (source, program) = (place.join("forge.c"), place.join("forge"));
    fs::write(&source, FORGE).unwrap();
    let output =
        Command::new("gcc").arg("-o").arg(&program).arg(&source).arg("-lslurm").output().unwrap();
    if !output.status.success() {
        skip(&format!("forged comment: {}", String::from_utf8_lossy(&output.stderr)));
        return None;
    }
    Some(program.to_str().unwrap().to_owned())
}

const FORGE: &str = r##"
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char *environment[] = { "PATH=/usr/bin:/bin", NULL };
	job_desc_msg_t job;
	submit_response_msg_t *reply = NULL;

	(void)argc;
	slurm_init(NULL);
	slurm_init_job_desc_msg(&job);
	job.environment = environment;
	job.env_size = 1;
	job.script = "#!/bin/sh\ntrue\n";
	job.work_dir = "/tmp";
	job.user_id = getuid();
	job.group_id = getgid();
	job.min_nodes = 1;
	job.priority = 0;
	job.admin_comment = argv[1];
	if (slurm_submit_batch_job(&job, &reply)) {
		slurm_perror("submit");
		return 1;
	}
	printf("%u\n", reply->job_id);
	return 0;
}
"##;

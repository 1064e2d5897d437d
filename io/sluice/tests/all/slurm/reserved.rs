//! Jobs of a real Slurm with their reservations at a real controller, from submission to end.
//!
//! ```text
//!   sbatch, srun ─► slurmctld ─ hooks, gate ─► sluice slurm … ─ TLS ─► controller ◄─ proxy of target fs
//!                       ▲                                                  ▲
//!                       └──────────── sluice slurm follow ─────────────────┘   100 MB/s, 85 may be reserved
//! ```

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use api::{NewReservation, Role, WireRate, WireReservation, WireReservationState};
use http::{ApiClient, Credentials};
use testkit::TestFolder;

use super::{STRANGER, SlurmSetUp, SlurmSite, USER, until};
use crate::common::{Controller, Proxy, SLUICE, Setup};
use crate::entrusted::{client, first_token, secret, showing, sluice, text, token};

/// What the jobs of these tests ask for, of 85 MB/s that may be reserved.
pub(super) const REQUEST: [&str; 3] = ["-N1", "-t10", "--qos-bw=20MB/s:write"];

/// A cluster, its controller, and a proxy.
pub(super) struct ReservedSite {
    pub(super) slurm: SlurmSite,
    controller: Controller,
    pub(super) admin: ApiClient,
    folder: TestFolder,
    _proxy: Proxy,
    /// The service beside slurmctld, if it runs.
    follow: Option<Child>,
}

impl ReservedSite {
    /// Starts it, with more lines for slurm.toml; none, said aloud, where Slurm cannot run.
    pub(super) fn start(name: &str, lines: &str) -> Option<ReservedSite> {
        ReservedSite::start_with(name, lines, true)
    }

    /// The same, with or without the gate.
    pub(super) fn start_with(name: &str, lines: &str, gate: bool) -> Option<ReservedSite> {
        let program = Some(Path::new(SLUICE));
        let slurm = SlurmSite::start(SlurmSetUp { gate, hooks: true, program })?;
        let folder = TestFolder::new();
        let tls = folder.path().join("tls");
        let dir = text(&tls);
        sluice(&["cert", "ca", dir]).unwrap();
        sluice(&["cert", "issue", dir, "c1", "--host", "127.0.0.1"]).unwrap();
        let file = |name: &str| format!("{dir}/{name}");
        let root = first_token(folder.path());
        let (cert, key, authority) = (file("c1.pem"), file("c1.key"), file("ca.pem"));
        let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &authority];
        let controller = Controller::with(folder.path(), "https://127.0.0.1:0", &flags, "ready");
        let ca = Some(PathBuf::from(file("ca.pem")));
        let admin = client(&controller.url, &Credentials { ca, ..showing(&root) });

        let of_proxies = token(&admin, "proxies", Role::Proxy);
        let of_proxies = secret(folder.path().join("proxies.token"), &of_proxies);
        let top = format!(
            "controller = \"{}\"\nproxy_name = \"a\"\ncontroller_ca = \"{}\"\n\
             controller_token_file = \"{}\"\n",
            controller.url,
            file("ca.pem"),
            text(&of_proxies)
        );
        let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n[[target]]\n\
                      name = \"fs\"\ncapacity_read = \"100MB/s\"\ncapacity_write = \"100MB/s\"\n";
        let proxy = Setup::new(name).top(&top).tables(tables).api().start();
        until("the calendar has the target", || {
            let shown = admin.calendar("").unwrap();
            shown.resources.iter().any(|of| of.name == "fs" && of.write_per_sec > 0)
        });
        let site = ReservedSite { slurm, controller, admin, folder, _proxy: proxy, follow: None };
        site.configure(lines);
        Some(site)
    }

    /// Writes slurm.toml for slurmctld, and one for each node with its certificate.
    fn configure(&self, lines: &str) {
        let place = |name: &str| self.slurm.cluster.path(name);
        let tls = self.folder.path().join("tls");
        fs::copy(tls.join("ca.pem"), place("etc/ca.pem")).unwrap();
        let batch = token(&self.admin, "slurm", Role::Batch);
        let batch = secret(place("etc/batch.token"), &batch);
        self.give_to_slurm(&batch);
        let common = format!(
            "controller = \"{}\"\nca = \"ca.pem\"\ntime_limit = \"60s\"\ninterval = \"1s\"\n\
             claim_window = \"60s\"\nexport = \"x\"\nrun_dir = \"{}\"\n{lines}",
            self.controller.url,
            place("jobs").display()
        );
        let of_slurm = format!("token_file = \"batch.token\"\n{common}");
        fs::write(place("etc/slurm.toml"), of_slurm).unwrap();
        for node in ["cn1", "cn2", "cn3", "cn4"] {
            sluice(&["cert", "issue", text(&tls), node, "--client"]).unwrap();
            let [cert, key] = ["pem", "key"].map(|kind| tls.join(format!("{node}.{kind}")));
            let of_node = format!("node_cert = {cert:?}\nnode_key = {key:?}\n{common}");
            fs::write(place(&format!("etc/slurm-{node}.toml")), of_node).unwrap();
        }
        let controller =
            format!("controller={} ca={}", self.controller.url, place("etc/ca.pem").display());
        self.slurm.set("etc/plugstack.conf", "controller=http://192.0.2.1:5650", &controller);
    }

    fn give_to_slurm(&self, file: &Path) {
        let owner = self.slurm_user();
        std::os::unix::fs::chown(file, Some(owner), None).unwrap();
    }

    fn slurm_user(&self) -> u32 {
        fs::metadata(self.slurm.cluster.path("state")).unwrap().uid()
    }

    /// Starts the service as SlurmUser.
    pub(super) fn follow(&mut self) {
        let program = self.slurm.cluster.path("fake/sluice");
        let mut command = self.slurm.cluster.command(self.slurm_user(), text(&program));
        let log = fs::File::create(self.slurm.cluster.path("log/follow")).unwrap();
        let command = command.args(["slurm", "follow"]).stderr(log);
        self.follow = Some(command.spawn().unwrap());
    }

    /// Reserves for somebody else, so that `left` MB/s are left.
    pub(super) fn others_have_all_but(&self, left: u64) -> u64 {
        let new = NewReservation {
            write: Some(WireRate::Bytes((85 - left) * 1_000_000)),
            duration_ns: 3_600_000_000_000,
            user: Some(STRANGER),
            export: Some("x".into()),
            ..NewReservation::default()
        };
        self.admin.reserve(&new).unwrap().id
    }

    /// The reservations of a job, with those that have ended.
    pub(super) fn reservations(&self, job: u32) -> Vec<WireReservation> {
        self.admin.reservations(&format!("job={job}&ended=true")).unwrap().reservations
    }

    pub(super) fn is_registered(&self, job: u32) -> bool {
        self.admin.job(&job.to_string()).is_ok()
    }

    /// Runs a script as a batch job that ends once there is a file `go`.
    pub(super) fn submit(&self, script: &str) -> u32 {
        self.submit_with(&REQUEST, script)
    }

    /// The same with other options.
    pub(super) fn submit_with(&self, options: &[&str], script: &str) -> u32 {
        let script = format!("{script}\ntouch began; until [ -e go ]; do sleep 0.05; done");
        self.slurm.sbatch(options, &script)
    }

    /// Has Slurm start a requeued job, whose begin time it sets itself while it requeues it, and waits until
    /// the job has begun. A start within the second in which its first attempt ended would fail.
    pub(super) fn start_again(&self, job: u32) {
        let mut asked = None::<Instant>;
        until("it runs again", || {
            let is_due = asked.is_none_or(|at| at.elapsed() > Duration::from_secs(4));
            if is_due && self.slurm.cluster.job_field(job, "JobState") == "PENDING" {
                asked = Some(Instant::now());
                let job = format!("jobid={job}");
                self.slurm.run(0, &["scontrol", "update", &job, "StartTime=now+3seconds"]);
            }
            self.slurm.cluster.path("work/began").exists()
        });
        self.until_began();
    }

    /// Whether the calendar has no reservation of the jobs' user, and the controller none of their jobs.
    pub(super) fn has_nothing_left(&self) -> bool {
        let held = self.admin.reservations(&format!("user={USER}")).unwrap().reservations;
        held.is_empty() && self.admin.jobs("").unwrap().jobs.is_empty()
    }

    pub(super) fn until_began(&self) {
        let began = self.slurm.cluster.path("work/began");
        until("the job has begun", || began.exists());
        fs::remove_file(began).unwrap();
    }

    pub(super) fn go(&self) {
        fs::write(self.slurm.cluster.path("work/go"), "").unwrap();
    }
}

impl Drop for ReservedSite {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let held = self.admin.reservations(&format!("user={USER}&ended=true"));
            eprintln!("--- reservations\n{held:#?}\n--- jobs\n{:#?}", self.admin.jobs(""));
        }
        if let Some(follow) = &mut self.follow {
            let _ = follow.kill();
            let _ = follow.wait();
        }
    }
}

#[test]
fn a_job_has_its_reservation_and_a_token_of_its_own_until_it_ends() {
    let Some(site) = ReservedSite::start("slurm-own", "") else { return };
    let list = format!(
        "{SLUICE} reserve list --json >own.json; env >env.text; \
         {SLUICE} reserve add --bandwidth 1MB/s --direction write --for 10s --job 999 --export x \
         2>other.text; cp $SLUICE_TOKEN_FILE copied"
    );
    let job = site.submit(&list);
    site.until_began();
    let work = |name: &str| site.slurm.cluster.path(&format!("work/{name}"));
    let read = |name: &str| fs::read_to_string(work(name)).unwrap();

    let held = site.reservations(job);
    assert_eq!(held.len(), 1, "{held:?}");
    assert_eq!((held[0].state, held[0].user), (WireReservationState::Active, USER));
    assert_eq!(held[0].write, Some(WireRate::Bytes(20_000_000)));
    assert!(held[0].claimed_ns.is_some(), "the prolog claims it");
    let known = site.admin.job(&job.to_string()).unwrap();
    assert_eq!((known.user, known.attempt, known.nodes.len()), (USER, 0, 1));

    // what the task sees and may do: its own reservation, and no other job's
    let own: api::WireReservations = serde_json::from_str(&read("own.json")).unwrap();
    assert_eq!(own.reservations.iter().map(|of| of.id).collect::<Vec<_>>(), [held[0].id]);
    assert!(read("other.text").contains("999"), "{}", read("other.text"));
    assert!(!read("env.text").contains("slc_"), "no secret in the environment");
    let path = site.slurm.cluster.path(&format!("jobs/{job}"));
    let modes = [path.clone(), path.join("token")].map(|at| {
        let found = fs::metadata(at).unwrap();
        (found.mode() & 0o7777, found.uid())
    });
    assert_eq!(modes, [(0o711, 0), (0o400, USER)]);
    let stolen = site.slurm.run(STRANGER, &["cat", text(&path.join("token"))]);
    stolen.refused_with(&["Permission denied"]);

    // its end
    let copied = read("copied");
    site.go();
    assert_eq!(site.slurm.output_of(job, "COMPLETED"), "");
    until("the job has ended at the controller", || !site.is_registered(job));
    let ended = &site.reservations(job)[0];
    assert_eq!(ended.state, WireReservationState::Undefined, "{ended:?}");
    until("the token is removed", || !path.exists());
    let ca = Some(site.folder.path().join("tls/ca.pem"));
    let again = Credentials { ca, ..showing(copied.trim()) };
    let replayed = client(&site.controller.url, &again).reservations("").unwrap_err();
    assert_eq!(replayed.code(), api::ErrorCode::Unauthenticated);
}

#[test]
fn a_batch_job_waits_for_its_reservation_and_starts_as_soon_as_there_is_room() {
    let Some(mut site) = ReservedSite::start("slurm-waits", "") else { return };
    let of_others = site.others_have_all_but(10);
    site.follow();
    let job = site.submit("true");
    until("it has a planned reservation after that of the others", || {
        let held = site.reservations(job);
        held.iter().any(|held| held.state == WireReservationState::Scheduled)
    });
    until("Slurm knows when it can start", || {
        let held = &site.reservations(job)[0];
        let start = held.start_ns.unwrap() / 1_000_000_000;
        let told = site.slurm.cluster.admin(&format!("squeue -h -j {job} -o %S"));
        let shown = Command::new("date").args(["+%s", "-d", told.trim()]).output().unwrap();
        let shown: u64 = String::from_utf8_lossy(&shown.stdout).trim().parse().unwrap_or(0);
        shown.abs_diff(start) <= 2
    });
    assert_eq!(site.slurm.cluster.job_field(job, "JobState"), "PENDING");

    until("what others have is set aside in Slurm", || {
        site.slurm.cluster.admin("scontrol show licenses -o").contains("Reserved=75 ")
    });
    let program = site.slurm.cluster.path("fake/sluice");
    let check = site.slurm.run(site.slurm_user(), &[text(&program), "slurm", "check"]);
    assert!(check.ok, "no errors: {}{}", check.text, check.errors);
    let due = "warning: Licenses: lustreqos:1000, but 85 MB/s of target fs may be reserved";
    assert!(check.text.contains(due) && check.text.contains("ProctrackType"), "{}", check.text);

    // its user cannot start it earlier
    let update = format!("jobid={job}");
    assert!(site.slurm.run(USER, &["scontrol", "update", &update, "StartTime=now"]).ok);
    until("the gate refuses", || {
        site.slurm.cluster.job_field(job, "Reason").contains("pre_run")
            || site.slurm.cluster.job_field(job, "SystemComment").contains("reservation")
    });
    assert_ne!(site.slurm.cluster.job_field(job, "JobState"), "COMPLETED");

    site.admin.remove_reservation(of_others).unwrap();
    site.until_began();
    let held = site.reservations(job);
    assert_eq!(held.len(), 1, "it kept its place when it was refused: {held:?}");
    assert_eq!(held[0].state, WireReservationState::Active);
    site.go();
    site.slurm.cluster.until_job(job, "COMPLETED");
    until("the job has ended at the controller", || !site.is_registered(job));
}

#[test]
fn srun_waits_for_its_reservation_and_what_never_fits_is_held() {
    let Some(mut site) =
        ReservedSite::start("slurm-srun", "wait = \"100s\"\nhold_after = \"0s\"\n")
    else {
        return;
    };
    let of_others = site.others_have_all_but(10);
    let mut srun = site.slurm.cluster.command(USER, "srun");
    let mut srun = srun.args(REQUEST).args(["sh", "-c", "touch began"]).spawn().unwrap();
    until("its reservation is planned", || {
        let all = site.admin.reservations(&format!("user={USER}")).unwrap().reservations;
        all.iter().any(|held| held.state == WireReservationState::Scheduled)
    });
    assert!(srun.try_wait().unwrap().is_none());
    site.admin.remove_reservation(of_others).unwrap();
    assert!(srun.wait().unwrap().success());
    site.until_began();

    site.follow();
    let large = site.slurm.sbatch(&["-N1", "-t10", "--qos-bw=90MB/s:write"], "true");
    until("it is held with the reason", || {
        site.slurm.cluster.job_field(large, "Priority") == "0"
            && site
                .slurm
                .cluster
                .admin(&format!("scontrol -o show job {large}"))
                .contains("held: the reservation does not fit")
    });
    // a job that is cancelled while it waits leaves nothing
    let of_others = site.others_have_all_but(10);
    let waits = site.submit("true");
    let is_planned = || {
        let held = site.reservations(waits);
        held.iter().any(|held| held.state == WireReservationState::Scheduled)
    };
    until("its reservation is planned", is_planned);
    site.slurm.cluster.admin(&format!("scancel {waits}"));
    until("its reservation is gone", || !is_planned());
    site.admin.remove_reservation(of_others).unwrap();
}

#[test]
fn a_requeued_job_has_another_token_and_the_first_one_is_invalid() {
    let Some(mut site) = ReservedSite::start("slurm-requeue", "") else { return };
    site.follow();
    let job = site.submit("cp $SLUICE_TOKEN_FILE token.$SLURM_RESTART_COUNT");
    site.until_began();
    let work = |name: &str| site.slurm.cluster.path(&format!("work/{name}"));
    let first = fs::read_to_string(work("token.")).unwrap();
    site.slurm.cluster.admin(&format!("scontrol requeue {job}"));
    until("it waits again", || site.slurm.cluster.job_field(job, "JobState") == "PENDING");
    until("the first attempt has ended", || !site.is_registered(job));
    site.start_again(job);
    let second = fs::read_to_string(work("token.1")).unwrap();
    let ca = Some(site.folder.path().join("tls/ca.pem"));
    let by = |token: &str| {
        let of_job = Credentials { ca: ca.clone(), ..showing(token.trim()) };
        client(&site.controller.url, &of_job).reservations("")
    };
    assert_eq!(by(&first).unwrap_err().code(), api::ErrorCode::Unauthenticated);
    let own = by(&second).unwrap().reservations;
    assert!(own.iter().any(|held| held.state == WireReservationState::Active), "{own:?}");
    assert_eq!(site.admin.job(&job.to_string()).unwrap().attempt, 1);
    site.slurm.cluster.admin(&format!("scancel {job}"));
    until("the job has ended at the controller", || !site.is_registered(job));
    until("its reservation, too", || {
        site.reservations(job).iter().all(|held| held.state == WireReservationState::Undefined)
    });
}

#[test]
fn without_a_controller_jobs_start_unless_the_site_says_otherwise() {
    let Some(mut site) = ReservedSite::start("slurm-alone", "wait = \"1s\"\n") else { return };
    site.controller.kill();
    // without a time limit it would be refused before the controller is asked
    let said = site.slurm.run(USER, &[&["srun"], &REQUEST[..], &["echo", "ran"]].concat());
    assert!(said.ok && said.text == "ran\n", "{}", said.errors);
    let nodes = site.slurm.cluster.admin("sinfo -h -t drain -o %D");
    assert_eq!(nodes.trim(), "", "no node is drained");

    for config in ["etc/slurm.toml", "etc/slurm-cn1.toml"] {
        site.slurm.set(config, "export = \"x\"", "export = \"x\"\non_failure = \"wait\"");
    }
    let job = site.slurm.sbatch(&REQUEST, "true");
    until("it is refused", || site.slurm.cluster.job_field(job, "Reason").contains("pre_run"));
    site.slurm.cluster.until_job(job, "PENDING");
    let plain = site.slurm.run(USER, &["srun", "-N1", "true"]);
    assert!(plain.ok, "a job without a request needs no controller: {}", plain.errors);
}

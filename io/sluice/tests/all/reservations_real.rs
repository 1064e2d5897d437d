//! Reservations under real programs of several users: two mounts of two proxies of one directory.
//!
//! ```text
//!   user 1001: sqlite3, dd ─► mount a ─┐     ┌─► proxy one ─┐
//!   user 1002: fio ─────────► mount b ─┴─────┴─► proxy two ─┴─► one directory
//!   sluice reserve, as the user ─► controller ─► both proxies
//! ```
//!
//! Nothing is timed: a test waits for what counters and states say, and programs fail if a call of
//! theirs does.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use api::{NewToken, Role, Why, WhyQuery, WireReservation, WireReservationState};
use http::ApiClient;
use testkit::TestFolder;

use crate::common::{Controller, Proxy, SLUICE, Setup, everybodys, root_here, skip, until};
use crate::controlled::api_of;
use crate::entrusted::{client, first_token, secret, showing, text, token};
use crate::posix_pair::Mounted;

const OWNER: u32 = 1001;
const OTHER: u32 = 1002;
const JOB: &str = "ck.1";

/// A controller, two proxies of one directory, and a mount of both for each of two nodes.
struct Site {
    // Dropped in this order: mounts need their proxies to end.
    mounts: [Mounted; 2],
    proxies: Vec<Option<Proxy>>,
    controller: Controller,
    admin: ApiClient,
    place: TestFolder,
    name: &'static str,
}

impl Site {
    /// None, said aloud, where nothing can be mounted or a program is missing.
    fn start(name: &'static str, programs: &[&str]) -> Option<Site> {
        if !root_here() {
            return None;
        }
        if !Path::new("/dev/fuse").exists() {
            skip("no /dev/fuse here");
            return None;
        }
        for program in programs {
            if Command::new("which")
                .arg(program)
                .output()
                .is_ok_and(|found| !found.status.success())
            {
                skip(&format!("no {program} here"));
                return None;
            }
        }
        let place = TestFolder::new();
        for folder in ["data", "controller"] {
            fs::create_dir(place.path().join(folder)).unwrap();
        }
        everybodys(place.path());
        everybodys(&place.path().join("data"));
        let data = place.path().join("controller");
        let root = first_token(&data);
        let controller = Controller::start(&data, "http://127.0.0.1:0");
        let admin = client(&controller.url, &showing(&root));
        let of_proxies = token(&admin, "proxies", Role::Proxy);
        secret(place.path().join("proxy.token"), &of_proxies);
        let start = |which| proxy(name, which, &place, &controller.url).start();
        let proxies = ["one", "two"].map(start);
        until("the target is described by both", || {
            let known = admin.proxies().unwrap().proxies;
            let resources = admin.calendar("").unwrap().resources;
            known.len() == 2 && resources.iter().any(|of| of.name == "fs" && of.write_per_sec > 0)
        });
        let sources = [&proxies[0], &proxies[1]];
        let mounts = ["a", "b"].map(|node| {
            let at = place.path().join(node);
            Mounted::of(&sources, at, "allow_other,job=env:JOB,attr_timeout=0")
        });
        let proxies = proxies.map(Some).into();
        Some(Site { mounts, proxies, controller, admin, place, name })
    }

    fn proxy(&self, which: usize) -> &Proxy {
        self.proxies[which].as_ref().expect("it runs")
    }

    /// Kills a proxy by SIGKILL, and leaves its place to the next.
    fn kill_proxy(&mut self, which: usize) {
        self.proxies[which].take().unwrap().crash();
    }

    fn start_proxy(&mut self, which: usize) {
        let name = ["one", "two"][which];
        let again = proxy(self.name, name, &self.place, &self.controller.url).again().start();
        self.proxies[which] = Some(again);
    }

    fn kill_controller_and_start(&mut self, meanwhile: impl FnOnce(&Site)) {
        let (data, url) = (self.place.path().join("controller"), self.controller.url.clone());
        self.controller.kill();
        meanwhile(self);
        self.controller = Controller::start(&data, &url);
    }

    /// A token of a user.
    fn token_of(&self, uid: u32) -> String {
        let name = format!("user-{uid}");
        let new = NewToken { name, role: Role::User, user: Some(uid), expires_s: None };
        self.admin.make_token(&new).unwrap().token
    }

    /// Runs `sluice reserve` as a user with its token.
    fn reserve(&self, uid: u32, token: &str, words: &[&str]) -> Output {
        let mut command = Command::new(SLUICE);
        command.arg("reserve").args(words).args(["--controller", &self.controller.url]);
        command.env("SLUICE_TOKEN", token).uid(uid).gid(uid).current_dir("/").output().unwrap()
    }

    /// Has the owner reserve for its job and wait until that is active.
    fn reserve_active(&self, token: &str, rate: &str, span: &str) -> WireReservation {
        let words = ["add", "--bandwidth", rate, "--direction", "write", "--for", span];
        let more = ["--job", JOB, "--export", "x", "--wait", "--json"];
        let made = self.reserve(OWNER, token, &[&words[..], &more].concat());
        assert!(made.status.success(), "{made:?}");
        let made: WireReservation = serde_json::from_slice(&made.stdout).unwrap();
        assert_eq!((made.state, made.user), (WireReservationState::Active, OWNER));
        made
    }

    fn shown(&self, id: u64) -> WireReservation {
        self.admin.reservation(id, "").unwrap()
    }

    /// Bytes that went by a reservation at a proxy, if it holds there for the job.
    fn served_at(&self, which: usize, id: u64) -> Option<u64> {
        let why = why_at(self.proxy(which));
        let own: Vec<_> = why.reservations.iter().filter(|of| of.id == id).collect();
        (!own.is_empty()).then(|| own.iter().map(|of| of.served).sum())
    }

    /// Waits until more went by the reservation at each of these proxies.
    fn is_served_on(&self, proxies: &[usize], id: u64) {
        let before: Vec<_> = proxies.iter().map(|at| self.served_at(*at, id)).collect();
        until("each proxy serves the job by its reservation", || {
            proxies.iter().zip(&before).all(|(at, before)| self.served_at(*at, id) > *before)
        });
    }
}

fn proxy(name: &str, which: &str, place: &TestFolder, url: &str) -> Setup {
    let place = place.path();
    let top = format!(
        "squash = \"none\"\nhandle_key = {:?}\ncontroller = \"{url}\"\nproxy_name = \"{which}\"\n\
         controller_token_file = \"{}\"\n",
        place.join("key"),
        text(&place.join("proxy.token"))
    );
    let tables = format!(
        "[[export]]\nname = \"x\"\ndir = {:?}\ntarget = \"fs\"\n[[target]]\nname = \"fs\"\n\
         capacity_read = \"100MB/s\"\ncapacity_write = \"100MB/s\"\n",
        place.join("data")
    );
    let setup = Setup::new(&format!("{name}-{which}")).top(&top).tables(&tables).api();
    setup.group(which, &["one", "two"])
}

fn why_at(proxy: &Proxy) -> Why {
    let query = WhyQuery { job: Some(JOB.into()), ..WhyQuery::default() };
    api_of(proxy).why(&query).unwrap()
}

/// A program of a user's job, killed at the end.
struct Program(Child);

impl Program {
    fn start(uid: u32, job: &str, words: &[&str]) -> Program {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("JOB", job).uid(uid).gid(uid).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Program(command.spawn().unwrap())
    }

    fn ends_well(mut self) {
        let mut status = None;
        until("the program ends", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success(), "{status:?}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The owner's job: writes and syncs 16 files, spread over the proxies, again and again until it is
/// stopped. A call that fails ends it with an error.
struct Writer {
    program: Program,
    stop: PathBuf,
}

impl Writer {
    fn start(site: &Site) -> Writer {
        let dir = site.mounts[0].join("job");
        fs::create_dir(&dir).unwrap();
        everybodys(&dir);
        let stop = site.place.path().join("stop");
        let script = format!(
            "set -e; n=0; while [ ! -e {stop} ]; do n=$(( (n + 1) % 16 )); \
             dd if=/dev/zero of={dir}/f$n bs=64k count=8 conv=fsync,notrunc 2>/dev/null; done",
            stop = text(&stop),
            dir = text(&dir)
        );
        Writer { program: Program::start(OWNER, JOB, &["sh", "-c", &script]), stop }
    }

    /// No call of it failed, and what it wrote is there.
    fn ends_well(self, site: &Site) {
        fs::write(&self.stop, "").unwrap();
        self.program.ends_well();
        let files: Vec<_> = fs::read_dir(site.place.path().join("data/job")).unwrap().collect();
        assert!(!files.is_empty());
        for file in files {
            assert!(fs::read(file.unwrap().path()).unwrap() == vec![0; 8 << 16]);
        }
    }
}

#[test]
fn a_user_reserves_for_its_job_and_another_user_neither_sees_nor_changes_it() {
    let Some(site) = Site::start("reserve-users", &[]) else { return };
    let (own, foreign) = (site.token_of(OWNER), site.token_of(OTHER));
    let held = site.reserve_active(&own, "5MB/s", "10min");
    let id = held.id.to_string();
    for words in [
        &["show", &id][..],
        &["wait", &id, "--timeout", "0s"],
        &["extend", &id, "--by", "1s"],
        &["finish", &id],
        &["remove", &id],
    ] {
        let refused = site.reserve(OTHER, &foreign, &[words, &["--json"]].concat());
        assert_eq!(refused.status.code(), Some(1), "{words:?}: {refused:?}");
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(error.contains("permission_denied") && !error.contains(JOB), "{words:?}: {error}");
    }
    let list = site.reserve(OTHER, &foreign, &["list", "--ended"]);
    assert_eq!(String::from_utf8(list.stdout).unwrap(), "no reservations\n");
    let words = ["list", "--user", &OWNER.to_string()];
    assert_eq!(site.reserve(OTHER, &foreign, &words).status.code(), Some(1));
    // For the owner's job it cannot reserve either: what it makes is its own.
    let theirs = site.reserve(
        OTHER,
        &foreign,
        &["add", "--metadata", "1ops/s", "--for", "1min", "--user", "1001"],
    );
    assert_eq!(theirs.status.code(), Some(1), "{theirs:?}");
    let after = site.shown(held.id);
    assert_eq!((after.state, after.end_ns), (held.state, held.end_ns));
    let removed = site.reserve(OWNER, &own, &["remove", &id]);
    assert!(removed.status.success(), "{removed:?}");
}

#[test]
fn a_database_with_a_reservation_is_served_by_it_beside_bullies_at_both_proxies() {
    let Some(site) = Site::start("reserve-sqlite", &["sqlite3", "fio"]) else { return };
    let own = site.token_of(OWNER);
    for (mount, folder) in [(0, "db"), (1, "bully")] {
        let dir = site.mounts[mount].join(folder);
        fs::create_dir(&dir).unwrap();
        everybodys(&dir);
    }
    let dir = site.mounts[1].join("bully");
    let directory = format!("--directory={}", text(&dir));
    let fio = ["fio", "--name=bully", &directory, "--rw=write", "--bs=1M", "--size=4M"];
    let more = ["--numjobs=16", "--thread", "--fsync=4", "--time_based", "--runtime=600"];
    let _bullies = Program::start(OTHER, "bully.1", &[&fio[..], &more].concat());
    let is_busy = |site: &Site| {
        let query = WhyQuery { job: Some("bully.1".into()), ..WhyQuery::default() };
        let at = |which| api_of(site.proxy(which)).why(&query).unwrap();
        [0, 1].iter().all(|which| at(*which).subjects.iter().any(|of| of.bytes > 0))
    };
    until("the bullies write at both proxies", || is_busy(&site));
    let held = site.reserve_active(&own, "20MB/s", "10min");

    let (database, count) = (site.mounts[0].join("db/own.db"), 80);
    let mut script = String::from("PRAGMA synchronous=FULL; CREATE TABLE t (n INTEGER, pad BLOB);");
    (0..count).for_each(|n| script += &format!("INSERT INTO t VALUES ({n}, zeroblob(8192));"));
    let sqlite = Program::start(OWNER, JOB, &["sqlite3", "-bail", text(&database), &script]);
    sqlite.ends_well();
    let check = "PRAGMA integrity_check; SELECT count(*), sum(n) FROM t;";
    let from_other_node = site.mounts[1].join("db/own.db");
    let output = Command::new("sqlite3").args([text(&from_other_node), check]).output().unwrap();
    let sum = count * (count - 1) / 2;
    let expected = format!("ok\n{count}|{sum}\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);

    // It asked for less than is reserved, so it had its turn before the bullies: no cause of a wait
    // of its own is a limit, and what it wrote went by the reservation.
    let shown = site.shown(held.id);
    assert_eq!((shown.state, shown.reduced.as_ref()), (WireReservationState::Active, None));
    let mut served = 0;
    until("what went by it is counted", || {
        served = [0, 1].iter().filter_map(|which| site.served_at(*which, held.id)).sum();
        served > 0
    });
    let all = [0, 1].map(|which| why_at(site.proxy(which)));
    let total: u64 = all.iter().flat_map(|why| &why.reservations).map(|of| of.total).sum();
    assert!(served <= total, "{served} of {total}");
    assert!(total >= count * 8192, "{total}");
    assert!(served >= total / 2, "most of it went by the reservation: {served} of {total}");
}

#[test]
fn a_proxy_that_dies_under_a_reservation_honours_it_again_without_a_new_request() {
    let Some(mut site) = Site::start("reserve-kill", &[]) else { return };
    let own = site.token_of(OWNER);
    let held = site.reserve_active(&own, "20MB/s", "10min");
    let writer = Writer::start(&site);
    site.is_served_on(&[0, 1], held.id);
    site.kill_proxy(0);
    site.is_served_on(&[1], held.id);
    until("the dead proxy is unreachable", || {
        let proxies = site.admin.proxies().unwrap().proxies;
        proxies.iter().any(|of| of.name == "one" && of.unreachable)
    });
    let shown = site.shown(held.id);
    assert_eq!(shown.state, WireReservationState::Active, "{shown:?}");
    if let Some(reduced) = &shown.reduced {
        assert!(reduced.because.contains("one"), "it names who is unreachable: {reduced:?}");
    }
    site.is_served_on(&[1], held.id);
    site.start_proxy(0);
    site.is_served_on(&[0, 1], held.id);
    until("it is not reduced any more", || site.shown(held.id).reduced.is_none());
    let shown = site.shown(held.id);
    assert_eq!((shown.state, shown.end_ns), (WireReservationState::Active, held.end_ns));

    // Its end under running requests fails none of them.
    let removed = site.reserve(OWNER, &own, &["remove", &held.id.to_string()]);
    assert!(removed.status.success(), "{removed:?}");
    until("it ends at both proxies", || {
        [0, 1].iter().all(|which| site.served_at(*which, held.id).is_none())
    });
    let short = site.reserve_active(&own, "20MB/s", "3s");
    until("its time is over", || site.shown(short.id).state == WireReservationState::Undefined);
    assert_eq!(site.shown(short.id).ended.as_deref(), Some("expired"));
    writer.ends_well(&site);
}

#[test]
fn a_reservation_is_honoured_while_the_controller_is_dead_and_after_its_restart() {
    let Some(mut site) = Site::start("reserve-ctl", &[]) else { return };
    let own = site.token_of(OWNER);
    let held = site.reserve_active(&own, "20MB/s", "10min");
    let waiting = {
        let words = ["add", "--bandwidth", "10MB/s", "--direction", "write", "--for", "1min"];
        let more = ["--job", JOB, "--export", "x", "--at", "1h", "--json"];
        let made = site.reserve(OWNER, &own, &[&words[..], &more].concat());
        assert!(made.status.success(), "{made:?}");
        serde_json::from_slice::<WireReservation>(&made.stdout).unwrap()
    };
    let writer = Writer::start(&site);
    site.is_served_on(&[0, 1], held.id);
    site.kill_controller_and_start(|site| {
        let moved = |which: usize| -> u64 {
            why_at(site.proxy(which)).subjects.iter().map(|of| of.bytes).sum()
        };
        let before = [0, 1].map(moved);
        until("both proxies serve the job without a controller", || {
            [0, 1].iter().all(|which| moved(*which) > before[*which])
        });
        for which in [0, 1] {
            let why = why_at(site.proxy(which));
            let own = why.reservations.iter().find(|of| of.id == held.id);
            assert!(own.is_some_and(|of| of.share_ppb > 0), "{:?}", why.reservations);
        }
    });
    let shown = site.shown(held.id);
    assert_eq!((shown.start_ns, shown.end_ns), (held.start_ns, held.end_ns));
    let later = site.shown(waiting.id);
    assert_eq!((later.state, later.start_ns), (waiting.state, waiting.start_ns));
    until("it is active again", || site.shown(held.id).state == WireReservationState::Active);
    site.is_served_on(&[0, 1], held.id);
    writer.ends_well(&site);
}

//! The same scenario through the simulator and through a real proxy gives the same shares.
//!
//! ```text
//!   rules ─┬─► a proxy, three jobs on loopback, always more asked for than served ─► shares
//!          └─► the simulator, a target as fast as that proxy was ──────────────────► shares
//! ```
//!
//! A job that is short of requests is none that the rules divide anything for: a span counts
//! only if both jobs with weights had requests queued whenever the proxy was looked at.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Client, PATIENCE, Proxy, Setup, USER};
use ninep::{Fid, Request, Tag};
use sim::{Policy, Scenario, World};

const RULES: &str = r#"
[[rule]]
name = "heavy"
match = "jobid={heavy}"
weight = 3

[[rule]]
name = "light"
match = "jobid={light}"

[[rule]]
name = "limited"
match = "jobid={limited}"
limit = "500ops/s"
"#;

const JOBS: [&str; 3] = ["heavy", "light", "limited"];
const CONNECTIONS: usize = 2;
const IN_FLIGHT: u16 = 4000;
const COUNT: u32 = 1024;
/// A span that counts: so long, and looked at so often.
const SPAN: Duration = Duration::from_secs(2);
const LOOKS: u32 = 20;
/// Relative.
const TOLERANCE: f64 = 0.03;

#[test]
fn the_simulator_and_a_real_proxy_divide_alike() {
    let proxy = Setup::new("cross-check")
        .top("threads = 1\ntags_max = 8192\nbytes_in_flight_max = \"64MiB\"")
        .rules(RULES)
        .api()
        .start();
    proxy.client().make(1, "f");
    let mut owner = proxy.client();
    owner.open_name(1, "f", ninep::open::RDWR).unwrap();
    owner.write(1, 0, &[7; COUNT as usize]).unwrap();
    for job in JOBS {
        for _ in 0..CONNECTIONS {
            let client = opened(&proxy, job);
            thread::spawn(move || load(client));
        }
    }
    let (requests, span) = measured(&proxy);
    let real = shares(&requests);
    let each_ns = span.as_nanos() as u64 / requests.values().sum::<u64>();
    let simulated = shares(&simulated(each_ns));
    for job in JOBS {
        let (real, simulated) = (real[job], simulated[job]);
        let off = (simulated - real).abs() / real;
        assert!(
            off <= TOLERANCE,
            "{job}: {:.2} % of the requests, simulated {:.2} %, at {each_ns} ns each",
            real * 100.0,
            simulated * 100.0
        );
    }
}

// ---- the real one ----

fn opened(proxy: &Proxy, job: &str) -> Client {
    let mut client = proxy.client_of(&format!("x?job={job}"), USER);
    client.open_name(1, "f", ninep::open::RDONLY).unwrap();
    client
}

/// Asks again for whatever is answered, until the proxy is gone.
fn load(mut client: Client) {
    let ask = |tags: &[Tag]| {
        let mut bytes = Vec::new();
        for tag in tags {
            let mut one = Vec::new();
            Request::Read { fid: Fid(1), offset: 0, count: COUNT }.encode(*tag, &mut one);
            bytes.extend(one);
        }
        bytes
    };
    let first: Vec<Tag> = (1..=IN_FLIGHT).map(Tag).collect();
    let mut sent = client.try_send_bytes(&ask(&first));
    let (mut buffer, mut len) = (vec![0; 1 << 20], 0);
    while sent.is_ok() {
        match rustix::io::read(client.fd(), &mut buffer[len..]) {
            Ok(0) | Err(_) => return,
            Ok(more) => len += more,
        }
        let (mut at, mut answered) = (0, Vec::new());
        while let Some(size) = buffer[at..len].first_chunk::<4>() {
            let size = u32::from_le_bytes(*size) as usize;
            if len - at < size {
                break;
            }
            answered.push(ninep::frame_tag(&buffer[at..at + size]).unwrap());
            at += size;
        }
        buffer.copy_within(at..len, 0);
        len -= at;
        sent = client.try_send_bytes(&ask(&answered));
    }
}

/// What each job's class had by now, when that was, and whether those with weights waited.
fn look(api: &api::Client) -> (BTreeMap<String, u64>, u64, bool) {
    let found = api.classes().unwrap();
    let requests = found.classes.iter().map(|class| (class.rule.clone(), class.usage.requests));
    let waits = |job| found.classes.iter().any(|class| class.rule == job && class.usage.queued > 0);
    (requests.collect(), found.t_ns, waits("heavy") && waits("light"))
}

/// Requests of each job in a span in which the proxy always had more to do.
fn measured(proxy: &Proxy) -> (BTreeMap<&'static str, u64>, Duration) {
    let api = format!("unix://{}/api", proxy.dir.display()).parse().unwrap();
    let api = api::Client::new(&api).unwrap();
    let began = Instant::now();
    // The limit's burst is gone after the first span, which is not counted.
    let mut settled = false;
    while began.elapsed() < PATIENCE {
        let (before, from, mut busy) = look(&api);
        let (mut after, mut to) = (before.clone(), from);
        for _ in 0..LOOKS {
            thread::sleep(SPAN / LOOKS);
            let (now, at, waited) = look(&api);
            busy &= waited;
            (after, to) = (now, at);
        }
        if busy && settled {
            let had = |job: &str| after[job] - before[job];
            let requests = JOBS.map(|job| (job, had(job)));
            return (requests.into(), Duration::from_nanos(to - from));
        }
        settled |= busy;
    }
    panic!("in no span of {SPAN:?} did both jobs always have requests queued");
}

// ---- the simulated one ----

/// Requests of each job at a target that takes so long for each.
fn simulated(each_ns: u64) -> BTreeMap<&'static str, u64> {
    let job = |name: &str| {
        format!(
            "[[job]]\nname = \"{name}\"\nnodes = {CONNECTIONS}\n\
             steps = [{{ do = \"read {COUNT}B\", depth = {IN_FLIGHT} }}]\n"
        )
    };
    let text = format!(
        "from = \"a real proxy\"\nabout = \"Reads that the page cache answers.\"\n\
         duration = \"12s\"\nwarmup = \"2s\"\nrules = '''{RULES}'''\n\
         [[target]]\nname = \"proxy\"\nslots = 1\nthreads = 1\nparallelism = 1\n\
         hit_percent = 100\nread = [[\"1KiB\", \"1ms\"]]\ncached = [[\"1KiB\", \"{each_ns}ns\"]]\n{}",
        JOBS.map(job).concat()
    );
    let scenario = Scenario::parse(&text, "cross-check").unwrap_or_else(|error| panic!("{error}"));
    let report = World::new(&scenario, Policy::Ours, 1).without_checks().run();
    assert_eq!(report.violations, []);
    JOBS.map(|job| (job, report.job(job).unwrap().requests)).into()
}

fn shares(requests: &BTreeMap<&'static str, u64>) -> BTreeMap<&'static str, f64> {
    let all: u64 = requests.values().sum();
    requests.iter().map(|(job, count)| (*job, *count as f64 / all as f64)).collect()
}

//! The published schedulers do what their sources and our models of them say.

use sluice_sim::{Policy, RunResult, Scenario, World};

/// Jobs by name, depth and the grants of their rules, at a server of `slots` workers that
/// takes `time` for a request.
fn run(policy: Policy, slots: u32, time: &str, jobs: &[(&str, u32, &str)]) -> RunResult {
    run_with(policy, slots, time, jobs, "")
}

fn run_with(
    policy: Policy,
    slots: u32,
    time: &str,
    jobs: &[(&str, u32, &str)],
    more: &str,
) -> RunResult {
    let mut rules = String::new();
    let mut text = String::new();
    for (job, depth, grants) in jobs {
        rules += &format!("[[rule]]\nname = \"{job}\"\nmatch = \"jobid={{{job}}}\"\n{grants}\n");
        text += &format!("[[job]]\nname = \"{job}\"\n");
        text += &format!("steps = [{{ do = \"read 4KiB\", depth = {depth} }}]\n");
    }
    let head = format!(
        "from = \"a test\"\ndescription =  \"\"\nduration = \"110s\"\nwarmup = \"10s\"\npolicies = [\"{policy}\"]\n"
    );
    let target = format!(
        "[[target]]\nname = \"t\"\nslots = {slots}\nparallelism = {slots}\nread = [[\"4KiB\", \"{time}\"]]\n{more}\n"
    );
    let text = format!("{head}rules = '''\n{rules}'''\n{target}{text}");
    let scenario = Scenario::parse(&text, "test").unwrap_or_else(|error| panic!("{error}"));
    World::new(&scenario, policy, 1).run()
}

fn rates(report: &RunResult) -> Vec<u64> {
    report.jobs.iter().map(|job| (job.requests + 50) / 100).collect()
}

/// docs/algorithms/baselines.md: one worker, 2 ms for each request, everybody backlogged.
#[test]
fn a_plain_token_bucket_loses_fractions_of_tokens_and_a_compensated_one_does_not() {
    let table: [(&[u64], &[u64]); 4] = [
        (&[300, 150], &[273, 136]),
        (&[450, 40], &[420, 38]),
        (&[400, 90], &[348, 87]),
        (&[300, 100, 75], &[232, 89, 71]),
    ];
    for (rates_wanted, plain_wanted) in table {
        let names = ["a", "b", "c"];
        let grants = |realtime: bool| -> Vec<String> {
            let grant = |rate: &u64| match realtime {
                true => format!("limit = \"{rate}ops/s\"\nrealtime = true"),
                false => format!("limit = \"{rate}ops/s\""),
            };
            rates_wanted.iter().map(grant).collect()
        };
        for realtime in [false, true] {
            let grants = grants(realtime);
            let jobs: Vec<_> = names
                .iter()
                .zip(&grants)
                .map(|(name, grant)| (*name, 16, grant.as_str()))
                .collect();
            let got = rates(&run(Policy::Tbf, 1, "2ms", &jobs));
            let wanted = if realtime { rates_wanted } else { plain_wanted };
            let near = |(got, wanted): (&u64, &u64)| got.abs_diff(*wanted) <= (wanted / 50).max(1);
            assert!(got.iter().zip(wanted).all(near), "{rates_wanted:?}, {realtime}: {got:?}");
        }
    }
}

/// docs/algorithms/baselines.md: depth caps what comes in batches: 3 in each gap of 100 ms.
#[test]
fn token_bucket_depth_caps_batches() {
    let jobs = [("a", 16, "limit = \"60ops/s\""), ("b", 16, "limit = \"5000ops/s\"")];
    let got = rates(&run(Policy::Tbf, 10, "100ms", &jobs));
    assert!(got[0] <= 31, "3 in each gap of 100 ms: {got:?}");
}

/// docs/algorithms/baselines.md: too many compensated rules starve some of them.
#[test]
fn compensated_rules_beyond_capacity_starve_each_other() {
    let mut jobs = vec![
        ("j0", 16, "limit = \"120ops/s\"\nrealtime = true"),
        ("j1", 16, "limit = \"50ops/s\"\nrealtime = true"),
    ];
    let names: Vec<String> = (2..16).map(|n| format!("j{n}")).collect();
    let all = "limit = \"100ops/s\"\nrealtime = true";
    jobs.extend(names.iter().map(|name| (name.as_str(), 16, all)));
    let report = run_with(Policy::Tbf, 1, "2ms", &jobs, "jitter_percent = 30");
    let got = rates(&report);
    assert!(got[1] <= 5, "the least of them gets next to nothing: {got:?}");
    let ours = run_with(Policy::Dispatcher, 1, "2ms", &jobs, "jitter_percent = 30");
    // 50 of 1570 of the service: reservations are cut in the same proportion.
    assert!(ours.jobs[1].requests_per_sec >= 15.0, "{:?}", rates(&ours));
    assert!(ours.reservation_shortfall_ppm > 600_000);
}

#[test]
fn fair_queueing_with_d_outstanding_divides_by_weight() {
    for weight in [2, 4, 8, 16, 32] {
        let heavy = format!("weight = {weight}");
        let report = run(Policy::Sfqd, 10, "10ms", &[("a", 64, &heavy), ("b", 64, "")]);
        let (a, b) = (report.jobs[0].requests, report.jobs[1].requests);
        assert!(a.abs_diff(b * weight) <= 2 * (weight + 10), "{weight}: {a} and {b}");
    }
}

#[test]
fn dmclock_keeps_reservations_limits_and_the_proportion_of_weights() {
    // Weights are requests a second, and together fewer than the server gives.
    let jobs = [
        ("a", 40, "reservation = \"300ops/s\"\nweight = 1"),
        ("b", 40, "weight = 100"),
        ("c", 40, "weight = 200"),
        ("d", 40, "weight = 100\nlimit = \"50ops/s\""),
    ];
    let got = rates(&run(Policy::Dmclock, 10, "10ms", &jobs));
    assert!(got[0].abs_diff(300) <= 6, "{got:?}");
    assert!(got[3].abs_diff(50) <= 1, "{got:?}");
    assert!(got[2].abs_diff(2 * got[1]) <= got[2] / 50, "{got:?}");
    assert!(got.iter().sum::<u64>().abs_diff(1000) <= 5, "{got:?}");
}

#[test]
fn fifo_serves_jobs_in_proportion_to_their_requests_in_flight() {
    let got = rates(&run(Policy::Fifo, 10, "10ms", &[("a", 90, ""), ("b", 10, "weight = 100")]));
    assert!(got[0].abs_diff(900) <= 5 && got[1].abs_diff(100) <= 5, "{got:?}");
}

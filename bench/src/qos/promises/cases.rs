//! The cases: who asks for what, under which rules, and what everyone is to get.
//!
//! Expected rates follow from the rules and the backend's rate C: reservations first, what they leave
//! by weight; spare service by rate, C r / Σ r; of rules that depend on others as in
//! docs/algorithms/dependent.md. Rates are those of docs/algorithms/dispatcher.md and of the
//! publications, at 150 MB/s in the same proportions.

use super::super::super::figures::row::FigureBound;
use super::super::super::work::WorkOp;
use super::{
    FIRST_SECOND, PromiseCase, PromiseExpect, PromiseJob, PromiseOn, PromisePhase, SHORTFALL,
};

/// Reads of `kib` at random places, more of them than the device slots hold.
const fn reads(name: &'static str, kib: u64, depth: usize) -> PromiseJob {
    PromiseJob { name, op: WorkOp::Randread, kib, depth, copies: 1, per_s: None, phases: 0..9 }
}

pub(super) const fn backlogged(name: &'static str) -> PromiseJob {
    reads(name, 64, 512)
}

/// Reads of 4 KiB where operations count.
const fn small(name: &'static str) -> PromiseJob {
    reads(name, 4, 256)
}

const fn phase(rules: &'static str, expect: &'static [PromiseExpect]) -> PromisePhase {
    PromisePhase { rules, expect }
}

const fn near(measure: &'static str, of: &'static str, value: f64, percent: f64) -> PromiseExpect {
    PromiseExpect { measure, of, bound: Some(FigureBound::Near { value, percent }) }
}

const fn shown(measure: &'static str, of: &'static str) -> PromiseExpect {
    PromiseExpect { measure, of, bound: None }
}

macro_rules! rule {
    ($name:literal, $keys:literal) => {
        concat!(
            "[[rule]]\nname = \"",
            $name,
            "\"\nmatch = \"jobid={",
            $name,
            "}\"\n",
            $keys,
            "\n\n"
        )
    };
}

macro_rules! rules {
    ($(($name:literal, $keys:literal)),+) => { concat!($(rule!($name, $keys)),+) };
}

const EACH: &str = "[[rule]]\nname = \"each\"\nper = [\"jobid\"]\n";

const AB: &[PromiseJob] = &[backlogged("a"), backlogged("b")];
const ABC: &[PromiseJob] = &[backlogged("a"), backlogged("b"), backlogged("c")];
/// So large that the work is the disk's and not that of moving messages.
const LARGE_ABC: &[PromiseJob] =
    &[reads("a", 256, 128), reads("b", 256, 128), reads("c", 256, 128)];
const SMALL_AB: &[PromiseJob] = &[small("a"), small("b")];
const SMALL_ABC: &[PromiseJob] = &[small("a"), small("b"), small("c")];
const SIXTEEN: &[PromiseJob] =
    &[small("a"), small("b"), PromiseJob { copies: 14, ..small("other") }];

const REALTIME: &str = concat!(
    rules!(
        ("a", "limit = \"120ops/s\"\nrealtime = true"),
        ("b", "limit = \"50ops/s\"\nrealtime = true")
    ),
    "[[rule]]\nname = \"others\"\nmatch = \"jobid={other*}\"\nper = [\"jobid\"]\nlimit = \"100ops/s\"\n"
);
const LIMITS: &str = concat!(
    rules!(("a", "limit = \"120ops/s\""), ("b", "limit = \"50ops/s\"")),
    "[[rule]]\nname = \"others\"\nmatch = \"jobid={other*}\"\nper = [\"jobid\"]\nlimit = \"100ops/s\"\n"
);
const SPARE_AB: &str = rules!(
    ("a", "limit = \"150ops/s\"\nspare = true"),
    ("b", "limit = \"100ops/s\"\nspare = true")
);
const SPARE_ABC: &str = rules!(
    ("a", "limit = \"150ops/s\"\nspare = true"),
    ("b", "limit = \"100ops/s\"\nspare = true"),
    ("c", "limit = \"50ops/s\"\nspare = true")
);

macro_rules! follow {
    ($parent:literal) => {
        concat!(
            "[[rule]]\nname = \"a\"\nmatch = \"jobid={a}\"\nlimit = \"", $parent, "\"\n\n",
            rule!("b", "limit = \"20MB/s\"\ndepends_on = { rule = \"a\", follow = \"50%\", min = \"5MB/s\" }")
        )
    };
}

pub(super) const REMAINDER: &str = rules!(
    ("a", "limit = \"50MB/s\""),
    (
        "b",
        "limit = \"70MB/s\"\ndepends_on = { rule = \"a\", remainder_of = \"80MB/s\", min = \"10MB/s\" }"
    )
);
const WHEN_IDLE: &str = rules!(
    ("a", ""),
    (
        "b",
        "limit = \"60MB/s\"\ndepends_on = { rule = \"a\", when_idle = \"500ms\", min = \"5MB/s\" }"
    )
);

#[rustfmt::skip]
pub(super) const CASES: &[PromiseCase] = &[
    PromiseCase {
        name: "slow-capacity", what: "two jobs together", on: PromiseOn::Slow, seconds: 20.0,
        jobs: AB, window_percent: Some(2.0),
        phases: &[phase(EACH, &[near("total_mb_per_s", "", 150.0, 2.0), shown("a_mb_per_s", "a")])],
    },
    PromiseCase {
        name: "reservation", what: "a has a reservation of 90 MB/s; weights 1 : 1 : 2", on: PromiseOn::Slow,
        seconds: 30.0, jobs: ABC, window_percent: Some(5.0),
        phases: &[phase(
            rules!(("a", "reservation = \"90MB/s\""), ("b", ""), ("c", "weight = 2")),
            &[near("a_mb_per_s", "a", 90.0, 2.0), near("b_mb_per_s", "b", 20.0, 2.0), near("c_mb_per_s", "c", 40.0, 2.0)],
        )],
    },
    PromiseCase {
        name: "reservation-large", what: "a has a reservation of 90 MB/s and reads 1 MiB; b has weight 1000 and reads 16 KiB",
        on: PromiseOn::Slow, seconds: 30.0, jobs: &[reads("a", 1024, 64), reads("b", 16, 1024)], window_percent: Some(5.0),
        phases: &[phase(
            rules!(("a", "reservation = \"90MB/s\""), ("b", "weight = 1000")),
            &[near("a_mb_per_s", "a", 90.0, 2.0), near("b_mb_per_s", "b", 60.0, 2.0)],
        )],
    },
    PromiseCase {
        name: "reservation-over", what: "reservations of 180 and 75 MB/s", on: PromiseOn::Slow, seconds: 30.0,
        jobs: AB, window_percent: Some(5.0),
        phases: &[phase(
            rules!(("a", "reservation = \"180MB/s\""), ("b", "reservation = \"75MB/s\"")),
            &[near("a_mb_per_s", "a", 105.88, 2.0), near("b_mb_per_s", "b", 44.12, 2.0), near(SHORTFALL, "a", 41.18, 2.0)],
        )],
    },
    PromiseCase {
        name: "reservation-ends", what: "a has a reservation of 90 MB/s, and then none", on: PromiseOn::Slow, seconds: 30.0,
        jobs: AB, window_percent: None,
        phases: &[
            phase(rules!(("a", "reservation = \"90MB/s\""), ("b", "")), &[shown("a_mb_per_s", "a"), shown("b_mb_per_s", "b")]),
            phase(rules!(("a", ""), ("b", "")), &[near("after_a_mb_per_s", "a", 75.0, 5.0), near("after_b_mb_per_s", "b", 75.0, 5.0)]),
        ],
    },
    PromiseCase {
        name: "reservation-disk", what: "a has 60 % of what the disk gives these jobs; b and c share the rest 1 : 2",
        on: PromiseOn::Disk, seconds: 30.0, jobs: LARGE_ABC, window_percent: None,
        phases: &[phase(
            rules!(("a", "reservation = \"{60%}\""), ("b", ""), ("c", "weight = 2")),
            &[near("a_percent", "a", 60.0, 2.0), near("c_to_b_ratio", "c", 2.0, 2.0)],
        )],
    },
    PromiseCase {
        name: "realtime", what: "16 jobs with limits of 1570 ops/s in sum; those of a and b, 120 and 50, are `realtime`",
        on: PromiseOn::Ops(500), seconds: 30.0, jobs: SIXTEEN, window_percent: None,
        phases: &[phase(REALTIME, &[
            near("a_ops_per_s", "a", 120.0, 2.0), near("b_ops_per_s", "b", 50.0, 2.0),
            near("others_least_ops_per_s", "other", 23.57, 2.0), near("others_most_ops_per_s", "other", 23.57, 2.0),
        ])],
    },
    PromiseCase {
        name: "realtime-off", what: "the same limits without `realtime`", on: PromiseOn::Ops(500), seconds: 30.0,
        jobs: SIXTEEN, window_percent: None,
        phases: &[phase(LIMITS, &[
            near("a_ops_per_s", "a", 31.25, 3.0), near("b_ops_per_s", "b", 31.25, 3.0),
            near("others_least_ops_per_s", "other", 31.25, 3.0), near("others_most_ops_per_s", "other", 31.25, 3.0),
        ])],
    },
    PromiseCase {
        name: "realtime-idle", what: "b of 50 ops/s, `realtime`, after it was idle", on: PromiseOn::Ops(500), seconds: 40.0,
        jobs: &[small("a"), PromiseJob { phases: 1..9, ..small("b") }, PromiseJob { copies: 14, ..small("other") }],
        window_percent: None,
        phases: &[
            phase(REALTIME, &[shown("before_a_ops_per_s", "a")]),
            phase(REALTIME, &[PromiseExpect { measure: FIRST_SECOND, of: "b", bound: Some(FigureBound::Most(76.0)) }]),
        ],
    },
    PromiseCase {
        name: "realtime-over", what: "`realtime` limits of 90, 40 and 20 ops/s", on: PromiseOn::Ops(100), seconds: 30.0,
        jobs: SMALL_ABC, window_percent: None,
        phases: &[phase(
            rules!(("a", "limit = \"90ops/s\"\nrealtime = true"), ("b", "limit = \"40ops/s\"\nrealtime = true"), ("c", "limit = \"20ops/s\"\nrealtime = true")),
            &[near("a_ops_per_s", "a", 60.0, 2.0), near("b_ops_per_s", "b", 26.67, 2.0), near("c_ops_per_s", "c", 13.33, 2.0)],
        )],
    },
    PromiseCase {
        name: "realtime-disk", what: "a and b have `realtime` limits of 24 and 10 % of what the disk gives these jobs",
        on: PromiseOn::Disk, seconds: 30.0, jobs: LARGE_ABC, window_percent: None,
        phases: &[phase(
            rules!(("a", "limit = \"{24%}\"\nrealtime = true"), ("b", "limit = \"{10%}\"\nrealtime = true"), ("c", "weight = 100")),
            &[near("a_percent", "a", 24.0, 2.0), near("b_percent", "b", 10.0, 2.0), shown("c_percent", "c")],
        )],
    },
    PromiseCase {
        name: "spare-two", what: "`spare` rates of 150 and 100 ops/s", on: PromiseOn::Ops(1000), seconds: 30.0,
        jobs: SMALL_AB, window_percent: Some(2.0),
        phases: &[phase(SPARE_AB, &[near("a_ops_per_s", "a", 600.0, 2.0), near("b_ops_per_s", "b", 400.0, 2.0)])],
    },
    PromiseCase {
        name: "spare-hard", what: "`spare` 150 ops/s beside `realtime` 100", on: PromiseOn::Ops(1000), seconds: 30.0,
        jobs: SMALL_AB, window_percent: Some(2.0),
        phases: &[phase(
            rules!(("a", "limit = \"150ops/s\"\nspare = true"), ("b", "limit = \"100ops/s\"\nrealtime = true")),
            &[near("a_ops_per_s", "a", 900.0, 2.0), near("b_ops_per_s", "b", 100.0, 2.0)],
        )],
    },
    PromiseCase {
        name: "spare-three", what: "`spare` rates of 150, 100 and 50 ops/s", on: PromiseOn::Ops(600), seconds: 30.0,
        jobs: SMALL_ABC, window_percent: Some(2.0),
        phases: &[phase(SPARE_ABC, &[near("a_ops_per_s", "a", 300.0, 2.0), near("b_ops_per_s", "b", 200.0, 2.0), near("c_ops_per_s", "c", 100.0, 2.0)])],
    },
    PromiseCase {
        name: "spare-demand", what: "the same rates, and a asks for 170 ops/s", on: PromiseOn::Ops(600), seconds: 30.0,
        jobs: &[PromiseJob { per_s: Some(170.0), ..small("a") }, small("b"), small("c")], window_percent: Some(2.0),
        phases: &[phase(SPARE_ABC, &[near("a_ops_per_s", "a", 170.0, 2.0), near("b_ops_per_s", "b", 286.67, 2.0), near("c_ops_per_s", "c", 143.33, 2.0)])],
    },
    PromiseCase {
        name: "spare-none", what: "`spare` rates of 150 and 100 ops/s, and nothing to spare", on: PromiseOn::Ops(250), seconds: 30.0,
        jobs: SMALL_AB, window_percent: Some(2.0),
        phases: &[phase(SPARE_AB, &[near("a_ops_per_s", "a", 150.0, 2.0), near("b_ops_per_s", "b", 100.0, 2.0)])],
    },
    PromiseCase {
        name: "spare-bytes", what: "`spare` rates of 45 and 30 MB/s", on: PromiseOn::Slow, seconds: 30.0,
        jobs: AB, window_percent: Some(2.0),
        phases: &[phase(
            rules!(("a", "limit = \"45MB/s\"\nspare = true"), ("b", "limit = \"30MB/s\"\nspare = true")),
            &[near("a_mb_per_s", "a", 90.0, 2.0), near("b_mb_per_s", "b", 60.0, 2.0)],
        )],
    },
    PromiseCase {
        name: "spare-beside-a-weight", what: "`spare` 30 MB/s, whose weight is 300, beside a job of weight 1", on: PromiseOn::Slow,
        seconds: 30.0, jobs: AB, window_percent: None,
        phases: &[phase(
            rules!(("a", "limit = \"30MB/s\"\nspare = true"), ("b", "")),
            &[shown("a_mb_per_s", "a"), shown("b_mb_per_s", "b")],
        )],
    },
    PromiseCase {
        name: "limit-bytes", what: "a has a limit of 30 MB/s", on: PromiseOn::Slow, seconds: 30.0,
        jobs: AB, window_percent: Some(2.0),
        phases: &[phase(
            rules!(("a", "limit = \"30MB/s\""), ("b", "")),
            &[near("a_mb_per_s", "a", 30.0, 2.0), near("b_mb_per_s", "b", 120.0, 2.0)],
        )],
    },
    PromiseCase {
        name: "limit-ops", what: "a has a limit of 200 ops/s", on: PromiseOn::Ops(1000), seconds: 30.0,
        jobs: SMALL_AB, window_percent: Some(2.0),
        phases: &[phase(
            rules!(("a", "limit = \"200ops/s\""), ("b", "")),
            &[near("a_ops_per_s", "a", 200.0, 2.0), near("b_ops_per_s", "b", 800.0, 2.0)],
        )],
    },
    PromiseCase {
        name: "dependent-follow", what: "b follows a at 50 %, 5 to 20 MB/s; a has 30, then 60, then 4 MB/s", on: PromiseOn::Slow,
        seconds: 45.0, jobs: AB, window_percent: None,
        phases: &[
            phase(follow!("30MB/s"), &[near("a_mb_per_s", "a", 30.0, 2.0), near("b_mb_per_s", "b", 15.0, 2.0)]),
            phase(follow!("60MB/s"), &[near("raised_a_mb_per_s", "a", 60.0, 2.0), near("raised_b_mb_per_s", "b", 20.0, 2.0)]),
            phase(follow!("4MB/s"), &[near("lowered_a_mb_per_s", "a", 4.0, 2.0), near("lowered_b_mb_per_s", "b", 5.0, 2.0)]),
        ],
    },
    PromiseCase {
        name: "dependent-remainder", what: "b gets what a, of 50 MB/s, leaves of 80, and 70 at most", on: PromiseOn::Slow,
        seconds: 30.0, jobs: &[PromiseJob { phases: 1..9, ..backlogged("a") }, backlogged("b")], window_percent: None,
        phases: &[
            phase(REMAINDER, &[near("alone_b_mb_per_s", "b", 70.0, 2.0)]),
            phase(REMAINDER, &[near("a_mb_per_s", "a", 50.0, 2.0), near("b_mb_per_s", "b", 30.0, 2.0)]),
        ],
    },
    PromiseCase {
        name: "dependent-when-idle", what: "b has 60 MB/s while a is idle, else 5", on: PromiseOn::Slow, seconds: 45.0,
        jobs: &[PromiseJob { phases: 1..2, ..backlogged("a") }, backlogged("b")], window_percent: None,
        phases: &[
            phase(WHEN_IDLE, &[near("before_b_mb_per_s", "b", 60.0, 2.0)]),
            phase(WHEN_IDLE, &[near("beside_b_mb_per_s", "b", 5.0, 2.0)]),
            phase(WHEN_IDLE, &[near("after_b_mb_per_s", "b", 60.0, 2.0)]),
        ],
    },
];

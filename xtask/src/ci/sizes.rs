//! How much the tests by chance try: the same in every run, and printed under the table, so that
//! nobody takes fewer cases for a faster suite.

/// One size, by the variable that tests read it from.
#[derive(Debug)]
pub(crate) struct Size {
    pub(crate) variable: &'static str,
    /// What it counts.
    what: &'static str,
    usual: &'static str,
}

/// The sizes that the environment may change.
pub(crate) const ALL: &[Size] = &[
    Size { variable: "PROPTEST_CASES", what: "cases of each property", usual: "256" },
    Size {
        variable: "SLUICE_SEEDS",
        what: "seeds of scenarios and fleets by chance",
        usual: "100",
    },
    Size {
        variable: "SLUICE_LEASE_STEPS",
        what: "steps of mounts and proxies with leases",
        usual: "10000",
    },
    Size {
        variable: "SLUICE_SESSION_STEPS",
        what: "steps of sessions over a lossy network",
        usual: "10000",
    },
    Size { variable: "SLUICE_FUZZ_S", what: "seconds of fuzzing", usual: "60" },
    Size {
        variable: "SLUICE_HOSTILE_S",
        what: "seconds of attacks on a proxy, a controller and a mount, each",
        usual: "20",
    },
    Size { variable: "SLUICE_KILLS", what: "deaths of a proxy under load", usual: "5" },
    // They wait for other processes most of their time.
    Size { variable: "RUST_TEST_THREADS", what: "tests of a program at a time", usual: "4" },
];

impl Size {
    /// What the environment says, or else what is usual.
    pub(crate) fn value(&self) -> String {
        std::env::var(self.variable).unwrap_or_else(|_| self.usual.to_owned())
    }
}

/// One line for each.
pub(crate) fn text() -> String {
    let line = |size: &Size| format!("{}={}: {}\n", size.variable, size.value(), size.what);
    ALL.iter().map(line).collect()
}

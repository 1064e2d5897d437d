//! Named patterns of requests: which are slow and why, and what to do instead.
//!
//! ```text
//!   operations by kind, sizes and order of reads and writes, bytes ─► AccessStats ─► patterns()
//!                                                     for each row of the table: does it apply?
//! ```
//!
//! The names are those that a `[[decay]]` uses in `pattern_factors`. Bounds are integers of counts, so
//! the same sums always show the same patterns. A pattern needs a minimum of requests: the start of
//! a program is not typical of the hours that follow. docs/algorithms/patterns.md has the sources
//! of the bounds.

use std::str::FromStr;

use crate::{Accesses, OpKind};

/// Statistics of requests over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessStats {
    /// The payload of reads and writes.
    pub bytes: u64,
    /// Operations by kind, in the order of [`OpKind::ALL`].
    pub ops: [u64; OpKind::COUNT],
    /// The sizes and order of reads.
    pub reads: Accesses,
    /// The sizes and order of writes.
    pub writes: Accesses,
}

macro_rules! patterns {
    ($($variant:ident = $name:literal, $slow:literal, $is:expr,
        $what:literal, $advice:literal, $source:literal;)*) => {
        /// A named pattern of requests.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Pattern { $(#[doc = $what] $variant,)* }

        impl Pattern {
            /// Every pattern, in the order of reports.
            pub const ALL: &'static [Pattern] = &[$(Pattern::$variant,)*];

            /// The word for it in rules and reports.
            pub const fn name(self) -> &'static str {
                match self { $(Pattern::$variant => $name,)* }
            }

            /// Whether it is known to be slow.
            pub const fn is_slow(self) -> bool {
                match self { $(Pattern::$variant => $slow,)* }
            }

            /// The description, as a sentence.
            pub const fn what(self) -> &'static str {
                match self { $(Pattern::$variant => $what,)* }
            }

            /// The advice; empty where nothing needs to be done.
            pub const fn advice(self) -> &'static str {
                match self { $(Pattern::$variant => $advice,)* }
            }

            /// The reason why it is slow, or not; docs/algorithms/patterns.md has the sources.
            pub const fn source(self) -> &'static str {
                match self { $(Pattern::$variant => $source,)* }
            }

            fn is(self, seen: &AccessStats) -> bool {
                let is: fn(&AccessStats) -> bool = match self { $(Pattern::$variant => $is,)* };
                is(seen)
            }
        }
    };
}

patterns! {
    SmallWrites = "small-writes", true,
        |seen| is_dominant(seen.writes.small(), seen.writes.all()),
        "Most writes move less than 64 KiB.",
        "Write in blocks of 1 MiB or more: gather records in memory, give stdio or the library a \
         larger buffer, use collective buffering (MPI-IO) or chunks (HDF5).",
        "up to about 64 KiB a request takes the same time whatever it moves";
    RandomReads = "small-random-reads", true,
        |seen| {
            let reads = &seen.reads;
            is_dominant(reads.small(), reads.all()) && 2 * u128::from(reads.random) > reads.all().into()
        },
        "Most reads move less than 64 KiB, and most do not begin where a previous one ended.",
        "Read larger pieces in the order of the file, or copy the file into memory or onto the \
         node's own disk first and read it there.",
        "each one makes a disk seek, and read-ahead fetches unused data";
    RandomWrites = "random-writes", true,
        |seen| {
            let writes = &seen.writes;
            2 * u128::from(writes.random) > writes.all().into()
                && is_dominant(writes.small(), writes.all())
        },
        "Most writes move less than 64 KiB, and most do not begin where a previous one ended.",
        "Sort writes by their offset in the file, or let one process of a node gather them; a \
         file for each process and a later merge may be faster.",
        "scattered small writes contend for blocks and locks of the file";
    SmallReads = "small-reads", true,
        |seen| is_dominant(seen.reads.small(), seen.reads.all()),
        "Most reads move less than 64 KiB.",
        "Read in blocks of 1 MiB or more; many small files are better packed into one (tar, HDF5, \
         a database).",
        "up to about 64 KiB a request takes the same time whatever it moves";
    OpenPerAccess = "open-per-access", true,
        |seen| {
            let opens = seen.ops(OpKind::Open).saturating_add(seen.ops(OpKind::Create));
            let moved = seen.reads.all().saturating_add(seen.writes.all());
            opens >= ENOUGH && moved > 0 && 2 * u128::from(opens) > moved.into()
        },
        "A file is opened for every one or two reads and writes.",
        "Keep files open between accesses, and pack many small files into few large ones.",
        "each open is a request of its own to the metadata server, which serves all jobs";
    StatStorm = "stat-storm", true,
        |seen| {
            let looks = seen.ops(OpKind::Getattr).saturating_add(seen.ops(OpKind::Walk));
            is_dominant(looks, seen.all_ops())
        },
        "Most operations only look up names and attributes.",
        "Look at each file once and remember the answer; do not poll for files to appear; list a \
         directory without attributes (ls without -l, find without -size).",
        "each look-up is a request to the metadata server and moves no data";
    MetadataStorm = "metadata-storm", true,
        |seen| {
            let metadata = seen.metadata_ops();
            // Less than 64 KiB for each of these.
            metadata >= ENOUGH && u128::from(metadata) << 16 > seen.bytes.into()
        },
        "Names and attributes are read or changed more than once for each 64 KiB moved.",
        "Make fewer and larger files, create them in several directories, and leave temporary \
         files in memory or on the node's own disk.",
        "metadata is served by few servers, data by many";
    Sequential = "sequential", false,
        |seen| {
            let (reads, writes) = (&seen.reads, &seen.writes);
            let all = reads.all().saturating_add(writes.all());
            let random = reads.random.saturating_add(writes.random);
            let large = all.saturating_sub(reads.small()).saturating_sub(writes.small());
            is_dominant(large, all) && is_dominant(all.saturating_sub(random), all)
                && !Pattern::ALL.iter().any(|pattern| pattern.is_slow() && pattern.is(seen))
        },
        "Large reads and writes, each where a previous one ended.",
        "",
        "read-ahead and write-back work for it";
}

/// The error of a name that no pattern has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a pattern of requests; use one of {}", Pattern::ALL.iter().map(|pattern| pattern.name()).collect::<Vec<_>>().join(", "))]
pub struct ParsePatternError {
    name: String,
}

impl FromStr for Pattern {
    type Err = ParsePatternError;

    fn from_str(name: &str) -> Result<Pattern, ParsePatternError> {
        let known = Pattern::ALL.iter().find(|pattern| pattern.name() == name);
        known.copied().ok_or_else(|| ParsePatternError { name: name.chars().take(40).collect() })
    }
}

impl AccessStats {
    /// The patterns that apply, in the order of [`Pattern::ALL`].
    pub fn patterns(&self) -> impl Iterator<Item = Pattern> {
        Pattern::ALL.iter().copied().filter(|pattern| pattern.is(self))
    }

    /// The number of operations of one kind.
    pub fn ops(&self, kind: OpKind) -> u64 {
        self.ops[kind as usize]
    }

    /// The number of all operations.
    pub fn all_ops(&self) -> u64 {
        self.ops.iter().fold(0, |sum, ops| sum.saturating_add(*ops))
    }

    /// Operations that neither read nor write, without closes: each open has its close.
    pub fn metadata_ops(&self) -> u64 {
        let others = [OpKind::Read, OpKind::Write, OpKind::Clunk, OpKind::Attach];
        others.iter().fold(self.all_ops(), |sum, kind| sum.saturating_sub(self.ops(*kind)))
    }
}

/// Whether a part is three quarters or more of a sufficient whole.
fn is_dominant(part: u64, of: u64) -> bool {
    of >= ENOUGH && 4 * u128::from(part) >= 3 * u128::from(of)
}

/// The least number of requests that shows a pattern.
const ENOUGH: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    fn accesses(sizes: [u64; 4], random: u64) -> Accesses {
        Accesses { sizes, random }
    }

    /// Statistics of reads, writes, opens, attribute lookups and bytes.
    fn seen(reads: Accesses, writes: Accesses, opens: u64, looks: u64, bytes: u64) -> AccessStats {
        let mut seen = AccessStats { bytes, reads, writes, ..AccessStats::default() };
        let ops = [
            (OpKind::Read, reads.all()),
            (OpKind::Write, writes.all()),
            (OpKind::Open, opens),
            (OpKind::Clunk, opens),
            (OpKind::Getattr, looks),
        ];
        ops.into_iter().for_each(|(kind, count)| seen.ops[kind as usize] = count);
        seen
    }

    #[test]
    fn each_pattern_is_recognised_at_its_bounds() {
        let none = Accesses::default();
        let cases: &[(&str, AccessStats, &[&str])] = &[
            ("nothing", AccessStats::default(), &[]),
            (
                "99 small writes are too few",
                seen(none, accesses([99, 0, 0, 0], 0), 1, 0, 9_900),
                &[],
            ),
            (
                "small writes",
                seen(none, accesses([75, 0, 25, 0], 0), 1, 0, 25 << 17),
                &["small-writes"],
            ),
            (
                "a part below three quarters",
                seen(none, accesses([74, 0, 26, 0], 0), 1, 0, 26 << 17),
                &[],
            ),
            (
                "small random reads",
                seen(accesses([0, 100, 0, 0], 51), none, 1, 0, 100 << 14),
                &["small-random-reads", "small-reads"],
            ),
            (
                "small reads, half of them random",
                seen(accesses([0, 100, 0, 0], 50), none, 1, 0, 100 << 14),
                &["small-reads"],
            ),
            ("large random reads", seen(accesses([0, 0, 0, 100], 100), none, 1, 0, 100 << 20), &[]),
            (
                "small random writes",
                seen(none, accesses([100, 0, 0, 0], 100), 1, 0, 100 << 10),
                &["small-writes", "random-writes"],
            ),
            (
                "a file for each read",
                seen(accesses([0, 0, 100, 0], 0), none, 100, 0, 100 << 18),
                &["open-per-access"],
            ),
            ("looking only", seen(none, none, 0, 100, 0), &["stat-storm", "metadata-storm"]),
            (
                "a stream",
                seen(accesses([0, 0, 0, 60], 2), accesses([0, 0, 60, 0], 0), 2, 9, 120 << 20),
                &["sequential"],
            ),
        ];
        for (what, seen, wanted) in cases {
            let names: Vec<_> = seen.patterns().map(Pattern::name).collect();
            assert_eq!(&names, wanted, "{what}");
        }
    }

    #[test]
    fn every_name_is_read_again_and_every_slow_pattern_has_advice() {
        for pattern in Pattern::ALL {
            assert_eq!(pattern.name().parse(), Ok(*pattern));
            assert_eq!(pattern.is_slow(), !pattern.advice().is_empty(), "{pattern:?}");
        }
        let error = "small".parse::<Pattern>().unwrap_err().to_string();
        assert!(
            error.contains("\"small\" is not a pattern") && error.contains("small-writes"),
            "{error}"
        );
    }
}

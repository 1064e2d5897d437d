//! Usage: sums of one minute by subject, which age into coarser ones.
//!
//! ```text
//!   report ─► members: differences of counters, pending in memory        (each second, a million lines)
//!   tick ───► sums by subject ─► one transaction: minute, proxies' states  (each minute)
//!               └─ old minutes ─► chunks by subject ─► coarser ─► dropped
//!   by, series ◄── file + what is not written yet
//!   copy_since ──► commits since a cursor, and lines reported since ─► apply, at a standby controller
//! ```
//!
//! Invariants: reported usage is counted once, whatever is lost, late or doubled; sums and the
//! counters that they were made from are written together, so after a crash a ledger continues from
//! its last minute and the next reports bring the rest. A proxy therefore keeps a line for some
//! minutes after its last change, and drops it ([`UsageReport::dropped_lines`]) only then. Memory is
//! bounded ([`LedgerBounds`]); usage beyond the bounds counts for [`OTHER`].
//!
//! A point of time belongs to a period if its first minute does: points that have become coarse are
//! not split.

mod chunks;
mod codec;
mod file;
mod lines;
mod proxy_counters;
mod replication;
mod retention;
mod row;
mod state;
mod subjects;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{Nanos, Service, Time};
use usage::UsageReport;

pub use codec::CodecError;
pub use proxy_counters::{LedgerBounds, UsageOutcome};
pub use replication::{ReplicationBatch, ReplicationCursor};
pub use retention::{Minute, Retention, RetentionError, RetentionTier};
pub use subjects::{OTHER, SubjectKind};

use crate::sqlite::SqliteError;
use codec::LedgerReader;
use file::{LedgerFile, WrittenRows};
use proxy_counters::ProxyCounters;
use subjects::{LedgerSubjects, NAME_BYTES_MAX};

/// The usage of all subjects, in memory and in one file.
pub struct Ledger {
    file: LedgerFile,
    bounds: LedgerBounds,
    proxies: ProxyCounters,
    subjects: LedgerSubjects,
    /// The minute of the last tick.
    clock: Option<Minute>,
    /// The term under which minutes are written.
    term: u64,
    /// Identifies this run of the process, for cursors.
    boot: u64,
    /// The number of the last copy, from 1.
    generation: u32,
    /// The run of the leader's process, and its copy, that this one applied last.
    copied: (u64, u32),
}

/// Sums of one point of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerPoint {
    /// The start of the span.
    pub at: Time,
    /// The length of the span.
    pub span: Nanos,
    /// The usage in it.
    pub sums: Service,
}

/// The current sizes of a ledger in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerStats {
    /// The number of known proxies.
    pub proxies: usize,
    /// Lines of all proxies.
    pub lines: usize,
    /// The number of subjects in memory.
    pub subjects: usize,
}

/// An error of a call of a ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file failed; the data to write is still in memory.
    #[error(transparent)]
    Sqlite(#[from] SqliteError),
    /// A file that this program did not write.
    #[error("{}: {source}; move the file away or restore a copy of it", path.display())]
    Damaged {
        /// The file that is damaged.
        path: PathBuf,
        /// The part that is not valid.
        #[source]
        source: CodecError,
    },
    /// A proxy's name that is not valid.
    #[error("{name:?} is not a name of a proxy: 1 to {} bytes", NAME_BYTES_MAX)]
    BadProxy {
        /// The name, cut short.
        name: String,
    },
    /// More proxies report than the ledger may keep.
    #[error("proxy {name} rejected: {proxies_max} proxies, the maximum, reported in the last hour")]
    TooManyProxies {
        /// The proxy that was rejected.
        name: String,
        /// The maximum number of proxies.
        proxies_max: usize,
    },
    /// A copy that does not follow the state here: copy the whole file.
    #[error("cannot apply a copy: {problem}; copy the leader's whole file")]
    Copy {
        /// The problem with the copy.
        problem: String,
    },
}

impl Ledger {
    /// Opens the ledger in `path`, and creates it if it does not exist: a new one counts from
    /// `now`, and ignores what proxies had counted before.
    pub fn open(
        path: &Path,
        ages: Retention,
        bounds: LedgerBounds,
        now: Time,
    ) -> Result<Ledger, LedgerError> {
        let mut file = LedgerFile::open(path, ages, now.as_nanos())?;
        let open = file.open_rows()?;
        let mut ledger = Ledger {
            term: file.at().term,
            file,
            bounds,
            proxies: ProxyCounters::new(bounds),
            subjects: LedgerSubjects::new(bounds.subjects_max),
            clock: None,
            boot: boot(),
            generation: 1,
            copied: (0, 0),
        };
        for row in &open {
            ledger.subjects.add_named(row.kind, &row.name, &row.sums);
        }
        Ok(ledger)
    }

    /// Takes a report of a proxy in its epoch: the start of its service, in nanoseconds since 1970; a
    /// restarted proxy has a later one. Nothing is written: that waits for [`Ledger::tick`].
    pub fn report(
        &mut self,
        proxy: &str,
        epoch_ns: u64,
        report: &UsageReport,
        now: Time,
    ) -> Result<UsageOutcome, LedgerError> {
        let (at, is_new) = self.proxy_index(proxy)?;
        let adopt = is_new && epoch_ns < self.file.at().born_ns;
        self.proxies.get_mut(at).seen = Minute::of(now);
        let subjects = &mut self.subjects;
        Ok(self.proxies.report(at, epoch_ns, report, adopt, self.generation, subjects))
    }

    /// Counts for a subject without a line, in the same minute as the reports beside it.
    pub fn charge(&mut self, kind: SubjectKind, name: &str, sums: &Service) {
        self.subjects.add_named(kind, name, sums);
    }

    /// Writes the minute that is over, if any: true if so. Call it each second; if it fails, the
    /// next call retries and nothing is lost in between.
    pub fn tick(&mut self, now: Time) -> Result<bool, LedgerError> {
        let now = Minute::of(now);
        let clock = *self.clock.get_or_insert(now);
        if now == clock {
            return Ok(false);
        }
        self.commit(clock.max(Minute::new(now.number().saturating_sub(1))))?;
        self.clock = Some(now);
        Ok(true)
    }

    /// Writes the open minute, before the process ends.
    pub fn flush(&mut self, now: Time) -> Result<(), LedgerError> {
        self.commit(Minute::of(now))
    }

    /// Starts to write under the term of the current leader.
    pub fn lead(&mut self, term: u64) {
        self.term = term;
        self.copied = (0, 0);
    }

    /// Returns sums by subject of a kind over `[from, to)`, including the open minute.
    pub fn sums_by(
        &mut self,
        kind: SubjectKind,
        from: Time,
        to: Time,
    ) -> Result<BTreeMap<String, Service>, LedgerError> {
        let mut found: BTreeMap<String, Service> = BTreeMap::new();
        self.each_point(kind, None, from, to, |name, _, _, sums| match found.get_mut(name) {
            Some(all) => all.add(sums),
            None => {
                found.insert(name.to_string(), *sums);
            }
        })?;
        Ok(found)
    }

    /// Returns the points of one subject over `[from, to)`, oldest first; none without usage.
    pub fn series(
        &mut self,
        kind: SubjectKind,
        name: &str,
        from: Time,
        to: Time,
    ) -> Result<Vec<LedgerPoint>, LedgerError> {
        let mut found: BTreeMap<(Minute, u32), Service> = BTreeMap::new();
        self.each_point(kind, Some(name), from, to, |_, at, span, sums| {
            found.entry((at, span)).or_default().add(sums);
        })?;
        let minutes = |count: u32| u64::from(count) * 60_000_000_000;
        Ok(found
            .into_iter()
            .map(|((at, span), sums)| LedgerPoint {
                at: Time::from_nanos(minutes(at.number())),
                span: Nanos::new(minutes(span)),
                sums,
            })
            .collect())
    }

    /// Returns every point of a kind's subjects over `[from, to)`, in no order: the subject's name,
    /// the start of the point, and its sums. The same point may come in several pieces.
    pub fn points(
        &mut self,
        kind: SubjectKind,
        from: Time,
        to: Time,
        mut each: impl FnMut(&str, Minute, &Service),
    ) -> Result<(), LedgerError> {
        self.each_point(kind, None, from, to, |name, at, _, sums| each(name, at, sums))
    }

    /// Returns the current sizes in memory.
    pub fn stats(&self) -> LedgerStats {
        LedgerStats {
            proxies: self.proxies.all().len(),
            lines: self.proxies.lines(),
            subjects: self.subjects.count(),
        }
    }

    /// Returns a proxy's index, and whether it is new to this ledger.
    fn proxy_index(&mut self, name: &str) -> Result<(usize, bool), LedgerError> {
        if let Some(at) = self.proxies.find(name) {
            return Ok((at, false));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let name = name.chars().take(40).collect();
            return Err(LedgerError::BadProxy { name });
        }
        let too_many = || LedgerError::TooManyProxies {
            name: name.to_string(),
            proxies_max: self.bounds.proxies_max,
        };
        let Some(state) = self.file.proxy_state(name)? else {
            let at = self.proxies.insert(name, &mut self.subjects);
            return Ok((at.ok_or_else(too_many)?, true));
        };
        let mut reader = LedgerReader::new(&state);
        let taken =
            state::read_proxy(&mut reader, &mut self.proxies, &mut self.subjects, self.generation);
        match taken {
            Ok(at) => Ok((at, false)),
            Err(state::StateError::Codec(source)) => Err(self.file.damaged(source)),
            Err(_) => Err(too_many()),
        }
    }

    fn commit(&mut self, minute: Minute) -> Result<(), LedgerError> {
        self.proxies.sum(self.generation, &mut self.subjects);
        let at = self.file.at();
        let next = WrittenRows {
            commit: at.commit + 1,
            term: self.term,
            // a clock that went back: the last minute gets more until it is passed
            minute: minute.max(at.minute),
            ..at
        };
        let states = states(&self.proxies, &self.subjects);
        self.file.commit(next, &mut self.subjects, &states)?;
        self.subjects.clear_sums();
        self.proxies.set_saved();
        self.forget_old(next.minute);
        Ok(())
    }

    /// Drops everything that is not in the file.
    fn forget_all(&mut self) {
        self.proxies = ProxyCounters::new(self.bounds);
        self.subjects = LedgerSubjects::new(self.bounds.subjects_max);
        // a standby that copies from here starts from the beginning as well
        self.boot = boot();
    }

    /// Drops what need not be in memory any more, after `minute` was written.
    fn forget_old(&mut self, minute: Minute) {
        let oldest = Minute::new(minute.number().saturating_sub(MEMBER_IN_MEMORY));
        self.proxies.evict(oldest, &mut self.subjects);
        self.subjects.sweep();
    }

    fn each_point(
        &mut self,
        kind: SubjectKind,
        name: Option<&str>,
        from: Time,
        to: Time,
        mut each: impl FnMut(&str, Minute, u32, &Service),
    ) -> Result<(), LedgerError> {
        let (from, to) = (Minute::of(from), ceiling(to));
        self.file.points(kind, name, from, to, &mut each)?;
        let open = self.clock.unwrap_or_default().max(self.file.at().minute);
        if open < from || open >= to {
            return Ok(());
        }
        self.proxies.pending(kind, &self.subjects, |of, sums| {
            if !sums.is_zero() && name.is_none_or(|name| name == of) {
                each(of, open, 1, sums);
            }
        });
        for (_, slot) in self.subjects.touched() {
            if slot.kind == kind && name.is_none_or(|name| *name == *slot.name) {
                each(&slot.name, open, 1, &row::service(slot.sums));
            }
        }
        Ok(())
    }
}

/// Returns the states of proxies that the file does not have.
fn states<'a>(
    members: &'a ProxyCounters,
    subjects: &LedgerSubjects,
) -> Vec<(&'a str, Minute, Vec<u8>)> {
    let unsaved = members.all().iter().filter(|member| member.is_unsaved);
    let encoded = unsaved.map(|member| {
        let mut state = Vec::new();
        state::write_proxy(&mut state, member, subjects, None);
        (member.name.as_str(), member.seen, state)
    });
    encoded.collect()
}

/// Returns the first minute that does not begin before `time`.
fn ceiling(time: Time) -> Minute {
    let floor = Minute::of(time);
    if time.as_nanos().is_multiple_of(60_000_000_000) { floor } else { floor.plus(1) }
}

/// Returns a number that no other run of the process has.
fn boot() -> u64 {
    let mut bytes = [0; 8];
    let random = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    random.expect("the kernel gives 8 random bytes at once since it has booted");
    u64::from_le_bytes(bytes)
}

/// The minutes that a proxy without reports stays in memory; the file has it for longer.
const MEMBER_IN_MEMORY: u32 = 60;

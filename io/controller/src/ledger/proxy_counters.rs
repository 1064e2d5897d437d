//! The last reported counters of each proxy: reports become differences here, in memory only.
//!
//! ```text
//!   report: proxy, epoch, sequence ── older than what is here? ─► nothing
//!       │ newer epoch ─► all lines begin at zero
//!       ├─ lines ─► differences, pending in each line
//!       └─ total ─► what it grew by more than the lines did is pending for "(other)"
//!
//!   sum ─► pending of every line ─► its job, user, group, project, class, export, proxy
//! ```
//!
//! Bounds: [`LedgerBounds`]. A line above them is not kept, so nothing can be subtracted from it;
//! its usage counts for `(other)` through the proxy's total, exactly.

use std::collections::HashMap;

use model::{OpKind, Service};
use rustc_hash::FxHashMap;

use usage::UsageReport;

use super::lines::LineCounters;
use super::retention::Minute;
use super::row::{self, FIELDS};
use super::subjects::{
    LINE_KINDS, LedgerSubjects, LineSubjects, OTHER, SlotId, SubjectKind, names,
};

/// The outcome of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageOutcome {
    /// Whether it was older than the state here, or a duplicate, so that it was ignored.
    pub stale: bool,
    /// Lines above the bounds: they count for `(other)`.
    pub refused: usize,
    /// The growth of lines: their indices in the report, in order.
    pub grown: Vec<(usize, Service)>,
}

/// The bounds of a ledger in memory: about 400 bytes a line, with what a commit needs for a moment,
/// and 400 and its name a subject. With the defaults that is at most 850 MB; a million lines of
/// 1,000 proxies took 407 MB (`examples/ledger_load.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerBounds {
    /// Proxies that reported within the last hour.
    pub proxies_max: usize,
    /// Lines of one proxy.
    pub lines_of_proxy_max: usize,
    /// Lines of all proxies.
    pub lines_max: usize,
    /// Subjects of lines, and subjects that were served in the last minute.
    pub subjects_max: usize,
}

/// All proxies that reported.
pub(crate) struct ProxyCounters {
    proxies: Vec<ProxyEpoch>,
    by_name: HashMap<String, usize>,
    lines: usize,
    bounds: LedgerBounds,
}

/// One proxy in its current epoch, with its lines.
pub(crate) struct ProxyEpoch {
    pub(crate) name: String,
    pub(crate) subject: SlotId,
    pub(crate) epoch_ns: u64,
    pub(crate) sequence: u64,
    /// The minute of the last report.
    pub(crate) seen: Minute,
    /// Its total as last reported.
    pub(crate) total: Service,
    /// The growth of the total beyond that of the lines (less, if below zero), not summed.
    pub(crate) without_line: [i64; FIELDS],
    pub(crate) lines: Vec<LineCounters>,
    by_id: FxHashMap<u64, u32>,
    /// Indices of lines that have something pending.
    pending: Vec<u32>,
    /// Whether lines were refused in this epoch: their usage counts for the others already.
    pub(crate) has_refused: bool,
    /// Whether it differs from the file.
    pub(crate) is_unsaved: bool,
    /// The generation of copies in which it last changed, or a line was dropped.
    pub(crate) changed: u32,
    pub(crate) dropped: u32,
}

impl Default for LedgerBounds {
    fn default() -> LedgerBounds {
        LedgerBounds {
            proxies_max: 4_096,
            lines_of_proxy_max: 65_536,
            lines_max: 1_500_000,
            subjects_max: 262_144,
        }
    }
}

impl ProxyCounters {
    pub(crate) fn new(bounds: LedgerBounds) -> ProxyCounters {
        ProxyCounters { proxies: Vec::new(), by_name: HashMap::new(), lines: 0, bounds }
    }

    /// Takes a report of a proxy that is here. `adopt` says that its counters were counted before
    /// this ledger began.
    pub(crate) fn report(
        &mut self,
        at: usize,
        epoch_ns: u64,
        report: &UsageReport,
        adopt: bool,
        generation: u32,
        subjects: &mut LedgerSubjects,
    ) -> UsageOutcome {
        let mut received = UsageOutcome::default();
        let member = &self.proxies[at];
        let older = (epoch_ns, report.sequence) <= (member.epoch_ns, member.sequence);
        if older {
            received.stale = true;
            return received;
        }
        if epoch_ns != member.epoch_ns {
            self.begin_epoch(at, epoch_ns, generation, subjects);
        }
        let (mut room, bounds) = (self.bounds.lines_max - self.lines, self.bounds);
        let member = &mut self.proxies[at];
        member.sequence = report.sequence;
        let mut news = [0; FIELDS];
        for (nth, told) in report.lines.iter().enumerate() {
            let (place, adopt) = match member.by_id.get(&told.id) {
                Some(place) => (*place, adopt),
                None => {
                    if room == 0 || member.lines.len() >= bounds.lines_of_proxy_max {
                        received.refused += 1;
                        member.has_refused = true;
                        continue;
                    }
                    room -= 1;
                    self.lines += 1;
                    let of_line = acquire_all(subjects, &names(&told.subject));
                    // its usage while it was refused counts for the others
                    let counted = member.has_refused;
                    (
                        member.insert(LineCounters::new(told.id, of_line, generation)),
                        adopt || counted,
                    )
                }
            };
            if let Some(grown) = member.add_line_report(place, &told.service, adopt, generation) {
                add_fields(&mut news, &grown);
                received.grown.push((nth, row::service(grown)));
            }
        }
        member.add_total_report(&report.total, adopt, &news);
        member.changed = generation;
        member.is_unsaved = true;
        self.drop_lines(at, &report.dropped_lines, generation, subjects);
        received
    }

    /// Adds what is pending to the sums of subjects.
    pub(crate) fn sum(&mut self, generation: u32, subjects: &mut LedgerSubjects) {
        let mut all = Service::default();
        for member in &mut self.proxies {
            let other = member.usage_without_line();
            if member.pending.is_empty() && other.is_zero() {
                continue;
            }
            (member.changed, member.is_unsaved) = (generation, true);
            let mut of_member = other;
            for place in std::mem::take(&mut member.pending) {
                let line = &mut member.lines[place as usize];
                if line.is_pending {
                    sum_line(line, generation, subjects, &mut of_member);
                }
            }
            // a debt of the total stays
            member.without_line.iter_mut().for_each(|field| *field = (*field).min(0));
            for kind in LINE_KINDS.into_iter().filter(|kind| *kind != SubjectKind::Project) {
                if !other.is_zero() {
                    subjects.add_named(kind, OTHER, &other);
                }
            }
            subjects.add_all(member.subject, &of_member);
            all.add(&of_member);
        }
        subjects.add_kinds(&all);
    }

    /// Returns what [`ProxyCounters::sum`] would add to the subjects of a kind, by name. It stays
    /// pending: a query changes nothing, at a standby controller least of all.
    pub(crate) fn pending(
        &self,
        kind: SubjectKind,
        subjects: &LedgerSubjects,
        mut each: impl FnMut(&str, &Service),
    ) {
        let of_line = LINE_KINDS.iter().position(|of_line| *of_line == kind);
        for member in &self.proxies {
            let other = member.usage_without_line();
            let mut of_member = other;
            for line in member.pending.iter().map(|place| &member.lines[*place as usize]) {
                let sums = line.halves().1;
                match of_line.map(|at| line.subjects[at]) {
                    Some(Some(id)) => each(&subjects.slot(id).name, &sums),
                    Some(None) => {}
                    None => of_member.add(&sums),
                }
            }
            match kind {
                SubjectKind::Proxy => each(&member.name, &of_member),
                SubjectKind::OpKind => {
                    OpKind::ALL.iter().for_each(|kind| each(kind.name(), &of_member.part_of(*kind)))
                }
                SubjectKind::Project | SubjectKind::Decay | SubjectKind::Owner => {}
                _ => each(OTHER, &other),
            }
        }
    }

    /// Returns the index of a proxy, if it is here.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Makes room for a proxy that is not here; `None` if there are too many.
    pub(crate) fn insert(&mut self, name: &str, subjects: &mut LedgerSubjects) -> Option<usize> {
        if self.proxies.len() >= self.bounds.proxies_max {
            return None;
        }
        self.proxies.push(ProxyEpoch {
            name: name.to_string(),
            subject: subjects.acquire(SubjectKind::Proxy, name),
            epoch_ns: 0,
            sequence: 0,
            seen: Minute::default(),
            total: Service::default(),
            without_line: [0; FIELDS],
            has_refused: false,
            lines: Vec::new(),
            by_id: FxHashMap::default(),
            pending: Vec::new(),
            is_unsaved: false,
            changed: 0,
            dropped: 0,
        });
        self.by_name.insert(name.to_string(), self.proxies.len() - 1);
        Some(self.proxies.len() - 1)
    }

    /// Drops proxies that were last seen before `oldest` and are saved.
    pub(crate) fn evict(&mut self, oldest: Minute, subjects: &mut LedgerSubjects) {
        for at in (0..self.proxies.len()).rev() {
            let member = &self.proxies[at];
            if member.seen >= oldest || member.is_unsaved {
                continue;
            }
            let member = self.proxies.swap_remove(at);
            self.by_name.remove(&member.name);
            if let Some(moved) = self.proxies.get(at) {
                self.by_name.insert(moved.name.clone(), at);
            }
            self.lines -= member.lines.len();
            member.lines.iter().for_each(|line| release_all(subjects, &line.subjects));
            subjects.release(member.subject);
        }
    }

    /// Drops all lines of a proxy; what is pending of them is summed first.
    fn clear_lines(&mut self, at: usize, generation: u32, subjects: &mut LedgerSubjects) {
        let member = &mut self.proxies[at];
        let mut sums = Service::default();
        for line in &mut member.lines {
            if line.is_pending {
                sum_line(line, generation, subjects, &mut sums);
            }
        }
        subjects.add_all(member.subject, &sums);
        subjects.add_kinds(&sums);
        self.forget_lines(at, generation, subjects);
    }

    /// Drops all lines of a proxy with what is pending of them: they are reported again.
    pub(crate) fn forget_lines(
        &mut self,
        at: usize,
        generation: u32,
        subjects: &mut LedgerSubjects,
    ) {
        let member = &mut self.proxies[at];
        member.lines.iter().for_each(|line| release_all(subjects, &line.subjects));
        self.lines -= member.lines.len();
        member.lines.clear();
        member.by_id.clear();
        member.pending.clear();
        member.dropped = generation;
    }

    /// Puts a line of another ledger in place of the one of that number; false if there is no room.
    pub(crate) fn restore_line(
        &mut self,
        at: usize,
        line: LineCounters,
        subjects: &mut LedgerSubjects,
    ) -> bool {
        if let Some(place) = self.proxies[at].by_id.get(&line.id).copied() {
            let old = &mut self.proxies[at].lines[place as usize];
            release_all(subjects, &old.subjects);
            let was_pending = std::mem::replace(old, line).is_pending;
            let member = &mut self.proxies[at];
            member.lines[place as usize].is_pending = was_pending;
            member.note_pending(place);
            return true;
        }
        if self.lines >= self.bounds.lines_max {
            return false;
        }
        self.lines += 1;
        let place = self.proxies[at].insert(line);
        self.proxies[at].note_pending(place);
        true
    }

    pub(crate) fn all(&self) -> &[ProxyEpoch] {
        &self.proxies
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> &mut ProxyEpoch {
        &mut self.proxies[at]
    }

    /// Marks everything as saved in the file.
    pub(crate) fn set_saved(&mut self) {
        self.proxies.iter_mut().for_each(|member| member.is_unsaved = false);
    }

    /// Returns the number of lines in memory.
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }

    fn begin_epoch(
        &mut self,
        at: usize,
        epoch_ns: u64,
        generation: u32,
        subjects: &mut LedgerSubjects,
    ) {
        self.clear_lines(at, generation, subjects);
        let member = &mut self.proxies[at];
        member.epoch_ns = epoch_ns;
        member.total = Service::default();
        member.has_refused = false;
    }

    /// Drops lines that their proxy has dropped; what is pending of them is summed first.
    fn drop_lines(
        &mut self,
        at: usize,
        gone: &[u64],
        generation: u32,
        subjects: &mut LedgerSubjects,
    ) {
        let member = &mut self.proxies[at];
        let mut sums = Service::default();
        let before = member.lines.len();
        for id in gone {
            let Some(place) = member.by_id.remove(id) else { continue };
            let mut line = member.lines.swap_remove(place as usize);
            if line.is_pending {
                sum_line(&mut line, generation, subjects, &mut sums);
            }
            release_all(subjects, &line.subjects);
            if let Some(moved) = member.lines.get(place as usize) {
                member.by_id.insert(moved.id, place);
            }
        }
        if member.lines.len() == before {
            return;
        }
        subjects.add_all(member.subject, &sums);
        subjects.add_kinds(&sums);
        self.lines -= before - member.lines.len();
        // places have moved: the list is made again
        let pending = member.lines.iter().enumerate().filter(|(_, line)| line.is_pending);
        member.pending = pending.map(|(place, _)| place as u32).collect();
        member.dropped = generation;
    }
}

impl ProxyEpoch {
    /// Returns the line of that number.
    pub(crate) fn line(&self, id: u64) -> Option<&LineCounters> {
        self.by_id.get(&id).map(|place| &self.lines[*place as usize])
    }

    /// Adds a line; returns its index.
    fn insert(&mut self, line: LineCounters) -> u32 {
        let place = u32::try_from(self.lines.len()).expect("lines are bounded");
        self.by_id.insert(line.id, place);
        self.lines.push(line);
        place
    }

    /// Returns the growth of the line; `None` if it did not grow.
    fn add_line_report(
        &mut self,
        place: u32,
        told: &Service,
        adopt: bool,
        generation: u32,
    ) -> Option<[u64; FIELDS]> {
        let line = &mut self.lines[place as usize];
        if adopt {
            line.adopt(told);
            return None;
        }
        let mut grown = [0; FIELDS];
        if !line.add_report(told, &mut grown) {
            return None;
        }
        line.changed = generation;
        if !line.is_pending {
            line.is_pending = true;
            self.pending.push(place);
        }
        Some(grown)
    }

    /// Puts a line that came with something pending on the list.
    fn note_pending(&mut self, place: u32) {
        let line = &mut self.lines[place as usize];
        let any = line.pending().1.iter().any(|value| *value != 0);
        if any && !line.is_pending {
            line.is_pending = true;
            self.pending.push(place);
        }
    }

    fn add_total_report(&mut self, told: &Service, adopt: bool, news: &[u64; FIELDS]) {
        let (told_fields, last) = (row::fields(told), row::fields(&self.total));
        self.total = *told;
        if adopt {
            return;
        }
        let restarted = told_fields.iter().zip(&last).any(|(now, last)| now < last);
        for (index, unplaced) in self.without_line.iter_mut().enumerate() {
            let grown = told_fields[index] - if restarted { 0 } else { last[index] };
            let more = i128::from(grown) - i128::from(news[index]);
            let sum = (i128::from(*unplaced) + more).clamp(i64::MIN.into(), i64::MAX.into());
            *unplaced = sum as i64;
        }
    }

    /// Returns the usage without a line; none if lines have more than the total.
    fn usage_without_line(&self) -> Service {
        row::service(self.without_line.map(|field| field.max(0).unsigned_abs()))
    }
}

fn add_fields(sums: &mut [u64; FIELDS], more: &[u64; FIELDS]) {
    sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
}

/// The slots of a line's names.
pub(crate) fn acquire_all(
    subjects: &mut LedgerSubjects,
    names: &[Option<String>; 6],
) -> LineSubjects {
    let mut taken = [None; 6];
    for ((slot, kind), name) in taken.iter_mut().zip(LINE_KINDS).zip(names) {
        *slot = name.as_ref().map(|name| subjects.acquire(kind, name));
    }
    taken
}

fn release_all(subjects: &mut LedgerSubjects, line: &LineSubjects) {
    line.iter().flatten().for_each(|id| subjects.release(*id));
}

/// Adds what is pending in a line to its subjects, and to `sums`.
fn sum_line(
    line: &mut LineCounters,
    generation: u32,
    subjects: &mut LedgerSubjects,
    sums: &mut Service,
) {
    let (mask, values) = line.pending();
    for id in line.subjects.iter().flatten() {
        subjects.add(*id, mask, values);
    }
    sums.add(&line.halves().1);
    line.clear_pending();
    line.changed = generation;
}

//! Replication to standby controllers: the changes since a cursor.
//!
//! ```text
//!   leader                                            standby controller
//!   save_to ─► the whole file ──────────────────────► open, cursor = its last commit
//!   copy_since(cursor) ─► commits after it, sums that ─► apply: memory, and the file where
//!                         are not written, changed       there was a commit
//!                         lines since the last copy
//! ```
//!
//! A copy is one moment: counted usage is in its commits, in its open sums or pending in its lines,
//! in exactly one of them. Commits carry their term; a standby controller whose last commit the
//! leader does not have (another history) copies the whole file. What the leader had not replicated
//! when it died is in the next report of each proxy, because reports are cumulative: the new leader
//! subtracts what it knows.

use model::Service;

use super::codec::{CodecError, LedgerReader, put_number, put_sums, put_text};
use super::file::{LedgerRow, WrittenRows};
use super::retention::Minute;
use super::row;
use super::state::{StateError, read_proxy, write_proxy};
use super::subjects::SubjectKind;
use super::{Ledger, LedgerError, MEMBER_IN_MEMORY, states};

/// The cursor of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicationCursor {
    /// When the copied ledger was created, in nanoseconds since 1970.
    pub born_ns: u64,
    /// The number of the last copied commit.
    pub commit: u64,
    /// The term that wrote it.
    pub term: u64,
    /// The run of the leader's process that gave the last copy.
    pub boot: u64,
    /// The number of that copy.
    pub generation: u32,
}

/// The result of [`Ledger::copy_since`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicationBatch {
    /// The changes, for [`Ledger::apply`].
    Changes(Vec<u8>),
    /// The cursor is too far behind, or of another history: copy the whole file
    /// ([`Ledger::save_to`]).
    CopyFile,
}

impl Ledger {
    /// Returns the cursor of this ledger in its leader's copies.
    pub fn cursor(&self) -> ReplicationCursor {
        let at = self.file.at();
        let (boot, generation) = self.copied;
        ReplicationCursor {
            born_ns: at.born_ns,
            commit: at.commit,
            term: at.term,
            boot,
            generation,
        }
    }

    /// Returns the changes since the cursor of a standby controller.
    pub fn copy_since(
        &mut self,
        cursor: &ReplicationCursor,
    ) -> Result<ReplicationBatch, LedgerError> {
        if cursor.born_ns != self.file.at().born_ns {
            return Ok(ReplicationBatch::CopyFile);
        }
        let Some((commits, minutes)) = self.file.commits_after(cursor.commit, cursor.term)? else {
            return Ok(ReplicationBatch::CopyFile);
        };
        let since = (cursor.boot == self.boot).then_some(cursor.generation);
        if since.is_none() {
            self.load_proxies()?;
        }
        let mut out = vec![FORMAT];
        for number in [cursor.commit, cursor.term, self.boot, self.generation.into()] {
            put_number(&mut out, number);
        }
        put_number(&mut out, commits.len() as u64);
        for commit in &commits {
            for number in [commit.commit, commit.term, commit.minute.number().into()] {
                put_number(&mut out, number);
            }
        }
        put_number(&mut out, minutes.len() as u64);
        for (minute, rows) in &minutes {
            put_number(&mut out, minute.number().into());
            put_number(&mut out, rows.len() as u64);
            rows.iter().for_each(|row| put_row(&mut out, row.kind, &row.name, &row.sums));
        }
        let open = self.subjects.touched().map(|(_, slot)| slot);
        put_number(&mut out, open.clone().count() as u64);
        for slot in open {
            put_row(&mut out, slot.kind, &slot.name, &row::service(slot.sums));
        }
        let members = self.proxies.all().iter();
        let members = members.filter(|member| since.is_none_or(|since| member.changed > since));
        put_number(&mut out, members.clone().count() as u64);
        members.for_each(|member| write_proxy(&mut out, member, &self.subjects, since));
        self.generation += 1;
        Ok(ReplicationBatch::Changes(out))
    }

    /// Applies a leader's copy. If it fails, replace this ledger by the whole file.
    pub fn apply(&mut self, changes: &[u8]) -> Result<(), LedgerError> {
        let at = self.file.at();
        let mut reader = LedgerReader::new(changes);
        let copy = ReplicatedTier::read(&mut reader, at).map_err(|error| refused(&error))?;
        if copy.from != (at.commit, at.term) {
            let (commit, term) = copy.from;
            return Err(LedgerError::Copy {
                problem: format!(
                    "it follows commit {commit} of term {term}, not commit {} of term {}",
                    at.commit, at.term
                ),
            });
        }
        if copy.to.0 != self.copied.0 {
            // another leader's: what this one holds besides its file may be ahead of it
            self.forget_all();
        }
        self.subjects.clear_sums();
        for row in &copy.open {
            self.subjects.add_named(row.kind, &row.name, &row.sums);
        }
        self.read_proxies(&mut reader)?;
        let states = match copy.commits.is_empty() {
            true => Vec::new(),
            false => states(&self.proxies, &self.subjects),
        };
        let swept = self.file.apply(&copy.commits, &copy.minutes, &copy.open, &states)?;
        if let Some(last) = copy.commits.last() {
            self.term = last.term;
            self.proxies.set_saved();
            self.forget_old(last.minute);
        }
        if swept {
            self.subjects.forget_rows();
        }
        self.copied = copy.to;
        Ok(())
    }

    /// Writes the whole ledger to a new file, for a standby controller or as a backup, without what
    /// is not committed yet.
    pub fn save_to(&mut self, path: &std::path::Path) -> Result<(), LedgerError> {
        self.file.save_to(path)
    }

    /// Loads every proxy of the last hour into memory, so that a copy has all of them.
    fn load_proxies(&mut self) -> Result<(), LedgerError> {
        let minute = self.file.at().minute.number();
        let oldest = Minute::new(minute.saturating_sub(MEMBER_IN_MEMORY));
        for name in self.file.proxies_since(oldest)? {
            self.proxy_index(&name)?;
        }
        Ok(())
    }

    fn read_proxies(&mut self, reader: &mut LedgerReader<'_>) -> Result<(), LedgerError> {
        let count = reader.count("a count of proxies").map_err(|error| refused(&error))?;
        for _ in 0..count {
            // a proxy without reports for long is in the file only
            let name = reader.peek_text("a proxy's name").map_err(|error| refused(&error))?;
            self.proxy_index(name)?;
            let generation = self.generation;
            read_proxy(reader, &mut self.proxies, &mut self.subjects, generation)
                .map_err(|error: StateError| LedgerError::Copy { problem: error.to_string() })?;
        }
        if reader.is_empty() {
            return Ok(());
        }
        Err(refused(&reader.wrong("the end of a copy")))
    }
}

/// A copy without its proxies.
struct ReplicatedTier {
    from: (u64, u64),
    to: (u64, u32),
    commits: Vec<WrittenRows>,
    minutes: Vec<(Minute, Vec<LedgerRow>)>,
    open: Vec<LedgerRow>,
}

impl ReplicatedTier {
    fn read(reader: &mut LedgerReader<'_>, at: WrittenRows) -> Result<ReplicatedTier, CodecError> {
        if reader.number("a copy's format")? != u64::from(FORMAT) {
            return Err(reader.wrong("a copy of this format"));
        }
        let mut copy = ReplicatedTier {
            from: (reader.number("a commit")?, reader.number("a term")?),
            to: (reader.number("a boot")?, reader.small("a generation")?),
            commits: Vec::new(),
            minutes: Vec::new(),
            open: Vec::new(),
        };
        for _ in 0..reader.count("a count of commits")? {
            copy.commits.push(WrittenRows {
                commit: reader.number("a commit")?,
                term: reader.number("a term")?,
                minute: Minute::new(reader.small("a minute")?),
                ..at
            });
        }
        for _ in 0..reader.count("a count of minutes")? {
            let minute = Minute::new(reader.small("a minute")?);
            copy.minutes.push((minute, read_rows(reader)?));
        }
        copy.open = read_rows(reader)?;
        Ok(copy)
    }
}

/// The format of copies: both sides must have versions that agree on it.
const FORMAT: u8 = 2;

fn put_row(out: &mut Vec<u8>, kind: SubjectKind, name: &str, sums: &Service) {
    put_number(out, kind as u64);
    put_text(out, name);
    put_sums(out, sums);
}

fn read_rows(reader: &mut LedgerReader<'_>) -> Result<Vec<LedgerRow>, CodecError> {
    let mut rows = Vec::new();
    for _ in 0..reader.count("a count of rows")? {
        let kind = SubjectKind::from_number(reader.number("a kind of subject")?);
        rows.push(LedgerRow {
            kind: kind.ok_or(reader.wrong("a kind of subject"))?,
            name: reader.text("a subject's name")?.to_string(),
            sums: reader.sums()?,
        });
    }
    Ok(rows)
}

fn refused(error: &CodecError) -> LedgerError {
    LedgerError::Copy { problem: error.to_string() }
}

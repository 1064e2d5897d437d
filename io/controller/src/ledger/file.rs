//! The ledger's file, which is written once a minute and read by queries.
//!
//! ```text
//!   subject  id ─ kind, name                      member   proxy ─ its state (state.rs)
//!   minute   (minute, subject) ─ sums             commits  number ─ term, minute
//!   chunk    (subject, age, first minute) ─ up to 60 points (chunks.rs)
//!   open     kind, name ─ a leader's sums of the open minute, at a standby controller
//! ```
//!
//! Minutes are stored by time, because each commit writes one minute of every subject; minutes
//! older than two hours move into chunks by subject, because queries are about a subject. Each
//! commit is one transaction, synced before it counts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use model::Service;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::LedgerError;
use super::chunks;
use super::codec::{CodecError, LedgerReader, put_sums};
use super::retention::{Minute, Retention};
use super::row;
use super::subjects::{LedgerSubjects, SlotId, SubjectKind};
use crate::sqlite::{FileKind, make_private};

/// The file with its last commit.
pub(crate) struct LedgerFile {
    path: PathBuf,
    connection: Connection,
    ages: Retention,
    at: WrittenRows,
}

/// The last commit of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WrittenRows {
    /// When the ledger was created, in nanoseconds since 1970.
    pub(crate) born_ns: u64,
    /// The number of the commit.
    pub(crate) commit: u64,
    /// The term that wrote it.
    pub(crate) term: u64,
    /// The minute that it completed.
    pub(crate) minute: Minute,
}

/// One row of a minute or of a result.
#[derive(Clone, Debug)]
pub(crate) struct LedgerRow {
    pub(crate) kind: SubjectKind,
    pub(crate) name: String,
    pub(crate) sums: Service,
}

impl LedgerFile {
    /// Opens the file; a new one begins at `now_ns`.
    pub(crate) fn open(
        path: &Path,
        ages: Retention,
        now_ns: u64,
    ) -> Result<LedgerFile, LedgerError> {
        let connection = KIND.open(path)?;
        let mut file =
            LedgerFile { path: path.into(), connection, ages, at: WrittenRows::default() };
        file.at = file.transaction(|transaction, _| {
            transaction.execute(
                "INSERT OR IGNORE INTO meta (only_one, born_ns, number, term, minute)
                 VALUES (1, ?1, 0, 0, 0)",
                [signed(now_ns)],
            )?;
            transaction.execute(
                "INSERT OR IGNORE INTO commits (number, term, minute)
                 SELECT number, term, minute FROM meta",
                [],
            )?;
            let written = transaction.query_row(
                "SELECT born_ns, number, term, minute FROM meta",
                [],
                |row| {
                    Ok(WrittenRows {
                        born_ns: unsigned(row.get(0)?),
                        commit: unsigned(row.get(1)?),
                        term: unsigned(row.get(2)?),
                        minute: minute(row.get(3)?),
                    })
                },
            )?;
            Ok(written)
        })?;
        Ok(file)
    }

    pub(crate) fn at(&self) -> WrittenRows {
        self.at
    }

    /// Makes an error about the content of the file.
    pub(crate) fn damaged(&self, source: CodecError) -> LedgerError {
        LedgerError::Damaged { path: self.path.clone(), source }
    }

    /// Writes the sums of one minute and the states of proxies as the commit after the last.
    pub(crate) fn commit(
        &mut self,
        next: WrittenRows,
        subjects: &mut LedgerSubjects,
        states: &[(&str, Minute, Vec<u8>)],
    ) -> Result<(), LedgerError> {
        let merge = next.minute == self.at.minute;
        let before = self.at;
        let (made, swept) = self.transaction(|transaction, ages| {
            let mut writer = LedgerFileWriter::new(transaction, next.minute);
            let mut sums = Vec::new();
            for (id, slot) in subjects.touched() {
                let row = match slot.row {
                    Some(row) => row,
                    None => writer.subject(id, slot.kind, &slot.name)?,
                };
                let more = row::service(slot.sums);
                sums.push((row, more));
            }
            // in the order of the table: pages are filled one after another
            sums.sort_unstable_by_key(|(row, _)| *row);
            for (row, more) in &sums {
                writer.minute_row(next.minute, *row, more, merge)?;
            }
            for (name, seen, state) in states {
                writer.write_proxy_state(name, *seen, state)?;
            }
            writer.commit_row(next)?;
            let made = writer.made;
            transaction.execute("DELETE FROM open", [])?;
            let swept = grow_older(transaction, ages, before.minute, next.minute)?;
            Ok((made, swept))
        })?;
        self.at = next;
        if swept {
            subjects.forget_rows();
        } else {
            made.into_iter().for_each(|(id, row)| subjects.set_row(id, row));
        }
        Ok(())
    }

    /// Writes commits of another ledger, and the states of proxies.
    pub(crate) fn apply(
        &mut self,
        commits: &[WrittenRows],
        minutes: &[(Minute, Vec<LedgerRow>)],
        open: &[LedgerRow],
        states: &[(&str, Minute, Vec<u8>)],
    ) -> Result<bool, LedgerError> {
        let Some(last) = commits.last().copied() else { return Ok(false) };
        let before = self.at;
        let swept = self.transaction(|transaction, ages| {
            let mut writer = LedgerFileWriter::new(transaction, last.minute);
            for (at, rows) in minutes {
                transaction.execute("DELETE FROM minute WHERE minute = ?1", [at.number()])?;
                for row in rows {
                    let subject = writer.subject(SlotId::MIN, row.kind, &row.name)?;
                    writer.minute_row(*at, subject, &row.sums, true)?;
                }
            }
            for (name, seen, state) in states {
                writer.write_proxy_state(name, *seen, state)?;
            }
            for commit in commits {
                writer.commit_row(*commit)?;
            }
            transaction.execute("DELETE FROM open", [])?;
            for row in open {
                writer.open_row(row)?;
            }
            grow_older(transaction, ages, before.minute, last.minute)
        })?;
        self.at = WrittenRows { born_ns: before.born_ns, ..last };
        Ok(swept)
    }

    /// Returns the proxies that were seen since `oldest`.
    pub(crate) fn proxies_since(&mut self, oldest: Minute) -> Result<Vec<String>, LedgerError> {
        self.transaction(|transaction, _| {
            let mut rows =
                transaction.prepare_cached("SELECT name FROM member WHERE seen >= ?1")?;
            let names = rows.query_map([oldest.number()], |row| row.get(0))?;
            Ok(names.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Returns the sums that a leader had not committed when this standby controller last wrote.
    pub(crate) fn open_rows(&mut self) -> Result<Vec<LedgerRow>, LedgerError> {
        self.transaction(|transaction, _| {
            rows_by(transaction, "SELECT kind, name, sums FROM open WHERE ?1 = 0", 0)
        })
    }

    /// Returns the state of one proxy.
    pub(crate) fn proxy_state(&mut self, name: &str) -> Result<Option<Vec<u8>>, LedgerError> {
        self.transaction(|transaction, _| {
            let mut row = transaction.prepare_cached("SELECT state FROM member WHERE name = ?1")?;
            Ok(row.query_row([name], |row| row.get(0)).optional()?)
        })
    }

    /// Returns the commits after `number` and their minutes' rows; `None` if they are not all here
    /// or the one of that number is of another term.
    #[expect(clippy::type_complexity, reason = "two lists that are one moment")]
    pub(crate) fn commits_after(
        &mut self,
        number: u64,
        term: u64,
    ) -> Result<Option<(Vec<WrittenRows>, Vec<(Minute, Vec<LedgerRow>)>)>, LedgerError> {
        let at = self.at;
        self.transaction(|transaction, _| {
            let mut commits = transaction
                .prepare_cached(
                    "SELECT number, term, minute FROM commits WHERE number >= ?1 ORDER BY number",
                )?
                .query_map([signed(number)], |row| {
                    Ok(WrittenRows {
                        born_ns: at.born_ns,
                        commit: unsigned(row.get(0)?),
                        term: unsigned(row.get(1)?),
                        minute: minute(row.get(2)?),
                    })
                })?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let same = commits.first().is_some_and(|c| (c.commit, c.term) == (number, term));
            if !same {
                return Ok(None);
            }
            commits.remove(0);
            let mut minutes: Vec<(Minute, Vec<LedgerRow>)> = Vec::new();
            for commit in &commits {
                if minutes.last().is_none_or(|(last, _)| *last != commit.minute) {
                    minutes.push((commit.minute, rows_of(transaction, commit.minute)?));
                }
            }
            Ok(Some((commits, minutes)))
        })
    }

    /// Returns every point whose first minute is in `[from, to)`, of one subject or of a kind.
    pub(crate) fn points(
        &mut self,
        kind: SubjectKind,
        name: Option<&str>,
        from: Minute,
        to: Minute,
        mut each: impl FnMut(&str, Minute, u32, &Service),
    ) -> Result<(), LedgerError> {
        self.transaction(|transaction, ages| {
            let mut subjects = transaction.prepare_cached(
                "SELECT id, name FROM subject WHERE kind = ?1 AND (?2 IS NULL OR name = ?2)",
            )?;
            let names: HashMap<i64, String> = subjects
                .query_map(params![kind as u8, name], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()?;
            for (id, name) in &names {
                chunks::points(transaction, ages, *id, from, to, |at, span, sums| {
                    each(name, at, span, sums);
                })?;
            }
            let mut rows = transaction.prepare_cached(
                "SELECT minute, subject, sums FROM minute WHERE minute >= ?1 AND minute < ?2",
            )?;
            let mut rows = rows.query([from.number(), to.number()])?;
            while let Some(row) = rows.next()? {
                if let Some(name) = names.get(&row.get(1)?) {
                    let sums = LedgerReader::new(row.get_ref(2)?.as_blob()?).sums()?;
                    each(name, minute(row.get(0)?), 1, &sums);
                }
            }
            Ok(())
        })
    }

    /// Writes a copy of the whole file to `path`, which must not exist yet.
    pub(crate) fn save_to(&mut self, path: &Path) -> Result<(), LedgerError> {
        make_private(path)?;
        let saved = self.connection.execute("VACUUM INTO ?1", [path.to_string_lossy()]);
        saved.map_err(|source| KIND.failed(path, source))?;
        Ok(())
    }

    fn transaction<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>, &Retention) -> Result<T, FileError>,
    ) -> Result<T, LedgerError> {
        let (connection, ages) = (&mut self.connection, &self.ages);
        let run = || {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let answer = work(&transaction, ages)?;
            transaction.commit()?;
            Ok(answer)
        };
        run().map_err(|error| match error {
            FileError::Sqlite(source) => KIND.failed(&self.path, source).into(),
            FileError::Codec(source) => LedgerError::Damaged { path: self.path.clone(), source },
        })
    }
}

/// The reason why a transaction was rolled back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error(transparent)]
    Codec(#[from] CodecError),
}

impl From<rusqlite::types::FromSqlError> for FileError {
    fn from(error: rusqlite::types::FromSqlError) -> FileError {
        FileError::Sqlite(error.into())
    }
}

/// The rows of one transaction.
struct LedgerFileWriter<'t> {
    transaction: &'t Transaction<'t>,
    minute: Minute,
    /// Subjects that were given a row.
    made: Vec<(SlotId, i64)>,
    bytes: Vec<u8>,
}

impl<'t> LedgerFileWriter<'t> {
    fn new(transaction: &'t Transaction<'t>, minute: Minute) -> LedgerFileWriter<'t> {
        LedgerFileWriter { transaction, minute, made: Vec::new(), bytes: Vec::new() }
    }

    fn subject(&mut self, id: SlotId, kind: SubjectKind, name: &str) -> rusqlite::Result<i64> {
        let row = self
            .transaction
            .prepare_cached(
                "INSERT INTO subject (kind, name, used) VALUES (?1, ?2, ?3)
                 ON CONFLICT (kind, name) DO UPDATE SET used = ?3 RETURNING id",
            )?
            .query_row(params![kind as u8, name, self.minute.number()], |row| row.get(0))?;
        self.made.push((id, row));
        Ok(row)
    }

    fn minute_row(
        &mut self,
        minute: Minute,
        subject: i64,
        sums: &Service,
        merge: bool,
    ) -> Result<(), FileError> {
        let mut sums = *sums;
        if merge {
            let mut old = self
                .transaction
                .prepare_cached("SELECT sums FROM minute WHERE minute = ?1 AND subject = ?2")?;
            let mut old = old.query(params![minute.number(), subject])?;
            if let Some(row) = old.next()? {
                sums.add(&LedgerReader::new(row.get_ref(0)?.as_blob()?).sums()?);
            }
        }
        self.bytes.clear();
        put_sums(&mut self.bytes, &sums);
        self.transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO minute (minute, subject, sums) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![minute.number(), subject, self.bytes])?;
        Ok(())
    }

    fn write_proxy_state(
        &mut self,
        name: &str,
        seen: Minute,
        state: &[u8],
    ) -> rusqlite::Result<()> {
        self.transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO member (name, seen, state) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![name, seen.number(), state])?;
        Ok(())
    }

    fn open_row(&mut self, row: &LedgerRow) -> rusqlite::Result<()> {
        self.bytes.clear();
        put_sums(&mut self.bytes, &row.sums);
        self.transaction
            .prepare_cached("INSERT INTO open (kind, name, sums) VALUES (?1, ?2, ?3)")?
            .execute(params![row.kind as u8, row.name, self.bytes])?;
        Ok(())
    }

    fn commit_row(&mut self, at: WrittenRows) -> rusqlite::Result<()> {
        let (number, term, minute) = (signed(at.commit), signed(at.term), at.minute.number());
        self.transaction
            .prepare_cached("INSERT INTO commits (number, term, minute) VALUES (?1, ?2, ?3)")?
            .execute(params![number, term, minute])?;
        self.transaction
            .prepare_cached("UPDATE meta SET number = ?1, term = ?2, minute = ?3")?
            .execute(params![number, term, minute])?;
        Ok(())
    }
}

/// Moves old minutes and chunks; true if subjects were removed, so that their rows are void.
fn grow_older(
    transaction: &Transaction<'_>,
    ages: &Retention,
    before: Minute,
    now: Minute,
) -> Result<bool, FileError> {
    chunks::grow_older(transaction, ages, now)?;
    let delete = |sql: &str, before: u32| transaction.prepare_cached(sql)?.execute([before]);
    delete("DELETE FROM commits WHERE minute < ?1", now.number().saturating_sub(COMMITS_RETAINED))?;
    if before.number() / DAY == now.number() / DAY {
        return Ok(false);
    }
    delete("DELETE FROM member WHERE seen < ?1", now.number().saturating_sub(PROXY_RETENTION))?;
    // `used` is as old as the subject's last chunk at most: by then its points are dropped
    let last = ages.count() - 1;
    let oldest = ages.oldest(last, now).number();
    let oldest = oldest.saturating_sub(2 * ages.chunk_span(last) + DAY);
    let removed = delete("DELETE FROM subject WHERE used < ?1", oldest)?;
    Ok(removed > 0)
}

fn rows_of(transaction: &Transaction<'_>, at: Minute) -> Result<Vec<LedgerRow>, FileError> {
    const ROWS: &str =
        "SELECT kind, name, sums FROM minute JOIN subject ON id = subject WHERE minute = ?1";
    rows_by(transaction, ROWS, at.number())
}

fn rows_by(
    transaction: &Transaction<'_>,
    select: &str,
    parameter: u32,
) -> Result<Vec<LedgerRow>, FileError> {
    let mut rows = transaction.prepare_cached(select)?;
    let mut rows = rows.query([parameter])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let kind = SubjectKind::from_number(row.get::<_, u32>(0)?.into());
        found.push(LedgerRow {
            kind: kind.ok_or(LedgerReader::new(&[]).wrong("a kind of subject"))?,
            name: row.get(1)?,
            sums: LedgerReader::new(row.get_ref(2)?.as_blob()?).sums()?,
        });
    }
    Ok(found)
}

/// The minutes of commits from which a copy can continue; a standby further behind copies the file.
const COMMITS_RETAINED: u32 = 30;
const DAY: u32 = 24 * 60;
/// The time for which the counters of a proxy without reports are kept: if it returns later, it
/// counts from zero again.
const PROXY_RETENTION: u32 = 30 * DAY;

const KIND: FileKind = FileKind {
    application_id: 0x534c_554c, // "SLUL"
    format: 1,
    name: "ledger of a controller",
    schema: "
        CREATE TABLE meta (
            only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
            born_ns INTEGER NOT NULL,
            number INTEGER NOT NULL,
            term INTEGER NOT NULL,
            minute INTEGER NOT NULL
        ) STRICT;
        CREATE TABLE subject (
            id INTEGER PRIMARY KEY,
            kind INTEGER NOT NULL,
            name TEXT NOT NULL,
            used INTEGER NOT NULL,
            UNIQUE (kind, name)
        ) STRICT;
        CREATE TABLE minute (
            minute INTEGER NOT NULL,
            subject INTEGER NOT NULL,
            sums BLOB NOT NULL,
            PRIMARY KEY (minute, subject)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE chunk (
            subject INTEGER NOT NULL,
            age INTEGER NOT NULL,
            first INTEGER NOT NULL,
            points BLOB NOT NULL,
            PRIMARY KEY (subject, age, first)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX chunk_by_time ON chunk (age, first);
        CREATE TABLE member (
            name TEXT PRIMARY KEY,
            seen INTEGER NOT NULL,
            state BLOB NOT NULL
        ) STRICT;
        CREATE TABLE open (
            kind INTEGER NOT NULL,
            name TEXT NOT NULL,
            sums BLOB NOT NULL
        ) STRICT;
        CREATE TABLE commits (
            number INTEGER PRIMARY KEY,
            term INTEGER NOT NULL,
            minute INTEGER NOT NULL
        ) STRICT;",
};

fn minute(number: i64) -> Minute {
    Minute::new(u32::try_from(number).unwrap_or(0))
}

/// Converts to the signed numbers of SQLite: the same bits.
fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn unsigned(number: i64) -> u64 {
    number.cast_unsigned()
}

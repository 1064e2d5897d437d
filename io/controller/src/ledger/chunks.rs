//! Sums by subject, in chunks of up to 60 points, that age.
//!
//! ```text
//!   minutes, 2 h old ─► chunk of 60 points of 1 min ─► of 10 min ─► of 1 h ─► dropped
//!                       by hour                        by 10 h      by 60 h
//! ```
//!
//! Each commit moves a bounded part of what is due, so no commit takes long: up to
//! [`STEP`] subjects of the oldest hour, and as many chunks of each age. A move adds to
//! what the coarser point holds already and removes the finer one, in the transaction
//! of the commit: every sum is in one place at any moment.

use std::collections::BTreeMap;

use rusqlite::{Transaction, params};

use super::codec::{CodecError, LedgerReader, put_number, put_sums};
use super::file::FileError;
use super::retention::{Minute, POINTS, Retention};
use model::Service;

/// The points of one chunk, by their first minute.
type Points = BTreeMap<Minute, Service>;

/// Moves a part of what is due.
pub(crate) fn grow_older(
    transaction: &Transaction<'_>,
    ages: &Retention,
    now: Minute,
) -> Result<(), FileError> {
    chunk_minutes(transaction, ages, now)?;
    for age in 0..ages.count() {
        let due = ages.oldest(age, now).number().saturating_sub(ages.chunk_span(age));
        if age + 1 < ages.count() {
            coarsen(transaction, ages, age, due)?;
        } else {
            transaction
                .prepare_cached(
                    "DELETE FROM chunk WHERE (subject, age, first) IN
                     (SELECT subject, age, first FROM chunk WHERE age = ?1 AND first < ?2 LIMIT ?3)",
                )?
                .execute(params![age as i64, due, STEP])?;
        }
    }
    Ok(())
}

/// Every point of a subject whose first minute is in `[from, to)`.
pub(crate) fn points(
    transaction: &Transaction<'_>,
    ages: &Retention,
    subject: i64,
    from: Minute,
    to: Minute,
    mut each: impl FnMut(Minute, u32, &Service),
) -> Result<(), FileError> {
    for age in 0..ages.count() {
        let mut rows = transaction.prepare_cached(
            "SELECT first, points FROM chunk
             WHERE subject = ?1 AND age = ?2 AND first > ?3 - ?4 AND first < ?5",
        )?;
        let span = ages.chunk_span(age);
        let mut rows =
            rows.query(params![subject, age as i64, from.number(), span, to.number()])?;
        while let Some(row) = rows.next()? {
            let first = Minute::new(row.get(0)?);
            for (at, sums) in decode(ages, age, first, row.get_ref(1)?.as_blob()?)? {
                if at >= from && at < to {
                    each(at, ages.span(age), &sums);
                }
            }
        }
    }
    Ok(())
}

/// Moves minutes of the oldest hour that is over for long enough.
fn chunk_minutes(
    transaction: &Transaction<'_>,
    ages: &Retention,
    now: Minute,
) -> Result<(), FileError> {
    let oldest: Option<u32> =
        transaction.query_row("SELECT min(minute) FROM minute", [], |row| row.get(0))?;
    let Some(oldest) = oldest.map(Minute::new) else { return Ok(()) };
    let hour = ages.chunk(0, oldest);
    if hour.plus(POINTS + MINUTES_RETAINED) > now {
        return Ok(());
    }
    // the subjects of the oldest minute from the first on: when they are moved, it has others
    let (lowest, highest): (Option<i64>, Option<i64>) = transaction
        .prepare_cached(
            "SELECT min(subject), max(subject) FROM
             (SELECT subject FROM minute WHERE minute = ?1 ORDER BY subject LIMIT ?2)",
        )?
        .query_row(params![oldest.number(), STEP], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut chunks: BTreeMap<i64, Points> = BTreeMap::new();
    let mut select = transaction.prepare_cached(
        "SELECT subject, sums FROM minute WHERE minute = ?1 AND subject BETWEEN ?2 AND ?3",
    )?;
    let mut delete = transaction
        .prepare_cached("DELETE FROM minute WHERE minute = ?1 AND subject BETWEEN ?2 AND ?3")?;
    for minute in (0..POINTS).map(|minutes| hour.plus(minutes)) {
        let range = params![minute.number(), lowest, highest];
        let mut rows = select.query(range)?;
        while let Some(row) = rows.next()? {
            let sums = LedgerReader::new(row.get_ref(1)?.as_blob()?).sums()?;
            chunks.entry(row.get(0)?).or_default().entry(minute).or_default().add(&sums);
        }
        drop(rows);
        delete.execute(range)?;
    }
    let mut used =
        transaction.prepare_cached("UPDATE subject SET used = max(used, ?2) WHERE id = ?1")?;
    for (subject, points) in chunks {
        used.execute(params![subject, hour.number() + POINTS])?;
        merge(transaction, ages, 0, subject, hour, points)?;
    }
    Ok(())
}

/// Moves chunks of an age that begin before `due` to the next age.
fn coarsen(
    transaction: &Transaction<'_>,
    ages: &Retention,
    age: usize,
    due: u32,
) -> Result<(), FileError> {
    let mut chunks: BTreeMap<(i64, Minute), Points> = BTreeMap::new();
    let mut moved = Vec::new();
    let mut rows = transaction.prepare_cached(
        "SELECT subject, first, points FROM chunk WHERE age = ?1 AND first < ?2
         ORDER BY first LIMIT ?3",
    )?;
    let mut rows = rows.query(params![age as i64, due, STEP])?;
    while let Some(row) = rows.next()? {
        let (subject, first): (i64, u32) = (row.get(0)?, row.get(1)?);
        for (at, sums) in decode(ages, age, Minute::new(first), row.get_ref(2)?.as_blob()?)? {
            let chunk = chunks.entry((subject, ages.chunk(age + 1, at))).or_default();
            chunk.entry(ages.point(age + 1, at)).or_default().add(&sums);
        }
        moved.push((subject, first));
    }
    for ((subject, first), points) in chunks {
        merge(transaction, ages, age + 1, subject, first, points)?;
    }
    let mut delete = transaction
        .prepare_cached("DELETE FROM chunk WHERE subject = ?1 AND age = ?2 AND first = ?3")?;
    for (subject, first) in moved {
        delete.execute(params![subject, age as i64, first])?;
    }
    Ok(())
}

/// Adds points to a chunk, which may be there already.
fn merge(
    transaction: &Transaction<'_>,
    ages: &Retention,
    age: usize,
    subject: i64,
    first: Minute,
    mut points: Points,
) -> Result<(), FileError> {
    let key = params![subject, age as i64, first.number()];
    let mut old = transaction.prepare_cached(
        "SELECT points FROM chunk WHERE subject = ?1 AND age = ?2 AND first = ?3",
    )?;
    let mut old = old.query(key)?;
    if let Some(row) = old.next()? {
        for (at, sums) in decode(ages, age, first, row.get_ref(0)?.as_blob()?)? {
            points.entry(at).or_default().add(&sums);
        }
    }
    drop(old);
    let mut bytes = Vec::new();
    for (at, sums) in &points {
        put_number(&mut bytes, u64::from((at.number() - first.number()) / ages.span(age)));
        put_sums(&mut bytes, sums);
    }
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO chunk (subject, age, first, points) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![subject, age as i64, first.number(), bytes])?;
    Ok(())
}

fn decode(ages: &Retention, age: usize, first: Minute, bytes: &[u8]) -> Result<Points, CodecError> {
    let mut reader = LedgerReader::new(bytes);
    let mut points = Points::new();
    while !reader.is_empty() {
        let place = reader.small("a point's place")?;
        if place >= POINTS {
            return Err(reader.wrong("a point's place"));
        }
        points.insert(first.plus(place * ages.span(age)), reader.sums()?);
    }
    Ok(points)
}

/// How much of what is due one commit moves: in an hour, as many subjects as fit in memory.
/// It takes about 0.3 ms for each, its 60 minutes read and written as a chunk.
const STEP: i64 = 4_608;
/// Minutes that stay by time after their hour is over, for questions about just now.
const MINUTES_RETAINED: u32 = 60;

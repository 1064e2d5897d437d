//! A proxy's state in bytes: in the ledger's file, and in copies to standby controllers.
//!
//! ```text
//!   proxy, form and whole?, epoch, sequence, seen, total, unplaced, refused?
//!   names: kind, text …                                of lines that are new to the reader
//!   lines: id, names by their places (0: known), as last reported, not summed yet …
//! ```
//!
//! The file, or a copy, shows one moment together with the sums beside it: counted usage is either
//! in the sums or pending here, never both.

use std::collections::HashMap;

use super::codec::{CodecError, LedgerReader, put_number, put_sums, put_text};
use super::lines::LineCounters;
use super::proxy_counters::{ProxyCounters, ProxyEpoch, acquire_all};
use super::retention::Minute;
use super::row::{FIELDS, FIELDS_1};
use super::subjects::{LINE_KINDS, LedgerSubjects, SlotId};

/// The reason why a proxy's state cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error("line {0} came without its subject and is not known here")]
    Unknown(u64),
    #[error("proxy {0} exceeds the bounds here; use the same bounds as the leader")]
    NoRoom(String),
}

/// Writes what changed after the generation `since`; everything for `None`.
pub(crate) fn write_proxy(
    out: &mut Vec<u8>,
    member: &ProxyEpoch,
    subjects: &LedgerSubjects,
    since: Option<u32>,
) {
    let since = since.filter(|since| member.dropped <= *since);
    let is_new = |generation: u32| since.is_none_or(|since| generation > since);
    put_text(out, &member.name);
    put_number(out, FORM | if since.is_none() { WHOLE } else { 0 });
    put_number(out, member.epoch_ns);
    put_number(out, member.sequence);
    put_number(out, u64::from(member.seen.number()));
    put_sums(out, &member.total);
    put_number(out, FIELDS as u64);
    for unplaced in member.without_line {
        put_number(out, ((unplaced << 1) ^ (unplaced >> 63)) as u64);
    }
    put_number(out, u64::from(member.has_refused));
    let mut places: HashMap<SlotId, u64> = HashMap::new();
    let mut names = Vec::new();
    for id in member
        .lines
        .iter()
        .filter(|line| is_new(line.defined))
        .flat_map(|line| line.subjects.iter().flatten())
    {
        let next = places.len() as u64;
        places.entry(*id).or_insert_with(|| {
            put_text(&mut names, &subjects.slot(*id).name);
            next
        });
    }
    put_number(out, places.len() as u64);
    out.append(&mut names);
    let lines = || member.lines.iter().filter(|line| is_new(line.changed));
    put_number(out, lines().count() as u64);
    for line in lines() {
        put_number(out, line.id);
        put_number(out, u64::from(is_new(line.defined)));
        if is_new(line.defined) {
            // 0 for none, else the place and 1
            for id in line.subjects {
                put_number(out, id.map_or(0, |id| places[&id] + 1));
            }
        }
        let (last, pending) = line.halves();
        put_sums(out, &last);
        put_sums(out, &pending);
    }
}

/// Set in the form of a state that starts from the beginning.
const WHOLE: u64 = 1;
/// Set in the form of a state that has a count of its fields; without it they are [`FIELDS_1`].
const FORM: u64 = 2;

/// Reads what [`write_proxy`] wrote; returns the proxy's index.
pub(crate) fn read_proxy(
    reader: &mut LedgerReader<'_>,
    members: &mut ProxyCounters,
    subjects: &mut LedgerSubjects,
    generation: u32,
) -> Result<usize, StateError> {
    let name = reader.text("a proxy's name")?;
    let no_room = || StateError::NoRoom(name.to_string());
    let at = match members.find(name) {
        Some(at) => at,
        None => members.insert(name, subjects).ok_or_else(no_room)?,
    };
    let form = reader.number("whether a proxy is whole")?;
    if form > FORM | WHOLE {
        return Err(reader.wrong("a proxy's state of a known form").into());
    }
    if form & WHOLE != 0 {
        members.forget_lines(at, generation, subjects);
    }
    let member = members.get_mut(at);
    member.epoch_ns = reader.number("an epoch")?;
    member.sequence = reader.number("a sequence")?;
    member.seen = Minute::new(reader.small("a minute")?);
    member.total = reader.sums()?;
    let count = if form & FORM == 0 { FIELDS_1 } else { reader.count("a count of fields")? };
    let mut unplaced = [0; FIELDS];
    let fields = unplaced.get_mut(..count).ok_or(reader.wrong("a count of fields"))?;
    for field in fields {
        let number = reader.number("what no line has")?;
        *field = ((number >> 1) as i64) ^ -((number & 1) as i64);
    }
    member.without_line = unplaced;
    member.has_refused = reader.number("whether lines were refused")? != 0;
    member.changed = generation;
    member.is_unsaved = true;
    let mut names = Vec::new();
    for _ in 0..reader.count("a count of names")? {
        names.push(reader.text("a name")?);
    }
    for _ in 0..reader.count("a count of lines")? {
        let line = read_line(reader, members, at, &names, subjects, generation)?;
        if !members.restore_line(at, line, subjects) {
            return Err(no_room());
        }
    }
    Ok(at)
}

fn read_line(
    reader: &mut LedgerReader<'_>,
    members: &ProxyCounters,
    at: usize,
    names: &[&str],
    subjects: &mut LedgerSubjects,
    generation: u32,
) -> Result<LineCounters, StateError> {
    let id = reader.number("a line's number")?;
    let mut line = if reader.number("whether a line is new")? != 0 {
        let mut of_line = [const { None }; LINE_KINDS.len()];
        for name in &mut of_line {
            let place = reader.number("a name's place")?;
            *name = match place.checked_sub(1) {
                None => None,
                Some(place) => {
                    let found = usize::try_from(place).ok().and_then(|place| names.get(place));
                    Some(found.ok_or(reader.wrong("a name's place"))?.to_string())
                }
            };
        }
        LineCounters::new(id, acquire_all(subjects, &of_line), generation)
    } else {
        let known = members.all()[at].line(id).ok_or(StateError::Unknown(id))?;
        known.subjects.iter().flatten().for_each(|id| subjects.add_use(*id));
        let mut line = LineCounters::new(id, known.subjects, known.defined);
        line.changed = generation;
        line
    };
    let last = reader.sums()?;
    let pending = reader.sums()?;
    line.restore(&last, &pending);
    Ok(line)
}

#[cfg(test)]
mod tests {
    use model::Service;

    use super::*;
    use crate::ledger::proxy_counters::LedgerBounds;

    #[test]
    fn a_state_of_the_first_form_is_read_and_one_of_a_later_form_is_refused() {
        let total = Service { read_bytes: 70, delayed_bytes: 9, ..Service::default() };
        let state = |form: u64| {
            let mut out = Vec::new();
            put_text(&mut out, "a");
            [form, 1_000, 7, 55].into_iter().for_each(|number| put_number(&mut out, number));
            put_sums(&mut out, &total);
            // Twice each number, as none is negative: then nothing refused, no names, no lines.
            (0..FIELDS_1 as u64).for_each(|field| put_number(&mut out, 2 * field));
            [0, 0, 0].into_iter().for_each(|number| put_number(&mut out, number));
            out
        };
        let mut members = ProxyCounters::new(LedgerBounds::default());
        let mut subjects = LedgerSubjects::new(100);
        let bytes = state(WHOLE);
        let mut reader = LedgerReader::new(&bytes);
        let at = read_proxy(&mut reader, &mut members, &mut subjects, 1).unwrap();
        assert!(reader.is_empty(), "every byte has its meaning");
        let member = &members.all()[at];
        assert_eq!((member.total, member.sequence), (total, 7));
        assert_eq!(member.without_line[FIELDS_1 - 1], FIELDS_1 as i64 - 1);
        assert!(member.without_line[FIELDS_1..].iter().all(|field| *field == 0));

        let mut again = Vec::new();
        write_proxy(&mut again, member, &subjects, None);
        let unplaced = member.without_line;
        let at =
            read_proxy(&mut LedgerReader::new(&again), &mut members, &mut subjects, 2).unwrap();
        assert_eq!(members.all()[at].without_line, unplaced, "in today's form it is the same");

        let bytes = state(4);
        assert!(
            read_proxy(&mut LedgerReader::new(&bytes), &mut members, &mut subjects, 3).is_err()
        );
    }
}

//! The limits of rules and meters: `limit = …`, and `kinds`, `rate` and `burst`.
//!
//! ```text
//!   limit = "100MB/s"                                           read and write together
//!   limit = "5000ops/s"                                         all kinds together
//!   limit = { read = "100MB/s", metadata = "1000ops/s" }        one limit for each key
//!   limit = [ "100MB/s", { kinds = ["create"], rate = "10ops/s", burst = "5ops" } ]
//! ```
//!
//! Only reads and writes move bytes, so a byte rate counts those alone. Naming other kinds for it
//! is an error, since it would never throttle anything.

use model::{Bytes, Direction, KindSet, Nanos, OpKind, Ops, Rate};

use super::error::{RuleFault, RuleProblem};
use super::section::{Section, SectionEntry, in_order};
use super::{Limit, language};

/// Reads the value of a rule's `limit`.
pub(super) fn limits(entry: SectionEntry<'_>) -> Result<Vec<Limit>, RuleFault> {
    if let Some(table) = entry.as_table() {
        let one = table.contains_key("rate");
        return if one { Ok(vec![single(entry)?]) } else { by_kind(entry) };
    }
    if entry.as_array().is_none() {
        return Ok(vec![single(entry)?]);
    }
    let list = entry.list(WANT_LIMIT)?;
    if list.is_empty() {
        return Err(entry.fault(RuleProblem::Empty { key: "limit" }));
    }
    list.into_iter().map(single).collect()
}

/// Reads the `kinds`, `rate` and `burst` of a section.
pub(super) fn limit_of(section: &Section<'_>) -> Result<Limit, RuleFault> {
    let rate_entry = section.need("rate")?;
    let rate = rate(rate_entry)?;
    let kinds = match section.get("kinds") {
        None => default_kinds(rate),
        Some(entry) => kinds(entry, rate)?,
    };
    let burst = section.get("burst").map(|entry| burst(entry, rate)).transpose()?;
    Ok(Limit { kinds, rate, burst })
}

/// The kinds that a rate counts when none are named.
pub(super) fn default_kinds(rate: Rate) -> KindSet {
    match rate {
        Rate::Bytes(_) => KindSet::NONE.with(OpKind::Read).with(OpKind::Write),
        Rate::Ops(_) => KindSet::ALL,
    }
}

/// Names for a set, as few as there are: `metadata` for all kinds of that direction.
pub(super) fn names_of(kinds: KindSet) -> Vec<&'static str> {
    let metadata = KindSet::of(Direction::Metadata);
    let whole = metadata.iter().all(|kind| kinds.contains(kind));
    let single = kinds.iter().filter(|kind| !whole || !metadata.contains(*kind));
    single.map(OpKind::name).chain(whole.then_some("metadata")).collect()
}

/// A text, or a table of `kinds`, `rate` and `burst`.
fn single(entry: SectionEntry<'_>) -> Result<Limit, RuleFault> {
    if entry.is_text() {
        let rate = rate(entry)?;
        return Ok(Limit { kinds: default_kinds(rate), rate, burst: None });
    }
    let table = entry.table(WANT_LIMIT)?;
    limit_of(&Section::new("a limit", table, entry.at(), &["kinds", "rate", "burst"])?)
}

/// A table of rates by kind, with one burst for all of them.
fn by_kind(whole: SectionEntry<'_>) -> Result<Vec<Limit>, RuleFault> {
    let table = whole.table(WANT_LIMIT)?;
    let (bursts, rates): (Vec<_>, Vec<_>) =
        in_order(table).into_iter().partition(|(_, entry)| entry.key == "burst");
    if rates.is_empty() {
        return Err(whole.fault(RuleProblem::Missing { section: "limit", key: "a rate" }));
    }
    let mut limits = Vec::with_capacity(rates.len());
    for (key_at, entry) in rates {
        let known = named(entry.key).map_err(|problem| RuleFault::new(problem, key_at.clone()))?;
        let rate = rate(entry)?;
        let kinds =
            countable_kinds(known, rate).map_err(|problem| RuleFault::new(problem, key_at))?;
        let burst = bursts.first().map(|(_, entry)| burst(*entry, rate)).transpose()?;
        limits.push(Limit { kinds, rate, burst });
    }
    Ok(limits)
}

fn kinds(entry: SectionEntry<'_>, rate: Rate) -> Result<KindSet, RuleFault> {
    let list = entry.list("a list such as [\"read\", \"metadata\"]")?;
    if list.is_empty() {
        return Err(entry.fault(RuleProblem::Empty { key: "kinds" }));
    }
    let mut kinds = KindSet::NONE;
    for item in list {
        let name = item.text("a list such as [\"read\", \"metadata\"]")?;
        let known = named(name).and_then(|known| countable_kinds(known, rate));
        let known = known.map_err(|problem| item.fault(problem))?;
        kinds = known.iter().fold(kinds, KindSet::with);
    }
    Ok(kinds)
}

/// The kinds of a word; `None` for `all`, which depends on the rate.
fn named(word: &str) -> Result<Option<KindSet>, RuleProblem> {
    match word {
        "all" => Ok(None),
        "metadata" => Ok(Some(KindSet::of(Direction::Metadata))),
        _ => {
            let named = language::kind(word).map(|kind| Some(KindSet::NONE.with(kind)));
            let more = if language::lustre_name(word).is_some() { "" } else { ", metadata, all" };
            named.map_err(|message| RuleProblem::Kinds(message + more))
        }
    }
}

/// The kinds a rate counts, if it can count the named ones.
fn countable_kinds(named: Option<KindSet>, rate: Rate) -> Result<KindSet, RuleProblem> {
    let possible = default_kinds(rate);
    let Some(named) = named else { return Ok(possible) };
    if named.iter().all(|kind| possible.contains(kind)) {
        return Ok(named);
    }
    let kinds = names_of(named).join(", ");
    Err(RuleProblem::NoBytes { rate: rate.to_string(), kinds })
}

pub(super) fn rate(entry: SectionEntry<'_>) -> Result<Rate, RuleFault> {
    let text = entry.text(WANT_RATE)?;
    text.parse().map_err(|error| entry.fault(RuleProblem::Unit(error)))
}

/// A burst in the rate's unit, above zero.
fn burst(entry: SectionEntry<'_>, rate: Rate) -> Result<u64, RuleFault> {
    let text = entry.text(WANT_BURST)?;
    let units = match (text.parse::<Nanos>(), rate) {
        (Ok(span), _) => {
            let units = u128::from(span.get()) * u128::from(rate.per_sec()) / 1_000_000_000;
            u64::try_from(units).ok()
        }
        (Err(_), Rate::Bytes(_)) => text.parse::<Bytes>().ok().map(Bytes::get),
        (Err(_), Rate::Ops(_)) => text.parse::<Ops>().ok().map(Ops::get),
    };
    units.filter(|units| *units > 0).ok_or_else(|| {
        let want = match rate {
            Rate::Bytes(_) => "use data such as 4MiB or a time such as 100ms, above zero",
            Rate::Ops(_) => "use operations such as 50ops or a time such as 1s, above zero",
        };
        entry.fault(RuleProblem::Burst { text: text.into(), rate: rate.to_string(), want })
    })
}

const WANT_LIMIT: &str = "a rate such as \"100MB/s\", a table of rates or a list of both";
const WANT_RATE: &str = "a rate such as \"100MB/s\" or \"5000ops/s\"";
const WANT_BURST: &str = "a text such as \"4MiB\", \"50ops\" or \"100ms\"";

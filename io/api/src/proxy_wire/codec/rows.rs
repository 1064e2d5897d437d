//! The form of rows of entitlements in a reply.
//!
//! ```text
//!   how many (65,536 at most) │ row: number, and nothing or scope, what it grants, kinds, source, span │ …
//! ```
//!
//! Rows are bytes within the message, read one after the other, so that their number is known before
//! memory is taken for them.

use std::borrow::Cow;

use model::{Directory, JobId, KindSet, Nanos, Rate, Weight};
use rules::{Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable};
use serde::{Deserialize, Serialize};

use super::scopes::{job, target};
use super::{Apart, scope_bytes, scope_of};
use crate::scope::{WireRate, WrongMessage};

#[derive(Serialize, Deserialize)]
struct EntitlementForm<'a> {
    job: Option<&'a str>,
    uid: Option<u32>,
    #[serde(borrow)]
    class: Option<Apart<'a>>,
    #[serde(borrow)]
    directory: Option<Apart<'a>>,
    target: Option<&'a str>,
    grants: GrantableForm,
    kinds: u32,
    source: SourceForm,
    /// In nanoseconds.
    from: u64,
    until: Option<u64>,
}

#[derive(Serialize, Deserialize)]
enum GrantableForm {
    Reservation(WireRate),
    /// With the burst.
    Limit(WireRate, Option<u64>),
    Weight(u32),
}

#[derive(Serialize, Deserialize)]
enum SourceForm {
    Decay,
    Reservation,
    Operator,
}

type Rows = Vec<(EntitlementId, Option<Entitlement>)>;

pub(super) fn row_bytes(rows: &[(EntitlementId, Option<Entitlement>)]) -> Apart<'static> {
    let forms: Vec<_> = rows.iter().map(|(id, row)| (id.0, row.as_ref().map(form))).collect();
    Apart(Cow::Owned(postcard::to_stdvec(&forms).expect("memory takes all of it")))
}

pub(super) fn rows_of(bytes: &Apart<'_>) -> Result<Rows, WrongMessage> {
    let (count, mut rest): (usize, _) = next(&bytes.0)?;
    if count > ROWS_MAX {
        return Err(WrongMessage::new(count, "a number of entitlements: at most 65536"));
    }
    let mut rows = Vec::with_capacity(count.min(rest.len() / ROW_BYTES_MIN));
    for _ in 0..count {
        let ((id, form), after): ((u64, Option<EntitlementForm<'_>>), _) = next(rest)?;
        rows.push((EntitlementId(id), form.map(entitlement).transpose()?));
        rest = after;
    }
    match rest {
        [] => Ok(rows),
        _ => Err(WrongMessage::new(format!("{} bytes after the end", rest.len()), ROWS)),
    }
}

fn next<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8]), WrongMessage> {
    postcard::take_from_bytes(bytes).map_err(|why| WrongMessage::new(why, ROWS))
}

fn form(row: &Entitlement) -> EntitlementForm<'_> {
    let EntitlementScope { job, uid, class, directory, target } = row.scope();
    EntitlementForm {
        job: job.as_ref().map(JobId::as_str),
        uid: *uid,
        class: class.as_ref().map(scope_bytes),
        directory: directory.as_ref().map(|of| Apart(Cow::Borrowed(of.as_bytes()))),
        target: target.as_deref(),
        grants: match row.grants() {
            Grantable::Reservation(rate) => GrantableForm::Reservation(rate.into()),
            Grantable::Limit(rate, burst) => GrantableForm::Limit(rate.into(), burst),
            Grantable::Weight(weight) => GrantableForm::Weight(weight.get()),
        },
        kinds: row.kinds().bits(),
        source: match row.source() {
            EntitlementSource::Decay => SourceForm::Decay,
            EntitlementSource::Reservation => SourceForm::Reservation,
            EntitlementSource::Operator => SourceForm::Operator,
        },
        from: row.from().get(),
        until: row.until().map(Nanos::get),
    }
}

fn entitlement(form: EntitlementForm<'_>) -> Result<Entitlement, WrongMessage> {
    const DIRECTORY: &str = "a directory: an export, and 64 names and 4096 bytes below it at most, without '.' and '..'";
    let directory = |text: Apart<'_>| {
        let wrong = || WrongMessage::new(String::from_utf8_lossy(&text.0), DIRECTORY);
        Directory::new(&text.0).ok_or_else(wrong)
    };
    let scope = EntitlementScope {
        job: form.job.map(job).transpose()?,
        uid: form.uid,
        class: form.class.as_ref().map(scope_of).transpose()?,
        directory: form.directory.map(directory).transpose()?,
        target: form.target.map(target).transpose()?,
    };
    let grants = match form.grants {
        GrantableForm::Reservation(rate) => Grantable::Reservation(Rate::try_from(rate)?),
        GrantableForm::Limit(rate, burst) => Grantable::Limit(Rate::try_from(rate)?, burst),
        GrantableForm::Weight(weight) => {
            let valid = Weight::new(weight);
            let wrong = || WrongMessage::new(weight, "a weight: 1 to 1000000");
            Grantable::Weight(valid.ok_or_else(wrong)?)
        }
    };
    let kinds = KindSet::from_bits(form.kinds);
    let kinds = kinds.ok_or_else(|| WrongMessage::new(form.kinds, "a set of kinds of request"))?;
    let source = match form.source {
        SourceForm::Decay => EntitlementSource::Decay,
        SourceForm::Reservation => EntitlementSource::Reservation,
        SourceForm::Operator => EntitlementSource::Operator,
    };
    let row = Entitlement::new(scope, grants, kinds, source);
    let row = row.and_then(|row| row.during(Nanos::new(form.from), form.until.map(Nanos::new)));
    row.map_err(|why| WrongMessage::new(why, "an entitlement"))
}

const ROWS: &str = "rows of entitlements";
/// As many as a controller and a dispatcher keep.
const ROWS_MAX: usize = 65_536;
/// The bytes of a row that ends.
const ROW_BYTES_MIN: usize = 2;

#[cfg(test)]
mod tests {
    use model::{Direction, KeyValue, Scope};

    use super::*;

    fn row(id: u64, scope: EntitlementScope, grants: Grantable) -> (EntitlementId, Entitlement) {
        let row = Entitlement::new(scope, grants, KindSet::ALL, EntitlementSource::Operator);
        (EntitlementId(id), row.unwrap())
    }

    /// A row of each kind, with each condition, source and end.
    fn all() -> Rows {
        let job = JobId::new("dd.500");
        let class = Some(Scope::decay("d", &[KeyValue::Uid(5)]));
        let ops = Rate::ops_per_sec(7).unwrap();
        let bytes = Rate::bytes_per_sec(u64::MAX).unwrap();
        let writes = Entitlement::new(
            EntitlementScope {
                job: job.clone(),
                directory: Directory::new(b"fs/a\xff"),
                ..Default::default()
            },
            Grantable::Reservation(bytes),
            KindSet::of(Direction::Write),
            EntitlementSource::Reservation,
        );
        let ms = Nanos::from_millis;
        let writes = writes.unwrap().during(ms(5), Some(ms(7_000))).unwrap();
        let of_decay = Entitlement::new(
            EntitlementScope { class, ..Default::default() },
            Grantable::Limit(ops, None),
            KindSet::ALL,
            EntitlementSource::Decay,
        );
        let at = EntitlementScope {
            uid: Some(u32::MAX),
            target: Some("fs".into()),
            ..Default::default()
        };
        let (limited, limit) = row(3, at, Grantable::Limit(bytes, Some(4_096)));
        let weight = Grantable::Weight(Weight::MAX);
        let (heavy, weight) = row(4, EntitlementScope { job, ..Default::default() }, weight);
        vec![
            (EntitlementId(1), Some(writes)),
            (EntitlementId(u64::MAX), of_decay.ok()),
            (limited, Some(limit)),
            (heavy, Some(weight)),
            (EntitlementId(5), None),
        ]
    }

    fn refused(bytes: &[u8]) -> String {
        rows_of(&Apart(Cow::Borrowed(bytes))).unwrap_err().to_string()
    }

    #[test]
    fn rows_come_out_as_they_went_in() {
        assert_eq!(rows_of(&row_bytes(&all())), Ok(all()));
        assert_eq!(rows_of(&row_bytes(&[])), Ok(vec![]));
    }

    #[test]
    fn bytes_that_are_no_rows_are_refused() {
        let bytes = row_bytes(&all()).0;
        for short in 0..bytes.len() {
            refused(&bytes[..short]);
        }
        let error = refused(&[&*bytes, b"x"].concat());
        assert!(error.contains("1 bytes after the end"), "{error}");
        // A length that nothing follows, and one that is too long.
        assert!(refused(&[0x80, 0x80, 0x04]).contains("not rows of entitlements"));
        let error = refused(&postcard::to_stdvec(&65_537_usize).unwrap());
        assert_eq!(error, "\"65537\" is not a number of entitlements: at most 65536");
    }

    #[test]
    fn a_value_that_cannot_be_is_named() {
        let rows = all();
        let refused = |nth: usize, change: &dyn Fn(&mut EntitlementForm<'_>)| {
            let mut wrong = form(rows[nth].1.as_ref().unwrap());
            change(&mut wrong);
            refused(&postcard::to_stdvec(&vec![(1u64, Some(wrong))]).unwrap())
        };
        let long = "t".repeat(256);
        let cases: [(String, &str); 11] = [
            (refused(0, &|of| of.job = Some("a\nb")), "\"a\\nb\" is not a job"),
            (refused(0, &|of| of.kinds = 0), "without any kind of request"),
            (refused(0, &|of| of.kinds = u32::MAX), "\"4294967295\" is not a set of kinds"),
            (refused(0, &|of| of.until = Some(of.from)), "from 5ms until 5ms"),
            (refused(0, &|of| of.class = Some(Apart(Cow::Borrowed(b"x")))), "not a scope"),
            (
                refused(0, &|of| of.directory = Some(Apart(Cow::Borrowed(b"fs/../a")))),
                "\"fs/../a\" is not a directory",
            ),
            (
                refused(0, &|of| of.directory = Some(Apart(Cow::Borrowed(b"/a")))),
                "\"/a\" is not a directory",
            ),
            (refused(2, &|of| of.target = Some("")), "\"\" is not a target's name"),
            (refused(2, &|of| of.target = Some("a\tb")), "is not a target's name"),
            (
                refused(2, &|of| of.grants = GrantableForm::Limit(WireRate::Ops(0), None)),
                "\"0\" is not a rate",
            ),
            (refused(3, &|of| of.grants = GrantableForm::Weight(0)), "\"0\" is not a weight"),
        ];
        for (error, expected) in cases {
            assert!(error.contains(expected), "{error}");
        }
        let mut wrong = form(rows[2].1.as_ref().unwrap());
        wrong.target = Some(&long);
        let error =
            super::tests::refused(&postcard::to_stdvec(&vec![(1u64, Some(wrong))]).unwrap());
        assert!(error.contains("1 to 255 bytes"), "{error}");
    }
}

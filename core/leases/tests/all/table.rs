//! The home's table alone: deadlines, what a holder that works on a return is given, and reclaims.

use model::{Nanos, Time};
use sluice_leases::{
    HolderId, LeaseError, LeaseKinds, LeaseTable, LeaseTerms, ObjectAccess, ObjectId,
    RecordedHolder,
};

const FILE: ObjectId = ObjectId([1, 2]);
const WRITER: HolderId = HolderId(1);
const READER: HolderId = HolderId(2);

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

/// Terms of 20 s with recalls of 10 s, by clocks that agree.
fn terms() -> LeaseTerms {
    LeaseTerms { drift_ppm: 0, ..LeaseTerms::default() }
}

fn recorded(holder: HolderId) -> RecordedHolder {
    RecordedHolder { holder, term: terms().term }
}

/// A table whose writer holds the file for writing.
fn written() -> LeaseTable {
    let mut table = LeaseTable::new(terms());
    assert_eq!(table.join(WRITER, 1, &[], at(0)), Err(LeaseError::NotConfirmed));
    table.confirm(at(1_000));
    assert_eq!(table.join(WRITER, 1, &[], at(0)), Ok(()));
    assert!(table.acquire(WRITER, 1, FILE, LeaseKinds::WRITE, at(0)).is_some());
    table
}

#[test]
fn a_holder_that_does_not_return_a_lease_is_expelled_and_waited_for_until_its_term_ends() {
    let mut table = written();
    let look = table.begin(FILE, ObjectAccess::LookAttributes, Some(READER), at(1));
    assert_eq!(table.take_recalls().len(), 1);
    assert!(table.poll(at(1)).is_empty());
    assert_eq!(table.next_deadline(), Some(at(11)), "the limit of the recall");
    table.progressed(WRITER, look, at(9));
    assert_eq!(table.next_deadline(), Some(at(19)), "it works on it");
    table.renew(WRITER, 1, at(18)).unwrap();
    assert!(table.poll(at(19)).is_empty());
    assert_eq!(table.renew(WRITER, 1, at(20)), Err(LeaseError::Over));
    assert_eq!(table.next_deadline(), Some(at(38)), "the term since its last renewal");
    assert!(table.poll(Time::from_nanos(at(38).as_nanos() - 1)).is_empty());
    assert_eq!(table.poll(at(38)), [look]);
    table.end(look);
    assert_eq!(table.next_deadline(), None);
}

#[test]
fn nothing_is_granted_beside_an_access_that_breaks_it_and_a_holder_that_leaves_is_not_waited_for() {
    let mut table = written();
    table.join(READER, 1, &[], at(0)).unwrap();
    let read = |table: &mut LeaseTable| table.acquire(READER, 1, FILE, LeaseKinds::READ, at(1));
    assert_eq!(read(&mut table), None, "another one writes");
    let change = table.begin(FILE, ObjectAccess::WriteData, None, at(1));
    table.leave(WRITER, 1);
    assert!(table.is_ready(change, at(1)));
    assert_eq!(read(&mut table), None, "it changes");
    table.end(change);
    assert!(read(&mut table).is_some());
}

#[test]
fn after_a_restart_each_holder_is_waited_for_and_what_it_reclaims_is_recalled() {
    let mut table = LeaseTable::restarted(terms(), [WRITER, READER].map(recorded), at(100));
    table.confirm(at(1_000));
    let look = table.begin(FILE, ObjectAccess::LookAttributes, Some(READER), at(100));
    table.join(READER, 7, &[], at(101)).unwrap();
    assert!(!table.is_ready(look, at(101)) && table.take_recalls().is_empty());
    assert_eq!(table.acquire(READER, 7, FILE, LeaseKinds::READ, at(101)), None);
    table.join(WRITER, 3, &[(FILE, LeaseKinds::WRITE)], at(102)).unwrap();
    let recalls = table.take_recalls();
    assert_eq!(recalls.iter().map(|recall| recall.holder).collect::<Vec<_>>(), [WRITER]);
    assert!(!table.is_ready(look, at(102)));
    table.returned(WRITER, look);
    assert!(table.is_ready(look, at(102)));
    assert_eq!(table.join(WRITER, 3, &[], at(103)), Err(LeaseError::OldLife { life: 3, known: 3 }));
    let after = at(105) + Nanos::new(1);
    assert!(table.acquire(READER, 7, FILE, LeaseKinds::ATTRIBUTES, after).is_some());
}

#[test]
fn after_a_restart_a_holder_is_waited_for_as_long_as_the_term_that_it_had() {
    let short = LeaseTerms { term: Nanos::from_secs(2), ..terms() };
    let long = RecordedHolder { holder: WRITER, term: Nanos::from_secs(60) };
    let mut table = LeaseTable::restarted(short, [long, recorded(READER)], at(100));
    table.confirm(at(1_000));
    let change = table.begin(FILE, ObjectAccess::WriteData, None, at(100));
    assert!(table.poll(at(103)).is_empty() && table.poll(at(125)).is_empty());
    table.join(READER, 1, &[], at(126)).unwrap();
    assert_eq!(table.acquire(READER, 1, ObjectId([9, 9]), LeaseKinds::READ, at(126)), None);
    assert_eq!(table.next_deadline(), Some(at(160)));
    assert_eq!(table.poll(at(160)), [change]);
    table.join(READER, 2, &[], at(160)).unwrap();
    assert!(table.acquire(READER, 2, ObjectId([9, 9]), LeaseKinds::READ, at(160)).is_some());
}

#[test]
fn what_a_holder_says_of_accesses_and_grants_before_a_restart_frees_nothing_after_it() {
    let read = |table: &mut LeaseTable, life, now| {
        table.join(READER, life, &[], now).unwrap();
        table.acquire(READER, life, FILE, LeaseKinds::READ, now).unwrap()
    };
    let mut table = LeaseTable::new(terms());
    table.number_from(1 << 44);
    table.confirm(at(1_000));
    let old_grant = (1..52).map(|life| read(&mut table, life, at(1))).max().unwrap();
    let old_access = table.begin(FILE, ObjectAccess::WriteData, None, at(1));

    let mut table = LeaseTable::restarted(terms(), [recorded(READER)], at(100));
    table.number_from(2 << 44);
    table.confirm(at(1_000));
    let grant = read(&mut table, 52, at(106));
    assert!(grant > old_grant);
    table.give_back(READER, FILE, LeaseKinds::READ, old_grant);
    let mut access = table.begin(FILE, ObjectAccess::WriteData, None, at(106));
    while access < old_access {
        table.end(access);
        access = table.begin(FILE, ObjectAccess::WriteData, None, at(106));
    }
    table.returned(READER, old_access);
    assert!(!table.is_ready(access, at(106)), "the lease of now is not returned");
    table.returned(READER, access);
    assert!(table.is_ready(access, at(106)));
}

//! What is kept, for how long, and what ends it.

use super::*;
use crate::files::OpenFiles;
use crate::nodes::Nodes;
use std::time::Duration;

const NAMES: LeaseKinds = LeaseKinds::NAMES;
const ATTRIBUTES: LeaseKinds = LeaseKinds::ATTRIBUTES;
const READ: LeaseKinds = LeaseKinds::READ;
const DIRECTORY: FileKey<'static> = FileKey { path: 1, handle: b"directory" };
const FILE: FileKey<'static> = FileKey { path: 2, handle: b"file" };

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

fn joined() -> LeaseCache {
    let mut cache = LeaseCache::new(LeaseTerms::default());
    cache.held.renewed(1, at(0));
    cache
}

fn grant(kinds: LeaseKinds) -> LeaseGrant {
    LeaseGrant { kinds: kinds.bits(), number: 1 }
}

fn attributes(size: u64) -> KeptAttributes {
    KeptAttributes { attributes: Attributes { size, ..Attributes::default() }, requested_at: 0 }
}

/// A reply about a file comes and is kept, with nothing meanwhile.
fn keep(cache: &mut LeaseCache, size: u64) -> Option<Time> {
    let request = cache.held.begin_request();
    let fresh = cache.granted(request, FILE, grant(ATTRIBUTES.and(READ)));
    let rest = cache.keep_attributes(FILE, fresh, attributes(size), at(0));
    cache.held.end_request(request);
    rest
}

fn keep_name(cache: &mut LeaseCache, name: &[u8], leads_to: KeptName) {
    let request = cache.held.begin_request();
    let fresh = cache.granted(request, DIRECTORY, grant(NAMES));
    cache.keep_name(DIRECTORY.path, fresh, name, leads_to, 0);
    cache.held.end_request(request);
}

fn size(cache: &mut LeaseCache, seconds: u64) -> Option<u64> {
    cache.attributes(FILE.path, at(seconds)).map(|(kept, _)| kept.attributes.size)
}

#[test]
fn attributes_are_believed_for_the_rest_of_the_term() {
    let mut cache = joined();
    assert_eq!(keep(&mut cache, 7), Some(at(20)));
    assert_eq!(size(&mut cache, 19), Some(7));
    assert_eq!(size(&mut cache, 20), None);
    cache.held.renewed(1, at(15));
    assert_eq!(size(&mut cache, 30), Some(7));
}

#[test]
fn recalled_attributes_are_forgotten_and_the_kernel_is_to_forget_them() {
    let mut cache = joined();
    keep(&mut cache, 7);
    let dropped = cache.recalled(FILE.path, ATTRIBUTES.and(READ), b"", at(1));
    assert_eq!(dropped.attributes, [FILE.handle.into()]);
    assert_eq!(dropped.pages, [FILE.handle.into()]);
    assert_eq!(size(&mut cache, 1), None);
    assert!(cache.files.is_empty(), "nothing is held of it");
    assert!(cache.recalled(FILE.path, ATTRIBUTES, b"", at(1)).is_empty());
}

#[test]
fn second_recall_waits_for_the_pages_that_the_first_drops() {
    let mut cache = joined();
    keep(&mut cache, 7);
    let first = cache.recalled(FILE.path, ATTRIBUTES.and(READ), b"", at(1));
    let second = cache.recalled(FILE.path, ATTRIBUTES.and(READ), b"", at(1));
    assert_eq!((first.pages, second.pages.len()), (vec![FILE.handle.into()], 1));
    cache.end_page_drop(FILE.path);
    assert_eq!(
        cache.recalled(FILE.path, READ, b"", at(1)).pages.len(),
        1,
        "one is still under way"
    );
    cache.end_page_drop(FILE.path);
    cache.end_page_drop(FILE.path);
    assert!(cache.recalled(FILE.path, READ, b"", at(1)).is_empty());
}

#[test]
fn reply_that_was_under_way_during_a_recall_is_not_kept() {
    let mut cache = joined();
    let request = cache.held.begin_request();
    cache.recalled(FILE.path, ATTRIBUTES, b"", at(1));
    let fresh = cache.granted(request, FILE, grant(ATTRIBUTES));
    assert_eq!(cache.keep_attributes(FILE, fresh, attributes(7), at(0)), None);
}

#[test]
fn one_recalled_name_leaves_the_others() {
    let mut cache = joined();
    let file = KeptName::File(FILE.path, FILE.handle.into());
    keep_name(&mut cache, b"a", file.clone());
    keep_name(&mut cache, b"b", KeptName::Absent);
    cache.recalled(DIRECTORY.path, NAMES, b"a", at(1));
    assert_eq!(cache.name(DIRECTORY.path, b"a", at(1)), None);
    assert_eq!(cache.name(DIRECTORY.path, b"b", at(1)), Some(KeptName::Absent));
    keep_name(&mut cache, b"a", file.clone());
    assert_eq!(cache.name(DIRECTORY.path, b"a", at(1)), Some(file));
    cache.recalled(DIRECTORY.path, NAMES, b"", at(1));
    assert_eq!(cache.name(DIRECTORY.path, b"b", at(1)), None);
    assert_eq!(cache.names.kept, 0);
}

#[test]
fn listing_ends_with_any_of_its_names() {
    let mut cache = joined();
    let request = cache.held.begin_request();
    let fresh = cache.granted(request, DIRECTORY, grant(NAMES));
    cache.keep_listing(DIRECTORY.path, fresh, 0, b"entries", 3);
    cache.keep_listing(DIRECTORY.path, fresh, 9, b"more", 5);
    cache.held.end_request(request);
    let (data, asked) = cache.listing(DIRECTORY.path, 9, at(1)).unwrap();
    assert_eq!((&*data, asked), (&b"more"[..], 3), "as old as its oldest part");
    let name: Arc<[u8]> = b"x"[..].into();
    cache.begin_name_change(DIRECTORY.path, &name, at(1));
    assert!(cache.listing(DIRECTORY.path, 0, at(1)).is_none());
    let request = cache.held.begin_request();
    let fresh = cache.granted(request, DIRECTORY, grant(NAMES));
    cache.keep_listing(DIRECTORY.path, fresh, 0, b"entries", 6);
    assert!(cache.listing(DIRECTORY.path, 0, at(1)).is_none(), "a name of it is changing");
    assert_eq!(cache.names.listing, 0);
}

#[test]
fn nothing_is_kept_of_what_a_call_of_this_mount_changes() {
    let mut cache = joined();
    keep(&mut cache, 7);
    cache.begin_change(FILE.path, ATTRIBUTES, at(1));
    assert_eq!(size(&mut cache, 1), None);
    assert_eq!(keep(&mut cache, 7), None, "it may be from before the change");
    let early = cache.held.begin_request();
    cache.end_change(FILE.path, ATTRIBUTES);
    let fresh = cache.granted(early, FILE, grant(ATTRIBUTES));
    assert_eq!(cache.keep_attributes(FILE, fresh, attributes(7), at(0)), None, "so may this");
    assert!(keep(&mut cache, 8).is_some());
    assert_eq!(size(&mut cache, 1), Some(8));
}

#[test]
fn name_that_a_call_makes_is_kept_from_its_own_reply_alone() {
    let mut cache = joined();
    let name: Arc<[u8]> = b"new"[..].into();
    let file = KeptName::File(FILE.path, FILE.handle.into());
    let request = cache.held.begin_request();
    cache.begin_name_change(DIRECTORY.path, &name, at(1));
    keep_name(&mut cache, b"new", KeptName::Absent);
    assert_eq!(cache.name(DIRECTORY.path, b"new", at(1)), None);
    let fresh = cache.granted(request, DIRECTORY, grant(NAMES));
    cache.keep_name(DIRECTORY.path, fresh, b"new", file.clone(), 1);
    cache.end_name_change(DIRECTORY.path, &name, true, at(1));
    assert_eq!(cache.name(DIRECTORY.path, b"new", at(1)), Some(file));
}

#[test]
fn lapse_forgets_everything() {
    let mut cache = joined();
    keep(&mut cache, 7);
    keep_name(&mut cache, b"a", KeptName::Absent);
    let dropped = cache.lapse(at(1));
    assert_eq!((dropped.attributes.len(), dropped.pages.len()), (2, 1));
    cache.held.renewed(2, at(1));
    assert_eq!(size(&mut cache, 2), None);
    assert_eq!(cache.name(DIRECTORY.path, b"a", at(2)), None);
    assert_eq!((cache.names.kept, cache.files.len()), (0, 0));
}

#[test]
fn read_span_is_another_one_after_each_recall() {
    let mut cache = joined();
    let span = |cache: &mut LeaseCache| {
        let request = cache.held.begin_request();
        let fresh = cache.granted(request, FILE, grant(READ));
        let span = cache.begin_read_span(FILE.path, fresh);
        cache.held.end_request(request);
        span
    };
    let first = span(&mut cache);
    assert_eq!(span(&mut cache), first, "it was held all the time");
    cache.recalled(FILE.path, READ, b"", at(1));
    let second = span(&mut cache);
    assert!(first != 0 && second > first);
    cache.end_read(FILE.path, at(1));
    assert!(span(&mut cache) > second, "a writer was here");
    cache.begin_change(FILE.path, READ, at(1));
    assert_eq!(span(&mut cache), 0);
}

#[test]
fn what_was_unused_for_longest_is_given_back_once_the_kernel_has_forgotten_it() {
    let mut cache = joined();
    keep(&mut cache, 7);
    let (dropped, leases) = cache.give_back(at(1));
    assert_eq!(leases, [(FILE.path, grant(ATTRIBUTES.and(READ)))]);
    assert_eq!(dropped.attributes, [FILE.handle.into()]);
    assert_eq!(size(&mut cache, 1), None);
    let recalled = cache.recalled(FILE.path, ATTRIBUTES, b"", at(1));
    assert_eq!(recalled.attributes, [FILE.handle.into()], "it may not have forgotten yet");
    cache.given_back(&leases, at(1));
    assert!(cache.files.is_empty());
}

/// A file that was opened for reading while READ was granted, and is closed by its program.
fn closed_file(cache: &mut LeaseCache, payer: &Arc<SessionIdentity>) -> Arc<OpenFile> {
    closed_file_of(cache, FILE, payer)
}

fn closed_file_of(
    cache: &mut LeaseCache,
    of: FileKey<'_>,
    payer: &Arc<SessionIdentity>,
) -> Arc<OpenFile> {
    let request = cache.held.begin_request();
    let fresh = cache.granted(request, of, grant(READ));
    let span = cache.begin_read_span(of.path, fresh);
    cache.held.end_request(request);
    let (files, nodes) = (OpenFiles::default(), Nodes::new(b"root", Duration::ZERO));
    let node = nodes.lookup(of.handle, &Attributes::default());
    let file = files.opened(files.reserve().unwrap(), node, payer.clone(), ninep::open::RDONLY);
    file.set_read_span(span);
    file
}

#[test]
fn closed_file_is_opened_again_by_the_same_identity_alone() {
    let mut cache = joined();
    let [own, other] = [1, 2].map(|number| SessionIdentity::known(number, 1, 1));
    let file = closed_file(&mut cache, &own);
    let flags = file.flags;
    assert!(cache.park(FILE.path, file, at(1)).is_empty());
    assert!(cache.unpark(FILE.path, &other, flags, at(1)).is_none());
    assert!(cache.unpark(FILE.path, &own, flags | ninep::open::DIRECTORY, at(1)).is_none());
    assert!(cache.unpark(FILE.path, &own, flags, at(20)).is_none(), "the term is over");
    assert!(cache.unpark(FILE.path, &own, flags, at(19)).is_some());
    assert!(cache.unpark(FILE.path, &own, flags, at(19)).is_none(), "it is taken");
    assert_eq!(cache.parked(), 0);
}

#[test]
fn file_that_was_opened_under_an_earlier_lease_is_closed() {
    let mut cache = joined();
    let own = SessionIdentity::known(1, 1, 1);
    let early = closed_file(&mut cache, &own);
    assert!(cache.recalled(FILE.path, READ, b"", at(1)).parked.is_empty());
    let files = [0; 3].map(|_| closed_file(&mut cache, &own));
    assert_eq!(cache.park(FILE.path, early, at(1)).len(), 1);
    let closed = files.map(|file| cache.park(FILE.path, file, at(1)).len());
    assert_eq!(closed, [0, 0, 1], "two of a file are kept");
    assert_eq!(cache.recalled(FILE.path, READ, b"", at(1)).parked.len(), 2);
    assert_eq!(cache.parked(), 0);
}

#[test]
fn of_too_many_closed_files_the_one_that_was_closed_first_is_closed_at_the_proxy() {
    let mut cache = joined();
    let own = SessionIdentity::known(1, 1, 1);
    for path in 0..PARKED_MAX as u64 {
        let file = closed_file_of(&mut cache, FileKey { path, handle: b"file" }, &own);
        assert!(cache.park(path, file, at(1)).is_empty());
    }
    let last = FileKey { path: PARKED_MAX as u64, handle: b"last" };
    let file = closed_file_of(&mut cache, last, &own);
    assert_eq!(cache.park(last.path, file, at(1)).len(), 1);
    let flags = ninep::open::RDONLY;
    assert!(cache.unpark(0, &own, flags, at(1)).is_none());
    assert!(cache.unpark(1, &own, flags, at(1)).is_some());
    assert_eq!(cache.parked(), PARKED_MAX - 1);
}

fn believed(dropped: &Dropped) -> Vec<&[u8]> {
    dropped.names.iter().map(|named| &*named.name).collect()
}

#[test]
fn recall_of_a_name_ends_what_the_kernel_believes_of_it_alone() {
    let mut cache = joined();
    for name in [b"a", b"b", b"c"] {
        keep_name(&mut cache, name, KeptName::Absent);
    }
    assert_eq!(cache.believe_name(DIRECTORY.path, b"a", false, at(0)), Some(at(5)));
    assert_eq!(cache.believe_name(DIRECTORY.path, b"b", false, at(0)), Some(at(5)));
    assert!(cache.recalled(DIRECTORY.path, NAMES, b"c", at(1)).names.is_empty());
    let dropped = cache.recalled(DIRECTORY.path, NAMES, b"a", at(1));
    assert_eq!(believed(&dropped), [b"a"]);
    assert_eq!(cache.believe_name(DIRECTORY.path, b"a", false, at(1)), None, "it is not kept");
    let again = cache.recalled(DIRECTORY.path, NAMES, b"a", at(1));
    assert_eq!(again.names, dropped.names, "the first notice is under way");
    cache.end_names(&dropped.names, at(1));
    assert!(cache.recalled(DIRECTORY.path, NAMES, b"a", at(1)).names.is_empty());
    assert!(cache.recalled(DIRECTORY.path, NAMES, b"", at(5)).names.is_empty(), "it is over");
}

#[test]
fn names_that_the_kernel_believes_are_counted_after_the_lease_is_gone() {
    let mut cache = joined();
    keep_name(&mut cache, b"a", KeptName::Absent);
    cache.believe_name(DIRECTORY.path, b"a", false, at(0));
    let dropped = cache.recalled(DIRECTORY.path, NAMES, b"", at(1));
    let again = cache.recalled(DIRECTORY.path, NAMES, b"", at(1));
    assert_eq!((believed(&dropped), believed(&again)), (vec![&b"a"[..]], vec![&b"a"[..]]));
    cache.end_names(&dropped.names, at(1));
    assert!(cache.files.is_empty() && cache.names == NamesSize::default());
    keep_name(&mut cache, b"a", KeptName::Absent);
    cache.believe_name(DIRECTORY.path, b"a", false, at(2));
    assert_eq!(believed(&cache.lapse(at(3))), [b"a"]);
}

#[test]
fn change_that_failed_leaves_the_kernel_in_doubt_and_one_that_did_not_does_not() {
    let mut cache = joined();
    let name: Arc<[u8]> = b"a"[..].into();
    for is_done in [true, false] {
        keep_name(&mut cache, &name, KeptName::Absent);
        cache.believe_name(DIRECTORY.path, &name, false, at(1));
        cache.begin_name_change(DIRECTORY.path, &name, at(1));
        let dropped = cache.end_name_change(DIRECTORY.path, &name, is_done, at(1));
        assert_eq!(dropped.names.is_empty(), is_done);
    }
}

#[test]
fn moved_belief_is_ended_by_a_recall_of_the_new_name_where_that_is_held() {
    let mut cache = joined();
    let [old, new] = [b"old", b"new"].map(|name| Arc::<[u8]>::from(&name[..]));
    let (from, to) = ((DIRECTORY.path, &old), (DIRECTORY.path, &new));
    assert!(cache.move_belief(from, to, at(1)).is_none(), "it believes nothing of it");
    keep_name(&mut cache, &old, KeptName::File(2, b"file"[..].into()));
    cache.believe_name(DIRECTORY.path, &old, false, at(1));
    assert!(cache.move_belief(from, to, at(1)).is_none());
    assert_eq!(believed(&cache.recalled(DIRECTORY.path, NAMES, &new, at(1))), [&*new]);
    let there = cache.move_belief(from, (99, &new), at(1)).unwrap();
    assert_eq!(*there.name, *new, "no lease of that directory");
}

#[test]
fn names_that_two_nodes_change_are_not_believed() {
    let mut cache = joined();
    keep_name(&mut cache, b"a", KeptName::Absent);
    let own: Arc<[u8]> = b"own"[..].into();
    cache.begin_name_change(DIRECTORY.path, &own, at(1));
    cache.recalled(DIRECTORY.path, NAMES, b"other", at(1));
    cache.end_name_change(DIRECTORY.path, &own, true, at(1));
    assert_eq!(cache.name(DIRECTORY.path, b"a", at(2)), Some(KeptName::Absent));
    assert_eq!(cache.believe_name(DIRECTORY.path, b"a", false, at(2)), None);
}

#[test]
fn late_reply_is_not_believed_for_what_another_one_kept() {
    let mut cache = joined();
    let late = cache.held.begin_request();
    cache.recalled(DIRECTORY.path, NAMES, b"x", at(1));
    let made = KeptName::File(FILE.path, FILE.handle.into());
    keep_name(&mut cache, b"x", made.clone());
    let fresh = cache.granted(late, DIRECTORY, grant(NAMES));
    assert!(!cache.keep_name(DIRECTORY.path, fresh, b"x", KeptName::Absent, 0));
    assert_eq!(cache.name(DIRECTORY.path, b"x", at(1)), Some(made));
}

#[test]
fn names_of_directories_are_given_as_such_and_all_others_are_not() {
    let mut cache = joined();
    keep(&mut cache, 7);
    keep_name(&mut cache, b"file", KeptName::File(FILE.path, FILE.handle.into()));
    keep_name(&mut cache, b"other", KeptName::File(99, b"other"[..].into()));
    keep_name(&mut cache, b"absent", KeptName::Absent);
    for (name, by_revalidation) in [(&b"file"[..], true), (b"other", true), (b"absent", true)] {
        cache.believe_name(DIRECTORY.path, name, by_revalidation, at(2)).unwrap();
    }
    let mut dropped = cache.recalled(DIRECTORY.path, NAMES, b"", at(2)).names;
    dropped.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let revalidated: Vec<_> = dropped.iter().map(|named| named.revalidated).collect();
    assert_eq!(revalidated, [None, None, Some(at(2))], "what is not known may be one");
}

#[test]
fn lapse_ends_what_the_kernel_may_use_though_its_clock_stood_still_and_pages_under_way() {
    let mut cache = joined();
    keep_name(&mut cache, b"a", KeptName::Absent);
    cache.believe_name(DIRECTORY.path, b"a", false, at(0));
    keep(&mut cache, 7);
    cache.recalled(FILE.path, READ, b"", at(1));
    let dropped = cache.lapse(at(90));
    assert_eq!((believed(&dropped), dropped.names[0].until), (vec![&b"a"[..]], at(95)));
    assert_eq!(dropped.pages, [FILE.handle.into()]);
}

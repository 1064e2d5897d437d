//! One of each of the dialect's own messages.

use sluice_ninep::Tag;
use sluice_ninep::dialect::{
    ExtReply, ExtRequest, GroupList, LeaseGrant, ListEntry, ReturnedLease, SessionEvent, WireGroup,
};

use super::Values;

/// The types of the dialect's requests, in the order of [`requests`].
pub(crate) const REQUEST_TYPES: [u8; 25] = [
    200, 202, 204, 206, 208, 210, 212, 214, 216, 218, 220, 222, 224, 226, 228, 230, 232, 234, 236,
    238, 240, 242, 244, 246, 248,
];

/// Gives one of each of the dialect's requests to `each`.
pub(crate) fn requests(values: &Values, mut each: impl FnMut(ExtRequest<'_>)) {
    let Values { word, long, .. } = *values;
    let (name, text, data) = (&values.name[..], &values.text[..], &values.data[..]);
    let (fid, newfid, short) = (values.fid(), values.newfid(), word as u16);
    let mut space = Vec::new();
    let groups = GroupList::pack((0..word % 600).map(|nth| word.wrapping_add(nth)), &mut space);
    let id = u128::from(long) << 64 | u128::from(word);
    each(ExtRequest::Session { id, channel: short, slots: !short, aname: text });
    let (uid, gid) = (word.wrapping_add(1), word.wrapping_add(2));
    each(ExtRequest::Identity { identity: word, uid, gid, groups, job: text, proof: data });
    each(ExtRequest::Retire { identity: word });
    each(ExtRequest::Lookup { fid, name });
    each(ExtRequest::Open { fid, newfid, name, flags: word, mode: !word });
    each(ExtRequest::List { fid, offset: long, count: word });
    each(ExtRequest::Mknode { fid, name, mode: word, rdev: long, target: text });
    each(ExtRequest::Change { fid, set: values.set_attributes() });
    each(ExtRequest::Write { fid, offset: long, flags: word, data });
    each(ExtRequest::Append { fid, flags: word, data });
    each(ExtRequest::Allocate { fid, mode: word, offset: long, length: !long });
    each(ExtRequest::Seek { fid, offset: long, whence: word });
    each(ExtRequest::Copy { fid, offset: long, tofid: newfid, tooffset: !long, length: long });
    each(ExtRequest::Getxattr { fid, name: text, count: word });
    each(ExtRequest::Setxattr { fid, name: text, flags: word, data });
    each(ExtRequest::Removexattr { fid, name: text });
    each(ExtRequest::Ping);
    each(ExtRequest::Events);
    each(ExtRequest::Commit { fid });
    each(ExtRequest::Info { what: values.word as u8, count: word });
    each(ExtRequest::Donate { fid, oldtag: Tag(short) });
    each(ExtRequest::Renew { life: word, what: word as u8 });
    each(ExtRequest::Return { access: long, done: word as u8 });
    let (mut returned, grant) = (Vec::new(), LeaseGrant { kinds: word as u8, number: !long });
    ReturnedLease { file: long, grant }.encode(&mut returned);
    each(ExtRequest::GiveBack { data: &returned });
    each(ExtRequest::Proxies);
}

/// Gives one of each of the dialect's replies to `each`, in the same order.
pub(crate) fn replies(values: &Values, mut each: impl FnMut(ExtReply<'_>)) {
    let Values { word, long, .. } = *values;
    let data = &values.data[..];
    let handle =
        if values.name.is_empty() { b"h" } else { &values.name[..values.name.len().min(4096)] };
    let attributes = values.attributes();
    let short = word as u16;
    each(ExtReply::Session { slots: short, resumed: word as u8, keep: word, root: handle });
    each(ExtReply::Identity { requests: word, bytes: long });
    each(ExtReply::Retire);
    each(ExtReply::Lookup { handle, attributes });
    each(ExtReply::Open { handle, created: word as u8, attributes });
    each(ExtReply::List { data: &list(values, handle) });
    each(ExtReply::Mknode { handle, attributes });
    each(ExtReply::Change { attributes });
    each(ExtReply::Write { count: word, number: long });
    each(ExtReply::Append { offset: long, number: !long });
    each(ExtReply::Allocate);
    each(ExtReply::Seek { offset: long });
    each(ExtReply::Copy { count: long, number: !long });
    each(ExtReply::Getxattr { length: word, data });
    each(ExtReply::Setxattr);
    each(ExtReply::Removexattr);
    each(ExtReply::Ping);
    let mut events = Vec::new();
    SessionEvent::Window { identity: word, requests: !word, bytes: long }.encode(&mut events);
    SessionEvent::Recall { access: long, file: !long, kinds: 3, name: data }.encode(&mut events);
    each(ExtReply::Events { data: &events });
    each(ExtReply::Commit);
    each(ExtReply::Info { data });
    each(ExtReply::Donate);
    each(ExtReply::Renew { outcome: word as u8, term: long });
    each(ExtReply::Return);
    each(ExtReply::GiveBack);
    let names: Vec<_> = (0..word % 65).map(|nth| format!("gw-{nth}.{word}")).collect();
    let (mut space, names) = (Vec::new(), names.iter().map(String::as_str));
    let own = names.clone().next().unwrap_or_default();
    let epoch = if own.is_empty() { 0 } else { long.max(1) };
    each(ExtReply::Proxies(WireGroup::pack(own, epoch, names, &mut space).unwrap()));
}

fn list(values: &Values, handle: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    let file = Some((handle, values.attributes()));
    let none = LeaseGrant::NONE;
    let lease = LeaseGrant { kinds: values.word as u8, number: values.long };
    for (name, file, lease) in [(&b".."[..], None, none), (&values.name, file, lease)] {
        ListEntry { offset: values.long, kind: 4, name, file, lease }.encode(&mut data);
    }
    data
}

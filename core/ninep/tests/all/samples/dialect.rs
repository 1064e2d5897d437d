//! One of each of the dialect's own messages.

use sluice_ninep::Tag;
use sluice_ninep::dialect::{Entry, Event, Groups, OwnReply, OwnRequest};

use super::Values;

/// The types of the dialect's requests, in the order of [`requests`].
pub(crate) const REQUEST_TYPES: [u8; 21] = [
    200, 202, 204, 206, 208, 210, 212, 214, 216, 218, 220, 222, 224, 226, 228, 230, 232, 234, 236,
    238, 240,
];

/// Gives one of each of the dialect's requests to `each`.
pub(crate) fn requests(values: &Values, mut each: impl FnMut(OwnRequest<'_>)) {
    let Values { word, long, .. } = *values;
    let (name, text, data) = (&values.name[..], &values.text[..], &values.data[..]);
    let (fid, newfid, short) = (values.fid(), values.newfid(), word as u16);
    let mut space = Vec::new();
    let groups = Groups::pack((0..word % 600).map(|nth| word.wrapping_add(nth)), &mut space);
    let id = u128::from(long) << 64 | u128::from(word);
    each(OwnRequest::Session { id, channel: short, slots: !short, aname: text });
    let (uid, gid) = (word.wrapping_add(1), word.wrapping_add(2));
    each(OwnRequest::Identity { identity: word, uid, gid, groups, job: text, proof: data });
    each(OwnRequest::Retire { identity: word });
    each(OwnRequest::Lookup { fid, name });
    each(OwnRequest::Open { fid, newfid, name, flags: word, mode: !word });
    each(OwnRequest::List { fid, offset: long, count: word });
    each(OwnRequest::Make { fid, name, mode: word, rdev: long, target: text });
    each(OwnRequest::Change { fid, set: values.set_attributes() });
    each(OwnRequest::Write { fid, offset: long, flags: word, data });
    each(OwnRequest::Append { fid, flags: word, data });
    each(OwnRequest::Allocate { fid, mode: word, offset: long, length: !long });
    each(OwnRequest::Seek { fid, offset: long, whence: word });
    each(OwnRequest::Copy { fid, offset: long, tofid: newfid, tooffset: !long, length: long });
    each(OwnRequest::Getxattr { fid, name: text, count: word });
    each(OwnRequest::Setxattr { fid, name: text, flags: word, data });
    each(OwnRequest::Removexattr { fid, name: text });
    each(OwnRequest::Ping);
    each(OwnRequest::Wait);
    each(OwnRequest::Commit { fid });
    each(OwnRequest::Tell { what: values.word as u8, count: word });
    each(OwnRequest::Donate { fid, oldtag: Tag(short) });
}

/// Gives one of each of the dialect's replies to `each`, in the same order.
pub(crate) fn replies(values: &Values, mut each: impl FnMut(OwnReply<'_>)) {
    let Values { word, long, .. } = *values;
    let data = &values.data[..];
    let handle =
        if values.name.is_empty() { b"h" } else { &values.name[..values.name.len().min(4096)] };
    let attributes = values.attributes();
    let short = word as u16;
    each(OwnReply::Session { slots: short, resumed: word as u8, keep: word, root: handle });
    each(OwnReply::Identity { requests: word, bytes: long });
    each(OwnReply::Retire);
    each(OwnReply::Lookup { handle, attributes });
    each(OwnReply::Open { handle, created: word as u8, attributes });
    each(OwnReply::List { data: &list(values, handle) });
    each(OwnReply::Make { handle, attributes });
    each(OwnReply::Change { attributes });
    each(OwnReply::Write { count: word, number: long });
    each(OwnReply::Append { offset: long, number: !long });
    each(OwnReply::Allocate);
    each(OwnReply::Seek { offset: long });
    each(OwnReply::Copy { count: long, number: !long });
    each(OwnReply::Getxattr { length: word, data });
    each(OwnReply::Setxattr);
    each(OwnReply::Removexattr);
    each(OwnReply::Ping);
    let mut events = Vec::new();
    Event::Window { identity: word, requests: !word, bytes: long }.encode(&mut events);
    each(OwnReply::Wait { data: &events });
    each(OwnReply::Commit);
    each(OwnReply::Tell { data });
    each(OwnReply::Donate);
}

fn list(values: &Values, handle: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    let file = Some((handle, values.attributes()));
    for (name, file) in [(&b".."[..], None), (&values.name, file)] {
        Entry { offset: values.long, kind: 4, name, file }.encode(&mut data);
    }
    data
}

//! The dialect's promises: messages beside their bytes, and any bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_ninep::dialect::{
    AnyReply, AnyRequest, ExtReply, ExtRequest, HandleList, HandlePlaces, LeaseGrant, LeaseGrants,
    ListEntries, ReplyHeader, RequestHeader, SessionEvents, WireGroup, answer_version,
    decode_reply, decode_request, encode_reply, encode_request, handle_fid, read_reply_header,
};
use sluice_ninep::{FrameError, Reply, Request, Tag};

use crate::samples::dialect::{REQUEST_TYPES, replies, requests};
use crate::samples::{Values, set_size};

fn values() -> impl Strategy<Value = Values> {
    let long = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    let text = |max| vec(1u8..b'/', 0..max);
    (any::<u32>(), long, text(300), text(300), vec(any::<u8>(), 0..200)).prop_map(
        |(word, long, name, text, data)| Values { word, long, name, text, data, names: vec![] },
    )
}

fn request(tag: Tag, header: &RequestHeader<'_>, request: &AnyRequest<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_request(tag, header, request, &mut frame);
    frame
}

fn reply(tag: Tag, header: ReplyHeader, reply: &AnyReply<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_reply(tag, header, reply, &mut frame);
    frame
}

/// Frames of every message of the dialect, plain ones among them.
fn frames(values: &Values) -> Vec<Vec<u8>> {
    let (handle, mut frames) = (&values.data[..values.data.len().min(40)], Vec::new());
    let handles = if handle.is_empty() { HandleList::NONE } else { HandleList::two(handle, b"x") };
    let mut space = Vec::new();
    let names = handle.chunks(9).map(|name| (&b"dir"[..], name));
    let names = names.filter(|(_, name)| !name.contains(&0) && !name.contains(&b'/'));
    let names = HandlePlaces::pack(names, &mut space);
    let header = RequestHeader {
        identity: values.word,
        reply_slot: 3,
        sequence: 9,
        remote_ops: 5,
        lease_life: !values.word,
        handles,
        names,
    };
    requests(values, |own| frames.push(request(Tag(5), &header, &own.into())));
    crate::samples::requests(values, |tag, plain| {
        frames.push(request(tag, &header, &plain.into()))
    });
    let found = LeaseGrant { kinds: values.word as u8, number: values.long };
    let leases = LeaseGrants { found, ..LeaseGrants::NONE };
    let header = ReplyHeader { verifier: values.long, commit_watermark: !values.long, leases };
    replies(values, |own| frames.push(reply(Tag(5), header, &own.into())));
    crate::samples::replies(values, |tag, plain| frames.push(reply(tag, header, &plain.into())));
    frames
}

/// What decodes encodes back to the same bytes.
fn decode_any(frame: &[u8]) -> Result<(), TestCaseError> {
    if let Ok((tag, header, asked)) = decode_request(frame) {
        prop_assert_eq!(&request(tag, &header, &asked), frame);
    }
    if let Ok((tag, header, answered)) = decode_reply(frame) {
        prop_assert_eq!(&reply(tag, header, &answered), frame);
    }
    Ok(())
}

#[test]
fn a_request_has_its_header_between_tag_and_body() {
    let handles = HandleList::one(b"\x01\x02\x03");
    let mut space = Vec::new();
    let names = HandlePlaces::pack([(&b"d"[..], &b"it"[..])], &mut space);
    let header = RequestHeader {
        identity: 7,
        reply_slot: 2,
        sequence: 0x0102,
        remote_ops: 3,
        lease_life: 4,
        handles,
        names,
    };
    let getattr = Request::Getattr { fid: handle_fid(0), mask: 0x7ff };
    #[rustfmt::skip]
    let bytes = [
        51, 0, 0, 0, 24, 5, 0, // size, type, tag
        7, 0, 0, 0, 2, 0, 2, 1, 0, 0, 3, 0, 0, 0, // identity, reply slot, sequence, remote_ops
        4, 0, 0, 0, // lease_life
        1, 3, 0, 1, 2, 3, // one handle
        1, 1, 0, b'd', 2, 0, b'i', b't', // one name: a directory's handle, a name
        0xf0, 0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0, 0, 0, // the handle's fid, mask
    ];
    assert_eq!(request(Tag(5), &header, &getattr.into()), bytes);
    let (tag, back, asked) = decode_request(&bytes).unwrap();
    assert_eq!((tag, back, asked), (Tag(5), header, getattr.into()));
    assert_eq!(back.handles.get(handle_fid(0)), Some(&[1, 2, 3][..]));
    assert_eq!(back.names.collect::<Vec<_>>(), [(&b"d"[..], &b"it"[..])]);
}

#[test]
fn a_reply_has_verifier_and_commit_number_before_its_body() {
    let header = ReplyHeader {
        verifier: 0x0807_0605_0403_0201,
        commit_watermark: 9,
        ..ReplyHeader::default()
    };
    let write = ExtReply::Write { count: 4096, number: 10 };
    #[rustfmt::skip]
    let bytes = [
        36, 0, 0, 0, 217, 5, 0,
        1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, // verifier, commit_watermark
        0, // no leases
        0, 16, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(reply(Tag(5), header, &write.into()), bytes);
    let mut read = read_reply_header(Tag(6), header, 4).to_vec();
    read.extend_from_slice(b"data");
    let data = AnyReply::Base(Reply::Read { data: b"data" });
    assert_eq!(decode_reply(&read), Ok((Tag(6), header, data)));
    let leases = LeaseGrants {
        named: LeaseGrant { kinds: 1, number: 0x0102 },
        found: LeaseGrant { kinds: 2, number: 3 },
    };
    let granted = reply(Tag(5), ReplyHeader { leases, ..header }, &ExtReply::Ping.into());
    #[rustfmt::skip]
    assert_eq!(granted[23..], [2, 1, 2, 1, 0, 0, 0, 0, 0, 0, 2, 3, 0, 0, 0, 0, 0, 0, 0]);
    let mut empty = reply(Tag(5), header, &ExtReply::Ping.into());
    empty[23] = 3;
    let three = FrameError::BadValue { tag: Tag(5), field: "leases", value: 3 };
    assert_eq!(decode_reply(&empty), Err(three), "a reply is about two files at most");
}

#[test]
fn a_group_is_its_own_name_its_epoch_and_its_names_in_order() {
    let mut space = Vec::new();
    let group = WireGroup::pack("io2", 3, ["io2", "io1"], &mut space).unwrap();
    let header = ReplyHeader::default();
    let whole = reply(Tag(5), header, &ExtReply::Proxies(group).into());
    #[rustfmt::skip]
    let body = [
        3, 0, b'i', b'o', b'2', 3, 0, 0, 0, 0, 0, 0, 0, // its name, the epoch
        2, 3, 0, b'i', b'o', b'1', 3, 0, b'i', b'o', b'2', // the names
    ];
    assert_eq!(whole[24..], body);
    assert_eq!(group.encoded_len(), body.len());
    assert_eq!(decode_reply(&whole).unwrap().2, ExtReply::Proxies(group).into());
    for (at, byte) in [(26, b'/'), (26, b'x'), (29, 0), (42, b'2'), (47, b'0')] {
        let mut wrong = whole.clone();
        wrong[at] = byte;
        assert!(decode_reply(&wrong).is_err(), "{byte} at {at}");
    }
}

#[test]
fn only_this_dialect_is_answered() {
    assert_eq!(answer_version(b"9P2000.L.sluice.4"), Some(&b"9P2000.L.sluice.4"[..]));
    for offered in [&b"9P2000.L"[..], b"9P2000.L.sluice.3", b"9P2000.L.sluice.40", b""] {
        assert_eq!(answer_version(offered), None);
    }
}

#[test]
fn lists_beyond_their_bounds_are_refused_before_they_are_read() {
    let ping = request(Tag(1), &RequestHeader::SESSION, &ExtRequest::Ping.into());
    let mut handles = ping.clone();
    handles[25] = 3;
    let three = FrameError::BadValue { tag: Tag(1), field: "handles", value: 3 };
    assert_eq!(decode_request(&handles), Err(three));
    let mut names = ping.clone();
    names[26] = 33;
    let more = FrameError::BadValue { tag: Tag(1), field: "names", value: 33 };
    assert_eq!(decode_request(&names), Err(more));

    let header = RequestHeader { handles: HandleList::one(&[7; 4097]), ..RequestHeader::SESSION };
    let long = request(Tag(1), &header, &ExtRequest::Ping.into());
    let error = decode_request(&long).unwrap_err().to_string();
    assert_eq!(error, "message with tag 1: handle has 4097 bytes, 1 to 4096 are allowed");

    let identity = ExtRequest::Identity {
        identity: 1,
        uid: 2,
        gid: 3,
        groups: Default::default(),
        job: b"",
        proof: b"",
    };
    let mut groups = request(Tag(1), &RequestHeader::SESSION, &identity.into());
    groups[39..41].copy_from_slice(&513u16.to_le_bytes());
    let many = FrameError::TooMany { tag: Tag(1), field: "groups", count: 513, limit: 512 };
    assert_eq!(decode_request(&groups), Err(many));

    let none = ExtReply::Proxies(WireGroup::NONE);
    let mut proxies = reply(Tag(1), ReplyHeader::default(), &none.into());
    *proxies.last_mut().unwrap() = 65;
    let many = FrameError::TooMany { tag: Tag(1), field: "proxies", count: 65, limit: 64 };
    assert_eq!(decode_reply(&proxies), Err(many));
}

#[test]
fn messages_cut_short_or_made_longer_are_refused() {
    for whole in frames(&Values::plain()) {
        for len in (0..whole.len()).chain([whole.len() + 1, whole.len() + 7]) {
            let mut frame = whole.clone();
            frame.resize(len, 0);
            set_size(&mut frame);
            let accepted = if whole[4].is_multiple_of(2) {
                decode_request(&frame).is_ok()
            } else {
                decode_reply(&frame).is_ok()
            };
            assert!(!accepted, "type {} with {len} bytes instead of {}", whole[4], whole.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_comes_back_as_it_went(values in values()) {
        let mut types = Vec::new();
        requests(&values, |own| {
            let header = RequestHeader::SESSION;
            let frame = request(Tag(5), &header, &own.into());
            assert_eq!(decode_request(&frame), Ok((Tag(5), header, AnyRequest::Ext(own))));
            types.push(frame[4]);
        });
        prop_assert_eq!(&types[..], &REQUEST_TYPES[..]);
        types.clear();
        replies(&values, |own| {
            let header = ReplyHeader { verifier: values.long, ..ReplyHeader::default() };
            let frame = reply(Tag(5), header, &own.into());
            assert_eq!(decode_reply(&frame), Ok((Tag(5), header, AnyReply::Ext(own))));
            types.push(frame[4]);
        });
        prop_assert_eq!(types, REQUEST_TYPES.map(|kind| kind + 1).to_vec());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(
        values in values(),
        pick in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in any::<prop::sample::Index>(),
        noise in vec(any::<u8>(), 0..100),
    ) {
        let mut frame = pick.get(&frames(&values)).clone();
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame.extend_from_slice(&noise);
        frame.truncate(len.index(frame.len() + 1));
        decode_any(&frame)?;
        set_size(&mut frame);
        decode_any(&frame)?;
        prop_assert!(ListEntries::new(&frame).count() <= frame.len() / 12 + 1);
        prop_assert!(SessionEvents::new(&frame).count() <= frame.len() / 3 + 1);
    }
}

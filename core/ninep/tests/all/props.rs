//! What holds for every message and for any bytes.
//!
//! - a message decodes to itself after encoding, with strings up to the longest;
//! - bytes that decode at all encode back to the same bytes, so that nothing is
//!   read in two ways and nothing is passed over;
//! - no bytes make the decoder panic, and what it refuses has an errno.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_ninep::{DirEntries, FrameError, Reply, Request};

use crate::samples::{REPLY_TYPES, REQUEST_TYPES, Values, replies, requests, set_size};

/// A string of one of the lengths where mistakes live, free of the bytes in `but`.
fn string(but: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![Just(0), Just(1), 2usize..300, Just(65_534), Just(65_535)];
    (len, any::<u8>()).prop_map(move |(len, first)| {
        let bytes = (0..len).map(|at| first.wrapping_add(at as u8));
        bytes.map(|byte| if but.contains(&byte) { b'x' } else { byte }).collect()
    })
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), any::<u32>()]
}

fn long() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), Just(1 << 63), any::<u64>()]
}

fn values() -> impl Strategy<Value = Values> {
    let names = prop_oneof![
        vec(string(b"\0/"), 0..3),
        vec(vec(1u8..b'/', 0..4), 16),
        vec(vec(1u8..b'/', 0..300), 0..=16),
    ];
    let data = vec(any::<u8>(), 0..200);
    (word(), long(), string(b"\0/"), string(b"\0"), data, names).prop_map(
        |(word, long, name, text, data, names)| Values { word, long, name, text, data, names },
    )
}

/// Frames of every message, requests and replies.
fn frames(values: &Values) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    requests(values, |tag, request| {
        frames.push(Vec::new());
        request.encode(tag, frames.last_mut().expect("just pushed"));
    });
    replies(values, |tag, reply| {
        frames.push(Vec::new());
        reply.encode(tag, frames.last_mut().expect("just pushed"));
    });
    frames
}

/// Decodes `frame` both ways; what decodes must encode to the same bytes.
fn decode_any(frame: &[u8]) -> Result<(), TestCaseError> {
    let mut again = Vec::new();
    match Request::decode(frame) {
        Ok((tag, request)) => {
            request.encode(tag, &mut again);
            prop_assert_eq!(&again, frame);
        }
        Err(error) => refused(error, frame)?,
    }
    again.clear();
    match Reply::decode(frame) {
        Ok((tag, reply)) => {
            reply.encode(tag, &mut again);
            prop_assert_eq!(&again, frame);
        }
        Err(error) => refused(error, frame)?,
    }
    Ok(())
}

fn refused(error: FrameError, frame: &[u8]) -> Result<(), TestCaseError> {
    prop_assert_eq!(error.tag().is_none(), frame.len() < 7);
    let unknown = matches!(error, FrameError::UnknownType { .. });
    prop_assert_eq!(error.errno(), if unknown { 95 } else { 22 });
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_comes_back_as_it_went(values in values()) {
        let mut types = Vec::new();
        // What is there already must stay: replies to several requests share a buffer.
        let mut out = b"before".to_vec();
        requests(&values, |tag, request| {
            out.truncate(6);
            request.encode(tag, &mut out);
            assert_eq!(&out[..6], b"before");
            assert_eq!(Request::decode(&out[6..]), Ok((tag, request)));
            assert_eq!(request.kind(), out[10]);
            types.push(out[10]);
        });
        prop_assert_eq!(types, REQUEST_TYPES);
    }

    #[test]
    fn every_reply_comes_back_as_it_went(values in values()) {
        let mut types = Vec::new();
        let mut out = b"before".to_vec();
        replies(&values, |tag, reply| {
            out.truncate(6);
            reply.encode(tag, &mut out);
            assert_eq!(&out[..6], b"before");
            assert_eq!(Reply::decode(&out[6..]), Ok((tag, reply)));
            assert_eq!(reply.kind(), out[10]);
            types.push(out[10]);
        });
        prop_assert_eq!(types, REPLY_TYPES);
    }

    #[test]
    fn walked_names_come_back_in_order(values in values()) {
        requests(&values, |_, request| {
            if let Request::Walk { names, .. } = request {
                assert_eq!(names.len(), values.names.len());
                assert!(names.eq(values.names.iter().map(Vec::as_slice)));
            }
        });
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(mut frame in vec(any::<u8>(), 0..400)) {
        decode_any(&frame)?;
        set_size(&mut frame);
        decode_any(&frame)?;
        let entries = DirEntries::new(&frame);
        prop_assert!(entries.count() <= frame.len() / 24 + 1);
    }

    #[test]
    fn damaged_messages_are_messages_or_errors(
        values in values(),
        pick in any::<prop::sample::Index>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        len in any::<prop::sample::Index>(),
        longer in vec(any::<u8>(), 0..20),
        honest_size in any::<bool>(),
    ) {
        let mut frame = pick.get(&frames(&values)).clone();
        for (at, byte) in damage {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        frame.extend_from_slice(&longer);
        frame.truncate(len.index(frame.len() + 1));
        if honest_size {
            set_size(&mut frame);
        }
        decode_any(&frame)?;
    }
}

#[test]
fn every_message_cut_short_or_made_longer_is_refused() {
    for whole in frames(&Values::plain()) {
        let is_request = REQUEST_TYPES.contains(&whole[4]);
        for len in (0..whole.len()).chain([whole.len() + 1, whole.len() + 7]) {
            let mut frame = whole.clone();
            frame.resize(len, 0);
            set_size(&mut frame);
            let accepted = if is_request {
                Request::decode(&frame).is_ok()
            } else {
                Reply::decode(&frame).is_ok()
            };
            assert!(!accepted, "type {} with {len} bytes instead of {}", whole[4], whole.len());
        }
    }
}

#[test]
fn types_that_are_not_in_the_protocol_are_unknown() {
    let (asked, answered) = (BTreeSet::from(REQUEST_TYPES), BTreeSet::from(REPLY_TYPES));
    for kind in 0..=255 {
        let frame = [7, 0, 0, 0, kind, 9, 0];
        let unknown = FrameError::UnknownType { tag: sluice_ninep::Tag(9), kind };
        assert_eq!(Request::decode(&frame) == Err(unknown), !asked.contains(&kind));
        assert_eq!(Reply::decode(&frame) == Err(unknown), !answered.contains(&kind));
    }
}

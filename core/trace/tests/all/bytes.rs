//! What is encoded is decoded again, whatever happens to the bytes in between.

use proptest::prelude::*;
use trace::{
    Chunk, Decoder, Definitions, MARKER, TraceDecodeError, TraceRecord, TraceRequest,
    dropped_chunk, end_chunk, file_header,
};

use crate::samples::{any_request, identity, request};

/// The records up to the end or an error, and the decoder as it is then.
fn decode(mut bytes: &[u8]) -> (Vec<TraceRecord>, Option<TraceDecodeError>, Decoder) {
    let (mut decoder, mut records) = (Decoder::new(), Vec::new());
    loop {
        match decoder.next_record() {
            Ok(Some(record)) => {
                records.push(record);
                continue;
            }
            Ok(None) => {}
            Err(error) => return (records, Some(error), decoder),
        }
        let room = decoder.room();
        if room.is_empty() {
            return (records, None, decoder);
        }
        let len = room.len().min(bytes.len());
        room[..len].copy_from_slice(&bytes[..len]);
        bytes = &bytes[len..];
        if let Err(error) = decoder.filled(len) {
            return (records, Some(error), decoder);
        }
    }
}

/// The whole records of a trace that has its end.
fn decode_whole(bytes: &[u8]) -> (Vec<TraceRecord>, Decoder) {
    let (records, wrong, decoder) = decode(bytes);
    assert!(wrong.is_none(), "{wrong:?}");
    assert!(!decoder.cut());
    (records, decoder)
}

/// A trace of these requests of some jobs, numbered from 1.
fn encode(jobs: &[&str], requests: &[TraceRequest], lost: u64) -> Vec<u8> {
    let mut subjects = Definitions::default();
    for (number, job) in (1..).zip(jobs) {
        subjects.put_subject(number, &identity(job), "scratch", "disk");
    }
    let mut bytes = [file_header(), subjects.subjects_chunk(5)].concat();
    let mut chunk = Chunk::allocate();
    for request in requests {
        if !chunk.has_room() {
            bytes.extend_from_slice(chunk.seal());
            chunk.clear();
        }
        chunk.push(request);
    }
    if chunk.count() > 0 {
        bytes.extend_from_slice(chunk.seal());
    }
    if lost > 0 {
        bytes.extend(dropped_chunk(lost));
    }
    bytes.extend(end_chunk(requests.len() as u64, lost));
    bytes
}

/// A trace of `count` requests of the job `dd`.
fn trace(count: u64) -> Vec<u8> {
    let requests: Vec<_> = (0..count).map(|number| request(1, number)).collect();
    encode(&["dd"], &requests, 0)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        requests in prop::collection::vec(any_request(3), 0..3000), lost in 0..9u64
    ) {
        let jobs = ["dd.500", "", "ümlaut"];
        let (records, decoder) = decode_whole(&encode(&jobs, &requests, lost));
        prop_assert_eq!((decoder.dropped(), decoder.origin_unix_ns()), (lost, 5));
        prop_assert_eq!(records.len(), requests.len());
        for (record, request) in records.iter().zip(&requests) {
            prop_assert_eq!(&record.request, request);
            prop_assert_eq!(&record.subject.identity, &identity(jobs[request.subject as usize - 1]));
            prop_assert_eq!((&*record.subject.export, &*record.subject.target), ("scratch", "disk"));
        }
    }

    #[test]
    fn a_damaged_trace_ends_in_an_error_or_in_records_and_never_in_a_panic(
        at in 0..1usize << 13, bits in 1..=255u8, tail in prop::collection::vec(any::<u8>(), 0..99)
    ) {
        let mut bytes = trace(900);
        let at = at % bytes.len();
        bytes[at] ^= bits;
        bytes.extend(tail);
        prop_assert!(decode(&bytes).0.len() <= 901);
    }
}

#[test]
fn a_trace_that_was_cut_anywhere_is_read_up_to_its_last_whole_chunk() {
    let bytes = trace(20_000);
    let chunks: Vec<_> =
        (0..bytes.len() - 4).filter(|at| bytes[*at..].starts_with(&MARKER)).collect();
    assert!(chunks.len() > 3, "subjects, two of requests, end");
    for (chunk, begin) in chunks.iter().enumerate() {
        let end = chunks.get(chunk + 1).copied().unwrap_or(bytes.len());
        let mut seen = None;
        for at in [*begin, begin + 1, begin + 15, begin + 16, (begin + end) / 2, end - 1] {
            let (records, wrong, decoder) = decode(&bytes[..at]);
            assert!(wrong.is_none() && decoder.cut(), "{at}: {wrong:?}");
            assert_eq!(records.len(), *seen.get_or_insert(records.len()), "cut at {at}");
        }
        let whole_before = match chunk {
            0 | 1 => 0,
            _ => u32::from_le_bytes(*bytes[chunks[chunk - 1] + 12..].first_chunk().unwrap()),
        };
        assert!(seen.unwrap() >= whole_before as usize);
    }
    assert_eq!(decode_whole(&bytes).0.len(), 20_000);
}

#[test]
fn zeros_after_a_crash_are_a_cut_and_no_damage() {
    let mut bytes = trace(10);
    let end = bytes.len() - 32;
    bytes[end..].fill(0);
    let (records, wrong, decoder) = decode(&bytes);
    assert_eq!((records.len(), wrong.is_none(), decoder.cut()), (10, true, true));
}

#[test]
fn what_is_no_trace_is_named() {
    let wrong = |bytes: &[u8]| decode(bytes).1.map(|error| error.to_string());
    let foreign = "not a trace of sluice proxy --trace: it begins with \"#!/bin/s\"";
    assert_eq!(wrong(b"#!/bin/sh\nexit 0\n"), Some(foreign.into()));
    let mut other = trace(1);
    other[8] = 9;
    let version = "a trace of format 9; this sluice reads format 1";
    assert_eq!(wrong(&other), Some(version.into()));
    let within = &trace(1)[..20];
    assert!(
        wrong(within).unwrap().ends_with("the trace ends within its header"),
        "{:?}",
        wrong(within)
    );
}

#[test]
fn class_names_are_found_by_target_and_number() {
    let mut classes = Definitions::default();
    classes.put_class(7, "disk", "jobs dd.500");
    let (_, wrong, decoder) = decode(&[file_header(), classes.classes_chunk()].concat());
    assert!(wrong.is_none());
    assert_eq!(decoder.class("disk", 7), Some("jobs dd.500"));
    assert_eq!((decoder.class("disk", 8), decoder.class("tape", 7)), (None, None));
}

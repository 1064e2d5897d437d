//! Tests that a trace is read as it was written, whatever happens to the file in between.

use std::path::PathBuf;
use std::sync::atomic::AtomicU32;

use proptest::prelude::*;
use trace::TraceRecord;

use self::samples::{any_request, identity, request};
use super::*;

#[path = "../../../../core/trace/tests/all/samples.rs"]
mod samples;

/// A file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-trace-{}-{number}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }

    /// A recorder on this file whose writer does not run yet.
    fn recorder(&self, waiting_max: usize) -> (TraceRecorder, TraceWriter) {
        let mut file = File::create(&self.0).unwrap();
        file.write_all(&trace::file_header()).unwrap();
        TraceRecorder::new(file, waiting_max)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl TraceRecorder {
    fn record(&self, request: &TraceRequest) {
        self.push(&mut self.shared.filling(), request);
    }

    fn define(&self, job: &str) -> u32 {
        let who = identity(job);
        let mut definitions = self.shared.definitions.lock().unwrap();
        definitions.define(&who, "scratch", "disk", Time::from_nanos(5)).unwrap()
    }
}

/// The records up to the end or an error, and the reader as it is then.
fn read(bytes: &[u8]) -> (Vec<TraceRecord>, Option<TraceError>, TraceReader<&[u8]>) {
    let mut reader = TraceReader::new(bytes).unwrap();
    let (mut records, mut wrong) = (Vec::new(), None);
    for record in &mut reader {
        match record {
            Ok(record) => records.push(record),
            Err(error) => wrong = Some(error),
        }
    }
    (records, wrong, reader)
}

/// The whole records of a trace that has its end.
fn read_whole(bytes: &[u8]) -> (Vec<TraceRecord>, TraceReader<&[u8]>) {
    let (records, wrong, reader) = read(bytes);
    assert!(wrong.is_none(), "{wrong:?}");
    assert!(!reader.cut());
    (records, reader)
}

proptest! {
    #[test]
    fn what_is_recorded_is_read_back(
        requests in prop::collection::vec(any_request(3), 0..3000)
    ) {
        let scratch = Scratch::new();
        let (recorder, writer) = scratch.recorder(WAITING_MAX);
        let jobs = ["dd.500", "", "ümlaut"];
        let numbers = jobs.map(|job| recorder.define(job));
        prop_assert_eq!(numbers, [1, 2, 3]);
        requests.iter().for_each(|request| recorder.record(request));
        drop(recorder);
        writer.run();
        let bytes = scratch.bytes();
        let (records, reader) = read_whole(&bytes);
        prop_assert_eq!(reader.dropped(), 0);
        prop_assert_eq!(records.len(), requests.len());
        for (record, request) in records.iter().zip(&requests) {
            prop_assert_eq!(&record.request, request);
            prop_assert_eq!(&record.subject.identity, &identity(jobs[request.subject as usize - 1]));
            prop_assert_eq!((&*record.subject.export, &*record.subject.target), ("scratch", "disk"));
        }
    }
}

#[test]
fn chunks_that_find_the_channel_full_are_counted_and_nobody_waits() {
    let scratch = Scratch::new();
    let (recorder, writer) = scratch.recorder(1);
    let subject = recorder.define("dd");
    let mut number = 0;
    // The first chunk fills the channel, two more find it full, the fifth is at work.
    let mut chunks = Vec::new();
    while chunks.len() < 4 {
        let before = recorder.shared.filling().chunk.count();
        recorder.record(&request(subject, number));
        number += 1;
        if recorder.shared.filling().chunk.count() <= before {
            chunks.push(u64::from(before));
        }
    }
    let lost = chunks[1] + chunks[2] + chunks[3];
    assert_eq!(recorder.shared.dropped.load(Ordering::Relaxed), lost);
    drop(recorder);
    writer.run();
    let bytes = scratch.bytes();
    let (records, reader) = read_whole(&bytes);
    assert_eq!((records.len() as u64, reader.dropped()), (chunks[0] + 1, lost));
    assert_eq!(records.last().unwrap().request.queued.get(), number - 1);
}

#[test]
fn requests_of_many_threads_are_all_there_when_finish_returns() {
    const THREADS: u64 = 24;
    const EACH: u64 = 5_000;
    let scratch = Scratch::new();
    let recorder = TraceRecorder::start(&scratch.0).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let recorder = &recorder;
            scope.spawn(move || {
                let subject = recorder.define(&thread.to_string());
                (0..EACH).for_each(|number| recorder.record(&request(subject, number)));
            });
        }
    });
    recorder.finish();
    let bytes = scratch.bytes();
    let (records, reader) = read_whole(&bytes);
    assert_eq!(records.len() as u64 + reader.dropped(), THREADS * EACH);
    if reader.dropped() == 0 {
        for thread in 0..THREADS {
            let own =
                records.iter().filter(|r| r.subject.identity.job.as_str() == thread.to_string());
            let sum: u64 = own.map(|record| record.request.queued.get()).sum();
            assert_eq!(sum, EACH * (EACH - 1) / 2, "thread {thread}");
        }
    }
}

#[test]
fn a_chunk_that_does_not_fill_is_written_the_second_time_it_is_seen() {
    let scratch = Scratch::new();
    let (recorder, mut writer) = scratch.recorder(1);
    recorder.record(&request(recorder.define("dd"), 0));
    writer.sweep(false);
    assert_eq!(read(&scratch.bytes()).0.len(), 0);
    writer.sweep(false);
    assert_eq!(read(&scratch.bytes()).0.len(), 1);
    writer.sweep(false);
    assert!(read(&scratch.bytes()).2.cut(), "still being written");
}

#[test]
fn a_full_disk_loses_requests_and_nothing_else() {
    let file = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (recorder, writer) = TraceRecorder::new(file, 1);
    let shared = recorder.shared.clone();
    recorder.record(&request(recorder.define("dd"), 0));
    drop(recorder);
    writer.run();
    assert_eq!(shared.dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn definitions_that_nobody_writes_have_a_bound() {
    let scratch = Scratch::new();
    let (recorder, _writer) = scratch.recorder(1);
    let mut definitions = recorder.shared.definitions.lock().unwrap();
    let who = identity(&"x".repeat(128));
    let some =
        (0..100_000).take_while(|_| definitions.define(&who, "e", "t", Time::ZERO).is_some());
    assert!(some.count() < 10_000);
}

#[test]
fn a_trace_is_its_owners_and_a_new_one_takes_the_place_of_the_old() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    for job in ["old", "new"] {
        let recorder = TraceRecorder::start(&scratch.0).unwrap();
        recorder.record(&request(recorder.define(job), 0));
        recorder.finish();
    }
    let mode = std::fs::metadata(&scratch.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let bytes = scratch.bytes();
    let (records, reader) = read_whole(&bytes);
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].subject.identity.job.as_str(), "new");
    assert!(reader.origin_unix_ns() > 1_600_000_000_000_000_000);
}

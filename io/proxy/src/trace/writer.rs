//! The thread that writes the trace.
//!
//! It takes full chunks as they come and, twice a second, those that are not full but were there
//! the last time: no chunk stays in memory for much longer than a second. Requests that cannot be
//! written are counted as lost, and the file is cut back to its last whole chunk, so that it stays
//! readable when there is room again.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use trace::{Chunk, Definitions};

use super::{SHARDS, TraceState};

/// Interval after which chunks that are not full are written.
const SWEEP: Duration = Duration::from_millis(500);

/// Messages of workers to the writer.
pub(super) enum TraceWriterMsg {
    /// A chunk is full.
    Chunk(Chunk),
    /// The proxy ends: write what is left.
    End,
}

pub(super) struct TraceWriter {
    file: File,
    shared: Arc<TraceState>,
    from_workers: Receiver<TraceWriterMsg>,
    /// Dropped at the very end.
    _ended: SyncSender<()>,
    subjects: Definitions,
    /// The end of the last whole chunk; `None` in a pipe, which cannot be cut.
    good: Option<u64>,
    state: TraceWriterState,
    /// Requests in the file.
    written: u64,
    /// Lost requests that the file speaks of.
    dropped_written: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TraceWriterState {
    Well,
    /// The last chunk could not be written, and left no trace.
    Failing,
    /// There is half a chunk at the end: whatever followed could not be read.
    Broken,
}

impl TraceWriter {
    pub(super) fn new(
        mut file: File,
        shared: Arc<TraceState>,
        from_workers: Receiver<TraceWriterMsg>,
        ended: SyncSender<()>,
    ) -> TraceWriter {
        let good = file.stream_position().ok();
        TraceWriter {
            file,
            shared,
            from_workers,
            _ended: ended,
            subjects: Definitions::default(),
            good,
            state: TraceWriterState::Well,
            written: 0,
            dropped_written: 0,
        }
    }

    /// Until the proxy ends.
    pub(super) fn run(mut self) {
        let mut next_sweep = Instant::now() + SWEEP;
        loop {
            let wait = next_sweep.saturating_duration_since(Instant::now());
            match self.from_workers.recv_timeout(wait) {
                Ok(TraceWriterMsg::Chunk(chunk)) => self.write_chunk(chunk),
                Ok(TraceWriterMsg::End) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= next_sweep {
                self.sweep(false);
                next_sweep = Instant::now() + SWEEP;
            }
        }
        self.finish();
    }

    /// Writes the chunks of the shards: all, or those that were there the last time.
    pub(super) fn sweep(&mut self, all: bool) {
        for shard in 0..SHARDS {
            let mut filling = self.shared.shards[shard].0.lock().expect("not poisoned");
            if filling.chunk.count() == 0 || !(all || std::mem::replace(&mut filling.seen, true)) {
                continue;
            }
            let chunk = filling.replace_chunk(self.shared.spare_chunk());
            drop(filling);
            self.write_chunk(chunk);
        }
        let classes = self.shared.take_classes();
        if !classes.is_empty() {
            self.put(&classes.classes_chunk());
        }
        self.write_dropped();
    }

    fn finish(mut self) {
        while let Ok(message) = self.from_workers.try_recv() {
            if let TraceWriterMsg::Chunk(chunk) = message {
                self.write_chunk(chunk);
            }
        }
        self.sweep(true);
        self.put(&trace::end_chunk(self.written, self.dropped_written));
    }

    fn write_chunk(&mut self, mut chunk: Chunk) {
        if self.write_subjects() && self.put(chunk.seal()) {
            self.written += u64::from(chunk.count());
            self.shared.recycle(chunk);
        } else {
            self.shared.drop_chunk(chunk);
        }
    }

    /// Every subject of a chunk that was handed over has a definition that waits here or is
    /// written: it was made before the first of the requests was noted.
    fn write_subjects(&mut self) -> bool {
        let origin = self.shared.take_subjects(&mut self.subjects);
        if self.subjects.is_empty() {
            return true;
        }
        let done = self.put(&self.subjects.subjects_chunk(origin));
        if done {
            self.subjects = Definitions::default();
        }
        done
    }

    fn write_dropped(&mut self) {
        let lost = self.shared.dropped.load(Ordering::Relaxed);
        let new = lost - self.dropped_written;
        if new > 0 && self.put(&trace::dropped_chunk(new)) {
            self.dropped_written = lost;
        }
    }

    /// Writes a whole chunk, or nothing.
    fn put(&mut self, bytes: &[u8]) -> bool {
        if self.state == TraceWriterState::Broken {
            return false;
        }
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.good = self.good.map(|good| good + bytes.len() as u64);
                if self.state == TraceWriterState::Failing {
                    tracing::info!("writing the trace again");
                }
                self.state = TraceWriterState::Well;
                true
            }
            Err(error) => {
                let was = self.state;
                self.state = if self.truncate_to_good().is_ok() {
                    TraceWriterState::Failing
                } else {
                    TraceWriterState::Broken
                };
                if was == TraceWriterState::Well {
                    tracing::error!(%error, "cannot write the trace; requests are not recorded");
                }
                false
            }
        }
    }

    fn truncate_to_good(&mut self) -> io::Result<()> {
        let good = self.good.ok_or(io::ErrorKind::NotSeekable)?;
        self.file.set_len(good)?;
        self.file.seek(SeekFrom::Start(good))?;
        Ok(())
    }
}

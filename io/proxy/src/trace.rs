//! `--trace`: a compact trace of every request, written beside the data path.
//!
//! ```text
//!   worker ─► note ─► one of 16 shards ── chunk full ──► channel ─► writer thread ─► file
//!   worker ─► note ─► (thread's own)  ◄─ empty chunk ─────────────────┘ │
//!                            ▲── chunk older than a second ─────────────┘
//! ```
//!
//! A request costs its thread an uncontended lock and some twenty bytes in memory. No
//! thread ever waits for the file: when the channel is full the chunk is dropped,
//! counted, and the count goes into the file. Memory is bounded by the shards, the
//! channel and the definitions that are not yet written. Definitions of subjects and
//! classes are never dropped: a request that refers to one that has no room is.
//!
//! The format is docs/trace.md, its bytes are made in core/trace; [`TraceReader`] reads a file.

mod access;
mod notes;
mod reader;
mod subjects;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use model::Time;
use rustc_hash::FxHashSet;
use trace::{Chunk, TraceRequest};

use subjects::DefinitionBatch;
use writer::{TraceWriter, TraceWriterMsg};

pub(crate) use access::{AccessHistory, AccessOrder};
pub(crate) use notes::{RefusedRequest, TraceDraft};
pub use reader::{TraceError, TraceReader};
pub(crate) use subjects::TraceCaller;

/// Writes a trace of every request while the proxy runs.
pub(crate) struct TraceRecorder {
    shared: Arc<TraceState>,
    to_writer: SyncSender<TraceWriterMsg>,
    /// Disconnected once the writer has written everything and ended.
    writer_ended: Mutex<Receiver<()>>,
}

/// State that the workers and the writer thread share.
struct TraceState {
    shards: [TraceShard; SHARDS],
    /// Requests that are not in the file and never will be.
    dropped: AtomicU64,
    definitions: Mutex<DefinitionBatch>,
    /// Empty chunks, to be filled again.
    spare: Mutex<Vec<Chunk>>,
}

/// The chunk that some of the threads fill; on cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct TraceShard(Mutex<Filling>);

#[derive(Default)]
struct Filling {
    chunk: Chunk,
    /// The writer has seen this chunk before: it is half a second old.
    seen: bool,
    /// Classes whose definition was asked for.
    classes: FxHashSet<u64>,
}

/// More threads than this share shards; they seldom are at the same place at once.
const SHARDS: usize = 16;
/// Full chunks that wait for the writer: 4 MiB, some 200,000 requests.
const WAITING_MAX: usize = 64;
/// Classes that a shard remembers having asked for; beyond, it forgets and asks again.
const CLASSES_MAX: usize = 8192;
/// How long the end of the proxy waits for a disk that hangs.
const PATIENCE: Duration = Duration::from_secs(10);

impl TraceRecorder {
    /// Begins a trace in a new file, readable by its owner only: it names users and their requests.
    pub(crate) fn start(path: &Path) -> io::Result<TraceRecorder> {
        let mut options = api::private_options();
        let mut file = options.write(true).create(true).truncate(true).open(path)?;
        file.write_all(&trace::file_header())?;
        let (recorder, writer) = TraceRecorder::new(file, WAITING_MAX);
        let run = move || {
            // The thread starts before the proxy drops what it does not need.
            if let Err(error) = crate::credentials::drop_capabilities() {
                tracing::error!(%error, "the trace writer cannot drop capabilities");
            }
            writer.run();
        };
        std::thread::Builder::new().name("sluice-record".into()).spawn(api::critical(run))?;
        Ok(recorder)
    }

    /// A recorder and its writer, which has yet to run; `file` stands after its header.
    fn new(file: File, waiting_max: usize) -> (TraceRecorder, TraceWriter) {
        let shared = Arc::new(TraceState {
            shards: Default::default(),
            dropped: AtomicU64::new(0),
            definitions: Mutex::default(),
            spare: Mutex::default(),
        });
        let (to_writer, from_workers) = sync_channel(waiting_max);
        let (ended, writer_ended) = sync_channel(0);
        let writer = TraceWriter::new(file, shared.clone(), from_workers, ended);
        (TraceRecorder { shared, to_writer, writer_ended: Mutex::new(writer_ended) }, writer)
    }

    /// Writes what the shards hold and ends the file. Requests noted later are not in it.
    pub(crate) fn finish(&self) {
        // If the channel is full the writer finds the shards empty all the same: it
        // looks again while it waits, and ends when nobody could send any more.
        let mut asked = self.to_writer.try_send(TraceWriterMsg::End);
        let ended = self.writer_ended.lock().expect("not poisoned");
        let began = std::time::Instant::now();
        while began.elapsed() < PATIENCE {
            match ended.recv_timeout(Duration::from_millis(10)) {
                Err(RecvTimeoutError::Disconnected) => return,
                _ if asked.is_err() => asked = self.to_writer.try_send(TraceWriterMsg::End),
                _ => {}
            }
        }
        tracing::error!("the trace is incomplete: its disk does not answer");
    }

    /// Returns the number of a request's subject; `None` if there is no room, and the request is
    /// lost.
    fn subject(&self, who: TraceCaller<'_>, now: Time) -> Option<u32> {
        let subject = self.shared.subject(who, now);
        if subject.is_none() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        subject
    }

    fn push(&self, filling: &mut Filling, request: &TraceRequest) {
        if !filling.chunk.has_room() {
            let full = filling.replace_chunk(self.shared.spare_chunk());
            match self.to_writer.try_send(TraceWriterMsg::Chunk(full)) {
                Ok(()) => {}
                Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => {
                    if let TraceWriterMsg::Chunk(chunk) = message {
                        self.shared.drop_chunk(chunk);
                    }
                }
            }
        }
        filling.chunk.push(request);
    }
}

impl TraceState {
    /// The shard of the calling thread.
    fn filling(&self) -> MutexGuard<'_, Filling> {
        thread_local! {
            static NUMBER: usize = {
                static NEXT: AtomicUsize = AtomicUsize::new(0);
                NEXT.fetch_add(1, Ordering::Relaxed)
            };
        }
        let shard = &self.shards[NUMBER.with(|number| *number) % SHARDS];
        shard.0.lock().expect("not poisoned")
    }

    fn spare_chunk(&self) -> Chunk {
        let spare = self.spare.lock().expect("not poisoned").pop();
        spare.unwrap_or_else(Chunk::allocate)
    }

    fn recycle(&self, mut chunk: Chunk) {
        chunk.clear();
        let mut spare = self.spare.lock().expect("not poisoned");
        if spare.len() < SHARDS {
            spare.push(chunk);
        }
    }

    fn drop_chunk(&self, chunk: Chunk) {
        self.dropped.fetch_add(chunk.count().into(), Ordering::Relaxed);
        self.recycle(chunk);
    }
}

impl Filling {
    fn replace_chunk(&mut self, empty: Chunk) -> Chunk {
        self.seen = false;
        std::mem::replace(&mut self.chunk, empty)
    }

    /// Whether a class was not met before, as far as is remembered.
    fn is_new_class(&mut self, class: u64) -> bool {
        if self.classes.len() >= CLASSES_MAX {
            self.classes.clear();
        }
        self.classes.insert(class)
    }
}

//! The decoder: reads a trace back, request by request.
//!
//! ```text
//!   room ◄─ bytes ── the caller's file        next_record ─► TraceRecord
//!     └─ filled ─► header │ chunk header │ payload ─────────────┘ until it is used up
//! ```
//!
//! The bytes are not trusted. Whatever they are, reading ends with the last valid record, and with
//! an error that names the position if what follows is invalid. One chunk is in memory at a time,
//! and the definitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::{Identity, OpKind, Time};

use crate::definitions::{ID_UNKNOWN, read_subject};
use crate::format::{self, CHUNK_HEADER_LEN, ChunkType, Cursor, PAYLOAD_MAX, TraceRequest};

/// The requests of a trace, in the order in which they were recorded.
///
/// Call [`Decoder::next_record`] until it returns none. Then read into [`Decoder::room`] as much as
/// it has room for, and pass the number of bytes to [`Decoder::filled`]. Without room and without a
/// record it is at its end; [`Decoder::cut`] and [`Decoder::dropped`] then name what is missing.
///
/// Requests of different threads are interleaved by chunks, so arrival times go back
/// and forth by up to about a second.
#[derive(Debug)]
pub struct Decoder {
    expected: Expected,
    /// The current part of the header, or of a chunk.
    buffer: Vec<u8>,
    /// The offset of the current part in the trace.
    offset: u64,
    kinds: Vec<OpKind>,
    /// Kinds that the header has still to name.
    kinds_left: u16,
    subjects: BTreeMap<u32, Arc<TraceSubject>>,
    classes: BTreeMap<(String, u64), String>,
    origin_unix_ns: u64,
    /// Bytes of the payload in `buffer` that were read.
    at: usize,
    /// Requests of the payload that were not read.
    left: u32,
    previous: Time,
    read: u64,
    dropped: u64,
}

/// The part of the trace that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The first bytes of every trace.
    Begin,
    /// The length of a kind's name.
    KindLen,
    /// The name of a kind.
    OpKind(usize),
    /// The header of a chunk.
    Chunk,
    /// The payload of a chunk: type, length, count.
    Payload(u8, usize, u32),
    /// Nothing more: the last chunk was read.
    Complete,
    /// Nothing more: the trace ended before.
    Cut,
    /// Nothing more: the trace is damaged, or is not a trace.
    Failed,
}

/// One request of a trace and its subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// The subject of the request.
    pub subject: Arc<TraceSubject>,
    /// The request, when it arrived and how it ended.
    pub request: TraceRequest,
}

/// One attach: an identity at work in an export; or a peer without an attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceSubject {
    /// The identity that pays.
    pub identity: Identity,
    /// The export's name; empty without an attach.
    pub export: String,
    /// The name of the target whose dispatcher it waited for; empty without an attach.
    pub target: String,
}

impl TraceSubject {
    /// The user; `None` where there was no attach and the system does not know the peer.
    pub fn uid(&self) -> Option<u32> {
        known(self.identity.uid)
    }

    /// The user's group; `None` in the same cases.
    pub fn gid(&self) -> Option<u32> {
        known(self.identity.gid)
    }
}

/// The reason why bytes are not a complete trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceDecodeError {
    /// The file is not a trace.
    #[error("not a trace of sluice proxy --trace: it begins with \"{begin}\"")]
    Foreign {
        /// The first bytes, escaped.
        begin: String,
    },
    /// The trace was written by another version.
    #[error("a trace of format {found}; this sluice reads format {}", format::VERSION)]
    Version {
        /// The number of the format.
        found: u16,
    },
    /// The trace names an unknown kind of request.
    #[error(transparent)]
    OpKind(#[from] model::ParseKindError),
    /// The bytes of the trace are invalid from some offset on.
    #[error("damaged at byte {offset}: {what}")]
    Damaged {
        /// The byte at which the chunk begins.
        offset: u64,
        /// The damage that was found.
        what: &'static str,
    },
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new()
    }
}

impl Decoder {
    /// Creates a decoder of which nothing was read yet.
    pub fn new() -> Decoder {
        Decoder {
            expected: Expected::Begin,
            buffer: Vec::new(),
            offset: 0,
            kinds: Vec::new(),
            kinds_left: 0,
            subjects: BTreeMap::new(),
            classes: BTreeMap::new(),
            origin_unix_ns: 0,
            at: 0,
            left: 0,
            previous: Time::ZERO,
            read: 0,
            dropped: 0,
        }
    }

    /// The room for the next bytes, as many as can be decoded at once; empty while there are
    /// records to read, and at the end.
    pub fn room(&mut self) -> &mut [u8] {
        let len = match self.expected {
            _ if self.left > 0 => 0,
            Expected::Begin => BEGIN_LEN,
            Expected::KindLen => 1,
            Expected::OpKind(len) | Expected::Payload(_, len, _) => len,
            Expected::Chunk => CHUNK_HEADER_LEN,
            Expected::Complete | Expected::Cut | Expected::Failed => 0,
        };
        if len == 0 {
            return &mut [];
        }
        self.buffer.resize(len, 0);
        &mut self.buffer
    }

    /// Handles that the first `len` bytes of the room were filled. Fewer bytes than it has mean
    /// that the trace ends there. Afterwards there may be records.
    ///
    /// # Errors
    /// If the bytes are invalid.
    pub fn filled(&mut self, len: usize) -> Result<(), TraceDecodeError> {
        assert!(self.left == 0 && len <= self.buffer.len(), "what was filled is the room");
        self.offset += len as u64;
        let whole = len == self.buffer.len();
        let done = match self.expected {
            Expected::Begin => self.read_begin(len),
            Expected::KindLen if whole => self.read_kind_len(),
            Expected::OpKind(_) if whole => self.read_kind(),
            Expected::KindLen | Expected::OpKind(_) => {
                Err(self.damaged("the trace ends within its header"))
            }
            Expected::Chunk if whole => self.read_chunk_header(),
            Expected::Payload(what, _, count) if whole => self.read_payload(what, count),
            Expected::Chunk | Expected::Payload(..) => {
                self.expected = Expected::Cut;
                Ok(())
            }
            Expected::Complete | Expected::Cut | Expected::Failed => Ok(()),
        };
        done.inspect_err(|_| self.expected = Expected::Failed)
    }

    /// The next record; `None` if it needs bytes first, or is at its end.
    ///
    /// # Errors
    /// If the bytes are invalid; there is nothing after that.
    pub fn next_record(&mut self) -> Result<Option<TraceRecord>, TraceDecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        let record = self.read_record();
        if record.is_err() {
            (self.expected, self.left) = (Expected::Failed, 0);
        }
        record.map(Some)
    }

    /// Whether the trace's header is still to be read.
    pub fn is_in_header(&self) -> bool {
        matches!(self.expected, Expected::Begin | Expected::KindLen | Expected::OpKind(_))
    }

    /// How many bytes of the trace were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Requests that were not traced, as far as the trace has been read.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether the trace ended without its last chunk: the proxy was killed, or still
    /// writes it.
    pub fn cut(&self) -> bool {
        self.expected == Expected::Cut
    }

    /// When the proxy's clock showed zero, in nanoseconds since 1970; 0 before the
    /// first record.
    pub fn origin_unix_ns(&self) -> u64 {
        self.origin_unix_ns
    }

    /// The name of a class of a target, its rule and key, once it was read: up to a second of
    /// requests after the first of the class. `None` also for a class that was gone before its name
    /// was written.
    pub fn class(&self, target: &str, number: u64) -> Option<&str> {
        self.classes.get(&(target.to_owned(), number)).map(String::as_str)
    }

    fn damaged(&self, what: &'static str) -> TraceDecodeError {
        TraceDecodeError::Damaged { offset: self.offset, what }
    }

    fn read_begin(&mut self, len: usize) -> Result<(), TraceDecodeError> {
        let (begin, magic) = (&self.buffer[..len], format::MAGIC);
        if len < BEGIN_LEN || !begin.starts_with(&magic) {
            let begin = begin[..len.min(magic.len())].escape_ascii().to_string();
            return Err(TraceDecodeError::Foreign { begin });
        }
        let number = |at: usize| u16::from_le_bytes([begin[at], begin[at + 1]]);
        if number(8) != format::VERSION {
            return Err(TraceDecodeError::Version { found: number(8) });
        }
        self.kinds_left = number(10);
        self.expect_kind();
        Ok(())
    }

    fn expect_kind(&mut self) {
        self.expected = if self.kinds_left > 0 { Expected::KindLen } else { Expected::Chunk };
    }

    fn read_kind_len(&mut self) -> Result<(), TraceDecodeError> {
        let len = usize::from(self.buffer[0]).min(KIND_LEN_MAX);
        self.expected = Expected::OpKind(len);
        if len == 0 {
            self.buffer.clear();
            return self.read_kind();
        }
        Ok(())
    }

    fn read_kind(&mut self) -> Result<(), TraceDecodeError> {
        self.kinds.push(String::from_utf8_lossy(&self.buffer).parse()?);
        self.kinds_left -= 1;
        self.expect_kind();
        Ok(())
    }

    fn read_chunk_header(&mut self) -> Result<(), TraceDecodeError> {
        let header = &self.buffer;
        // A file system that crashed may have the length of the file but not its bytes.
        if header.iter().all(|byte| *byte == 0) {
            self.expected = Expected::Cut;
            return Ok(());
        }
        let number = |at: usize| header[at..].first_chunk().map_or(0, |n| u32::from_le_bytes(*n));
        if !header.starts_with(&format::MARKER) {
            return Err(self.damaged("a chunk header without its marker ends here"));
        }
        let (what, len, count) = (header[4], number(8) as usize, number(12));
        if len > PAYLOAD_MAX {
            return Err(self.damaged("a chunk is longer than the maximum"));
        }
        self.expected = Expected::Payload(what, len, count);
        if len == 0 {
            self.buffer.clear();
            return self.read_payload(what, count);
        }
        Ok(())
    }

    fn read_payload(&mut self, what: u8, count: u32) -> Result<(), TraceDecodeError> {
        self.expected = Expected::Chunk;
        match self.understand(what, count) {
            Some(()) => Ok(()),
            None => Err(self.damaged("the chunk before it is invalid")),
        }
    }

    fn read_record(&mut self) -> Result<TraceRecord, TraceDecodeError> {
        let mut from = Cursor(&self.buffer[self.at..]);
        let request = format::read_request(&mut from, &self.kinds, self.previous);
        let request = request.ok_or_else(|| self.damaged("a request before it is invalid"))?;
        self.at = self.buffer.len() - from.0.len();
        let who = self.subjects.get(&request.subject).cloned();
        let who = who.ok_or_else(|| self.damaged("a request before it has no identity"))?;
        self.previous = request.arrived;
        self.left -= 1;
        self.read += 1;
        Ok(TraceRecord { subject: who, request })
    }

    /// Unknown types are skipped: later versions may write more.
    fn understand(&mut self, what: u8, count: u32) -> Option<()> {
        let payload = std::mem::take(&mut self.buffer);
        let mut from = Cursor(&payload);
        match what {
            what if what == ChunkType::Requests as u8 => {
                self.previous = Time::from_nanos(from.u64()?);
                (self.at, self.left) = (8, count);
            }
            what if what == ChunkType::Subjects as u8 => {
                self.origin_unix_ns = from.u64()?;
                for _ in 0..count {
                    let (number, subject) = read_subject(&mut from)?;
                    self.subjects.insert(number, Arc::new(subject));
                }
            }
            what if what == ChunkType::Classes as u8 => {
                for _ in 0..count {
                    let (number, target) = (from.varint()?, from.text()?);
                    self.classes.insert((target.into(), number), from.text()?.into());
                }
            }
            what if what == ChunkType::Dropped as u8 => {
                self.dropped = self.dropped.checked_add(from.u64()?)?;
            }
            what if what == ChunkType::End as u8 => {
                let sums = (from.u64()?, from.u64()?);
                self.expected = Expected::Complete;
                return (sums == (self.read, self.dropped)).then_some(());
            }
            _ => {}
        }
        self.buffer = payload;
        Some(())
    }
}

fn known(id: u32) -> Option<u32> {
    (id != ID_UNKNOWN).then_some(id)
}

const BEGIN_LEN: usize = 12;
const KIND_LEN_MAX: usize = 127;

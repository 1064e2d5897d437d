//! The bytes of a trace, both ways; docs/trace.md describes each of them.
//!
//! ```text
//!   header │ chunk │ chunk │ … │ chunk END
//!             └─ marker, type, length, count │ payload: requests, subjects, classes, dropped
//! ```
//!
//! A chunk can be decoded after those before it, and its length is known before its payload: a file
//! that was cut is valid up to its last whole chunk. Numbers of requests are varints, since most
//! are small. Whatever the bytes, decoding ends in a value or in `None`.

use std::num::NonZeroU32;

use model::{Amount, Bytes, Lane, Nanos, OpKind, Time};

use crate::access::Access;

/// The first bytes of every trace.
pub(crate) const MAGIC: [u8; 8] = *b"SLUICETR";
/// The format written and read here.
pub(crate) const VERSION: u16 = 1;
/// The first bytes of every chunk; no text and no likely varint begins with them.
pub const MARKER: [u8; 4] = [0xf5, b'S', b'L', b'C'];
/// Marker, type, three bytes of zero, length, count.
pub const CHUNK_HEADER_LEN: usize = 16;
/// A chunk of requests is closed before it gets longer, its header included.
pub(crate) const CHUNK_LEN: usize = 64 << 10;
/// No payload is longer; a greater length means that the file is damaged.
pub(crate) const PAYLOAD_MAX: usize = 4 << 20;
/// The most that one request takes: two bytes and nine varints.
const REQUEST_MAX: usize = 2 + 9 * 10;

/// The content of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ChunkType {
    Subjects = 1,
    Requests = 2,
    Classes = 3,
    Dropped = 4,
    End = 5,
}

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// The number of its subject, unique in the trace.
    pub subject: u32,
    /// The dispatcher's number for its class; `None` without scheduling.
    pub class: Option<u64>,
    /// The kind of the request.
    pub kind: OpKind,
    /// The lane that served it.
    pub lane: Lane,
    /// Its position relative to the access before it through the same fid, for reads and writes of
    /// files.
    pub access: Option<Access>,
    /// When it arrived, counted from the proxy's start.
    pub arrived: Time,
    /// How long it waited for its dispatch.
    pub queued: Nanos,
    /// How long it was served, from its dispatch to its end; 0 without a dispatch. A lock's wait
    /// for its holder is part of it.
    pub service: Nanos,
    /// The payload that was requested.
    pub requested: Bytes,
    /// Payload moved, and backend operations.
    pub served: Amount,
    /// The outcome of the request.
    pub outcome: TraceOutcome,
}

/// The outcome of a request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceOutcome {
    /// The request has succeeded.
    Done,
    /// The request was answered with this errno.
    Failed(NonZeroU32),
    /// The client cancelled the request while it waited, or ended its session: it was not answered.
    Cancelled,
}

impl TraceOutcome {
    /// The outcome of a request that was answered with this errno, 0 for success.
    pub fn of(errno: u32) -> TraceOutcome {
        NonZeroU32::new(errno).map_or(TraceOutcome::Done, TraceOutcome::Failed)
    }

    /// The errno of its reply; 0 for success, and where there was none.
    pub fn errno(self) -> u32 {
        match self {
            TraceOutcome::Failed(errno) => errno.get(),
            TraceOutcome::Done | TraceOutcome::Cancelled => 0,
        }
    }
}

/// A chunk of requests that is being filled.
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    count: u32,
    previous: Time,
}

/// Reads numbers and texts from the front of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a>(pub(crate) &'a [u8]);

impl Chunk {
    /// Creates an empty chunk with room for all that it may hold.
    pub fn allocate() -> Chunk {
        Chunk { bytes: Vec::with_capacity(CHUNK_LEN), count: 0, previous: Time::ZERO }
    }

    /// How many requests are in it.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether another request may be pushed.
    pub fn has_room(&self) -> bool {
        self.bytes.len() + REQUEST_MAX <= CHUNK_LEN
    }

    /// Appends a request; there must be room.
    pub fn push(&mut self, request: &TraceRequest) {
        if self.count == 0 {
            self.bytes.clear();
            self.bytes.resize(CHUNK_HEADER_LEN, 0);
            self.bytes.extend_from_slice(&request.arrived.as_nanos().to_le_bytes());
            self.previous = request.arrived;
        }
        put_request(&mut self.bytes, request, self.previous);
        self.previous = request.arrived;
        self.count += 1;
        debug_assert!(self.bytes.len() <= CHUNK_LEN, "a request is shorter than REQUEST_MAX");
    }

    /// The whole chunk as it is in the file.
    pub fn seal(&mut self) -> &[u8] {
        let len = self.bytes.len() - CHUNK_HEADER_LEN;
        let header = chunk_header(ChunkType::Requests, self.count, len);
        self.bytes[..CHUNK_HEADER_LEN].copy_from_slice(&header);
        &self.bytes
    }

    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

/// The header of the file: which format, and what number each kind has in it.
pub fn file_header() -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(OpKind::COUNT as u16).to_le_bytes());
    for kind in OpKind::ALL {
        put_text(&mut out, kind.name());
    }
    out
}

/// Counts requests that are not in the trace.
pub fn dropped_chunk(count: u64) -> Vec<u8> {
    chunk_of(ChunkType::Dropped, 1, &count.to_le_bytes())
}

/// The last chunk: how many requests are in the trace, and how many are counted as dropped.
pub fn end_chunk(requests: u64, dropped: u64) -> Vec<u8> {
    chunk_of(ChunkType::End, 2, &[requests, dropped].map(u64::to_le_bytes).concat())
}

/// A whole chunk that does not hold requests.
pub(crate) fn chunk_of(what: ChunkType, count: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = chunk_header(what, count, payload.len()).to_vec();
    out.extend_from_slice(payload);
    out
}

fn chunk_header(what: ChunkType, count: u32, len: usize) -> [u8; CHUNK_HEADER_LEN] {
    let mut header = [0; CHUNK_HEADER_LEN];
    header[..4].copy_from_slice(&MARKER);
    header[4] = what as u8;
    header[8..12].copy_from_slice(&(len as u32).to_le_bytes());
    header[12..].copy_from_slice(&count.to_le_bytes());
    header
}

const KIND_MASK: u8 = 0x3f;
const DEVICE: u8 = 0x40;
const FAILED: u8 = 0x80;
const ACCESS_MASK: u8 = 0x07;
const REQUESTED_DIFFERS: u8 = 0x08;
const OPS_DIFFER: u8 = 0x10;
const HAS_CLASS: u8 = 0x20;
const CANCELLED: u8 = 0x40;
const _: () = assert!(OpKind::COUNT <= KIND_MASK as usize + 1);

fn put_request(out: &mut Vec<u8>, request: &TraceRequest, previous: Time) {
    let TraceRequest { requested: asked, served, class, outcome, .. } = *request;
    let errno = outcome.errno();
    let bit = |bit, set| if set { bit } else { 0 };
    let access = request.access.map_or(0, |access| access as u8 + 1);
    let differs = (asked != served.bytes, served.ops.get() != 1);
    out.push(
        request.kind as u8 | bit(DEVICE, request.lane == Lane::Device) | bit(FAILED, errno != 0),
    );
    out.push(
        access
            | bit(REQUESTED_DIFFERS, differs.0)
            | bit(OPS_DIFFER, differs.1)
            | bit(HAS_CLASS, class.is_some())
            | bit(CANCELLED, outcome == TraceOutcome::Cancelled),
    );
    put_varint(out, request.subject.into());
    let step = request.arrived.as_nanos().wrapping_sub(previous.as_nanos()) as i64;
    put_varint(out, zigzag(step));
    put_varint(out, request.queued.get());
    put_varint(out, request.service.get());
    put_varint(out, served.bytes.get());
    if differs.0 {
        put_varint(out, asked.get());
    }
    if differs.1 {
        put_varint(out, served.ops.get());
    }
    if let Some(class) = class {
        put_varint(out, class);
    }
    if errno != 0 {
        put_varint(out, errno.into());
    }
}

/// The next request of a chunk; `kinds` is the file's own numbering.
pub(crate) fn read_request(
    from: &mut Cursor<'_>,
    kinds: &[OpKind],
    previous: Time,
) -> Option<TraceRequest> {
    let (first, second) = (from.byte()?, from.byte()?);
    let kind = *kinds.get(usize::from(first & KIND_MASK))?;
    let lane = if first & DEVICE != 0 { Lane::Device } else { Lane::Cached };
    let access = match second & ACCESS_MASK {
        0 => None,
        number => Some(*Access::ALL.get(usize::from(number - 1))?),
    };
    let subject = u32::try_from(from.varint()?).ok()?;
    let step = unzigzag(from.varint()?) as u64;
    let arrived = Time::from_nanos(previous.as_nanos().wrapping_add(step));
    let (queued, service) = (Nanos::new(from.varint()?), Nanos::new(from.varint()?));
    let bytes = from.varint()?;
    let mut optional = |present: bool, otherwise: u64| {
        if present { from.varint() } else { Some(otherwise) }
    };
    let asked = Bytes::new(optional(second & REQUESTED_DIFFERS != 0, bytes)?);
    let ops = optional(second & OPS_DIFFER != 0, 1)?;
    let class = optional(second & HAS_CLASS != 0, 0)?;
    let class = (second & HAS_CLASS != 0).then_some(class);
    let errno = u32::try_from(optional(first & FAILED != 0, 0)?).ok()?;
    let outcome = match (first & FAILED != 0, second & CANCELLED != 0) {
        (false, false) => TraceOutcome::Done,
        (true, false) => TraceOutcome::Failed(NonZeroU32::new(errno)?),
        (false, true) => TraceOutcome::Cancelled,
        (true, true) => return None,
    };
    let served = Amount::new(bytes, ops);
    Some(TraceRequest {
        subject,
        class,
        kind,
        lane,
        access,
        arrived,
        queued,
        service,
        requested: asked,
        served,
        outcome,
    })
}

/// Seven bits a byte, the lowest first; the top bit says that more follow.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A text after its length.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Small numbers of either sign become small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

impl<'a> Cursor<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = u64::from(self.byte()?);
            if shift == 63 && byte > 1 {
                return None;
            }
            value |= (byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn varint32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_of_every_length_come_back() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put_varint(&mut bytes, value);
                let mut cursor = Cursor(&bytes);
                assert_eq!((cursor.varint(), cursor.0.is_empty()), (Some(value), true));
            }
        }
    }

    #[test]
    fn a_varint_beyond_64_bits_is_none() {
        assert_eq!(Cursor(&[0xff; 10]).varint(), None);
        let mut bytes = [0xff; 10];
        bytes[9] = 2;
        assert_eq!(Cursor(&bytes).varint(), None);
        bytes[9] = 1;
        assert_eq!(Cursor(&bytes).varint(), Some(u64::MAX));
    }

    #[test]
    fn steps_of_either_sign_are_small() {
        for (value, code) in [(0, 0), (-1, 1), (1, 2), (-2, 3), (i64::MIN, u64::MAX)] {
            assert_eq!((zigzag(value), unzigzag(code)), (code, value));
        }
    }

    #[test]
    fn worked_example_of_the_document_has_these_bytes() {
        let request = TraceRequest {
            subject: 1,
            class: Some(2),
            kind: OpKind::Read,
            lane: Lane::Device,
            access: Some(Access::Sequential),
            arrived: Time::from_nanos(1_000),
            queued: Nanos::new(300),
            service: Nanos::new(5),
            requested: Bytes::new(4096),
            served: Amount::new(4096, 1),
            outcome: TraceOutcome::Done,
        };
        let mut chunk = Chunk::allocate();
        chunk.push(&request);
        let outcome = TraceOutcome::of(2);
        let later = TraceRequest { kind: OpKind::Getattr, access: None, outcome, ..request };
        let later = TraceRequest { served: Amount::new(0, 1), requested: Bytes::ZERO, ..later };
        chunk.push(&TraceRequest { arrived: Time::from_nanos(999), class: None, ..later });
        let bytes = chunk.seal();
        assert_eq!(bytes[..16], *b"\xf5SLC\x02\0\0\0\x1b\0\0\0\x02\0\0\0");
        assert_eq!(bytes[16..24], 1_000u64.to_le_bytes());
        assert_eq!(bytes[24..34], *b"\x40\x21\x01\x00\xac\x02\x05\x80\x20\x02");
        assert_eq!(bytes[34..], *b"\xc3\x00\x01\x01\xac\x02\x05\x00\x02");
    }
}

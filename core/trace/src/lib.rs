//! The bytes of a trace: the file of requests of `sluice proxy --trace`, both ways.
//!
//! ```text
//!   TraceRequest ─► Chunk ──┐                              ┌─► TraceRecord, TraceRecord, …
//!   subjects, classes       ├─► bytes ─ a file ─► bytes ─► Decoder
//!          └─► Definitions ─┘                              └─► dropped, cut, names of classes
//! ```
//!
//! docs/trace.md describes the format byte by byte. Files and clocks are outside: `io/proxy` fills
//! chunks, writes them and reads them back.

mod access;
mod decoder;
mod definitions;
mod format;

pub use access::Access;
pub use decoder::{Decoder, TraceDecodeError, TraceRecord, TraceSubject};
pub use definitions::{Definitions, ID_UNKNOWN};
pub use format::{
    CHUNK_HEADER_LEN, Chunk, MARKER, TraceOutcome, TraceRequest, dropped_chunk, end_chunk,
    file_header,
};

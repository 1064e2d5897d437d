//! Reads a trace from a file, request by request: `trace::Decoder` understands its bytes.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use trace::{Decoder, TraceDecodeError, TraceRecord};

/// The requests of a trace, in the order in which they were noted.
///
/// After the last record, [`TraceReader::cut`] and [`TraceReader::dropped`] say what is missing.
pub struct TraceReader<R = BufReader<File>> {
    input: R,
    decoder: Decoder,
    failed: bool,
}

/// Why a trace cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open {}", path.display())]
    Open {
        /// The path of the trace.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The system cannot read the file.
    #[error("cannot read at byte {offset}")]
    Read {
        /// The byte at which the unread chunk begins.
        offset: u64,
        /// The error of the system.
        source: io::Error,
    },
    /// Its bytes make no sense.
    #[error(transparent)]
    Bytes(#[from] TraceDecodeError),
}

impl TraceReader {
    /// Opens a trace that `sluice proxy --trace` wrote, or is still writing.
    ///
    /// # Errors
    /// If the file cannot be read or is not a trace.
    pub fn open(path: &Path) -> Result<TraceReader, TraceError> {
        let failed = |source| TraceError::Open { path: path.into(), source };
        let file = File::open(path).map_err(failed)?;
        TraceReader::new(BufReader::with_capacity(1 << 20, file))
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads a trace from anything that gives its bytes.
    ///
    /// # Errors
    /// If it cannot be read or is not a trace.
    pub fn new(input: R) -> Result<TraceReader<R>, TraceError> {
        let mut reader = TraceReader { input, decoder: Decoder::new(), failed: false };
        while reader.decoder.is_in_header() {
            reader.fill()?;
        }
        Ok(reader)
    }

    /// Requests that were not recorded, as far as the file has been read.
    pub fn dropped(&self) -> u64 {
        self.decoder.dropped()
    }

    /// Whether the file ended without its last chunk: the proxy was killed, or still
    /// writes it.
    pub fn cut(&self) -> bool {
        self.decoder.cut()
    }

    /// When the proxy's clock showed zero, in nanoseconds since 1970; 0 before the
    /// first record.
    pub fn origin_unix_ns(&self) -> u64 {
        self.decoder.origin_unix_ns()
    }

    /// The name of a class of a target, as [`Decoder::class`] tells it.
    pub fn class(&self, target: &str, number: u64) -> Option<&str> {
        self.decoder.class(target, number)
    }

    /// The next record; `None` at the end.
    fn advance(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        loop {
            if let Some(record) = self.decoder.next_record()? {
                return Ok(Some(record));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads what the decoder has room for; false if it has none.
    fn fill(&mut self) -> Result<bool, TraceError> {
        let offset = self.decoder.offset();
        let room = self.decoder.room();
        if room.is_empty() {
            return Ok(false);
        }
        let len = read_full(&mut self.input, room);
        let len = len.map_err(|source| TraceError::Read { offset, source })?;
        self.decoder.filled(len)?;
        Ok(true)
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.advance();
        self.failed = next.is_err();
        next.transpose()
    }
}

/// Reads as much as there is, and says how much that was.
fn read_full(input: &mut impl Read, mut into: &mut [u8]) -> io::Result<usize> {
    let wanted = into.len();
    while !into.is_empty() {
        match input.read(into) {
            Ok(0) => break,
            Ok(len) => into = &mut into[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(wanted - into.len())
}

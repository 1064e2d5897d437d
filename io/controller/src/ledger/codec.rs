//! The encoding of ledger files and copies: numbers in few bytes.
//!
//! ```text
//!   number ─► 7 bits a byte, lowest first, the highest bit says "more follows"   300 ─► ac 02
//!   text   ─► length, bytes                              sums ─► mask of fields, then each field
//! ```
//!
//! A reader does not trust its input: every length is checked against the rest of the input before
//! memory is taken.

use model::Service;

use super::row::{self, FIELDS};

/// An error of decoding: what was expected where the input ended or was not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{want} is cut off or makes no sense at byte {at} of {length}")]
pub struct CodecError {
    /// The item that was expected.
    pub want: &'static str,
    /// The byte at which it was expected.
    pub at: usize,
    /// The length of the whole input in bytes.
    pub length: usize,
}

/// Reads what [`put_number`] and its siblings wrote.
pub(crate) struct LedgerReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> LedgerReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> LedgerReader<'a> {
        LedgerReader { bytes, at: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Returns the bytes that are left: a count cannot be larger.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn wrong(&self, want: &'static str) -> CodecError {
        CodecError { want, at: self.at, length: self.bytes.len() }
    }

    pub(crate) fn number(&mut self, want: &'static str) -> Result<u64, CodecError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or_else(|| self.wrong(want))?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return Err(self.wrong(want));
            }
            self.at += 1;
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.wrong(want))
    }

    /// Reads a count of items that follow, each of at least one byte.
    pub(crate) fn count(&mut self, want: &'static str) -> Result<usize, CodecError> {
        let count = self.number(want)?;
        usize::try_from(count).ok().filter(|count| *count <= self.left()).ok_or(self.wrong(want))
    }

    pub(crate) fn small(&mut self, want: &'static str) -> Result<u32, CodecError> {
        u32::try_from(self.number(want)?).map_err(|_| self.wrong(want))
    }

    pub(crate) fn text(&mut self, want: &'static str) -> Result<&'a str, CodecError> {
        let length = self.count(want)?;
        let bytes = &self.bytes[self.at..self.at + length];
        let text = std::str::from_utf8(bytes).map_err(|_| self.wrong(want))?;
        self.at += length;
        Ok(text)
    }

    /// Returns the text that [`LedgerReader::text`] will read next.
    pub(crate) fn peek_text(&self, want: &'static str) -> Result<&'a str, CodecError> {
        LedgerReader { bytes: self.bytes, at: self.at }.text(want)
    }

    pub(crate) fn sums(&mut self) -> Result<Service, CodecError> {
        const WANT: &str = "a row of sums";
        let mask = self.number(WANT)?;
        if mask >> FIELDS != 0 {
            return Err(self.wrong(WANT));
        }
        let mut fields = [0; FIELDS];
        for (index, field) in fields.iter_mut().enumerate() {
            if mask & (1 << index) != 0 {
                *field = self.number(WANT)?;
            }
        }
        Ok(row::service(fields))
    }
}

pub(crate) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn put_sums(out: &mut Vec<u8>, sums: &Service) {
    let fields = row::fields(sums);
    put_number(out, row::mask(&fields));
    for field in fields.into_iter().filter(|field| *field != 0) {
        put_number(out, field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_texts_come_back_as_they_went() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let mut out = Vec::new();
        numbers.iter().for_each(|number| put_number(&mut out, *number));
        put_text(&mut out, "dd.500");
        let mut reader = LedgerReader::new(&out);
        for number in numbers {
            assert_eq!(reader.number("n"), Ok(number));
        }
        assert_eq!(reader.text("t"), Ok("dd.500"));
        assert!(reader.is_empty());
    }

    #[test]
    fn a_length_beyond_the_input_is_refused_before_memory_is_taken() {
        let mut out = Vec::new();
        put_number(&mut out, u64::MAX);
        assert!(LedgerReader::new(&out).text("a name").is_err());
        assert!(LedgerReader::new(&[0xff; 10]).number("n").is_err());
        assert!(LedgerReader::new(&[0x80]).number("n").is_err());
    }

    #[test]
    fn sums_with_an_unknown_field_are_refused() {
        let mut out = Vec::new();
        put_number(&mut out, 1 << FIELDS);
        put_number(&mut out, 1);
        assert!(LedgerReader::new(&out).sums().is_err());
    }
}

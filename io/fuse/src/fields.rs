//! Fields to bytes and back: the two cursors that every structure of the protocol is
//! read and written with.
//!
//! [`FieldReader`] has two parts because a request has: fixed fields, and behind them names and
//! data. What it hands out borrows from what it was given, nothing is copied, and any
//! bytes give fields or a [`Malformed`] that names the field; none panics.
//! [`FieldWriter`] holds the largest fixed answer on the stack, so that answering allocates nothing.

use std::ffi::CStr;

/// A request that ends within a field. The kernel sends none; if one comes all the same,
/// kernel and this crate disagree about a structure, and the request is answered with `EIO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request is too short for its field {field}")]
pub(crate) struct Malformed {
    pub(crate) field: &'static str,
}

/// Takes fields from the front of a request.
#[derive(Debug)]
pub(crate) struct FieldReader<'f, 'r> {
    fixed: &'f [u8],
    rest: &'r [u8],
}

/// The fixed fields of an answer; the largest is STATX's.
#[derive(Debug)]
pub(crate) struct FieldWriter {
    bytes: [u8; FieldWriter::CAPACITY],
    len: usize,
}

macro_rules! taken {
    ($($name:ident),*) => {
        impl FieldReader<'_, '_> {
            $(
                #[inline]
                pub(crate) fn $name(&mut self, field: &'static str) -> Result<$name, Malformed> {
                    match self.fixed.split_first_chunk() {
                        Some((bytes, fixed)) => {
                            self.fixed = fixed;
                            Ok($name::from_ne_bytes(*bytes))
                        }
                        None => Err(Malformed { field }),
                    }
                }
            )*
        }
    };
}
taken!(u32, u64, i64);

macro_rules! put {
    ($($name:ident),*) => {
        impl FieldWriter {
            $(
                #[inline]
                pub(crate) fn $name(&mut self, value: $name) {
                    self.bytes(&value.to_ne_bytes());
                }
            )*
        }
    };
}
put!(u16, u32, u64, i32, i64);

impl<'f, 'r> FieldReader<'f, 'r> {
    /// Fixed fields, and what stands behind them.
    pub(crate) fn new(fixed: &'f [u8], rest: &'r [u8]) -> FieldReader<'f, 'r> {
        FieldReader { fixed, rest }
    }

    /// A name or another string that ends with NUL, without looking at its other bytes.
    pub(crate) fn name(&mut self, field: &'static str) -> Result<&'r CStr, Malformed> {
        let name = CStr::from_bytes_until_nul(self.rest).map_err(|_| Malformed { field })?;
        self.rest = &self.rest[name.count_bytes() + 1..];
        Ok(name)
    }

    /// `len` bytes of data.
    pub(crate) fn data(&mut self, field: &'static str, len: u32) -> Result<&'r [u8], Malformed> {
        let (data, rest) = self.rest.split_at_checked(len as usize).ok_or(Malformed { field })?;
        self.rest = rest;
        Ok(data)
    }

    /// As many bytes of the rest as one more structure of fixed fields has.
    pub(crate) fn next_fixed(
        &mut self,
        field: &'static str,
        len: u32,
    ) -> Result<FieldReader<'r, 'static>, Malformed> {
        Ok(FieldReader { fixed: self.data(field, len)?, rest: &[] })
    }

    /// Whether this many bytes of fixed fields are left: newer kernels send longer structures.
    pub(crate) fn has(&self, len: usize) -> bool {
        self.fixed.len() >= len
    }
}

impl FieldWriter {
    const CAPACITY: usize = 288;

    pub(crate) fn new() -> FieldWriter {
        FieldWriter { bytes: [0; FieldWriter::CAPACITY], len: 0 }
    }

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Padding and fields without a meaning here.
    pub(crate) fn zeros(&mut self, len: usize) {
        self.len += len;
        debug_assert!(self.len <= FieldWriter::CAPACITY, "{}", self.len);
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_in_order_and_names_and_data_after_them() {
        let mut take = FieldReader::new(&[1, 0, 0, 0, 2, 0, 0], b"name\0\0more");
        assert_eq!(take.u32("a"), Ok(1));
        assert_eq!(take.u32("c"), Err(Malformed { field: "c" }));
        assert_eq!(take.name("d").unwrap(), c"name");
        assert_eq!(take.name("e").unwrap(), c"");
        assert_eq!(take.name("f"), Err(Malformed { field: "f" }));
        assert_eq!(take.data("g", 3), Ok(&b"mor"[..]));
        assert_eq!(take.data("h", 2), Err(Malformed { field: "h" }));
        assert_eq!(take.data("i", u32::MAX), Err(Malformed { field: "i" }));
    }

    #[test]
    fn what_is_put_can_be_taken() {
        let mut put = FieldWriter::new();
        put.u16(1);
        put.zeros(2);
        put.i32(-2);
        put.u64(3);
        put.i64(-4);
        assert_eq!(put.as_slice().len(), 24);
        let mut take = FieldReader::new(put.as_slice(), &[]);
        assert!(take.has(24) && !take.has(25));
        assert_eq!(take.u32("a and b"), Ok(1));
        assert_eq!(take.u32("c"), Ok(-2i32 as u32));
        assert_eq!(take.u64("d"), Ok(3));
        assert_eq!(take.i64("e"), Ok(-4));
    }
}

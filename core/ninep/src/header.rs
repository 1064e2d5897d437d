//! Headers alone: the end of a frame, and the paths on which payload is not copied.
//!
//! ```text
//!   Twrite:  ┌ 23 bytes: write_header ┐┌ payload: spliced or written from the buffer ┐
//!   Rread:   ┌ 11 bytes: read_reply_header ┐┌ payload: spliced from the file ┐
//! ```

use crate::types::{Fid, HEADER_LEN, Tag};

/// Type of a read request.
pub const TREAD: u8 = 116;
/// Type of a read's reply.
pub const RREAD: u8 = 117;
/// Type of a write request.
pub const TWRITE: u8 = 118;
const RLERROR: u8 = 7;

/// Bytes of a write request before its payload: header, fid\[4\] offset\[8\] count\[4\].
pub const WRITE_HEADER_LEN: usize = 23;
/// Bytes of a read's reply before its payload: header, count\[4\].
pub const READ_REPLY_HEADER_LEN: usize = 11;

/// The length in bytes of the message that `bytes` begin with, itself included;
/// `None` until its first 4 bytes are there.
///
/// The length is what the peer declares. Anything below [`HEADER_LEN`] or above the session's msize
/// is not a message: the caller closes the connection before buffering for it.
#[inline]
pub fn frame_len(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk::<4>().map(|size| u32::from_le_bytes(*size))
}

/// The type of the message that `bytes` begin with; `None` until 5 bytes are there.
#[inline]
pub fn frame_kind(bytes: &[u8]) -> Option<u8> {
    bytes.get(4).copied()
}

/// The tag of the message that `bytes` begin with; `None` until 7 bytes are there.
#[inline]
pub fn frame_tag(bytes: &[u8]) -> Option<Tag> {
    let header = bytes.first_chunk::<HEADER_LEN>()?;
    Some(Tag(u16::from_le_bytes([header[5], header[6]])))
}

/// The reply to a read whose `count` bytes of payload the caller sends after it.
///
/// `count` is at most the session's msize − 11.
#[inline]
pub fn read_reply_header(tag: Tag, count: u32) -> [u8; READ_REPLY_HEADER_LEN] {
    header_and_word(READ_REPLY_HEADER_LEN as u32 + count, RREAD, tag, count)
}

/// A whole Rlerror carrying `ecode`, a Linux errno.
#[inline]
pub fn error_reply(tag: Tag, ecode: u32) -> [u8; 11] {
    header_and_word(11, RLERROR, tag, ecode)
}

#[inline]
fn header_and_word(size: u32, kind: u8, tag: Tag, word: u32) -> [u8; 11] {
    let [s0, s1, s2, s3] = size.to_le_bytes();
    let [t0, t1] = tag.0.to_le_bytes();
    let [w0, w1, w2, w3] = word.to_le_bytes();
    [s0, s1, s2, s3, kind, t0, t1, w0, w1, w2, w3]
}

/// Tag, fid, offset and count of the write request that `frame` begins with; the payload may still
/// be missing.
///
/// `None` if these are not the first 23 bytes of a write whose size is 23 + count;
/// [`crate::Request::decode`] of the whole frame then gives the error.
#[inline]
pub fn write_header(frame: &[u8]) -> Option<(Tag, Fid, u64, u32)> {
    let header = frame.first_chunk::<WRITE_HEADER_LEN>()?;
    let [s0, s1, s2, s3, kind, t0, t1, f0, f1, f2, f3, o @ .., c0, c1, c2, c3] = *header;
    let size = u32::from_le_bytes([s0, s1, s2, s3]);
    let count = u32::from_le_bytes([c0, c1, c2, c3]);
    if kind != TWRITE || size.checked_sub(WRITE_HEADER_LEN as u32) != Some(count) {
        return None;
    }
    let fid = Fid(u32::from_le_bytes([f0, f1, f2, f3]));
    Some((Tag(u16::from_le_bytes([t0, t1])), fid, u64::from_le_bytes(o), count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reply, Request};

    #[test]
    fn a_write_is_read_from_its_first_23_bytes() {
        let mut frame = Vec::new();
        let request = Request::Write { fid: Fid(7), offset: 1 << 40, data: b"payload" };
        request.encode(Tag(3), &mut frame);
        assert_eq!(write_header(&frame[..23]), Some((Tag(3), Fid(7), 1 << 40, 7)));
        assert_eq!(write_header(&frame[..22]), None);
        frame[19] = 8;
        assert_eq!(write_header(&frame), None, "a count that is not size - 23");
        frame[19] = 7;
        frame[4] = TREAD;
        assert_eq!(write_header(&frame), None, "not a write");
    }

    #[test]
    fn header_and_payload_are_a_read_reply() {
        let mut frame = read_reply_header(Tag(9), 4).to_vec();
        frame.extend_from_slice(b"data");
        assert_eq!(Reply::decode(&frame), Ok((Tag(9), Reply::Read { data: b"data" })));
    }

    #[test]
    fn an_error_reply_is_the_encoded_one() {
        let mut frame = Vec::new();
        Reply::Error { ecode: 95 }.encode(Tag(0x1234), &mut frame);
        assert_eq!(frame, error_reply(Tag(0x1234), 95));
    }

    #[test]
    fn nothing_is_known_before_its_bytes_are_there() {
        let frame = error_reply(Tag(5), 2);
        assert_eq!((frame_len(&frame[..3]), frame_len(&frame[..4])), (None, Some(11)));
        assert_eq!((frame_kind(&frame[..4]), frame_kind(&frame[..5])), (None, Some(7)));
        assert_eq!((frame_tag(&frame[..6]), frame_tag(&frame[..7])), (None, Some(Tag(5))));
    }
}

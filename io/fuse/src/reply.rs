//! Reply of a request.
//!
//! ```text
//!   receiving thread ─► FileSystem method ─► Reply ─┬─ ok, error, bytes, … ─► kernel
//!                                                   ├─ moved away: later, from any thread
//!                                                   └─ dropped: EIO
//! ```
//!
//! A reply is used exactly once: its methods take it. What it needs of the request (its id,
//! how much room the caller has) it carries along, so it can outlive the call.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::{Errno, pread};

use crate::answer::ReplyBody;
use crate::device::FuseDevice;
use crate::fields::FieldWriter;
use crate::inflight::FuseInFlight;
use crate::listing::{DirListing, DirListingPlus};
use crate::request::FuseRequestId;
use crate::uring::RingReply;

/// The one answer to a request, of kind `T`. Dropping it answers `EIO`.
#[derive(Debug)]
#[must_use = "a reply that is dropped answers EIO"]
pub struct Reply<T> {
    ticket: ReplyToken,
    kind: PhantomData<fn(T)>,
}

/// The kind of answers that are bytes of a file, or a link's target.
#[derive(Debug)]
pub enum DataReply {}

/// The kind of answers that are values or names of extended attributes.
#[derive(Debug)]
pub enum Xattr {}

/// The kind of answers that are names of a directory.
#[derive(Debug)]
pub enum EntryList {}

/// The kind of answers that are names of a directory, each with its inode.
#[derive(Debug)]
pub enum EntryListPlus {}

impl<T> Reply<T> {
    pub(crate) fn new(ticket: ReplyToken) -> Reply<T> {
        Reply { ticket, kind: PhantomData }
    }

    /// Returns the id of the request.
    pub fn id(&self) -> FuseRequestId {
        self.ticket.id
    }

    /// Answers with an error.
    pub fn error(self, error: Errno) {
        self.ticket.send(Err(error), &[]);
    }
}

impl<T: ReplyBody> Reply<T> {
    /// Answers with a result.
    pub fn ok(self, answer: &T) {
        let mut put = FieldWriter::new();
        answer.put(&mut put);
        self.ticket.send(Ok(()), &[IoSlice::new(put.as_slice())]);
    }

    /// Answers with a result or an error.
    pub fn send(self, result: Result<T, Errno>) {
        match result {
            Ok(answer) => self.ok(&answer),
            Err(error) => self.error(error),
        }
    }
}

impl Reply<DataReply> {
    /// Returns the bytes that may be sent; more are cut off.
    pub fn room(&self) -> usize {
        self.ticket.room as usize
    }

    /// Answers with these bytes.
    pub fn bytes(self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.room())];
        self.ticket.send(Ok(()), &[IoSlice::new(bytes)]);
    }

    /// Answers with these pieces, one after the other, as many as there is room for.
    pub fn pieces(self, pieces: &[&[u8]]) {
        let mut room = self.room();
        let fitting = pieces.iter().map(|piece| {
            let piece = &piece[..piece.len().min(room)];
            room -= piece.len();
            IoSlice::new(piece)
        });
        let fitting: Vec<_> = fitting.collect();
        self.ticket.send(Ok(()), &fitting);
    }

    /// Answers with the bytes that `write` puts into memory as large as the room. `write` returns
    /// how many bytes from the beginning are sent. The memory is not cleared before.
    pub fn fill(self, write: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        self.ticket.fill(write);
    }

    /// Answers with as much of the file, from `offset` on, as there is room for.
    pub fn file(self, file: BorrowedFd<'_>, offset: u64) {
        self.fill(|buffer| read_to(file, offset, buffer));
    }
}

/// Reads until the buffer is full or the file ends; a signal does not shorten it.
fn read_to(file: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match pread(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

impl Reply<Xattr> {
    /// Returns the bytes that the caller has room for; 0 if it only requests the length.
    pub fn room(&self) -> usize {
        self.ticket.room as usize
    }

    /// Answers with this value or these names: the length if only that was requested, `ERANGE`
    /// without enough room.
    pub fn value(self, value: &[u8]) {
        match self.ticket.room as usize {
            0 => {
                let mut put = FieldWriter::new();
                put.u64(value.len() as u64);
                self.ticket.send(Ok(()), &[IoSlice::new(put.as_slice())]);
            }
            room if value.len() > room => self.error(Errno::RANGE),
            _ => self.ticket.send(Ok(()), &[IoSlice::new(value)]),
        }
    }
}

impl Reply<EntryList> {
    /// Answers with the entries that `list` adds.
    pub fn list(self, list: impl FnOnce(&mut DirListing<'_>) -> Result<(), Errno>) {
        self.ticket.fill(|buffer| {
            let mut listing = DirListing::new(buffer);
            list(&mut listing)?;
            Ok(listing.len())
        });
    }
}

impl Reply<EntryListPlus> {
    /// Answers with the entries that `list` adds.
    pub fn list(self, list: impl FnOnce(&mut DirListingPlus<'_>) -> Result<(), Errno>) {
        self.ticket.fill(|buffer| {
            let mut listing = DirListingPlus::new(buffer);
            list(&mut listing)?;
            Ok(listing.len())
        });
    }
}

/// The obligation to answer one request.
#[derive(Debug)]
pub(crate) struct ReplyToken {
    id: FuseRequestId,
    /// Bytes that the caller has room for, where that varies.
    room: u32,
    /// `None` once it is answered.
    sink: Option<ReplySink>,
    inflight: Arc<FuseInFlight>,
}

/// Path of a reply to the kernel.
#[derive(Debug)]
pub(crate) enum ReplySink {
    /// By a write to the descriptor that the request was read from.
    Device(Arc<FuseDevice>),
    /// In the memory of the ring's entry.
    Ring(RingReply),
}

impl ReplyToken {
    pub(crate) fn new(
        id: FuseRequestId,
        way: ReplySink,
        inflight: Arc<FuseInFlight>,
    ) -> ReplyToken {
        ReplyToken { id, room: 0, sink: Some(way), inflight }
    }

    /// Sets the room of the caller, in bytes.
    pub(crate) fn with_room(self, room: u32) -> ReplyToken {
        let mut ticket = self;
        ticket.room = room;
        ticket
    }

    /// Answers with the parts, or with an error.
    pub(crate) fn send(mut self, result: Result<(), Errno>, parts: &[IoSlice<'_>]) {
        self.answer(result, parts);
    }

    fn answer(&mut self, result: Result<(), Errno>, parts: &[IoSlice<'_>]) {
        let Some(way) = self.sink.take() else { return };
        match (way, result) {
            (ReplySink::Device(device), Ok(())) => device.answer(self.id, parts),
            (ReplySink::Device(device), Err(error)) => device.answer_error(self.id, error),
            (ReplySink::Ring(held), result) => held.answer(self.id, result, parts),
        }
        self.inflight.finish(self.id);
    }

    /// Answers with what `write` puts into memory that the answer can be sent from.
    fn fill(mut self, write: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        let room = self.room as usize;
        // `self` stays whole while `write` runs: if that panics, dropping it answers.
        let Some(way) = &self.sink else { return };
        let filled = match way {
            ReplySink::Device(device) => device.clone().fill(self.id, room, write),
            ReplySink::Ring(held) => held.fill(self.id, room, write),
        };
        match filled {
            Ok(()) => {
                self.sink = None;
                self.inflight.finish(self.id);
            }
            Err(error) => self.answer(Err(error), &[]),
        }
    }
}

impl Drop for ReplyToken {
    fn drop(&mut self) {
        if self.sink.is_some() {
            tracing::error!(id = self.id.0, "dropped a request without a reply");
            self.answer(Err(Errno::IO), &[]);
        }
    }
}

//! /dev/fuse: requests are read from it, answers and notices are written to it.
//!
//! One read gives one request, one write takes one answer. Several threads may read one
//! descriptor, but then they share a lock and a list of what is being answered; a clone
//! (FUSE_DEV_IOC_CLONE) has its own. An answer goes to the descriptor that its request came
//! from, a notice to any.

#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl;

use crate::abi::{INTERRUPT_BIT, NotifyCode, OUT_HEADER_LEN, PAGE, WRITE_HEADER_LEN, out_header};
use crate::answer::BackingId;
use crate::memory::{BufferPool, Pages};
use crate::request::FuseRequestId;

/// One descriptor of a connection to the kernel.
#[derive(Debug)]
pub(crate) struct FuseDevice {
    fd: OwnedFd,
    stock: BufferPool,
}

/// Memory that a request is read into: the data of a write begins at a page.
#[derive(Debug)]
pub(crate) struct DeviceInbox {
    pages: Pages,
}

impl DeviceInbox {
    /// Room for requests with up to `max_write` bytes of data.
    pub(crate) fn new(max_write: u32) -> io::Result<DeviceInbox> {
        Ok(DeviceInbox { pages: Pages::new(PAGE + max_write as usize)? })
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.pages[PAGE - WRITE_HEADER_LEN..]
    }
}

impl FuseDevice {
    /// A descriptor that mount(2) can make a connection of.
    ///
    /// # Errors
    /// `ENOENT` where the kernel has no FUSE, `EACCES` without the right to use it.
    pub(crate) fn open(max_write: u32) -> Result<FuseDevice, Errno> {
        let fd = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(FuseDevice::new(fd, max_write))
    }

    pub(crate) fn new(fd: OwnedFd, max_write: u32) -> FuseDevice {
        FuseDevice { fd, stock: BufferPool::new(max_write as usize) }
    }

    /// One more descriptor of the same connection.
    pub(crate) fn another(&self, max_write: u32) -> Result<FuseDevice, Errno> {
        let device = FuseDevice::open(max_write)?;
        let fd = u32::try_from(self.fd.as_raw_fd()).expect("descriptors are not negative");
        // SAFETY: FUSE_DEV_IOC_CLONE reads one 32-bit number, the descriptor to clone.
        unsafe { ioctl::ioctl(&device.fd, ioctl::Setter::<CLONE, u32>::new(fd)) }?;
        Ok(device)
    }

    /// Waits for a request and reads it.
    ///
    /// # Errors
    /// `ENODEV` when the mount is gone, `ECONNABORTED` if the connection was ended.
    pub(crate) fn receive<'a>(&self, inbox: &'a mut DeviceInbox) -> Result<&'a [u8], Errno> {
        loop {
            match rustix::io::read(&self.fd, inbox.room()) {
                Ok(len) => return Ok(&inbox.room()[..len]),
                // ENOENT: the request was given up between its choice and its reading.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads a request if one is there; only after [`FuseDevice::set_nonblocking`].
    ///
    /// # Errors
    /// As [`FuseDevice::receive`].
    pub(crate) fn try_receive<'a>(
        &self,
        inbox: &'a mut DeviceInbox,
    ) -> Result<Option<&'a [u8]>, Errno> {
        loop {
            match rustix::io::read(&self.fd, inbox.room()) {
                Ok(len) => return Ok(Some(&inbox.room()[..len])),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes reading give `EAGAIN` where it would wait.
    pub(crate) fn set_nonblocking(&self) -> Result<(), Errno> {
        rustix::io::ioctl_fionbio(&self.fd, true)
    }

    /// Answers a request with the parts, one after the other.
    pub(crate) fn answer(&self, id: FuseRequestId, parts: &[IoSlice<'_>]) {
        let len = parts.iter().map(|part| part.len()).sum();
        let header = out_header(len, 0, id.0);
        let mut all = [IoSlice::new(&header); 1 + PARTS_INLINE];
        if parts.len() <= PARTS_INLINE {
            all[1..=parts.len()].copy_from_slice(parts);
            return self.send(id, &all[..=parts.len()]);
        }
        // As one part: writev(2) takes no more than 1024.
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.send(id, &[IoSlice::new(&header), IoSlice::new(&all)]);
    }

    /// Answers a request with an error.
    pub(crate) fn answer_error(&self, id: FuseRequestId, error: Errno) {
        let header = out_header(0, -sendable(error), id.0);
        self.send(id, &[IoSlice::new(&header)]);
    }

    /// Answers a request with what `write` puts into `room` bytes; its error is not sent.
    pub(crate) fn fill(
        &self,
        id: FuseRequestId,
        room: usize,
        write: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let sent = self.stock.lend(|buffer| {
            let room = buffer.get_mut(..room).ok_or(Errno::IO)?;
            let len = write(room)?.min(room.len());
            self.answer(id, &[IoSlice::new(&room[..len])]);
            Ok(())
        });
        sent.unwrap_or(Err(Errno::NOMEM))
    }

    /// Returns an interrupt to the kernel, which sends it again if its request still waits.
    pub(crate) fn requeue_interrupt(&self, id: FuseRequestId) {
        let header = out_header(0, -Errno::AGAIN.raw_os_error(), id.0 | INTERRUPT_BIT);
        // ENOENT: it is answered, or came from another descriptor.
        let _ = rustix::io::write(&self.fd, &header);
    }

    fn send(&self, id: FuseRequestId, parts: &[IoSlice<'_>]) {
        match rustix::io::writev(&self.fd, parts) {
            // ENOENT: the connection ended meanwhile, and with it all that waited.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::error!(id = id.0, %error, "the kernel refused a reply");
                // Without one the caller would wait for ever. ENOENT if that was its end.
                let header = out_header(0, -Errno::IO.raw_os_error(), id.0);
                let _ = rustix::io::write(&self.fd, &header);
            }
        }
    }

    /// Tells the kernel something without being asked.
    ///
    /// # Errors
    /// Errors of the kernel; `EINVAL` if the notice is longer than one write can be.
    pub(crate) fn notify(&self, code: NotifyCode, parts: [&[u8]; 3]) -> Result<(), Errno> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > SENT_MAX - OUT_HEADER_LEN {
            return Err(Errno::INVAL);
        }
        let header = out_header(len, code as i32, 0);
        let [first, second, third] = parts.map(IoSlice::new);
        rustix::io::writev(&self.fd, &[IoSlice::new(&header), first, second, third]).map(|_| ())
    }

    /// Hands a file to the kernel, to be read and written instead of one of ours.
    pub(crate) fn open_backing(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the structure is the one that FUSE_DEV_IOC_BACKING_OPEN reads.
        unsafe { ioctl::ioctl(&self.fd, BackingOpen(map)) }.map(BackingId)
    }

    /// Takes it back; open files that use it go on doing so.
    pub(crate) fn close_backing(&self, id: BackingId) -> Result<(), Errno> {
        // SAFETY: FUSE_DEV_IOC_BACKING_CLOSE reads one 32-bit number.
        unsafe { ioctl::ioctl(&self.fd, ioctl::Setter::<BACKING_CLOSE, i32>::new(id.0)) }
    }
}

impl AsFd for FuseDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The error number that is sent for an error: the kernel takes none from 512 on and would
/// let the request wait for ever.
pub(crate) fn sendable(error: Errno) -> i32 {
    match error.raw_os_error() {
        number @ 1..512 => number,
        _ => Errno::IO.raw_os_error(),
    }
}

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// FUSE_DEV_IOC_BACKING_OPEN, whose result is the file's number.
struct BackingOpen(BackingMap);

// SAFETY: the call reads the structure that `as_ptr` gives and writes nothing.
unsafe impl ioctl::Ioctl for BackingOpen {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> ioctl::Opcode {
        ioctl::opcode::write::<BackingMap>(MAGIC, 1)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        result: ioctl::IoctlOutput,
        _argument: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(result)
    }
}

const PATH: &str = "/dev/fuse";
/// FUSE_DEV_IOC_MAGIC.
const MAGIC: u8 = 229;
const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(MAGIC, 0);
const BACKING_CLOSE: ioctl::Opcode = ioctl::opcode::write::<u32>(MAGIC, 2);
/// Bytes that one write(2) takes at most (linux: MAX_RW_COUNT).
const SENT_MAX: usize = 0x7fff_f000;
/// Parts of an answer that are sent without allocating.
const PARTS_INLINE: usize = 3;

const _: () = assert!(OUT_HEADER_LEN == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_the_kernel_refuses_become_eio() {
        assert_eq!(sendable(Errno::INTR), 4);
        assert_eq!(sendable(Errno::from_raw_os_error(512)), 5);
        assert_eq!(sendable(Errno::from_raw_os_error(4095)), 5);
    }

    #[test]
    fn an_answer_is_one_write_of_header_and_parts() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let device = FuseDevice::new(ours.into(), 4096);
        let mut packet = [0; 64];
        device
            .answer(FuseRequestId(6), &[b"ab", b"cd", b"ef", b"gh"].map(|part| IoSlice::new(part)));
        let len = theirs.recv(&mut packet).unwrap();
        assert_eq!(packet[..len], *b"\x18\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0abcdefgh");
        device.answer_error(FuseRequestId(8), Errno::NOENT);
        let len = theirs.recv(&mut packet).unwrap();
        assert_eq!(packet[..len], *b"\x10\0\0\0\xfe\xff\xff\xff\x08\0\0\0\0\0\0\0");
        device
            .fill(FuseRequestId(2), 4, |buffer| {
                buffer.copy_from_slice(b"wxyz");
                Ok(3)
            })
            .unwrap();
        let len = theirs.recv(&mut packet).unwrap();
        assert_eq!(packet[16..len], *b"wxy");
        device.requeue_interrupt(FuseRequestId(10));
        let len = theirs.recv(&mut packet).unwrap();
        assert_eq!(packet[..len], *b"\x10\0\0\0\xf5\xff\xff\xff\x0b\0\0\0\0\0\0\0");
    }

    #[test]
    fn an_answer_of_any_number_of_parts_is_sent() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let device = FuseDevice::new(ours.into(), 4096);
        device.answer(FuseRequestId(6), &[IoSlice::new(b"x"); 2000]);
        let mut packet = [0; 4096];
        assert_eq!(theirs.recv(&mut packet).unwrap(), OUT_HEADER_LEN + 2000);
    }

    #[test]
    fn a_request_whose_answer_is_refused_is_answered_with_eio() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let device = FuseDevice::new(ours.into(), 4096);
        // Longer than a packet can be.
        device.answer(FuseRequestId(6), &[IoSlice::new(&vec![0; 64 << 20])]);
        let mut packet = [0; 64];
        let len = theirs.recv(&mut packet).unwrap();
        assert_eq!(packet[..len], *b"\x10\0\0\0\xfb\xff\xff\xff\x06\0\0\0\0\0\0\0");
    }

    #[test]
    fn a_request_is_read_so_that_written_data_begins_at_a_page() {
        let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let device = FuseDevice::new(ours.into(), 4096);
        let mut inbox = DeviceInbox::new(4096).unwrap();
        theirs.send(&[7; 100]).unwrap();
        let request = device.receive(&mut inbox).unwrap();
        assert_eq!(request, [7; 100]);
        assert_eq!(request[WRITE_HEADER_LEN..].as_ptr() as usize % PAGE, 0);
    }
}

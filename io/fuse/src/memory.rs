//! Memory that whole pages are read into, and a stock of it.
//!
//! Pages come straight from the kernel: they are aligned as direct I/O wants it, and one
//! that is never touched costs nothing, so a buffer can be as large as the largest request.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Pages of memory, zero until they are written.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the pages belong to this value alone, as those of a `Box<[u8]>` do.
unsafe impl Send for Pages {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` bytes, which must not be 0.
    pub(crate) fn new(len: usize) -> io::Result<Pages> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Pages { start, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has `len` readable bytes, initialized as zeros, and lives as
        // long as `self`; writers need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` is the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Buffers of one size that wait to be used again.
#[derive(Debug)]
pub(crate) struct BufferPool {
    len: usize,
    free: Mutex<Vec<Pages>>,
}

/// Buffers that a pool keeps; more are given back to the kernel.
const BUFFERS_MAX: usize = 8;

impl BufferPool {
    /// A stock of buffers of `len` bytes.
    pub(crate) fn new(len: usize) -> BufferPool {
        BufferPool { len, free: Mutex::new(Vec::with_capacity(BUFFERS_MAX)) }
    }

    /// Lends a buffer to `with`; what it held before is still in it.
    pub(crate) fn lend<T>(&self, with: impl FnOnce(&mut [u8]) -> T) -> io::Result<T> {
        let kept = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut pages = match kept {
            Some(pages) => pages,
            None => Pages::new(self.len)?,
        };
        let result = with(&mut pages);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < BUFFERS_MAX {
            free.push(pages);
        }
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned_and_zero_and_keep_what_is_written() {
        let mut pages = Pages::new(3 * 4096).unwrap();
        assert_eq!(pages.as_ptr() as usize % 4096, 0);
        assert!(pages.iter().all(|byte| *byte == 0));
        pages[4096] = 7;
        assert_eq!((pages[4095], pages[4096], pages.len()), (0, 7, 12288));
    }

    #[test]
    fn a_stock_lends_the_same_buffer_again_and_another_one_beside_it() {
        let stock = BufferPool::new(4096);
        let first = stock.lend(|buffer| buffer.as_ptr() as usize).unwrap();
        let (again, beside) = stock
            .lend(|outer| {
                (outer.as_ptr() as usize, stock.lend(|inner| inner.as_ptr() as usize).unwrap())
            })
            .unwrap();
        assert_eq!(first, again);
        assert_ne!(first, beside);
        assert_eq!(stock.free.lock().unwrap().len(), 2);
    }
}

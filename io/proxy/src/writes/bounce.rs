//! Aligned buffers for O_DIRECT, and a pool of them for writes whose payload is not
//! aligned: one that follows a message header in a receive buffer hardly ever is.
//! The copy costs what the copy into the page cache would have cost.
//!
//! At most [`SPARE_MAX`] buffers wait to be used again; how many are in use is
//! bounded by the threads that write.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

/// Zeroed memory at an address that suits O_DIRECT.
#[derive(Debug)]
pub(crate) struct Aligned {
    /// Longer than asked for, so that an aligned part lies in it; never resized.
    memory: Vec<u8>,
    skip: usize,
    length: usize,
}

/// The largest piece written at once, and a multiple of every alignment in use.
const PIECE_MAX: usize = 1 << 20;
const SPARE_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Bounces {
    spare: Mutex<Vec<Aligned>>,
}

impl Aligned {
    /// A buffer of `length` bytes at a multiple of `align`, which is a power of two.
    pub(crate) fn new(length: usize, align: u32) -> Aligned {
        let memory = vec![0; length + align as usize];
        let skip = memory.as_ptr().align_offset(align as usize);
        Aligned { memory, skip, length }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.skip..self.skip + self.length]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.skip..self.skip + self.length]
    }
}

impl Bounces {
    /// Lends `work` a buffer of [`PIECE_MAX`] bytes at a multiple of `align`.
    pub(super) fn with<T>(&self, align: u32, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let fits = |buffer: &Aligned| (buffer.as_ptr() as usize).is_multiple_of(align as usize);
        let spare = self.lock().pop().filter(fits);
        let mut buffer = spare.unwrap_or_else(|| Aligned::new(PIECE_MAX, align));
        let result = work(&mut buffer);
        let mut spare = self.lock();
        if spare.len() < SPARE_MAX {
            spare.push(buffer);
        }
        result
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Aligned>> {
        self.spare.lock().expect("no call on the spare buffers panics")
    }
}

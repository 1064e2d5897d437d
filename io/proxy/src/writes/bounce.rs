//! Aligned buffers for O_DIRECT writes whose payload is not aligned: a payload that
//! follows a message header in a receive buffer hardly ever is. The copy costs what
//! the copy into the page cache would have cost.
//!
//! At most [`SPARE_MAX`] buffers wait to be used again; how many are in use is
//! bounded by the threads that write.

use std::sync::Mutex;

/// The largest piece written at once, and a multiple of every alignment in use.
pub(super) const PIECE_MAX: usize = 1 << 20;
const SPARE_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Bounces {
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Bounces {
    /// Lends `work` a buffer of [`PIECE_MAX`] bytes at an address that is a multiple of `align`.
    pub(super) fn with<T>(&self, align: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut memory = self.lock().pop().unwrap_or_default();
        memory.resize(PIECE_MAX + align, 0);
        let skip = memory.as_ptr().align_offset(align);
        let result = work(&mut memory[skip..skip + PIECE_MAX]);
        let mut spare = self.lock();
        if spare.len() < SPARE_MAX {
            spare.push(memory);
        }
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.spare.lock().expect("no call on the spare buffers panics")
    }
}

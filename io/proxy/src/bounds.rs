//! Bounds of resources that all clients share: open files, locked ranges, memory.
//!
//! ```text
//!   fids, lock owners ─ open files ─┐
//!   lock owners ─ locked ranges ────┼─► SharedBounds: a core::FairBound for each ─► Charge
//!   connections, xattrs ─ memory ───┘                                                 │ dropped
//!                                   ▲──────────────────── given back ─────────────────┘
//! ```
//!
//! Each refusal is logged, with its bound. Reads and writes of open files are not counted here: the
//! bytes in flight of a connection are charged in blocks (`memory.rs`).

use std::sync::{Arc, Mutex, MutexGuard};

use bounds::{AtBound, FairBound, Holder};
use rustix::io::Errno;

use crate::limits::DescriptorLimits;

/// Bytes that each connection may have in flight uncounted: small requests never meet the bound.
pub(crate) const FREE: usize = 64 << 10;

/// A resource that all clients share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedBound {
    /// Descriptors of files: of fids and of owners of locks.
    OpenFiles,
    /// Ranges of files that are locked.
    Locks,
    /// Bytes of requests, replies and extended attributes.
    Memory,
}

/// The bounds of all that is shared.
pub(crate) struct SharedBounds([Mutex<FairBound>; SharedBound::ALL.len()]);

/// An amount that a holder uses, until it is dropped.
pub(crate) struct Charge {
    of: Arc<SharedBounds>,
    what: SharedBound,
    holder: Holder,
    amount: u64,
}

impl SharedBound {
    pub(crate) const ALL: [SharedBound; 3] =
        [SharedBound::OpenFiles, SharedBound::Locks, SharedBound::Memory];

    /// Its name in metrics and in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            SharedBound::OpenFiles => "open_files",
            SharedBound::Locks => "locks",
            SharedBound::Memory => "memory",
        }
    }

    /// Returns the error for a request above the bound. Not `EMFILE`, which programs take for a
    /// limit of their own.
    fn errno(self) -> Errno {
        match self {
            SharedBound::OpenFiles => Errno::NFILE,
            SharedBound::Locks => Errno::NOLCK,
            SharedBound::Memory => Errno::NOMEM,
        }
    }

    fn max(self, limits: &DescriptorLimits) -> u64 {
        match self {
            SharedBound::OpenFiles => limits.open_files,
            SharedBound::Locks => limits.locks,
            SharedBound::Memory => limits.memory,
        }
    }
}

impl SharedBounds {
    pub(crate) fn new(limits: &DescriptorLimits) -> Arc<SharedBounds> {
        let of = |what: SharedBound| Mutex::new(FairBound::new(what.max(limits)));
        Arc::new(SharedBounds(SharedBound::ALL.map(of)))
    }

    /// Puts other bounds in force.
    pub(crate) fn set(&self, limits: &DescriptorLimits) {
        SharedBound::ALL.into_iter().for_each(|what| self.lock(what).set_max(what.max(limits)));
    }

    /// Takes units for a holder.
    pub(crate) fn charge(
        self: &Arc<SharedBounds>,
        what: SharedBound,
        holder: Holder,
        amount: u64,
    ) -> Result<Charge, Errno> {
        let mut charge = Charge { of: self.clone(), what, holder, amount: 0 };
        charge.resize(amount)?;
        Ok(charge)
    }

    /// Refuses what could not be charged now: asked before something is done that cannot be undone.
    pub(crate) fn check(
        &self,
        what: SharedBound,
        holder: &Holder,
        amount: u64,
    ) -> Result<(), Errno> {
        let checked = self.lock(what).check(holder, amount);
        checked.map_err(|bound| refused(what, holder, bound))
    }

    /// Returns usage, bound and number of refusals.
    pub(crate) fn figures(&self, what: SharedBound) -> [u64; 3] {
        let bound = self.lock(what);
        [bound.used(), bound.max(), bound.refused()]
    }

    /// Bytes that are charged, and the most that were since this was last asked.
    pub(crate) fn memory_used(&self) -> (u64, u64) {
        let mut bound = self.lock(SharedBound::Memory);
        (bound.used(), bound.take_peak())
    }

    fn lock(&self, what: SharedBound) -> MutexGuard<'_, FairBound> {
        self.0[what as usize].lock().expect("not poisoned")
    }
}

impl Charge {
    /// How much is held.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// Holds another amount from now on; less is never refused.
    pub(crate) fn resize(&mut self, amount: u64) -> Result<(), Errno> {
        if amount > self.amount {
            let taken = self.of.lock(self.what).acquire(&self.holder, amount - self.amount);
            taken.map_err(|bound| refused(self.what, &self.holder, bound))?;
        } else {
            self.of.lock(self.what).release(&self.holder, self.amount - amount);
        }
        self.amount = amount;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.lock(self.what).release(&self.holder, self.amount);
    }
}

/// Logs a refusal with its holder.
fn refused(what: SharedBound, holder: &Holder, bound: AtBound) -> Errno {
    tracing::warn!(
        bound = what.name(), peer = %holder.peer, uid = holder.uid, of = ?bound, "reached a bound"
    );
    what.errno()
}

//! Cache leases: what a mount may believe of a file or a directory without asking, and for how long.
//!
//! ```text
//!   mount                                                  home proxy of the object
//!   HeldLeases ── a request that may bring a lease ──────► LeaseTable: begin(access) ─► acquire ─► end
//!        │     ◄─ reply, with kinds and a number ─────────     │
//!        ├─ believes(object, kinds, now) ─► the rest of it     │ another's access conflicts
//!        │     ◄─ recall ─────────────────────────────────     ▼
//!        └─── returned ────────────────────────────────────► ready ─► executed
//!                                                          HomeGroup: whose the object is, and since when
//! ```
//!
//! A lease ends by itself: all leases of a holder at a proxy have one term, which the holder renews.
//! The holder counts it from when it sent the renewal, the proxy from when it received it, with
//! allowance for clocks that run at different rates. So a holder that is cut off stops believing before
//! the proxy stops waiting for it (Gray and Cheriton, "Leases", SOSP 1989).
//!
//! An access that conflicts waits for the return of the leases or for the end of their term, and from its
//! beginning to its end nobody gets a lease that it would break. docs/decisions/0025 has the model.

mod access;
mod held;
mod home;
mod table;
mod terms;

pub use access::{LeaseKinds, ObjectAccess};
pub use held::{HeldLeases, LeaseRequestId};
pub use home::{GroupView, HomeCandidate, HomeGroup};
pub use table::{AccessId, LeaseError, LeaseRecall, LeaseTable, RecordedHolder};
pub use terms::LeaseTerms;

/// A file or a directory: a keyed hash of its handle, the same for every mount and proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub [u64; 2]);

impl ObjectId {
    /// The hash of a handle's bytes, for the choice of its home: FNV-1a, then mixed. A handle contains a
    /// keyed hash already. Two handles with one hash only have one home.
    pub fn of(handle: &[u8]) -> ObjectId {
        let hash = home::fnv(handle);
        ObjectId([home::mix(hash), home::mix(!hash)])
    }
}

/// A mount as a holder of leases, numbered by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u32);

/// A name in a directory: a hash of it. Two names with one hash are only recalled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(pub u64);

impl NameId {
    /// The hash of a name's bytes, as that of a proxy's name: FNV-1a, then mixed.
    pub fn of(name: &[u8]) -> NameId {
        NameId(home::mix(home::fnv(name)))
    }
}

//! The few values of Tlock and Tgetlock.

/// Wait until the lock is granted, rather than answer [`LockStatus::Blocked`].
pub const LOCK_BLOCK: u32 = 1;
/// The client had the lock before the server restarted.
pub const LOCK_RECLAIM: u32 = 2;

/// The kind of a lock: requested, or found by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockKind {
    /// A lock shared with other readers.
    Read = 0,
    /// A lock of one writer.
    Write = 1,
    /// Release; as the reply to a test: no lock is in the way.
    Unlock = 2,
}

/// The outcome of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockStatus {
    /// The lock is granted.
    Success = 0,
    /// The lock of another owner is in the way.
    Blocked = 1,
    /// Refused; v9fs makes ENOLCK of it.
    Error = 2,
    /// Only reclaims are served at the moment.
    Grace = 3,
}

impl LockKind {
    pub(crate) const fn new(value: u8) -> Option<LockKind> {
        match value {
            0 => Some(LockKind::Read),
            1 => Some(LockKind::Write),
            2 => Some(LockKind::Unlock),
            _ => None,
        }
    }
}

impl LockStatus {
    pub(crate) const fn new(value: u8) -> Option<LockStatus> {
        match value {
            0 => Some(LockStatus::Success),
            1 => Some(LockStatus::Blocked),
            2 => Some(LockStatus::Error),
            3 => Some(LockStatus::Grace),
            _ => None,
        }
    }
}

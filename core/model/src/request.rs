//! The kinds of request that clients make.

use std::fmt;
use std::str::FromStr;

/// The queue a request waits in within its class: a blocked write never delays a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Requests with payload from the backend.
    Read,
    /// Requests with payload to the backend.
    Write,
    /// All requests without payload.
    Metadata,
}

/// Which resource serves a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Memory and processor: requests that the page cache answers.
    Cached,
    /// The backend's device or servers.
    Device,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $direction:ident;)*) => {
        /// The kind of a request: one for each backend operation that clients can ask for.
        ///
        /// Its name is what rules write in `opcode={…}`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum OpKind { $($(#[$doc])* $variant,)* }

        impl OpKind {
            /// Every kind, in order.
            pub const ALL: &'static [OpKind] = &[$(OpKind::$variant,)*];

            /// The name in rules, tables and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(OpKind::$variant => $name,)* }
            }

            /// The queue that it waits in.
            pub const fn direction(self) -> Direction {
                match self { $(OpKind::$variant => Direction::$direction,)* }
            }
        }
    };
}

kinds! {
    /// Read from an open file.
    Read = "read", Read;
    /// Write to an open file.
    Write = "write", Write;
    /// Look up names in directories.
    Walk = "walk", Metadata;
    /// Attributes of one file.
    Getattr = "getattr", Metadata;
    /// Change attributes, truncation included.
    Setattr = "setattr", Metadata;
    /// Open a file or directory.
    Open = "open", Metadata;
    /// Create and open a file.
    Create = "create", Metadata;
    /// Make a new directory.
    Mkdir = "mkdir", Metadata;
    /// Make a symbolic link.
    Symlink = "symlink", Metadata;
    /// Make a special file.
    Mknod = "mknod", Metadata;
    /// Make a hard link.
    Link = "link", Metadata;
    /// Remove a name in a directory.
    Unlink = "unlink", Metadata;
    /// Rename a file or directory.
    Rename = "rename", Metadata;
    /// Read a symbolic link.
    Readlink = "readlink", Metadata;
    /// Read entries of a directory.
    Readdir = "readdir", Metadata;
    /// Figures of the file system.
    Statfs = "statfs", Metadata;
    /// Make a file's data durable.
    Fsync = "fsync", Metadata;
    /// Read extended attributes of a file.
    Getxattr = "getxattr", Metadata;
    /// Change extended attributes of a file.
    Setxattr = "setxattr", Metadata;
    /// Take or test a byte-range lock.
    Lock = "lock", Metadata;
    /// Give a byte-range lock back.
    Unlock = "unlock", Metadata;
    /// Begin to use an export.
    Attach = "attach", Metadata;
    /// Forget a fid, closing its file.
    Clunk = "clunk", Metadata;
}

/// A set of kinds, as `opcode={read write}` or a meter's `kinds` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindSet(u32);

/// The error of a name that is not a kind of request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a kind of request; use one of {}", OpKind::ALL.iter().map(|k| k.name()).collect::<Vec<_>>().join(", "))]
pub struct ParseKindError {
    name: String,
}

impl OpKind {
    /// How many kinds there are.
    pub const COUNT: usize = OpKind::ALL.len();

    /// True for requests that are never delayed, only charged. They release something, so delaying
    /// them would delay what others wait for (docs/ARCHITECTURE.md, "Never delayed").
    pub const fn never_delayed(self) -> bool {
        matches!(self, OpKind::Clunk | OpKind::Unlock)
    }
}

impl KindSet {
    /// The set without any kind.
    pub const NONE: KindSet = KindSet(0);
    /// The set of every kind.
    pub const ALL: KindSet = KindSet((1 << OpKind::COUNT) - 1);

    /// This set and `kind`.
    pub const fn with(self, kind: OpKind) -> KindSet {
        KindSet(self.0 | 1 << kind as u32)
    }

    /// All kinds of one direction.
    pub fn of(direction: Direction) -> KindSet {
        OpKind::ALL.iter().filter(|k| k.direction() == direction).copied().collect()
    }

    /// The set as bits, for messages: of the n-th kind in [`OpKind::ALL`] bit n.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The set of some bits; `None` if one is of no kind.
    pub const fn from_bits(bits: u32) -> Option<KindSet> {
        if bits & !KindSet::ALL.0 == 0 { Some(KindSet(bits)) } else { None }
    }

    /// Whether `kind` is in the set.
    pub const fn contains(self, kind: OpKind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }

    /// The kinds of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = OpKind> {
        OpKind::ALL.iter().copied().filter(move |k| self.contains(*k))
    }
}

impl FromIterator<OpKind> for KindSet {
    fn from_iter<I: IntoIterator<Item = OpKind>>(kinds: I) -> KindSet {
        kinds.into_iter().fold(KindSet::NONE, KindSet::with)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OpKind {
    type Err = ParseKindError;
    fn from_str(name: &str) -> Result<OpKind, ParseKindError> {
        let kind = OpKind::ALL.iter().find(|k| k.name() == name).copied();
        kind.ok_or_else(|| ParseKindError { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_parses_from_its_name() {
        for kind in OpKind::ALL {
            assert_eq!(kind.name().parse::<OpKind>().unwrap(), *kind);
        }
        assert!("ost_read".parse::<OpKind>().is_err());
    }

    #[test]
    fn directions_divide_the_kinds() {
        let parts = [Direction::Read, Direction::Write, Direction::Metadata].map(KindSet::of);
        assert_eq!(parts.iter().map(|s| s.iter().count()).sum::<usize>(), OpKind::COUNT);
    }
}

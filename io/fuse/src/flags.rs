//! Sets of bits: what kernel and file system agree on, and what an open file wants.
//!
//! Bits that this crate does not know never get in: the kernel's are masked where they
//! are negotiated, and a file system can only name the constants.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Sub};

macro_rules! flags {
    (
        $(#[$about:meta])*
        $name:ident: $bits:ty {
            $($(#[$what:meta])* $flag:ident = $value:expr;)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name($bits);

        impl $name {
            $($(#[$what])* pub const $flag: $name = $name($value);)*

            /// The set without flags.
            pub const NONE: $name = $name(0);

            const NAMES: &[($name, &str)] = &[$(($name::$flag, stringify!($flag))),*];

            pub(crate) const fn bits(self) -> $bits {
                self.0
            }

            /// Whether the set has every flag of `other`.
            pub const fn contains(self, other: $name) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns the union of both sets, for constants.
            pub const fn and(self, other: $name) -> $name {
                $name(self.0 | other.0)
            }
        }

        impl BitOr for $name {
            type Output = $name;
            fn bitor(self, other: $name) -> $name {
                self.and(other)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: $name) {
                *self = *self | other;
            }
        }

        impl BitAnd for $name {
            type Output = $name;
            fn bitand(self, other: $name) -> $name {
                $name(self.0 & other.0)
            }
        }

        impl Sub for $name {
            type Output = $name;
            fn sub(self, other: $name) -> $name {
                $name(self.0 & !other.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut left = *self;
                let mut between = "";
                for (flag, name) in $name::NAMES.iter().filter(|(flag, _)| self.contains(*flag)) {
                    write!(out, "{between}{name}")?;
                    left = left - *flag;
                    between = " | ";
                }
                match left.0 {
                    0 if between.is_empty() => out.write_str("NONE"),
                    0 => Ok(()),
                    bits => write!(out, "{between}{bits:#x}"),
                }
            }
        }
    };
}

flags! {
    /// Features that kernel and file system negotiate when a mount begins (FUSE_INIT).
    ///
    /// A file system names those that it wants; which of them the kernel has, and so are
    /// in force, [`FuseConnection::capabilities`](crate::FuseConnection) says.
    Capabilities: u64 {
        /// Several reads of one file at once; without it the kernel orders them.
        ASYNC_READ = 1;
        /// fcntl locks are asked of the file system; otherwise the kernel keeps them by itself.
        POSIX_LOCKS = 1 << 1;
        /// O_TRUNC arrives with the open; otherwise as a SETATTR after it. The kernel looks only
        /// after the open whether the file is a program that runs, so with this one such a
        /// program is cut off although the caller gets ETXTBSY.
        ATOMIC_O_TRUNC = 1 << 3;
        /// Writes of more than one page.
        BIG_WRITES = 1 << 5;
        /// The file system applies the umask, as default ACLs need.
        DONT_MASK = 1 << 6;
        /// Answers may be spliced into /dev/fuse.
        SPLICE_WRITE = 1 << 7;
        /// Pages of such answers may be moved into the page cache.
        SPLICE_MOVE = 1 << 8;
        /// Requests may be spliced out of /dev/fuse.
        SPLICE_READ = 1 << 9;
        /// flock locks are asked of the file system; otherwise the kernel keeps them by itself.
        FLOCK_LOCKS = 1 << 10;
        /// A changed mtime or size throws a file's cached data away.
        AUTO_INVAL_DATA = 1 << 12;
        /// Directories may be listed with attributes (READDIRPLUS).
        READDIRPLUS = 1 << 13;
        /// The kernel chooses by what is done with a listing whether it asks for attributes.
        READDIRPLUS_AUTO = 1 << 14;
        /// Asynchronous direct I/O stays asynchronous.
        ASYNC_DIO = 1 << 15;
        /// Look-ups and listings in one directory may run at once.
        PARALLEL_DIROPS = 1 << 18;
        /// POSIX ACLs are checked by the kernel, which then also checks modes.
        POSIX_ACL = 1 << 20;
        /// The largest request is what `max_write` says, not 128 KiB.
        MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        CACHE_SYMLINKS = 1 << 23;
        /// Only a notice throws cached data away, neither mtime nor size.
        EXPLICIT_INVAL_DATA = 1 << 25;
        /// The file system takes set-id bits away where an operation says so, and the kernel
        /// does not ask for `security.capability` before each write.
        HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR says whether setting an ACL takes the set-group-id bit away.
        SETXATTR_EXT = 1 << 29;
        /// More than 32 capabilities; always asked for.
        INIT_EXT = 1 << 30;
        /// A name may be made to expire instead of being dropped.
        EXPIRE_ONLY = 1 << 35;
        /// Files opened for direct I/O may be mapped shared.
        DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Reads and writes of an open file may go straight to another file. Not together
        /// with a write-back cache, which this crate does not offer.
        PASSTHROUGH = 1 << 37;
        /// Handles for name_to_handle_at are not made: inodes are no longer known than they are cached.
        NO_EXPORT_SUPPORT = 1 << 38;
        /// Requests travel over io_uring; asked for by [`Transport::Ring`](crate::Transport).
        OVER_IO_URING = 1 << 41;
        /// The kernel ends the connection when a request takes too long.
        REQUEST_TIMEOUT = 1 << 42;
    }
}

impl Capabilities {
    pub(crate) const fn from_bits(bits: u64) -> Capabilities {
        Capabilities(bits)
    }

    /// Features that cost nothing and need no support of the file system.
    pub const DEFAULT: Capabilities = Capabilities::ASYNC_READ
        .and(Capabilities::BIG_WRITES)
        .and(Capabilities::AUTO_INVAL_DATA)
        .and(Capabilities::ASYNC_DIO)
        .and(Capabilities::PARALLEL_DIROPS)
        .and(Capabilities::MAX_PAGES)
        .and(Capabilities::SETXATTR_EXT)
        .and(Capabilities::EXPIRE_ONLY);
}

flags! {
    /// How the kernel treats an open file (FOPEN_…).
    OpenFlags: u32 {
        /// Reads and writes go past the page cache.
        DIRECT_IO = 1;
        /// Keep the cached pages of the file.
        KEEP_CACHE = 1 << 1;
        /// The file has no position to seek to.
        NONSEEKABLE = 1 << 2;
        /// The listing of this directory may be cached.
        CACHE_DIR = 1 << 3;
        /// The file has no position at all.
        STREAM = 1 << 4;
        /// Closing sends no FLUSH.
        NOFLUSH = 1 << 5;
        /// Direct writes of one file may run at once.
        PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Reads and writes go to the backing file; set where an answer names one.
        PASSTHROUGH = 1 << 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_written_by_name_and_unknown_bits_as_a_number() {
        let set = OpenFlags::DIRECT_IO | OpenFlags::KEEP_CACHE;
        assert_eq!(format!("{set:?}"), "DIRECT_IO | KEEP_CACHE");
        assert_eq!(format!("{:?}", OpenFlags::NONE), "NONE");
        assert_eq!(format!("{:?}", OpenFlags(1 << 9)), "0x200");
        assert_eq!(format!("{:?}", set | OpenFlags(1 << 9)), "DIRECT_IO | KEEP_CACHE | 0x200");
    }

    #[test]
    fn a_set_contains_a_part_of_itself() {
        let both = Capabilities::MAX_PAGES | Capabilities::PASSTHROUGH;
        assert!(both.contains(Capabilities::PASSTHROUGH));
        assert!(!both.contains(Capabilities::PASSTHROUGH | Capabilities::POSIX_ACL));
        assert_eq!(both - Capabilities::PASSTHROUGH, Capabilities::MAX_PAGES);
        assert_eq!(both & Capabilities::PASSTHROUGH, Capabilities::PASSTHROUGH);
    }
}

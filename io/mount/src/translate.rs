//! Between the words of the kernel and those of the protocol.
//!
//! ```text
//!   open(2)'s flags, as this processor has them ─► the protocol's (those of x86)
//!   attributes, set and returned ◄─► SetAttributes, Attributes
//! ```

use fuse::{Attributes, DeviceNumber, SetAttributes, SetTime, Timestamp};
use ninep::{open, setattr};
use rustix::fs::OFlags;

/// The protocol's bits for how a file is opened. What only the kernel minds is left out.
pub(crate) fn open_flags(flags: u32) -> u32 {
    let set = OFlags::from_bits_retain(flags);
    let mut wire = flags & open::ACCESS_MASK;
    for (flag, bit) in OPEN_FLAGS {
        if set.contains(*flag) {
            wire |= bit;
        }
    }
    wire
}

const OPEN_FLAGS: &[(OFlags, u32)] = &[
    (OFlags::CREATE, open::CREATE),
    (OFlags::EXCL, open::EXCL),
    (OFlags::TRUNC, open::TRUNC),
    (OFlags::APPEND, open::APPEND),
    (OFlags::DSYNC, open::DSYNC),
    (OFlags::SYNC, open::SYNC),
    (OFlags::DIRECT, open::DIRECT),
    (OFlags::DIRECTORY, open::DIRECTORY),
    (OFlags::NOFOLLOW, open::NOFOLLOW),
    (OFlags::NOATIME, open::NOATIME),
];

/// Converts attributes of a file to the kernel's form.
pub(crate) fn attributes(told: &ninep::Attributes) -> Attributes {
    Attributes {
        number: told.qid.path,
        size: told.size,
        blocks: told.blocks,
        accessed: time(told.atime),
        modified: time(told.mtime),
        changed: time(told.ctime),
        mode: told.mode,
        links: u32::try_from(told.nlink).unwrap_or(u32::MAX),
        uid: told.uid,
        gid: told.gid,
        // The low half of st_rdev is what the kernel packs into 32 bits.
        device: DeviceNumber(told.rdev as u32),
        block_size: u32::try_from(told.blksize).unwrap_or(0),
    }
}

/// Converts changes of attributes to the protocol's form.
pub(crate) fn set_attributes(set: &SetAttributes) -> ninep::SetAttributes {
    let (atime, atime_bits) = set_time(set.accessed, setattr::ATIME, setattr::ATIME_SET);
    let (mtime, mtime_bits) = set_time(set.modified, setattr::MTIME, setattr::MTIME_SET);
    let bit = |is: bool, bit: u32| if is { bit } else { 0 };
    ninep::SetAttributes {
        valid: bit(set.mode.is_some(), setattr::MODE)
            | bit(set.uid.is_some(), setattr::UID)
            | bit(set.gid.is_some(), setattr::GID)
            | bit(set.size.is_some(), setattr::SIZE)
            | atime_bits
            | mtime_bits,
        mode: set.mode.unwrap_or_default() & 0o7777,
        uid: set.uid.unwrap_or_default(),
        gid: set.gid.unwrap_or_default(),
        size: set.size.unwrap_or_default(),
        atime,
        mtime,
    }
}

fn set_time(time: Option<SetTime>, bit: u32, bit_set: u32) -> (ninep::Timestamp, u32) {
    match time {
        None => (ninep::Timestamp::default(), 0),
        Some(SetTime::Now) => (ninep::Timestamp::default(), bit),
        Some(SetTime::To(Timestamp { seconds, nanoseconds })) => {
            let (sec, nsec) = (seconds as u64, nanoseconds.into());
            (ninep::Timestamp { sec, nsec }, bit | bit_set)
        }
    }
}

fn time(time: ninep::Timestamp) -> Timestamp {
    let nanoseconds = u32::try_from(time.nsec).unwrap_or(0).min(999_999_999);
    Timestamp { seconds: time.sec as i64, nanoseconds }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_those_of_the_wire_whatever_the_processor() {
        let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let wire = open::RDWR | open::DIRECT | open::DIRECTORY | open::NOFOLLOW;
        assert_eq!(open_flags((flags | OFlags::CLOEXEC).bits()), wire);
        let flags = OFlags::WRONLY | OFlags::SYNC | OFlags::CREATE | OFlags::EXCL;
        let wire = open::WRONLY | open::SYNC | open::DSYNC | open::CREATE | open::EXCL;
        assert_eq!(open_flags(flags.bits()), wire);
    }

    #[test]
    fn only_what_is_set_is_changed_and_times_before_1970_survive() {
        let early = Timestamp { seconds: -7, nanoseconds: 5 };
        let set = SetAttributes {
            size: Some(0),
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::To(early)),
            ..SetAttributes::default()
        };
        let wire = set_attributes(&set);
        let valid = setattr::SIZE | setattr::ATIME | setattr::MTIME | setattr::MTIME_SET;
        assert_eq!(wire.valid, valid);
        assert_eq!(time(wire.mtime), early);
    }
}

//! Errors of frames that are not a message.

use crate::types::Tag;

/// The reason why a frame is not a message, with the field and the invalid value.
///
/// The tag is included where it could be read, so that a server can reply with Rlerror and
/// [`FrameError::errno`] and continue. Only a frame whose length is wrong ([`FrameError::Short`],
/// [`FrameError::Size`]) leaves the stream without a next message to find; the connection should be
/// closed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than size, type and tag need.
    #[error("a frame of {len} bytes is shorter than a message header of 7 bytes")]
    Short {
        /// The number of bytes given.
        len: usize,
    },
    /// The size field and the frame's length differ.
    #[error("message with tag {tag} declares {size} bytes but its frame has {len}")]
    Size {
        /// The tag of the message.
        tag: Tag,
        /// The size field, in bytes.
        size: u32,
        /// The number of bytes given.
        len: usize,
    },
    /// No message of this direction has this type.
    #[error("message with tag {tag} has the unknown type {kind}")]
    UnknownType {
        /// The tag of the message.
        tag: Tag,
        /// The byte of the type.
        kind: u8,
    },
    /// The body ends within a field, or the length of a field exceeds the body.
    #[error("message with tag {tag}: {field} needs {need} bytes, {available} are left")]
    Truncated {
        /// The tag of the message.
        tag: Tag,
        /// The name of the field.
        field: &'static str,
        /// Bytes that it needs.
        need: usize,
        /// Bytes that are left.
        available: usize,
    },
    /// The body continues after the last field.
    #[error("message with tag {tag}: {extra} bytes follow its last field")]
    Trailing {
        /// The tag of the message.
        tag: Tag,
        /// The number of surplus bytes.
        extra: usize,
    },
    /// More than [`crate::WALK_NAMES_MAX`] names or qids in a walk, or more groups than an
    /// identity of the dialect has.
    #[error("message with tag {tag}: {count} {field}, at most {limit} are allowed")]
    TooMany {
        /// The tag of the message.
        tag: Tag,
        /// The name of the field.
        field: &'static str,
        /// The number that was declared.
        count: u16,
        /// The greatest number that is allowed.
        limit: usize,
    },
    /// A byte that is not allowed in such a string: NUL, or `/` in a name.
    #[error("message with tag {tag}: {field} contains the byte {byte:#04x} at {at}")]
    BadByte {
        /// The tag of the message.
        tag: Tag,
        /// The name of the field.
        field: &'static str,
        /// The byte that is not allowed.
        byte: u8,
        /// The position in the string, from 0.
        at: usize,
    },
    /// A string that is empty where it must not be, or longer than such a field may be.
    #[error("message with tag {tag}: {field} has {len} bytes, 1 to {limit} are allowed")]
    BadLength {
        /// The tag of the message.
        tag: Tag,
        /// The name of the field.
        field: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The greatest length, in bytes.
        limit: usize,
    },
    /// A number outside the field's few values.
    #[error("message with tag {tag}: {value} is not a value of {field}")]
    BadValue {
        /// The tag of the message.
        tag: Tag,
        /// The name of the field.
        field: &'static str,
        /// The number that is not a value.
        value: u8,
    },
}

impl FrameError {
    /// The tag for the reply; `None` if the frame was too short to have one.
    pub const fn tag(&self) -> Option<Tag> {
        match *self {
            FrameError::Short { .. } => None,
            FrameError::Size { tag, .. }
            | FrameError::UnknownType { tag, .. }
            | FrameError::Truncated { tag, .. }
            | FrameError::Trailing { tag, .. }
            | FrameError::TooMany { tag, .. }
            | FrameError::BadByte { tag, .. }
            | FrameError::BadLength { tag, .. }
            | FrameError::BadValue { tag, .. } => Some(tag),
        }
    }

    /// The Linux errno for the reply: EOPNOTSUPP for an unknown type, which makes clients fall back
    /// to an older message, else EINVAL.
    pub const fn errno(&self) -> u32 {
        const EINVAL: u32 = 22;
        const EOPNOTSUPP: u32 = 95;
        match self {
            FrameError::UnknownType { .. } => EOPNOTSUPP,
            _ => EINVAL,
        }
    }
}

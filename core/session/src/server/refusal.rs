//! Why a proxy refuses a session, a channel or an identity, and the bound of identities.

/// The reason for which a message about the session is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionRefusal {
    /// The session was begun by another user or node.
    #[error("the session belongs to another user or node, and only its owner may resume it")]
    OtherOwner,
    /// The session is one of another export.
    #[error("the session is one of another export, and must be resumed with the same")]
    OtherExport,
    /// The table of sessions is full of sessions that may not end.
    #[error("the proxy has as many sessions as it may have, and none of them can end")]
    TooManySessions,
    /// The session has as many channels as it may have.
    #[error("the session has {} channels, and may have no more", super::CHANNELS_MAX)]
    TooManyChannels,
    /// The session has as many identities as it may have.
    #[error("the session has {IDENTITIES_MAX} identities, and may have no more")]
    TooManyIdentities,
}

impl SessionRefusal {
    /// The error number of the answer, as Linux has it.
    pub fn errno(self) -> u32 {
        match self {
            SessionRefusal::OtherOwner => EPERM,
            SessionRefusal::OtherExport => EINVAL,
            SessionRefusal::TooManySessions
            | SessionRefusal::TooManyChannels
            | SessionRefusal::TooManyIdentities => ENFILE,
        }
    }
}

/// Checks that a session of `count` identities may define one; it is among them if `is_known`.
///
/// # Errors
/// If it would be more than [`IDENTITIES_MAX`].
pub fn check_identity(is_known: bool, count: usize) -> Result<(), SessionRefusal> {
    match is_known || count < IDENTITIES_MAX {
        true => Ok(()),
        false => Err(SessionRefusal::TooManyIdentities),
    }
}

/// The most identities of a session.
pub const IDENTITIES_MAX: usize = 65_536;

const EPERM: u32 = 1;
const EINVAL: u32 = 22;
const ENFILE: u32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_with_all_its_identities_may_only_change_them() {
        assert_eq!(check_identity(false, IDENTITIES_MAX - 1), Ok(()));
        assert_eq!(check_identity(true, IDENTITIES_MAX), Ok(()));
        let refusal = check_identity(false, IDENTITIES_MAX).unwrap_err();
        assert_eq!((refusal, refusal.errno()), (SessionRefusal::TooManyIdentities, 23));
        assert_eq!(refusal.to_string(), "the session has 65536 identities, and may have no more");
    }
}

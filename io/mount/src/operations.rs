//! Operations of the file system on the proxy, by family.

pub(crate) mod attributes;
pub(crate) mod behind;
pub(crate) mod control_files;
pub(crate) mod data;
pub(crate) mod directory;
pub(crate) mod leased;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod stale;
pub(crate) mod xattr;

pub(crate) use directory::OpenListing;

/// Goes on with a value, or answers the reply with the error and returns.
macro_rules! or_error {
    ($result:expr, $reply:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return $reply.error(error),
        }
    };
}
pub(crate) use or_error;

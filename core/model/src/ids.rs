//! The identity of a request: the job, the user, the node.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A batch job's name, as the mount or the attach gave it; empty when there is none.
///
/// At most [`JobId::MAX_LEN`] bytes, no control characters and none that change the direction of
/// text: it travels into tables, metrics and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(Arc<str>);

/// A node's network name, `192.0.2.7@tcp`; `0@lo` for a peer on this machine's Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nid(Arc<str>);

/// The identity that a request is charged to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The job that the request belongs to.
    pub job: JobId,
    /// The user on whose behalf it runs.
    pub uid: u32,
    /// The group of that user.
    pub gid: u32,
    /// The project quota id of the file in question; `None` if it is not known.
    #[serde(rename = "project")]
    pub projid: Option<u32>,
    /// The node it came from.
    pub nid: Nid,
}

/// The place of a target among those of its process, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(u16);

impl TargetId {
    /// The first target; where there is one, that one.
    pub const FIRST: TargetId = TargetId(0);
    /// The most targets that a process may have.
    pub const MAX_COUNT: usize = u16::MAX as usize;

    /// The target at a place.
    ///
    /// # Panics
    /// For a place of [`TargetId::MAX_COUNT`] or more.
    pub const fn new(place: usize) -> TargetId {
        assert!(place < TargetId::MAX_COUNT, "too many targets");
        TargetId(place as u16)
    }

    /// The place of the target.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The error of a text that is not the name of a job or a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {want}")]
pub struct ParseIdError {
    text: String,
    want: &'static str,
}

impl ParseIdError {
    fn new(text: &str, want: &'static str) -> ParseIdError {
        ParseIdError { text: text.chars().take(60).collect(), want }
    }
}

impl TryFrom<String> for JobId {
    type Error = ParseIdError;

    fn try_from(name: String) -> Result<JobId, ParseIdError> {
        const WANT: &str = "a job: at most 128 bytes and no control characters";
        JobId::new(&name).ok_or_else(|| ParseIdError::new(&name, WANT))
    }
}

impl TryFrom<String> for Nid {
    type Error = ParseIdError;

    fn try_from(name: String) -> Result<Nid, ParseIdError> {
        const WANT: &str = "a node's network name: 1 to 128 bytes and no control characters";
        Nid::new(&name).ok_or_else(|| ParseIdError::new(&name, WANT))
    }
}

impl From<JobId> for String {
    fn from(job: JobId) -> String {
        job.as_str().to_owned()
    }
}

impl From<Nid> for String {
    fn from(nid: Nid) -> String {
        nid.to_string()
    }
}

/// The serde form of shared text.
pub(crate) mod text {
    use std::sync::Arc;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}

impl JobId {
    /// The longest name in bytes.
    pub const MAX_LEN: usize = 128;

    /// A job's name; `None` if it is too long or holds characters that a terminal obeys.
    pub fn new(name: &str) -> Option<JobId> {
        let fits = name.len() <= JobId::MAX_LEN && !name.chars().any(is_control);
        fits.then(|| JobId(name.into()))
    }

    /// The name; empty without a job.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Nid {
    /// The longest name in bytes.
    pub const MAX_LEN: usize = 128;

    /// A name that another process of ours made; `None` if it is empty, too long or holds
    /// characters that a terminal obeys.
    pub fn new(name: &str) -> Option<Nid> {
        let fits = (1..=Nid::MAX_LEN).contains(&name.len()) && !name.chars().any(is_control);
        fits.then(|| Nid(name.into()))
    }

    /// The name that comes first in the order; no node has it.
    pub fn least() -> Nid {
        Nid(Arc::default())
    }

    /// The name of a peer on this machine.
    pub fn local() -> Nid {
        Nid("0@lo".into())
    }

    /// The name of a peer that came over TCP from `address` (no port).
    pub fn tcp(address: std::net::IpAddr) -> Nid {
        Nid(format!("{}@tcp", address.to_canonical()).into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Whether a terminal or a page obeys a character instead of showing it: controls, ends of lines,
/// and what Unicode calls `Bidi_Control`, by which a name can imitate another one.
fn is_control(character: char) -> bool {
    let directs = matches!(character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || directs || matches!(character, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_names_that_would_break_a_table_are_refused() {
        assert!(JobId::new("dd.500").is_some());
        assert!(JobId::new("two\nlines").is_none());
        assert!(JobId::new(&"x".repeat(129)).is_none());
        assert!(JobId::new("مهمة-7").is_some(), "a name that is written from the right is one");
        for character in ['\u{202e}', '\u{2066}', '\u{200f}', '\u{61c}', '\u{2028}', '\u{7f}'] {
            let name = format!("dd{character}005");
            assert!(JobId::new(&name).is_none() && Nid::new(&name).is_none(), "{name:?}");
        }
    }

    #[test]
    fn an_ipv4_peer_on_a_dual_stack_socket_keeps_its_ipv4_name() {
        assert_eq!(Nid::tcp("::ffff:127.0.0.1".parse().unwrap()).as_str(), "127.0.0.1@tcp");
    }
}

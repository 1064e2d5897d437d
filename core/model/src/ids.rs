//! The identity of a request: the job, the user, the node.

use std::fmt;
use std::sync::Arc;

/// A batch job's name, as the mount or the attach gave it; empty when there is none.
///
/// At most [`JobId::MAX_LEN`] bytes, no control characters and none that change the direction of
/// text: it travels into tables, metrics and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Arc<str>);

/// A node's network name, `192.0.2.7@tcp`; `0@lo` for a peer on this machine's Unix socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nid(Arc<str>);

/// The identity that a request is charged to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The job that the request belongs to.
    pub job: JobId,
    /// The user on whose behalf it runs.
    pub uid: u32,
    /// The group of that user.
    pub gid: u32,
    /// The project quota id of the file in question; `None` if it is not known.
    pub projid: Option<u32>,
    /// The node it came from.
    pub nid: Nid,
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

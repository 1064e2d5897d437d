//! The mounts of this machine and the state of their connections to proxies.
//!
//! ```text
//!   /proc/self/mountinfo ─► of type fuse.sluice ─► read AT/.sluice/status ─► its connections, or a problem
//! ```
//!
//! All mounts are read at the same time, with a time limit of 2 s for a mount that does not answer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use api::MountStatus;
use serde::Serialize;

use crate::decay::amount;
use crate::mount::place::{ANSWER_TIME, MountEntry, is_dead_error};
use crate::top::table;

/// A mount of this machine.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct MountShown {
    pub(super) at: PathBuf,
    pub(super) source: String,
    pub(super) state: MountState,
    /// The status that the mount reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<MountStatus>,
}

/// The state of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum MountState {
    Ok,
    /// It waits for a proxy.
    Waits,
    /// Its process has ended.
    Ended,
    /// It does not answer.
    Unresponsive,
    /// It belongs to another user, or its version has no status file.
    Unknown,
}

/// Returns all mounts of sluice in this process's table of mounts.
///
/// # Errors
/// If the table of mounts cannot be read.
pub(super) fn all() -> io::Result<Vec<MountShown>> {
    let (until, mut asked) = (Instant::now() + ANSWER_TIME, Vec::new());
    for mounted in MountEntry::all("self")?.into_iter().filter(MountEntry::is_sluice) {
        let answer = mounted.call(|place| fs::read_to_string(place.join(FILE)));
        asked.push((mounted, answer));
    }
    let shown = |(mounted, answer): (MountEntry, Receiver<io::Result<String>>)| {
        let answer = answer.recv_timeout(until.saturating_duration_since(Instant::now()));
        MountShown::of(mounted.mount_point(), &mounted.source, answer.ok())
    };
    Ok(asked.into_iter().map(shown).collect())
}

/// Formats the table of mounts; empty if there is none.
pub(super) fn text(mounts: &[MountShown]) -> String {
    if mounts.is_empty() {
        return String::new();
    }
    let head = ["MOUNT", "SOURCE", "PROCESS", "OPEN", "WRITE-BEHIND", "STATE"];
    let rows = mounts.iter().map(|mount| {
        let of = |text: fn(&MountStatus) -> String| {
            mount.status.as_ref().map_or_else(|| "-".into(), text)
        };
        let (at, source) = (mount.at.display().to_string(), mount.source.clone());
        let process = of(|status| status.pid.to_string());
        let open = of(|status| status.open_files.to_string());
        let behind = of(|status| amount(status.write_behind_bytes, true));
        vec![at, source, process, open, behind, mount.state.name().into()]
    });
    format!("\n{}", table::aligned(&head, &[2, 3, 4], rows))
}

impl MountShown {
    /// Determines the state from the mount's answer; `None` if it did not come in time.
    fn of(at: &Path, source: &str, answer: Option<io::Result<String>>) -> MountShown {
        let (state, status) = match answer {
            None => (MountState::Unresponsive, None),
            Some(Err(error)) if is_dead_error(&error) => (MountState::Ended, None),
            Some(Err(_)) => (MountState::Unknown, None),
            Some(Ok(text)) => match MountStatus::of(&text) {
                Ok(status) if status.proxies.iter().any(|link| link.connections_down > 0) => {
                    (MountState::Waits, Some(status))
                }
                Ok(status) => (MountState::Ok, Some(status)),
                Err(_) => (MountState::Unknown, None),
            },
        };
        MountShown { at: at.into(), source: source.into(), state, status }
    }

    /// Returns the problems of the mount, one sentence each.
    pub(super) fn problems(&self) -> Vec<String> {
        let at = self.at.display();
        match self.state {
            MountState::Ok | MountState::Unknown => Vec::new(),
            MountState::Ended => {
                vec![format!("the process of the mount at {at} has ended; run sluice umount {at}")]
            }
            MountState::Unresponsive => vec![format!("the mount at {at} does not answer")],
            MountState::Waits => {
                let links = self.status.iter().flat_map(|status| &status.proxies);
                let lost = links.filter(|link| link.connections_down > 0).map(|link| {
                    format!("the mount at {at} is waiting for its connection to {}", link.proxy)
                });
                lost.collect()
            }
        }
    }
}

impl MountState {
    /// Returns the text for the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            MountState::Ok => "ok",
            MountState::Waits => "waits",
            MountState::Ended => "ended",
            MountState::Unresponsive => "unresponsive",
            MountState::Unknown => "unknown",
        }
    }
}

const FILE: &str = ".sluice/status";

#[cfg(test)]
mod tests {
    use api::MountLink;
    use rustix::io::Errno;

    use super::*;

    fn shown(answer: Option<io::Result<String>>) -> (MountState, usize) {
        let shown = MountShown::of(Path::new("/mnt/a"), "unix:///s//x", answer);
        (shown.state, shown.problems().len())
    }

    #[test]
    fn what_is_wrong_with_a_mount_is_said_and_nothing_else_is() {
        let status = |lost| {
            let link = |proxy: &str, lost| MountLink {
                proxy: proxy.into(),
                connected: 4,
                connections_down: lost,
            };
            let proxies = vec![link("a", lost), link("b", 0)];
            Some(Ok(MountStatus { proxies, ..MountStatus::default() }.text()))
        };
        let error = |errno: Errno| Some(Err(io::Error::from(errno)));
        assert_eq!(shown(status(0)), (MountState::Ok, 0));
        assert_eq!(shown(status(2)), (MountState::Waits, 1));
        assert_eq!(shown(error(Errno::NOTCONN)), (MountState::Ended, 1));
        assert_eq!(shown(None), (MountState::Unresponsive, 1));
        assert_eq!(shown(error(Errno::ACCESS)), (MountState::Unknown, 0), "another user's");
        assert_eq!(shown(error(Errno::NOENT)), (MountState::Unknown, 0), "an older one");
    }
}

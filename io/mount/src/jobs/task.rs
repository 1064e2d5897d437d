//! A thread of this machine, as /proc shows it.
//!
//! ```text
//!   Task = descriptor of /proc/TID ─┬─ exe      ─► does it live, and run the same program?
//!                                   ├─ status   ─► its process, its groups
//!                                   ├─ cgroup   ─► cgroup.rs
//!                                   └─ environ  ─► environment.rs; may block
//! ```
//!
//! The descriptor is bound to the task and not to its number: once the task is dead every path
//! through it fails with `ENOENT` or `ESRCH`, though another task may have the number by then
//! (linux: fs/proc/base.c, `proc_pident_lookup`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, openat, readlinkat_raw};
use rustix::io::Errno;

/// A living thread, or one that has died since.
#[derive(Debug)]
pub(super) struct TaskId(OwnedFd);

/// Fields of `/proc/PID/status` that a mount needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TaskStatus {
    /// The number of the thread's process.
    pub(super) process: u32,
    /// Supplementary groups of the thread.
    pub(super) groups: Arc<[u32]>,
}

impl TaskId {
    /// The thread that has this number now, below `proc`.
    pub(super) fn open(proc: impl AsFd, thread: u32) -> Result<TaskId, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(proc, thread.to_string(), flags, Mode::empty()).map(TaskId)
    }

    /// Returns the path of its program, cut after 255 bytes, by one system call that never blocks.
    /// `None` if it is dead, a thread of the kernel, or must not be read.
    pub(super) fn program(&self) -> Option<Box<[u8]>> {
        let mut space = [0; PROGRAM_MAX];
        self.program_into(&mut space).map(Box::from)
    }

    /// Whether it lives and its program has this path.
    pub(super) fn runs(&self, program: &[u8]) -> bool {
        let mut space = [0; PROGRAM_MAX];
        self.program_into(&mut space).is_some_and(|path| *path == *program)
    }

    fn program_into<'s>(&self, space: &'s mut [u8]) -> Option<&'s [u8]> {
        let len = readlinkat_raw(&self.0, c"exe", &mut *space).ok()?;
        Some(&space[..len])
    }

    /// Its process and groups.
    ///
    /// # Errors
    /// `ENOENT` or `ESRCH` once it is dead.
    pub(super) fn status(&self) -> io::Result<TaskStatus> {
        let text = self.read(c"status")?;
        TaskStatus::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// All of one of its files.
    ///
    /// # Errors
    /// `ENOENT` or `ESRCH` once it is dead; `FileTooLarge` beyond [`FILE_MAX`] bytes.
    pub(super) fn read(&self, file: &std::ffi::CStr) -> io::Result<Vec<u8>> {
        let file = openat(&self.0, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let (mut text, mut len) = (vec![0; FIRST_READ], 0);
        loop {
            match rustix::io::read(&file, &mut text[len..]) {
                Ok(0) => break,
                Ok(count) => len += count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if len == FILE_MAX {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            if len == text.len() {
                text.resize((len * 4).min(FILE_MAX), 0);
            }
        }
        text.truncate(len);
        Ok(text)
    }
}

impl TaskStatus {
    /// Reads the lines `Tgid:` and `Groups:`. The kernel escapes line feeds in the command's
    /// name, so nobody can add lines.
    fn parse(text: &[u8]) -> Option<TaskStatus> {
        let text = String::from_utf8_lossy(text);
        let field = |name| text.lines().find_map(|line: &str| line.strip_prefix(name));
        let process = field("Tgid:")?.trim().parse().ok()?;
        let groups = field("Groups:")?.split_ascii_whitespace().map(str::parse);
        Some(TaskStatus { process, groups: groups.collect::<Result<_, _>>().ok()? })
    }
}

const PROGRAM_MAX: usize = 255;
/// Enough for `status` and `cgroup` as they nearly always are.
const FIRST_READ: usize = 4096;
/// The kernel gives arguments and environment 6 MiB (linux: fs/exec.c, `bprm_stack_limits`);
/// 65,536 groups of `status` have less.
const FILE_MAX: usize = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_and_groups_are_read_from_status() {
        let text = b"Name:\tsh\\nTgid:\\t1\nUmask:\t0022\nTgid:\t77\nNgid:\t0\nPid:\t78\n\
                     Groups:\t4 24 1000 \nVmPeak:\t1 kB\n";
        let status = TaskStatus::parse(text).unwrap();
        assert_eq!(status, TaskStatus { process: 77, groups: [4, 24, 1000].into() });
        assert_eq!(&*TaskStatus::parse(b"Tgid:\t1\nGroups:\t\n").unwrap().groups, [0; 0]);
    }

    #[test]
    fn a_status_that_lacks_a_line_is_none() {
        for text in ["", "Tgid:\t1\n", "Groups:\t1\n", "Tgid:\tx\nGroups:\t\n"] {
            assert_eq!(TaskStatus::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_file_longer_than_the_first_read_is_read_whole() {
        let dir = std::env::temp_dir().join(format!("sluice-task-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("1")).unwrap();
        let proc = std::fs::File::open(&dir).unwrap();
        let long: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        std::fs::write(dir.join("1/environ"), &long).unwrap();
        assert_eq!(TaskId::open(&proc, 1).unwrap().read(c"environ").unwrap(), long);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

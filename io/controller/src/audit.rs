//! The audit log: a file of lines within a bound.
//!
//! ```text
//!   change accepted ─► one line of JSON ─► DATA/audit.log ─ 64 MiB ─► DATA/audit.log.old, one kept
//!   GET /v1/audit   ◄─ the newest requested lines ◄─ both files
//! ```
//!
//! Each controller logs what it accepted while it was the leader. A change is stored before its
//! line is written, so a full disk loses lines and no changes; the log says so.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use api::{AuditLine, AuditLines};

/// The audit log of one controller.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<OpenAudit>,
    bytes_max: u64,
}

#[derive(Debug)]
struct OpenAudit {
    file: File,
    bytes: u64,
}

/// The reason why the audit log cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the audit log {}", path.display())]
pub struct AuditError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

impl Audit {
    /// Opens the log in a data directory.
    pub(crate) fn open(data: &Path) -> Result<Audit, AuditError> {
        Audit::bounded(data, FILE_BYTES_MAX)
    }

    fn bounded(data: &Path, bytes_max: u64) -> Result<Audit, AuditError> {
        let path = data.join("audit.log");
        match open(&path) {
            Ok(file) => Ok(Audit { path, file: Mutex::new(file), bytes_max }),
            Err(source) => Err(AuditError { path, source }),
        }
    }

    /// Writes one change; it blocks until the line is on disk.
    pub(crate) fn write(&self, line: &AuditLine) {
        self.write_all(std::slice::from_ref(line));
    }

    /// Writes changes; it blocks until the lines are on disk, all at once.
    pub(crate) fn write_all(&self, lines: &[AuditLine]) {
        let Some(last) = lines.last() else { return };
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line).expect("a line is plain data");
            text.push(b'\n');
        }
        let mut open = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.append(&mut open, &text) {
            let (who, what, count) = (&last.actor, &last.what, lines.len());
            tracing::error!(%error, who, what, count, "cannot write changes to the audit log");
        }
    }

    /// Returns the newest `limit` lines since `since_s`, oldest first.
    pub(crate) fn read(&self, since_s: u64, limit: usize) -> io::Result<AuditLines> {
        let (mut found, mut bytes, mut left_out) = (VecDeque::new(), 0, 0);
        for path in [old(&self.path), self.path.clone()] {
            let mut reader = match File::open(&path) {
                Ok(file) => BufReader::new(file.take(2 * self.bytes_max)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let mut text = Vec::new();
            while reader.read_until(b'\n', &mut text)? > 0 {
                // A line that was cut short by a crash is skipped.
                let line = serde_json::from_slice::<AuditLine>(&text).ok();
                if let Some(line) = line.filter(|line| line.at_s >= since_s) {
                    bytes += text.len();
                    found.push_back((text.len(), line));
                }
                text.clear();
                while found.len() > limit || bytes > ANSWER_BYTES_MAX && found.len() > 1 {
                    let (length, _) = found.pop_front().expect("it is not empty");
                    bytes -= length;
                    left_out += 1;
                }
            }
        }
        Ok(AuditLines {
            lines: found.into_iter().map(|(_, line)| line).collect(),
            omitted: left_out,
        })
    }

    fn append(&self, to: &mut OpenAudit, text: &[u8]) -> io::Result<()> {
        if to.bytes > 0 && to.bytes + text.len() as u64 > self.bytes_max {
            fs::rename(&self.path, old(&self.path))?;
            *to = open(&self.path)?;
        }
        to.file.write_all(text)?;
        to.bytes += text.len() as u64;
        to.file.sync_data()
    }
}

fn old(path: &Path) -> PathBuf {
    path.with_extension("log.old")
}

/// Opens or creates the file, and ends a line that was cut short.
fn open(path: &Path) -> io::Result<OpenAudit> {
    api::check_private(path).map_err(io::Error::other)?;
    let mut file = api::private_options().read(true).append(true).create(true).open(path)?;
    let mut bytes = file.metadata()?.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            bytes += 1;
        }
    }
    Ok(OpenAudit { file, bytes })
}

/// The most bytes of one file; there are two.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of the lines of one reply: each may hold two rule files.
const ANSWER_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use api::Role;

    use super::*;
    use testkit::TestFolder;

    fn line(at_s: u64, what: &str) -> AuditLine {
        AuditLine {
            at_s,
            actor: "ann".into(),
            role: Role::Admin,
            from: "127.0.0.1:1".into(),
            what: what.into(),
            before: None,
            after: Some("b\n".into()),
        }
    }

    fn whats(lines: &AuditLines) -> Vec<&str> {
        lines.lines.iter().map(|line| line.what.as_str()).collect()
    }

    #[test]
    fn lines_are_found_by_time_and_number_also_by_the_next_process() {
        let folder = TestFolder::new();
        let audit = Audit::open(folder.path()).unwrap();
        for at in 1..=3 {
            audit.write(&line(at, &format!("w{at}")));
        }
        drop(audit);
        let audit = Audit::open(folder.path()).unwrap();
        audit.write(&line(4, "w4"));
        assert_eq!(whats(&audit.read(0, 10).unwrap()), ["w1", "w2", "w3", "w4"]);
        assert_eq!(audit.read(0, 10).unwrap().lines[0], line(1, "w1"));
        let newest = audit.read(2, 2).unwrap();
        assert_eq!((whats(&newest), newest.omitted), (vec!["w3", "w4"], 1));
        let mode = fs::metadata(folder.path().join("audit.log")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_full_file_takes_the_place_of_the_old_one() {
        let folder = TestFolder::new();
        let length = serde_json::to_vec(&line(1, "w01")).unwrap().len() as u64 + 1;
        let audit = Audit::bounded(folder.path(), 3 * length).unwrap();
        for at in 1..=8 {
            audit.write(&line(1, &format!("w{at:02}")));
        }
        let kept = audit.read(0, 100).unwrap();
        assert_eq!(whats(&kept), ["w04", "w05", "w06", "w07", "w08"]);
        let size = |name: &str| fs::metadata(folder.path().join(name)).unwrap().len();
        assert_eq!((size("audit.log"), size("audit.log.old")), (2 * length, 3 * length));
    }

    #[test]
    fn a_line_that_was_cut_short_costs_only_itself() {
        let folder = TestFolder::new();
        let audit = Audit::open(folder.path()).unwrap();
        audit.write(&line(1, "whole"));
        drop(audit);
        let path = folder.path().join("audit.log");
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"at_s\":2,\"wh").unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        audit.write(&line(3, "next"));
        assert_eq!(whats(&audit.read(0, 10).unwrap()), ["whole", "next"]);
    }
}

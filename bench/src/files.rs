//! The files a load works on: made through the server before, removed after.

use std::path::Path;

use anyhow::{Context as _, ensure};
use model::Bytes;
use ninep::{Fid, REMOVE_DIR, open};

use super::plan::PeerPlan;
use super::session::{BenchSession, stamp};
use super::work::WorkOp;

/// The files a load has made in the export.
pub(crate) struct BenchFiles {
    pub(crate) dir: String,
    /// What is read, from the root.
    pub(crate) data: Option<String>,
    /// The server knows Tunlinkat.
    pub(crate) unlinkat: bool,
}

const ROOT: Fid = Fid(1);
const DIR: Fid = Fid(2);
const FILE: Fid = Fid(3);

impl BenchFiles {
    /// Makes, fills and warms them.
    pub(crate) fn make(plan: &PeerPlan) -> anyhow::Result<BenchFiles> {
        let mut session = plan.session()?;
        session.attach(ROOT, &plan.aname, &plan.identity())?;
        let dir = format!("sluice-bench-{}-{:x}", std::process::id(), unique());
        session.mkdir(ROOT, &dir).context("cannot make a directory in the export")?;
        let mut files = BenchFiles { dir, data: None, unlinkat: true };
        if let Err(error) = files.fill(&mut session, plan) {
            // The first error is the one to report.
            let _ = files.remove(plan);
            return Err(error);
        }
        Ok(files)
    }

    fn fill(&mut self, session: &mut BenchSession, plan: &PeerPlan) -> anyhow::Result<()> {
        session.walk(ROOT, DIR, &self.dir)?;
        self.unlinkat = session.knows_unlinkat(DIR)?;
        let len = plan.file_size.get();
        if plan.op.writes() {
            for connection in 0..plan.connections {
                session.create(DIR, FILE, &write_name(connection))?;
                session.fill(FILE, len)?;
                session.clunk(FILE)?;
            }
        }
        if !plan.op.reads() {
            return Ok(());
        }
        match &plan.file {
            Some(name) => {
                session.open_file(ROOT, FILE, name, open::RDONLY)?;
                let size = session.size(FILE)?;
                ensure!(size >= len, "{name} has {size} bytes, --file-size says {len}");
                self.data = Some(name.clone());
            }
            None => {
                session.create(DIR, FILE, "data")?;
                session.fill(FILE, len)?;
                self.data = Some(format!("{}/data", self.dir));
            }
        }
        if !plan.cold && plan.op != WorkOp::Getattr {
            session.warm(FILE, len)?;
        }
        session.clunk(FILE)
    }

    /// Removes them, over a connection of its own.
    pub(crate) fn remove(&self, plan: &PeerPlan) -> anyhow::Result<()> {
        let mut session = plan.session()?;
        session.attach(ROOT, &plan.aname, &plan.identity())?;
        session.walk(ROOT, DIR, &self.dir)?;
        // What an interrupted load had in flight is in there too.
        for name in session.list(DIR)? {
            session.unlink(DIR, &name, 0)?;
        }
        session.unlink(ROOT, &self.dir, REMOVE_DIR)
    }
}

/// The file that `connection` writes.
pub(crate) fn write_name(connection: usize) -> String {
    format!("written{connection}")
}

fn unique() -> u128 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() & 0xff_ffff)
}

/// Makes the file of `len` bytes that [`PeerPlan::file`] wants, beside any server.
pub(crate) fn make_file(path: &Path, len: Bytes) -> anyhow::Result<()> {
    let mut data = vec![0; 1 << 20];
    let mut file = std::fs::File::create(path).with_context(|| format!("{}", path.display()))?;
    for offset in (0..len.get()).step_by(data.len()) {
        let count = (len.get() - offset).min(data.len() as u64) as usize;
        stamp(&mut data[..count], offset);
        std::io::Write::write_all(&mut file, &data[..count]).context("cannot fill the file")?;
    }
    Ok(())
}

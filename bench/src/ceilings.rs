//! The raw backend: what one load's work costs by system calls alone.
//!
//! As many threads as the load has connections, up to the number of processors, do
//! what the server's backend would be asked for, on the same files.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::servers::DATA;
use super::work::WorkOp;

/// What to do without a server.
pub(crate) struct Raw<'a> {
    pub(crate) op: WorkOp,
    pub(crate) size: usize,
    /// The directory with the file to read.
    pub(crate) dir: &'a Path,
    pub(crate) file_size: u64,
    pub(crate) threads: usize,
    pub(crate) time: Duration,
}

/// Returns the operations per second of all threads together.
pub(crate) fn run(raw: &Raw<'_>, stop: &Arc<AtomicBool>) -> anyhow::Result<f64> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let counts: anyhow::Result<Vec<u64>> = std::thread::scope(|scope| {
        let threads = 0..raw.threads.clamp(1, cpus);
        let handles: Vec<_> =
            threads.map(|index| scope.spawn(move || count(raw, index, stop))).collect();
        let join = |handle: std::thread::ScopedJoinHandle<'_, _>| {
            handle.join().expect("a backend thread does not panic")
        };
        handles.into_iter().map(join).collect()
    });
    Ok(counts?.iter().sum::<u64>() as f64 / raw.time.as_secs_f64())
}

fn count(raw: &Raw<'_>, thread: usize, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut work = CeilingWork::new(raw, thread)?;
    let end = Instant::now() + raw.time;
    let mut ops = 0;
    while Instant::now() < end {
        for _ in 0..BATCH {
            work.once().context("raw backend")?;
        }
        ops += BATCH;
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
    work.clean_up()?;
    Ok(ops)
}

struct CeilingWork<'a> {
    raw: &'a Raw<'a>,
    file: File,
    own: std::path::PathBuf,
    buffer: Vec<u8>,
    blocks: u64,
    next: u64,
    random: u64,
}

impl<'a> CeilingWork<'a> {
    fn new(raw: &'a Raw<'a>, thread: usize) -> anyhow::Result<CeilingWork<'a>> {
        let own = raw.dir.join(format!("backend{thread}"));
        let write = matches!(raw.op, WorkOp::Write | WorkOp::Randwrite | WorkOp::Fsync);
        let file = if write {
            let file =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&own);
            let file = file.context("cannot make a file")?;
            // Overwriting is measured, as in the load, and not the allocation of blocks.
            let chunk = vec![0; 1 << 20];
            for offset in (0..raw.file_size).step_by(chunk.len()) {
                file.write_all_at(&chunk, offset).context("cannot fill a file")?;
            }
            file
        } else {
            File::open(raw.dir.join(DATA)).context("cannot open the file to read")?
        };
        let blocks = (raw.file_size / raw.size as u64).max(1);
        let (buffer, random) = (vec![0; raw.size], 0x9e37_79b9 + thread as u64);
        Ok(CeilingWork { raw, file, own, buffer, blocks, next: blocks / 2 * thread as u64, random })
    }

    fn once(&mut self) -> std::io::Result<()> {
        let offset = self.block() * self.raw.size as u64;
        match self.raw.op {
            WorkOp::Read | WorkOp::Randread | WorkOp::Mixed | WorkOp::Interactive => {
                self.file.read_exact_at(&mut self.buffer, offset)
            }
            WorkOp::Write | WorkOp::Randwrite => self.file.write_all_at(&self.buffer, offset),
            WorkOp::Getattr => self.file.metadata().map(drop),
            WorkOp::Create => {
                let file = File::create_new(&self.own)?;
                file.metadata()?;
                drop(file);
                std::fs::remove_file(&self.own)
            }
            WorkOp::Smallfile => {
                let file =
                    File::options().read(true).write(true).create_new(true).open(&self.own)?;
                file.write_all_at(&self.buffer, 0)?;
                file.read_exact_at(&mut self.buffer, 0)?;
                drop(file);
                std::fs::remove_file(&self.own)
            }
            WorkOp::Fsync => {
                self.file.write_all_at(&self.buffer, offset)?;
                self.file.sync_all()
            }
        }
    }

    fn block(&mut self) -> u64 {
        if matches!(self.raw.op, WorkOp::Read | WorkOp::Write) {
            self.next = (self.next + 1) % self.blocks;
            return self.next;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % self.blocks
    }

    fn clean_up(&self) -> anyhow::Result<()> {
        match std::fs::remove_file(&self.own) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context("cannot remove a file")
            }
            _ => Ok(()),
        }
    }
}

/// Operations between two looks at the clock.
const BATCH: u64 = 16;

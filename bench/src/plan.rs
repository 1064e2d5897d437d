//! What to do to which server: the command line of a load, checked.

use anyhow::ensure;
use model::{Bytes, Nanos};
use ninep::IO_HEADER;

use super::session::{BenchIdentity, BenchSession};
use super::socket::BenchAddress;
use super::work::WorkOp;

/// One load against one server.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct PeerPlan {
    /// Where the server listens: tcp://HOST:PORT or unix:///path
    pub(crate) server: BenchAddress,
    /// What to attach to: the export's name, or its directory with diod
    #[arg(long, default_value = "")]
    pub(crate) aname: String,
    /// The user's name sent with attach
    #[arg(long, default_value = "root")]
    pub(crate) uname: String,
    /// The user's number sent with attach
    #[arg(long, default_value_t = 0)]
    pub(crate) uid: u32,
    /// Largest message; it bounds --size to 24 bytes less
    #[arg(long, default_value = "64KiB")]
    pub(crate) msize: Bytes,
    /// Operation to measure, or a mix
    #[arg(long, value_enum, default_value = "randread")]
    pub(crate) op: WorkOp,
    /// Payload of a read or write [default: 4KiB, or all that the msize lets through for read and write]
    #[arg(long)]
    pub(crate) size: Option<Bytes>,
    /// Size of the file that is read, and of each connection's file that is written
    #[arg(long, default_value = "256MiB")]
    pub(crate) file_size: Bytes,
    /// Read this file of the export instead of a new one; it must have been made by this program
    #[arg(long, value_name = "NAME")]
    pub(crate) file: Option<String>,
    /// Number of connections to open
    #[arg(long, short = 'c', default_value_t = 1)]
    pub(crate) connections: usize,
    /// Requests in flight on each connection
    #[arg(long, short = 'd', default_value_t = 1)]
    pub(crate) depth: usize,
    /// Threads, which share the connections
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// Number of attaches on each connection, as NAME?job=bench0, NAME?job=bench1, … (Sluice only)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) jobs: usize,
    /// How long to measure
    #[arg(long, default_value = "5s")]
    pub(crate) time: Nanos,
    /// How long to run before measuring
    #[arg(long, default_value = "500ms")]
    pub(crate) warmup: Nanos,
    /// Report each interval of this length as well
    #[arg(long, value_name = "TIME")]
    pub(crate) every: Option<Nanos>,
    /// Stay on this processor
    #[arg(long, value_name = "CPU")]
    pub(crate) pin: Option<usize>,
    /// Give up when no reply has come for so long
    #[arg(long, default_value = "60s")]
    pub(crate) patience: Nanos,
    /// Do not read the file through before
    #[arg(long)]
    pub(crate) cold: bool,
    /// The server is `sluice-bench bare`: read without any 9P conversation before
    #[arg(long, hide = true)]
    pub(crate) bare: bool,
}

impl PeerPlan {
    /// The plan that the command line means by naming nothing but the server.
    pub(crate) fn new(server: BenchAddress) -> PeerPlan {
        #[derive(clap::Parser)]
        struct PlanLine {
            #[command(flatten)]
            plan: PeerPlan,
        }
        // One list of defaults, that of the command line.
        let words = ["p9".to_owned(), server.to_string()];
        <PlanLine as clap::Parser>::parse_from(words).plan
    }

    /// Payload of one request in bytes.
    pub(crate) fn size(&self) -> Bytes {
        let room = self.msize.get().saturating_sub(u64::from(IO_HEADER));
        match (self.size, self.op) {
            (Some(size), _) => size,
            // Whole blocks, as a client with a page cache asks for.
            (None, WorkOp::Read | WorkOp::Write) => Bytes::new((room / 4096 * 4096).max(1)),
            (None, _) => Bytes::kib(4),
        }
    }

    /// Refuses what cannot be run.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let size = self.size().get();
        let room = self.msize.get().saturating_sub(u64::from(IO_HEADER));
        ensure!(size >= 1, "--size 0 moves nothing");
        ensure!(size <= room, "--size {} does not fit into --msize {}", self.size(), self.msize);
        ensure!(self.msize.get() <= u64::from(u32::MAX), "--msize {} is too large", self.msize);
        ensure!(size <= self.file_size.get(), "--file-size {} is too small", self.file_size);
        ensure!((1..=4096).contains(&self.depth), "--depth is 1 to 4096, not {}", self.depth);
        ensure!(
            self.threads >= 1 && self.connections >= self.threads,
            "--threads is 1 to the number of connections"
        );
        ensure!(self.time.get() > 0, "--time is zero");
        Ok(())
    }

    pub(crate) fn identity(&self) -> BenchIdentity {
        BenchIdentity { uname: self.uname.clone(), uid: self.uid }
    }

    /// What to attach to on each connection, one for each job.
    pub(crate) fn anames(&self) -> Vec<String> {
        match self.jobs {
            0 => vec![self.aname.clone()],
            jobs => (0..jobs).map(|job| format!("{}?job=bench{job}", self.aname)).collect(),
        }
    }

    /// A connection whose messages are large enough.
    pub(crate) fn session(&self) -> anyhow::Result<BenchSession> {
        let session = BenchSession::open(&self.server, self.msize.get() as u32)?;
        let need = self.size().get() + u64::from(IO_HEADER);
        let (msize, size) = (session.msize(), self.size());
        ensure!(
            need <= u64::from(msize),
            "the server grants msize {msize}: too little for --size {size}"
        );
        Ok(session)
    }
}

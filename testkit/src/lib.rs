//! What the tests of several crates share; nothing that ships uses it.
//!
//! ```text
//!   account  an account whose service a test reports
//!   again    a test's own program, started once more for one test alone
//!   dice     numbers by chance that a seed repeats
//!   etcd     a real etcd of three members on loopback
//!   folder   a folder for one test, gone with the value
//!   here     what this machine lets a test do, said aloud, and waiting for what must happen
//!   hostile  clients that mean harm
//!   p9       the one 9P client of all tests and benches
//!   slurm    a real Slurm of four nodes on loopback
//! ```
//!
//! Nothing here waits without a deadline, and every deadline is [`PATIENCE`].

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod account;
mod again;
mod dice;
mod etcd;
mod folder;
mod here;
pub mod hostile;
pub mod p9;
mod slurm;

pub use account::account_subject;
pub use again::{again, alone};
pub use dice::Dice;
pub use etcd::Cluster;
pub use folder::{TestFolder, place};
pub use here::{PATIENCE, copy_program, everybodys, root_here, skip, until, until_free};
pub use slurm::{SlurmCluster, SlurmFiles, native, write_node_program, write_program};

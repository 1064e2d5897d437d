//! What reads pay whose data the kernel reads ahead below the proxy.
//!
//! ```text
//!   client reads in order ─► proxy ─ the first misses ─► kernel ─ reads ahead ─► device
//!                              └─ the others are found ───┘
//! ```
//!
//! Nothing here depends on how fast anything is: a cost does not follow what a read took.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::Path;

use fuse::OpenFlags;
use ninep::open;
use rustix::fs::{Advice, fadvise, statfs};
use testkit::TestFolder;

use crate::one_file::{self, LEN};
use crate::peer::{P9Client, Served, Setup, everybodys, skip, until, write_as_user};

/// A read of the device costs 1 ms and more, one of the page cache some microseconds.
const COSTS: &str = "slots_max = 8\n\
    [device]\nread = [[\"4KiB\", \"1ms\"], [\"16KiB\", \"2ms\"]]\n\
    write = [[\"4KiB\", \"1ms\"], [\"16KiB\", \"2ms\"]]\n\
    [cached]\nread = [[\"4KiB\", \"1us\"]]\nwrite = [[\"4KiB\", \"1us\"]]\n";
const DEVICE_NS: u64 = 1_000_000;
/// What statfs(2) calls a file system in memory.
const TMPFS: i64 = 0x0102_1994;

/// A proxy in front of a directory with `file`.
struct ReadBed {
    served: Served,
    read: u64,
    cost: u64,
}

impl ReadBed {
    fn new(name: &str, dir: &Path) -> ReadBed {
        let export =
            format!("[[export]]\nname = \"x\"\ndir = \"{}\"\ntarget = \"disk\"\n", dir.display());
        let target = "[[target]]\nname = \"disk\"\ncosts = \"@/costs\"\n";
        let setup = Setup::new(name).tables(&format!("{export}{target}"));
        let served = setup.file("costs", COSTS).start();
        let mut bed = ReadBed { served, read: 0, cost: 0 };
        bed.cost();
        bed
    }

    /// What was paid since the last call, once all that was read is counted.
    fn cost(&mut self) -> u64 {
        let control = self.served.control();
        let (read, mut sum) = (self.read, 0);
        until("the reads are counted", || {
            let classes = control.classes().classes;
            sum = classes.iter().map(|class| class.usage.cost_ns).sum();
            classes.iter().map(|class| class.usage.read_bytes).sum::<u64>() == read
        });
        sum - std::mem::replace(&mut self.cost, sum)
    }

    /// Whether each of [`PIECES`] pieces of a size, read in order, was paid as read from the device.
    fn are_of_device(&mut self, client: &mut P9Client, size: u32) -> Vec<bool> {
        let pieces = (0..PIECES).map(|piece| {
            let data = client.read(1, piece * u64::from(size), size).unwrap();
            assert_eq!(data.len(), size as usize);
            self.read += u64::from(size);
            self.cost() >= DEVICE_NS
        });
        pieces.collect()
    }
}

const SIZES: [u32; 2] = [64 << 10, 4 << 10];
const PIECES: u64 = 64;
/// How often the device may be too fast.
const ATTEMPTS: u32 = 50;

#[test]
fn what_the_kernel_read_ahead_is_paid_as_read_from_the_device() {
    for size in SIZES {
        let folder = TestFolder::new();
        let (dir, file) = (folder.path().join("data"), folder.path().join("data/file"));
        fs::create_dir(&dir).unwrap();
        everybodys(&dir);
        write_as_user(&file, &vec![7; PIECES as usize * size as usize]);
        let file = File::open(&file).unwrap();
        if statfs(&dir).unwrap().f_type == TMPFS {
            return skip("temporary files are in memory here: nothing is read ahead");
        }
        let mut bed = ReadBed::new("ahead", &dir);
        let mut client = bed.served.plain_client();
        file.sync_all().unwrap();
        // A fast device may be done before it is looked whether the page cache has the first one,
        // or any.
        let missing = (0..ATTEMPTS).find_map(|attempt| {
            if attempt > 0 {
                client.clunk(1).unwrap();
            }
            client.open_name(1, "file", open::RDONLY).unwrap();
            fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            bed.cost();
            let reads = bed.are_of_device(&mut client, size);
            let missed = reads.iter().position(|of_device| *of_device);
            missed.map(|missed| (reads, missed))
        });
        let Some((first, missed)) = missing else {
            return skip("the device of temporary files is as fast as memory");
        };
        assert!(first[missed..].iter().all(|of_device| *of_device), "{size}: {first:?}");
        // What was read before is in the page cache, and nobody reads ahead for it.
        let second = bed.are_of_device(&mut client, size);
        let cached = second.iter().filter(|of_device| !**of_device).count();
        assert!(cached > second.len() / 2, "{size}: {second:?}");
    }
}

#[test]
fn every_read_of_a_file_system_that_does_not_tell_what_is_cached_is_of_the_device() {
    let folder = TestFolder::new();
    // Zeros, whose pages the kernel keeps.
    let session = one_file::serve(&folder, OpenFlags::KEEP_CACHE, |read, reply| {
        let len = LEN.saturating_sub(read.offset).min(read.size.into());
        reply.bytes(&vec![0; len as usize]);
    });
    let Some(_session) = session else { return };
    for size in SIZES {
        let mut bed = ReadBed::new("untold", folder.path());
        let mut client = bed.served.plain_client();
        client.open_name(1, "file", open::RDONLY).unwrap();
        bed.cost();
        let reads = bed.are_of_device(&mut client, size);
        assert_eq!(reads, [true; PIECES as usize], "{size}");
    }
}

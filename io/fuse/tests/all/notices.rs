//! What the file system tells the kernel: changed files become visible, names are looked up
//! again, data is there before it is asked for; and what was agreed on is so.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::support::stage::{DATA, Stage};
use crate::support::{Mounted, on_each_transport, unmounted};
use fuse::{Capabilities, Errno, InodeId, OpenFlags, Options, Transport};

/// A stage whose names, attributes and data are cached until a notice comes.
fn cached(transport: Transport, more: Capabilities) -> (Stage, Mounted) {
    let stage = Stage::default();
    {
        let mut state = stage.state();
        state.ttl = Duration::from_secs(3600);
        state.open_flags = OpenFlags::KEEP_CACHE;
        state.data = b"before".to_vec();
    }
    let capabilities = Capabilities::DEFAULT | more;
    let mount =
        Mounted::new(stage.clone(), &Options { transport, capabilities, ..Options::default() });
    (stage, mount)
}

#[test]
fn a_changed_file_is_seen_after_the_notice() {
    on_each_transport(|transport| {
        let (stage, mount) = cached(transport, Capabilities::NONE);
        let path = mount.join("data");
        // Without statx(2), which asks for a time of birth that is never cached.
        let read = || {
            let mut read = [0; 32];
            let len = File::open(&path).unwrap().read_at(&mut read, 0).unwrap();
            (read[..len].to_vec(), rustix::fs::stat(&path).unwrap().st_size)
        };
        assert_eq!(read(), (b"before".to_vec(), 6));
        stage.state().data = b"afterwards".to_vec();
        assert_eq!(read(), (b"before".to_vec(), 6));
        mount.notifier().inval_inode(DATA, 0, 0).unwrap();
        assert_eq!(read(), (b"afterwards".to_vec(), 10));
        assert_eq!(mount.notifier().inval_inode(InodeId(99), 0, 0), Err(Errno::NOENT));
    });
}

#[test]
fn a_name_is_looked_up_again_after_the_notice() {
    on_each_transport(|transport| {
        let (stage, mount) = cached(transport, Capabilities::NONE);
        let look = || {
            assert!(mount.join("data").exists());
            stage.state().lookups
        };
        assert_eq!((look(), look()), (1, 1));
        mount.notifier().inval_entry(InodeId::ROOT, b"data").unwrap();
        assert_eq!((look(), look()), (2, 2));
        mount.notifier().expire_entry(InodeId::ROOT, b"data").unwrap();
        assert_eq!((look(), look()), (3, 3));
        mount.notifier().delete(InodeId::ROOT, DATA, b"data").unwrap();
        assert_eq!(look(), 4);
        // A name that nobody had looked up, and absence that is believed until the notice.
        assert!(!mount.join("none").exists());
        assert!(!mount.join("none").exists());
        assert_eq!(stage.state().lookups, 5);
        mount.notifier().inval_entry(InodeId::ROOT, b"none").unwrap();
        assert!(!mount.join("none").exists());
        assert_eq!(stage.state().lookups, 6);
        assert_eq!(mount.notifier().inval_entry(InodeId::ROOT, b"other"), Err(Errno::NOENT));
    });
}

#[test]
fn stored_data_is_read_without_asking() {
    on_each_transport(|transport| {
        let (stage, mount) = cached(transport, Capabilities::NONE);
        stage.state().data = vec![b'x'; 8192];
        let file = File::open(mount.join("data")).unwrap();
        mount.notifier().store(DATA, 0, &[b'y'; 8192]).unwrap();
        let mut read = [0; 8192];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, [b'y'; 8192]);
        assert_eq!(stage.state().reads, [0; 0]);
    });
}

#[test]
fn a_request_is_as_large_as_what_was_agreed() {
    on_each_transport(|transport| {
        let (stage, mount) = cached(transport, Capabilities::NONE);
        stage.state().open_flags = OpenFlags::DIRECT_IO;
        assert_eq!(mount.connection().max_write, 1 << 20);
        // Memory at a page's beginning: at another place one more page would be touched.
        let mut memory = vec![7u8; (2 << 20) + 4096];
        let start = memory.as_ptr().align_offset(4096);
        let data = &mut memory[start..start + (2 << 20)];
        OpenOptions::new().write(true).open(mount.join("data")).unwrap().write_all(data).unwrap();
        assert_eq!(stage.state().writes, [1 << 20, 1 << 20]);
        data.fill(0);
        let file = File::open(mount.join("data")).unwrap();
        file.read_exact_at(data, 0).unwrap();
        assert!(data.iter().all(|byte| *byte == 7));
        assert_eq!(stage.state().reads, [1 << 20, 1 << 20]);
    });
}

#[test]
fn a_request_names_its_thread_and_the_file_system_sees_beginning_and_end() {
    on_each_transport(|transport| {
        let (stage, mut mount) = cached(transport, Capabilities::NONE);
        stage.state().open_flags = OpenFlags::DIRECT_IO;
        let path = mount.join("data");
        assert_eq!(stage.state().threads, []);
        let thread = std::thread::spawn(move || {
            let file = File::open(path).unwrap();
            file.read_at(&mut [0; 8], 0).unwrap();
            rustix::thread::gettid().as_raw_nonzero().get() as u32
        });
        let thread = thread.join().unwrap();
        assert_eq!(stage.state().threads, [thread]);
        {
            let state = stage.state();
            let connection = state.connection.as_ref().expect("start was called");
            assert!(connection.minor >= 31);
            assert!(connection.offered.contains(connection.capabilities));
            assert_eq!(connection, mount.connection());
            assert!(!state.destroyed);
        }
        unmounted(|| mount.unmount());
        assert!(stage.state().destroyed);
        let gone = mount.notifier().inval_inode(DATA, 0, 0).unwrap_err();
        assert!(matches!(gone, Errno::NODEV | Errno::NOTCONN | Errno::NOENT), "{gone}");
    });
}

#[test]
fn nodes_are_forgotten_as_often_as_they_were_looked_up() {
    on_each_transport(|transport| {
        let (stage, mount) = cached(transport, Capabilities::NONE);
        stage.state().ttl = Duration::ZERO;
        for _ in 0..5 {
            assert!(mount.join("data").exists());
        }
        let looked_up = stage.state().lookups as u64;
        mount.notifier().inval_entry(InodeId::ROOT, b"data").unwrap();
        assert_eq!(stage.until(|state| state.forgotten >= looked_up).forgotten, looked_up);
    });
}

#[test]
fn a_file_can_be_read_past_the_file_system() {
    on_each_transport(|transport| {
        let (_stage, mount) = cached(transport, Capabilities::PASSTHROUGH);
        if !mount.connection().capabilities.contains(Capabilities::PASSTHROUGH) {
            return println!("skipped: this kernel has no passthrough");
        }
        let backing = tempfile();
        let notifier = mount.notifier();
        let id = notifier.open_backing(std::os::fd::AsFd::as_fd(&backing)).unwrap();
        notifier.close_backing(id).unwrap();
        assert_eq!(notifier.close_backing(id), Err(Errno::NOENT));
    });
}

fn tempfile() -> File {
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
    let folder = env!("CARGO_TARGET_TMPDIR");
    let mut file =
        File::from(rustix::fs::open(folder, flags, rustix::fs::Mode::from(0o600)).unwrap());
    file.write_all(b"backing").unwrap();
    file
}

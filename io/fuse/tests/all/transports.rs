//! How a connection begins: with whoever waits for it already, and where rings are forbidden.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::fs;
use std::process::Command;

use crate::support::stage::Stage;
use crate::support::{
    Mounted, PATIENCE, Process, TempDir, aloud, can_mount, on_each_transport, unmounted,
};
use fuse::{FuseSession, Options, Transport};

/// The kernel lets a process see the mount before it is served; its request comes while the
/// threads are still beginning.
#[test]
fn a_process_that_waits_for_the_mount_is_served_when_it_begins() {
    on_each_transport(|transport| {
        for _ in 0..60 {
            let place = TempDir::new();
            let name = place.folder("mount").join("data");
            let mut early: Vec<_> = (0..3)
                .map(|_| {
                    let script = "until [ -e \"$1\" ]; do :; done";
                    let mut command = Command::new("sh");
                    Process::spawn(command.args(["-c", script, "early"]).arg(&name))
                })
                .collect();
            let options = Options { transport, ring_depth: 128, ..Options::default() };
            let _mount = Mounted::at(place, Stage::default(), &options);
            for process in &mut early {
                assert!(process.ends_within(PATIENCE).0.success());
            }
        }
    });
}

/// As in a container: the kernel's module has the transport, but this process may not make rings.
#[test]
fn where_io_uring_is_forbidden_the_device_serves() {
    if let Err(why) = can_mount(Transport::Device) {
        return aloud(&format!("skipped: fuse: {why}"));
    }
    // Only this thread and those that it starts are forbidden.
    let served = std::thread::spawn(|| {
        forbid_io_uring().unwrap();
        let place = TempDir::new();
        let options = Options { transport: Transport::Ring, ..Options::default() };
        let stage = Stage::default();
        let mut session = FuseSession::mount(&place.folder("mount"), stage, &options).unwrap();
        let found = fs::metadata(session.path().join("data")).unwrap().is_file();
        unmounted(|| session.unmount());
        (session.connection().transport, found)
    });
    assert_eq!(served.join().unwrap(), (Transport::Device, true));
}

/// Makes io_uring_setup(2) fail with EPERM on the calling thread.
#[allow(unsafe_code, reason = "there is no safe way to forbid a system call")]
fn forbid_io_uring() -> std::io::Result<()> {
    let word = |code: u32, yes, no, value| libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: no,
        k: value,
    };
    let (load, equal, answer) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let mut words = [
        // The number of the system call is what the structure begins with.
        word(load, 0, 0, 0),
        word(equal, 0, 1, libc::SYS_io_uring_setup as u32),
        word(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        word(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: words.len() as u16, filter: words.as_mut_ptr() };
    // SAFETY: the program and its words live until the call has read them.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if failed { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

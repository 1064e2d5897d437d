//! An export mounted by the test's own process, and ways to trouble its link.
//!
//! ```text
//!   test ─► kernel ─► Mounted ─► (Relay, which cuts) ─► Proxy
//! ```
//!
//! What may block for ever is done by threads that a test waits for with a deadline, or by
//! child processes: when the test fails its process ends, and with it the mount.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use mount::{MountDaemon, MountError, MountSettings};

use crate::common::{Proxy, Setup, root_here, skip, until};

/// A mounted export; unmounted when dropped, in use or not.
pub struct Mounted {
    mount: Option<MountDaemon>,
    at: PathBuf,
}

/// Connections between a mount and a proxy that can be cut.
pub struct Relay {
    pub address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

/// Whether this machine mounts; says so aloud if not.
pub fn can_mount() -> bool {
    if !root_here() {
        return false;
    }
    let fuse = Path::new("/dev/fuse").exists();
    if !fuse {
        skip("no /dev/fuse here");
    }
    fuse
}

/// A proxy that lets root be root, so that what is done in the mount is as beside it.
pub fn setup(name: &str) -> Setup {
    Setup::new(name).top("squash = \"none\"")
}

impl Mounted {
    /// Mounts the proxy's export `x` over its Unix socket.
    pub fn new(proxy: &Proxy, options: &str) -> Mounted {
        Mounted::of(&format!("unix://{}//x", proxy.socket().display()), options)
    }

    pub fn of(source: &str, options: &str) -> Mounted {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let number = {
            let mut count = COUNT.lock().unwrap();
            *count += 1;
            *count
        };
        let name = format!("sluice-mount-{}-{number}", std::process::id());
        let at = std::env::temp_dir().join(name);
        fs::create_dir_all(&at).unwrap();
        let settings = MountSettings::new(source, &at, options).unwrap();
        let mount = Some(MountDaemon::start(&settings).unwrap());
        Mounted { mount, at }
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    pub fn at(&self) -> &Path {
        &self.at
    }

    /// `HOST:PORT` of its metrics.
    pub fn metrics(&self) -> String {
        let at = self.mount.as_ref().unwrap().metrics().expect("it shows metrics").to_string();
        at.strip_prefix("http://").unwrap().into()
    }

    /// Unmounts it as umount(8) does, once nothing of it is open any more: between fork and exec a
    /// process that another test starts has what this one had open.
    pub fn unmount(&mut self) {
        let mut mount = self.mount.take().unwrap();
        until("nothing is open", || match mount.unmount() {
            Err(MountError::Unmount(fuse::Errno::BUSY)) => false,
            ended => {
                ended.unwrap();
                true
            }
        });
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.mount.take());
        let _ = fs::remove_dir(&self.at);
    }
}

impl Relay {
    /// Passes on what comes to what listens at `to`.
    pub fn new(to: SocketAddr) -> Relay {
        Relay::pass_on(TcpListener::bind("127.0.0.1:0").unwrap(), to)
    }

    /// Passes on what comes to a listener.
    pub fn pass_on(listener: TcpListener, to: SocketAddr) -> Relay {
        let address = listener.local_addr().unwrap();
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let all = streams.clone();
        std::thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let Ok(to) = TcpStream::connect(to) else { continue };
                // Before anything passes: whoever sees that something did can cut it.
                let ends = [from.try_clone().unwrap(), to.try_clone().unwrap()];
                all.lock().unwrap().extend(ends);
                between(&from, &to);
            }
        });
        Relay { address, streams }
    }

    /// Passes on what comes to what listens at `to` then, and ends one connection when an Rsession
    /// arrives that says that a session is resumed (1) or new (0), as `armed` says.
    pub fn losing_rsession(to: Arc<Mutex<SocketAddr>>, armed: Arc<AtomicU8>) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                let (at, armed) = (*to.lock().unwrap(), armed.clone());
                let Ok(to) = TcpStream::connect(at) else { continue };
                let (mut out, mut back) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (mut from, mut to) = (from, to);
                std::thread::spawn(move || pass(&mut from, &mut to));
                std::thread::spawn(move || pass_but_rsession(&mut back, &mut out, &armed));
            }
        });
        Relay { address, streams: Arc::default() }
    }

    /// Passes on what comes by a connection that is there. Gives the threads that do, which end
    /// with it.
    pub fn join(from: &TcpStream, to: SocketAddr) -> [JoinHandle<()>; 2] {
        between(from, &TcpStream::connect(to).unwrap())
    }

    /// Ends every connection, whatever is on its way. Says how many there were.
    pub fn cut(&self) -> usize {
        let cut: Vec<_> = self.streams.lock().unwrap().drain(..).collect();
        for stream in &cut {
            let _ = stream.shutdown(Shutdown::Both);
        }
        cut.len() / 2
    }
}

fn between(one: &TcpStream, other: &TcpStream) -> [JoinHandle<()>; 2] {
    [(one, other), (other, one)].map(|(from, to)| {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        std::thread::spawn(move || pass(&mut from, &mut to))
    })
}

/// Passes whole messages on, until an Rsession is the one to be lost.
fn pass_but_rsession(from: &mut TcpStream, to: &mut TcpStream, armed: &AtomicU8) {
    let mut size = [0; 4];
    while from.read_exact(&mut size).is_ok() {
        let mut frame = vec![0; u32::from_le_bytes(size) as usize];
        frame[..4].copy_from_slice(&size);
        if from.read_exact(&mut frame[4..]).is_err() {
            break;
        }
        if let Some(&resumed) = frame.get(RESUMED_AT).filter(|_| frame[4] == RSESSION)
            && armed.compare_exchange(resumed, NO_RSESSION, SeqCst, SeqCst).is_ok()
        {
            break;
        }
        if to.write_all(&frame).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// The type of Rsession, and the place of `resumed` after the reply header without leases and `slots`.
const RSESSION: u8 = 201;
const RESUMED_AT: usize = 4 + 1 + 2 + 8 + 8 + 1 + 2;
/// No Rsession is to be lost.
pub const NO_RSESSION: u8 = 2;

fn pass(from: &mut TcpStream, to: &mut TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Waits for threads to end, and for what they found wrong.
pub fn finish<T>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    until("the threads end", || threads.iter().all(JoinHandle::is_finished));
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

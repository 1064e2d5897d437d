//! Threads that wait for a socket of their own beside /dev/fuse.

#![allow(clippy::unwrap_used, reason = "what fails here is the test")]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::support::stage::Stage;
use crate::support::{Process, TempDir, on_each_transport, unmounted};
use fuse::{Errno, FuseSession, Options, RequestReceiver, Transport};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};

/// Serves until the mount ends and counts what it served; `bell` rings back through `rung`.
fn serve(port: &mut RequestReceiver, bell: impl AsFd, rung: &AtomicUsize) -> (usize, Errno) {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let only_one = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    epoll::add(&set, &*port, epoll::EventData::new_u64(0), only_one).unwrap();
    epoll::add(&set, &bell, epoll::EventData::new_u64(1), epoll::EventFlags::IN).unwrap();
    let mut served = 0;
    loop {
        let mut events = Vec::with_capacity(4);
        match epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), None) {
            // A ring's completions end the wait without being an event; the next one sees them.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
        for event in &events {
            match event.data.u64() {
                0 => match port.serve(2) {
                    Ok(count) => served += count,
                    Err(end) => return (served, end),
                },
                _ => {
                    rustix::io::read(&bell, &mut [0; 8]).unwrap();
                    rung.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    }
}

#[test]
fn threads_of_ones_own_serve_what_is_there_and_go_on_waiting_for_other_things() {
    on_each_transport(|transport| {
        // A ring has a port for each processor, whatever is asked for.
        let threads = match transport {
            Transport::Device => 3,
            Transport::Ring => std::thread::available_parallelism().unwrap().get(),
        };
        let bells: Vec<_> =
            (0..threads).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
        let bells = Arc::new(bells);
        let rung = Arc::new(AtomicUsize::new(0));
        let ends = Arc::new(Mutex::new(Vec::new()));
        let (place, stage) = (TempDir::new(), Stage::default());
        let options = Options { transport, threads, ring_depth: 64, ..Options::default() };
        let (theirs, counted, ended) = (bells.clone(), rung.clone(), ends.clone());
        let mut session = FuseSession::mount_with(
            &place.folder("mount"),
            stage.clone(),
            &options,
            move |n, mut p| {
                let end = serve(&mut p, &theirs[n], &counted);
                ended.lock().unwrap().push(end);
            },
        )
        .unwrap();
        let mut readers: Vec<_> =
            (0..20).map(|_| Process::reading(&session.path().join("wait"))).collect();
        drop(stage.until(|state| state.waiting.len() == readers.len()));
        for bell in bells.iter() {
            rustix::io::write(bell, &1u64.to_ne_bytes()).unwrap();
        }
        for reply in stage.state().waiting.drain(..) {
            reply.bytes(b"");
        }
        for reader in &mut readers {
            assert!(reader.ends_within(crate::support::PATIENCE).0.success());
        }
        // Who hears of the end first looks at no bell any more.
        let began = Instant::now();
        while rung.load(Ordering::SeqCst) < threads {
            assert!(
                began.elapsed() < crate::support::PATIENCE,
                "{rung:?} of {threads} bells were heard"
            );
            std::thread::yield_now();
        }
        unmounted(|| session.unmount());
        assert_eq!(rung.load(Ordering::SeqCst), threads, "each once");
        let ends = ends.lock().unwrap();
        let gone = [Errno::NODEV, Errno::NOTCONN];
        assert!(ends.iter().all(|(_, end)| gone.contains(end)), "{ends:?}");
        let served: usize = ends.iter().map(|(count, _)| count).sum();
        assert!(served >= 3 * readers.len(), "each opened, read and closed: {served}");
    });
}

#[test]
fn a_port_without_requests_serves_none_and_does_not_wait() {
    on_each_transport(|transport| {
        let (place, stage) = (TempDir::new(), Stage::default());
        let options = Options { transport, threads: 1, ..Options::default() };
        let (tell, told) = channel();
        let mut session = FuseSession::mount_with(
            &place.folder("mount"),
            stage.clone(),
            &options,
            move |_, mut p| {
                tell.send(p.serve(64)).unwrap();
                while p.serve(64).is_ok() {
                    poll(&mut [PollFd::new(&p, PollFlags::IN)], None).unwrap();
                }
            },
        )
        .unwrap();
        assert_eq!(told.recv_timeout(crate::support::PATIENCE).unwrap(), Ok(0));
        let mut reader = Process::reading(&session.path().join("data"));
        assert!(reader.ends_within(crate::support::PATIENCE).0.success());
        unmounted(|| session.unmount());
    });
}

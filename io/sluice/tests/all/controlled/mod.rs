//! Controllers, proxies and their readers as processes, for the tests that need several.
//!
//! ```text
//!   readers ─ 9P ─► proxy a, b, c ─ http ─► sluice controller (one, or three with etcd)
//! ```

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use api::WhyQuery;
use http::{ApiClient, ServerAddress};
use ninep::{Fid, Reply, Request};

use crate::common::{PATIENCE, Proxy, Setup, USER, everybodys};

/// So little that a reader on any machine has requests waiting for it all the time.
pub(crate) const LIMIT: u64 = 2_000_000;

pub(crate) fn limited(per_sec: u64) -> String {
    format!(
        "[[rule]]\nname = \"jobs\"\nmatch = \"jobid={{dd.*}}\"\nper = [\"jobid\"]\nlimit = \"{per_sec}B/s\"\n"
    )
}

pub(crate) fn proxy(test: &str, node: &str, url: &str) -> Proxy {
    proxy_with(test, node, url, "")
}

/// The same with more lines in its configuration.
pub(crate) fn proxy_with(test: &str, node: &str, url: &str, more: &str) -> Proxy {
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
                  [[target]]\nname = \"fs\"\n";
    let top = format!("controller = \"{url}\"\nproxy_name = \"{node}\"\n{more}");
    Setup::new(&format!("{test}-{node}")).top(&top).tables(tables).api().start()
}

pub(crate) fn api_of(proxy: &Proxy) -> ApiClient {
    let client = ApiClient::new(&ServerAddress::Unix(proxy.dir.join("api"))).unwrap();
    client.with_time_limit(PATIENCE)
}

/// A job's reader at one proxy: reads what the page cache has, as fast as it may.
pub(crate) struct Reader {
    bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) const BLOCK: u32 = 64 << 10;
/// Requests that a reader has under way.
const DEPTH: usize = 4;

impl Reader {
    pub(crate) fn start(proxy: &Proxy) -> Reader {
        Reader::asking(proxy, ("dd.1", USER), DEPTH)
    }

    /// Of another user.
    pub(crate) fn of(proxy: &Proxy, uid: u32) -> Reader {
        Reader::asking(proxy, ("dd.1", uid), DEPTH)
    }

    /// A job's reader that has so many requests under way.
    pub(crate) fn of_job(proxy: &Proxy, job: &str, depth: usize) -> Reader {
        Reader::asking(proxy, (job, USER), depth)
    }

    /// A job's writer of its file, which the device gets to see: the others read what is cached.
    pub(crate) fn writing(proxy: &Proxy, (job, uid): (&str, u32), depth: usize) -> Reader {
        Reader::repeating(proxy, (job, uid), depth, true)
    }

    fn asking(proxy: &Proxy, (job, uid): (&str, u32), depth: usize) -> Reader {
        Reader::repeating(proxy, (job, uid), depth, false)
    }

    fn repeating(proxy: &Proxy, (job, uid): (&str, u32), depth: usize, is_writer: bool) -> Reader {
        let name = if is_writer { format!("written.{job}.{uid}") } else { "f".into() };
        let file = proxy.data().join(&name);
        fs::write(&file, vec![7; BLOCK as usize]).unwrap();
        everybodys(&file);
        let mut client = proxy.client_of(&format!("x?job={job}"), uid);
        let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped) = (bytes.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            client.open_name(1, &name, if is_writer { 2 } else { 0 }).unwrap();
            // Some at a time, so that one always waits for its turn.
            let data = vec![7; BLOCK as usize];
            let call = match is_writer {
                true => Request::Write { fid: Fid(1), offset: 0, data: &data },
                false => Request::Read { fid: Fid(1), offset: 0, count: BLOCK },
            };
            let mut tags: VecDeque<_> = (0..depth).map(|_| client.send(&call)).collect();
            while let Some(tag) = tags.pop_front() {
                let frame = client.wait(tag);
                let moved = match frame.reply() {
                    Ok(Reply::Read { data }) => data.len() as u64,
                    Ok(Reply::Write { count }) => count.into(),
                    _ => panic!("{frame:?}"),
                };
                counted.fetch_add(moved, Ordering::Relaxed);
                if !stopped.load(Ordering::Relaxed) {
                    tags.push_back(client.send(&call));
                }
            }
        });
        Reader { bytes, stop, thread: Some(thread) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn sum(readers: &[Reader]) -> u64 {
    readers.iter().map(Reader::bytes).sum()
}

/// Asserts that together they read no more in a second or two than the limit lets through, with
/// what it makes up for (a tenth of a second) and what was on its way. How near they come to it is
/// a matter of speed, which `sluice-bench qos` measures.
pub(crate) fn assert_limited(readers: &[Reader], what: &str) {
    let (began, before) = (Instant::now(), sum(readers));
    std::thread::sleep(Duration::from_secs(2));
    let read = sum(readers) - before;
    let may = u128::from(LIMIT) * (began.elapsed().as_millis() + 100) / 1_000;
    let most = may as u64 + readers.len() as u64 * 2 * DEPTH as u64 * u64::from(BLOCK);
    assert!(read <= most, "{what}: {read} bytes, where {most} are the most");
}

/// The billionths of the jobs' limit that a proxy lets through for this one's.
pub(crate) fn part_at(proxy: &Proxy) -> u64 {
    let query = WhyQuery { job: Some("dd.1".into()), ..WhyQuery::default() };
    let why = api_of(proxy).why(&query).unwrap();
    let all = why.subjects.iter().flat_map(|subject| &subject.limits);
    all.filter(|limit| limit.name == "jobs").map(|limit| limit.share_ppb.into()).next().unwrap_or(0)
}

/// Whether each of these proxies, all of which work, has a part of the jobs' limit, and no part is
/// given to nobody. A proxy that has none yet would give all of it without a controller.
pub(crate) fn all_is_given(proxies: &[Proxy]) -> bool {
    let parts: Vec<_> = proxies.iter().map(part_at).collect();
    parts.iter().all(|part| *part > 0)
        && (999_999_000..=1_000_000_000).contains(&parts.iter().sum::<u64>())
}

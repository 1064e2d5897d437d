//! Threads beside those that serve the kernel.
//!
//! Over io_uring each of those stays on a processor, and a new thread begins with the processors
//! of the one that starts it. A helper that such a thread starts would stay beside it, and so would
//! those that it starts itself; so helpers go wherever the process may.

use std::io;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that the process may use; none if the kernel does not report them.
static PROCESSORS: OnceLock<Option<CpuSet>> = OnceLock::new();

/// To be called before any thread stays on a processor.
pub(crate) fn note_processors() {
    PROCESSORS.get_or_init(|| sched_getaffinity(None).ok());
}

/// Starts a helper.
///
/// # Errors
/// If there can be no further threads.
pub(crate) fn start(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let whole = move || {
        if let Some(Some(processors)) = PROCESSORS.get() {
            // Where it fails it is slower, and right all the same.
            let _ = sched_setaffinity(None, processors);
        }
        body();
    };
    std::thread::Builder::new().name(name).spawn(api::critical(whole)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_helper_goes_where_the_process_may_whoever_starts_it() {
        note_processors();
        let all = sched_getaffinity(None).unwrap();
        let (tell, told) = mpsc::channel();
        let pinned = move || {
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|number| all.is_set(*number)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            start("helper".into(), move || tell.send(sched_getaffinity(None)).unwrap()).unwrap();
        };
        std::thread::spawn(pinned).join().unwrap();
        assert!(told.recv().unwrap().unwrap() == all);
    }
}

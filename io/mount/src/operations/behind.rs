//! Writes that are answered at once, and what waits for them to be executed.
//!
//! ```text
//!   write ─► buffered ─► answered ─► start_runs ─► Twrite ─► executed ─► start_runs, and waiters continue
//!   anything else about the file ─► after ─► goes on once they are executed
//! ```

use std::ops::Range;
use std::sync::Arc;

use fuse::{Errno, FuseRequest, FuseWrite, Reply, ReplyBody as FuseAnswer, WrittenBytes};
use model::Time;
use ninep::dialect::{AnyReply, ExtReply, HandleList, handle_fid};
use ninep::{Attributes, getattr};
use session::client::QueuedCall;

use super::{data, or_error};
use crate::files::OpenFile;
use crate::filesystem::MountFs;
use crate::nodes::MountNode;
use crate::session::{CallReply, CallSpec, CallWaiter, ServerCall, SessionIdentity, here};
use crate::write_behind::{
    BufferOutcome, KnownSize, OnReady, SentWrite, WaitUntil, WaitingSince, WritePiece, WriteRun,
    WriteWaiter,
};

/// Takes what is written, and answers.
pub(super) fn write(
    export: &MountFs,
    request: &FuseRequest,
    file: &Arc<OpenFile>,
    write: &FuseWrite<'_>,
    reply: Reply<WrittenBytes>,
) {
    let FuseWrite { offset, data, kill_set_id, .. } = *write;
    let piece = WritePiece { offset, data, kill_set_id };
    match export.shared().write_behind.put(file, piece, export.payload) {
        BufferOutcome::Buffered => {
            reply.ok(&WrittenBytes(data.len() as u32));
            start_runs(export, &file.node);
        }
        BufferOutcome::NoRoom => data::write_through(export, request, file, write, reply),
        BufferOutcome::Full => {
            let until = WaitUntil::Room(data.len() as u64);
            let (file, write) = (file.clone(), WaitingWrite::of(write));
            let opened = file.clone();
            let (node, opener) = (&opened.node, Some(&opened.payer));
            wait_for_writes(
                export,
                node,
                opener,
                until,
                request,
                reply,
                move |export, who, reply| {
                    self::write(export, who, &file, &write.as_write(), reply);
                },
            );
        }
    }
}

/// Goes on with a write as soon as the uncommitted writes leave room for it.
pub(super) fn with_room(
    export: &MountFs,
    request: &FuseRequest,
    file: &Arc<OpenFile>,
    write: &FuseWrite<'_>,
    reply: Reply<WrittenBytes>,
    then: impl FnOnce(&MountFs, &FuseRequest, &Arc<OpenFile>, &FuseWrite<'_>, Reply<WrittenBytes>)
    + Send
    + 'static,
) {
    let kept = &export.homes.link(&file.payer).uncommitted;
    if !kept.is_full() {
        return then(export, request, file, write, reply);
    }
    let (file, write) = (file.clone(), WaitingWrite::of(write));
    let (waiter, then) = waiting(export, request, reply, move |export, who, reply| {
        then(export, who, &file, &write.as_write(), reply);
    });
    if let Some(then) = kept.wait(waiter, then) {
        then(Ok(()));
    }
}

/// A write that waits, with its bytes.
struct WaitingWrite {
    data: Vec<u8>,
    remaining: FuseWrite<'static>,
}

impl WaitingWrite {
    fn of(write: &FuseWrite<'_>) -> WaitingWrite {
        let data = write.data.to_vec();
        let FuseWrite { handle, offset, flags, lock_owner, from_cache, kill_set_id, .. } = *write;
        let rest =
            FuseWrite { handle, offset, data: &[], flags, lock_owner, from_cache, kill_set_id };
        WaitingWrite { data, remaining: rest }
    }

    fn as_write(&self) -> FuseWrite<'_> {
        FuseWrite { data: &self.data, ..self.remaining }
    }
}

/// Goes on once what was written to a file before is executed.
pub(super) fn after<T: 'static>(
    export: &MountFs,
    node: &Arc<MountNode>,
    request: &FuseRequest,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &FuseRequest, Reply<T>) + Send + 'static,
) {
    if node.write_behind.is_idle() {
        return then(export, request, reply);
    }
    wait_for_writes(export, node, None, WaitUntil::Executed, request, reply, then);
}

/// Like `after`, on behalf of the opener of a file.
pub(super) fn after_opener<T: 'static>(
    export: &MountFs,
    file: &Arc<OpenFile>,
    request: &FuseRequest,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &FuseRequest, Reply<T>) + Send + 'static,
) {
    if file.node.write_behind.is_idle() {
        return then(export, request, reply);
    }
    let opener = Some(&file.payer);
    wait_for_writes(export, &file.node, opener, WaitUntil::Executed, request, reply, then);
}

/// As [`after_opener`], of what was written to a part of the file before.
pub(super) fn after_part<T: 'static>(
    export: &MountFs,
    file: &Arc<OpenFile>,
    place: Range<u64>,
    request: &FuseRequest,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &FuseRequest, Reply<T>) + Send + 'static,
) {
    if file.node.write_behind.is_idle() {
        return then(export, request, reply);
    }
    let opener = Some(&file.payer);
    wait_for_writes(export, &file.node, opener, WaitUntil::Read(place), request, reply, then);
}

/// Goes on once what killed processes of a file's opener have left behind is over.
pub(super) fn after_abandoned<T: 'static>(
    export: &MountFs,
    file: &OpenFile,
    request: &FuseRequest,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &FuseRequest, Reply<T>) + Send + 'static,
) {
    let abandoned = &export.shared().abandoned;
    if !abandoned.any() {
        return then(export, request, reply);
    }
    let (waiter, then) = waiting(export, request, reply, then);
    if let Some(then) = abandoned.wait(file.payer.uid(), Some(waiter), then) {
        then(Ok(()));
    }
}

/// Continues, also for a killed caller, once the earlier writes to a file are executed and the
/// calls that killed processes of its opener have left are over.
pub(super) fn all_over(
    export: &MountFs,
    file: &Arc<OpenFile>,
    then: impl FnOnce(&MountFs) + Send + 'static,
) {
    let (later, of) = (export.clone(), file.clone());
    let then = Box::new(move |_| {
        let uid = of.payer.uid();
        let (abandoned, later) = (later.shared().abandoned.clone(), later);
        if let Some(then) = abandoned.wait(uid, None, Box::new(move |_| then(&later))) {
            then(Ok(()));
        }
    });
    match file.node.write_behind.wait(WriteWaiter {
        until: WaitUntil::Executed,
        waiter: None,
        then,
    }) {
        Ok(until) => donate(export, &file.node, &file.payer, &until),
        Err(WriteWaiter { then, .. }) => then(Ok(())),
    }
}

/// Attributes of a file as a proxy replied.
pub(super) struct FetchedAttributes {
    pub(super) node: Arc<MountNode>,
    pub(super) attributes: Attributes,
    /// `WriteBehind::now` when they were requested.
    pub(super) requested_at: u64,
    /// For how long they may be believed under a lease; none without one.
    pub(super) leased: Option<Time>,
}

/// Replies with a file's fetched attributes, and the writes of this mount since: else the kernel
/// would take back the size that it knows. No reply waits for these writes.
pub(super) fn as_written<T: FuseAnswer + 'static>(
    export: &MountFs,
    request: &FuseRequest,
    fetched: FetchedAttributes,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &MountNode, Result<KnownSize, Errno>) -> Result<T, Errno>
    + Send
    + 'static,
) {
    let FetchedAttributes { node, attributes, requested_at, leased } = fetched;
    match node.write_behind.since(requested_at) {
        WaitingSince::Changed => refresh_attributes(export, request, node, reply, then),
        since => {
            let known = KnownSize { leased, ..since.applied_to(attributes) };
            reply.send(then(export, &node, Ok(known)));
        }
    }
}

/// Replies with the attributes, requested again.
pub(super) fn refresh_attributes<T: FuseAnswer + 'static>(
    export: &MountFs,
    request: &FuseRequest,
    node: Arc<MountNode>,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &MountNode, Result<KnownSize, Errno>) -> Result<T, Errno>
    + Send
    + 'static,
) {
    let message = ninep::Request::Getattr { fid: handle_fid(0), mask: getattr::ALL };
    let ask = CallSpec::new(HandleList::one(&node.handle), message);
    let asked = export.shared().write_behind.now();
    export.as_caller(&node.clone(), request, ask, reply, move |export, _, answer| {
        let told = match answer {
            // What changes meanwhile is the kernel's to know: it has not been answered yet.
            Ok(AnyReply::Base(ninep::Reply::Getattr(told))) => {
                Ok(node.write_behind.since(asked).applied_to(told))
            }
            Ok(_) => Err(Errno::PROTO),
            Err(error) => Err(error),
        };
        then(export, &node, told)
    });
}

/// Like [`after`], without a waiter.
pub(super) fn after_all(
    export: &MountFs,
    node: &MountNode,
    then: impl FnOnce(&MountFs) + Send + 'static,
) {
    if node.write_behind.is_idle() {
        return then(export);
    }
    let later = export.clone();
    let then = Box::new(move |_| then(&later));
    let held =
        node.write_behind.wait(WriteWaiter { until: WaitUntil::Executed, waiter: None, then });
    if let Err(WriteWaiter { then, .. }) = held {
        then(Ok(()));
    }
}

/// Keeps a waiter for a file's writes: the opener, or the calling process.
fn wait_for_writes<T: 'static>(
    export: &MountFs,
    node: &Arc<MountNode>,
    opener: Option<&Arc<SessionIdentity>>,
    until: WaitUntil,
    request: &FuseRequest,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &FuseRequest, Reply<T>) + Send + 'static,
) {
    let (waiter, then) = waiting(export, request, reply, then);
    let until = match node.write_behind.wait(WriteWaiter { until, waiter: Some(waiter), then }) {
        Ok(until) => until,
        Err(WriteWaiter { then, .. }) => return then(Ok(())),
    };
    if let Some(opener) = opener {
        return donate(export, node, opener, &until);
    }
    let node = node.clone();
    export.caller_at(export.homes.of(&node), request, move |export, caller| {
        // A caller that cannot be named waits as the writer does.
        if let Ok(caller) = caller {
            donate(export, &node, &caller, &until);
        }
    });
}

/// Lends the queue of a waiter to the writes of others.
fn donate(export: &MountFs, node: &MountNode, donor: &Arc<SessionIdentity>, until: &WaitUntil) {
    let begun = node.write_behind.donate(until, donor);
    if !begun.is_empty() {
        export.homes.link(donor).donate(node, &begun, donor);
    }
}

/// Makes a waiter and its continuation; an error is its reply.
fn waiting<T: 'static>(
    export: &MountFs,
    request: &FuseRequest,
    reply: Reply<T>,
    then: impl FnOnce(&MountFs, &FuseRequest, Reply<T>) + Send + 'static,
) -> (CallWaiter, OnReady) {
    let waiter = CallWaiter { request: reply.id(), thread: request.thread };
    let (later, who) = (export.clone(), *request);
    let then = Box::new(move |result: Result<(), Errno>| {
        or_error!(result, reply);
        then(&later, &who, reply);
    });
    (waiter, then)
}

/// Has writes executed once more that the proxy's machine has lost.
pub(crate) fn rewrite(export: &MountFs, lost: Vec<SentWrite>) {
    let nodes: Vec<_> = lost.iter().map(|lost| lost.node.clone()).collect();
    lost.into_iter().for_each(|lost| export.shared().write_behind.requeue_lost(lost));
    nodes.iter().for_each(|node| start_runs(export, node));
}

/// Begins what may begin of a file.
fn start_runs(export: &MountFs, node: &MountNode) {
    while let Some(WriteRun { number, write, file, donor, .. }) = node.write_behind.begin() {
        let bytes = write.bytes() as usize;
        let SentWrite { node, payer, frame, range: place } = write;
        let change = export.change_of(&node);
        let ask = CallSpec::of(frame).with_bytes(bytes).replayable(&node, &place).changing(change);
        let (later, pays) = (export.clone(), payer.clone());
        let done = move |answer: CallReply<'_>| {
            let written = whole(file.as_deref(), &place, answer);
            executed(&later, &node, &pays, number, &place, written);
        };
        let mut call = ServerCall::new(payer.clone(), ask, None, done);
        // The identities of one proxy are not those of another.
        if let Some(donor) = donor.filter(|donor| donor.home == payer.home) {
            call.donate(&donor);
        }
        export.homes.link(&payer).call_on(here(), call);
    }
}

fn executed(
    export: &MountFs,
    node: &MountNode,
    payer: &SessionIdentity,
    number: u64,
    place: &Range<u64>,
    written: Result<(), Errno>,
) {
    if let Err(error) = written {
        tracing::warn!(inode = node.id.0, ?place, %error, "an acknowledged write failed");
        export.files().fail(node.id, error);
        // It is not as long as was said.
        export.shared().write_behind.changed(node);
        // What the kernel does not know it does not believe either.
        let _ = export.invalidate_attributes(node.id);
    }
    let ready = export.shared().write_behind.executed(node, payer, number);
    start_runs(export, node);
    for then in ready {
        then(Ok(()));
    }
}

/// Whether everything was written.
fn whole(file: Option<&OpenFile>, place: &Range<u64>, answer: CallReply<'_>) -> Result<(), Errno> {
    match answer {
        Ok(AnyReply::Ext(ExtReply::Write { count, .. })) => {
            // A file system that takes a part has no room for the rest.
            let whole = u64::from(count) >= place.end - place.start;
            whole.then_some(()).ok_or(Errno::NOSPC)
        }
        Ok(_) => Err(Errno::PROTO),
        Err(Errno::BADF) if file.is_some_and(OpenFile::is_stale) => Err(Errno::STALE),
        // What nobody has open and nobody can name any more is not missed.
        Err(Errno::STALE) if file.is_none() => Ok(()),
        Err(error) => Err(error),
    }
}

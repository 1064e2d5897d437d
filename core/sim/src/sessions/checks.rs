//! What must hold of every call, checked at each step.
//!
//! ```text
//!   begun ─► executed (how often, over which connection) ─► ended: answered, in doubt, interrupted
//! ```

use std::collections::BTreeMap;

use model::Time;

use super::backend::{SimBackend, SimOp, SimOutcome};

/// All calls of a run, by number, and the invariant that was violated first.
#[derive(Debug, Default)]
pub(super) struct SessionChecks {
    calls: Vec<CallRecord>,
    /// For each channel of a mount, the last connection whose call was executed.
    last_connection: BTreeMap<(usize, usize), usize>,
    /// For each mount, the last session whose call was executed.
    last_epoch: BTreeMap<usize, u64>,
    /// Writes that a mount took for durable in this step, and why.
    expected: Vec<(usize, &'static str)>,
    pub(super) violation: Option<String>,
}

/// A call and what became of it.
#[derive(Debug)]
pub(super) struct CallRecord {
    pub(super) mount: usize,
    pub(super) op: SimOp,
    pub(super) begun: Time,
    executions: u32,
    outcome: Option<SimOutcome>,
    pub(super) end: Option<CallEnd>,
}

/// How a call ended for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEnd {
    /// The result of its execution.
    Answered(SimOutcome),
    /// It may have been executed.
    InDoubt,
    /// It was interrupted, and may have been executed.
    Interrupted,
}

/// The connection and the session over which a call was sent that is executed now.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentOver {
    pub(super) channel: usize,
    pub(super) connection: usize,
    pub(super) epoch: u64,
}

impl SessionChecks {
    /// Begins a call, and returns its number.
    pub(super) fn begin(&mut self, mount: usize, op: SimOp, now: Time) -> usize {
        let record = CallRecord { mount, op, begun: now, executions: 0, outcome: None, end: None };
        self.calls.push(record);
        self.calls.len() - 1
    }

    /// The number that the next call will have.
    pub(super) fn next_call(&self) -> usize {
        self.calls.len()
    }

    pub(super) fn call(&self, call: usize) -> &CallRecord {
        &self.calls[call]
    }

    /// Whether it has ended for its caller.
    pub(super) fn has_ended(&self, call: usize) -> bool {
        self.calls[call].end.is_some()
    }

    /// Notes an execution of a call.
    pub(super) fn executed(&mut self, call: usize, outcome: SimOutcome, over: SentOver) {
        let record = &mut self.calls[call];
        record.executions += 1;
        record.outcome = Some(outcome);
        let (op, mount, executions) = (record.op, record.mount, record.executions);
        if op.is_once() && executions > 1 {
            self.violate(format!("call {call} ({op:?}) was executed {executions} times"));
        }
        let SentOver { channel, connection, epoch } = over;
        let last = self.last_connection.entry((mount, channel)).or_default();
        let (former, newest) = (*last, (*last).max(connection));
        *last = newest;
        if former > connection {
            self.violate(format!(
                "call {call} of connection {connection} was executed after one of connection \
                 {former}, which replaced it"
            ));
        }
        let last = self.last_epoch.entry(mount).or_default();
        let (former, newest) = (*last, (*last).max(epoch));
        *last = newest;
        if former > epoch {
            self.violate(format!(
                "call {call} of session {epoch} of mount {mount} was executed after one of its \
                 session {former}"
            ));
        }
    }

    /// Notes how a call ended for its caller.
    pub(super) fn end_call(&mut self, call: usize, end: CallEnd) {
        let record = &mut self.calls[call];
        let (former, outcome, executions) =
            (record.end.replace(end), record.outcome, record.executions);
        if let Some(former) = former {
            self.violate(format!("call {call} ended twice: {former:?}, then {end:?}"));
        }
        if let CallEnd::Answered(result) = end
            && (outcome != Some(result) || executions == 0)
        {
            self.violate(format!(
                "call {call} was answered {result:?}; it was executed {executions} times with \
                 {outcome:?}"
            ));
        }
    }

    /// Notes writes that a mount takes for durable.
    pub(super) fn expect_durable(&mut self, writes: &[usize], why: &'static str) {
        self.expected.extend(writes.iter().map(|write| (*write, why)));
    }

    /// Checks at the end of a step that what mounts took for durable is so.
    pub(super) fn end_step(&mut self, backend: &SimBackend) {
        for (write, why) in std::mem::take(&mut self.expected) {
            if !backend.is_durable(write) {
                self.violate(format!("the write of call {write} can be lost, and is {why}"));
            }
        }
    }

    /// Notes a violated invariant; the first one counts.
    pub(super) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// The writes of a mount that were answered, of one file or of all.
    pub(super) fn answered_writes(&self, mount: usize, file: Option<u32>) -> Vec<usize> {
        let is_meant = |record: &CallRecord| {
            let answered = record.end == Some(CallEnd::Answered(SimOutcome::Done));
            let written = record.op.written();
            answered
                && record.mount == mount
                && written.is_some_and(|(of, _)| file.is_none_or(|file| of == file))
        };
        let calls = self.calls.iter().filter(|record| is_meant(record));
        calls.filter_map(|record| Some(record.op.written()?.1)).collect()
    }

    /// The calls that have not ended for their callers.
    pub(super) fn open(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.calls.len()).filter(|call| self.calls[*call].end.is_none())
    }

    /// How many writes were executed once more.
    pub(super) fn rewrites(&self) -> u64 {
        let is_rewrite = |call: &usize| {
            let record = &self.calls[*call];
            record.executions > 0 && record.op.written().is_some_and(|(_, of)| of != *call)
        };
        (0..self.calls.len()).filter(is_rewrite).count() as u64
    }

    /// How many calls ended so.
    pub(super) fn count(&self, is: impl Fn(CallEnd) -> bool) -> u64 {
        self.calls.iter().filter(|record| record.end.is_some_and(&is)).count() as u64
    }
}

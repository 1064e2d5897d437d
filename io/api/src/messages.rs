//! Status, classes, subjects and connections of a proxy.
//!
//! Units end the names (`_ns`, `_bytes`). A `t_ns` is nanoseconds since the proxy
//! started; it and the counters of one message are read together, so that the
//! quotient of two differences is a rate.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The status of one proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProxyStatus {
    /// The version of the program.
    pub version: String,
    /// The process id of the proxy.
    pub pid: u32,
    /// Nanoseconds since it started.
    pub t_ns: u64,
    /// True after SIGTERM: no new requests are accepted, those in flight are answered.
    pub draining: bool,
    /// False with `--no-schedule`: requests are served in order of arrival.
    pub scheduling: bool,
    /// Threads that serve requests.
    pub threads: Threads,
    /// The addresses it listens at, with the real ports.
    pub listeners: Vec<String>,
    /// The directories it serves.
    pub exports: Vec<ExportReport>,
    /// The schedulers, one for each target.
    pub targets: Vec<TargetReport>,
    /// The number of open connections of clients.
    pub connections: u64,
    /// Totals since the start, over open and closed connections.
    pub totals: ProxyTotals,
    /// The connection to its controller; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<Box<ControllerLink>>,
    /// The proxies that serve the same directories; absent without a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Box<GroupReport>>,
}

/// The group of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupReport {
    /// The name of this proxy in the group.
    pub name: String,
    /// The epoch of the list, from 1.
    pub epoch: u64,
    /// The names of all proxies of the group.
    pub proxies: Vec<String>,
}

/// The connection of a proxy to its controller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerLink {
    /// The endpoints of the controller, separated by commas.
    pub controller: String,
    /// The name under which the proxy reports.
    pub name: String,
    /// Whether the last call was answered.
    pub connected: bool,
    /// How long ago the last reply came, in nanoseconds; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reply_ns_ago: Option<u64>,
    /// The reason why the last call was not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Whether another proxy reports under the same name.
    pub duplicate: bool,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Calls without a reply.
    pub unanswered: u64,
}

/// Totals of a connection, or of a proxy since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProxyTotals {
    /// Requests answered, including attaches and requests refused on arrival.
    pub requests: u64,
    /// Payload bytes that were read.
    pub read_bytes: u64,
    /// Payload bytes that were written.
    pub written_bytes: u64,
    /// Backend operations; an entry listed with its attributes is one.
    pub ops: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests cancelled by their client while they waited; they were not answered.
    pub cancelled: u64,
}

/// Threads that serve requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Threads {
    /// The number of threads.
    pub started: u32,
    /// The maximum number of threads.
    pub max: u32,
}

/// One directory that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportReport {
    /// The name that clients attach to.
    pub name: String,
    /// The directory that is served.
    pub dir: String,
    /// Whether it refuses every change.
    pub readonly: bool,
    /// The target that schedules it.
    pub target: String,
}

/// One scheduler and its backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetReport {
    /// Its name in the configuration.
    pub name: String,
    /// Device slots: D of SFQ(D), as it is now; 0 while nothing is scheduled.
    pub slots_max: u32,
    /// The number of requests that wait now.
    pub queued: u64,
    /// The part of the reserved rates that could not be served in the last second, in parts per
    /// million: above 0 if the reservations exceed what the target can do.
    #[serde(default)]
    pub reservation_shortfall_ppm: u64,
    /// How writes that name no mode reach the backend: `direct`, `dontcache`, `paced`,
    /// `cached`, or by size in words.
    pub write_mode: String,
    /// Where its costs come from: `built in`, `bytes` or the calibration file's path.
    pub costs: String,
    /// The current cost of reads by size; with `recalibrate`, the learnt cost. Empty while nothing
    /// is scheduled.
    #[serde(default)]
    pub read_costs: Vec<CostPoint>,
    /// The current cost of writes by size.
    #[serde(default)]
    pub write_costs: Vec<CostPoint>,
}

/// The cost of a request of one size to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CostPoint {
    /// The size of the request.
    pub bytes: u64,
    /// The time that the device needs for it.
    pub cost_ns: u64,
}

/// The service of a class or subject since the proxy started, and its requests now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireUsage {
    /// Payload bytes that were read.
    pub read_bytes: u64,
    /// Payload bytes that were written.
    pub written_bytes: u64,
    /// Backend operations; an entry listed with its attributes is one.
    pub ops: u64,
    /// Requests completed: the divisor of `queue_ns` and `service_ns`.
    pub requests: u64,
    /// The time that completed requests waited in the queue, summed up.
    pub queue_ns: u64,
    /// The time that completed requests spent at the backend, summed up.
    pub service_ns: u64,
    /// The cost of completed requests to the target, summed up.
    pub cost_ns: u64,
    /// The cost here of its service from other proxies, as reported by its mounts.
    #[serde(default)]
    pub remote_ns: u64,
    /// The number of requests that wait now.
    pub queued: u64,
    /// Requests at the backend now.
    pub running: u64,
    /// Slots in use now.
    pub slots: u64,
    /// Whether a request at the head of a queue waits for a meter now.
    pub throttled: bool,
}

/// Every class that exists now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireClasses {
    /// When the counters were read, in nanoseconds since the proxy started.
    pub t_ns: u64,
    /// The classes, of all targets.
    pub classes: Vec<WireClass>,
}

/// One class: requests with the same key under one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireClass {
    /// Identifies it at its target, now and later: two samples are of the same class if and
    /// only if target and id agree.
    pub id: u64,
    /// The target whose scheduler holds it.
    pub target: String,
    /// The rule that made it; `default` where no rule matched.
    pub rule: String,
    /// Its key, as `jobid=dd.500 uid=500`; empty for a rule without `per`.
    pub key: String,
    /// Its weight against other classes.
    pub weight: u32,
    /// Its service and its requests.
    pub usage: WireUsage,
}

/// All subjects that have a fid now or had one recently.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireSubjects {
    /// When the counters were read, in nanoseconds since the proxy started.
    pub t_ns: u64,
    /// The subjects, of all targets.
    pub subjects: Vec<WireSubject>,
}

/// One subject: a job of a user on a node. The same four may appear more than once, for
/// directories that rules distinguish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WireSubject {
    /// Identifies it at its target, now and later, as a class's id does.
    pub id: u64,
    /// The target whose scheduler knows it.
    pub target: String,
    /// The batch job; empty when there is none.
    pub job: String,
    /// The user id of the caller.
    pub uid: u32,
    /// The primary group id of the user.
    pub gid: u32,
    /// The node's network name.
    pub nid: String,
    /// Its service and its requests.
    pub usage: WireUsage,
}

/// The open connections of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Connections {
    /// When the figures were read, in nanoseconds since the proxy started.
    pub t_ns: u64,
    /// The connections, oldest first.
    pub connections: Vec<ConnectionInfo>,
}

/// One connection of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectionInfo {
    /// Counts connections since the start; never used twice.
    pub id: u64,
    /// The client node's network name, `192.0.2.7@tcp` or `0@lo`.
    pub nid: String,
    /// The user at the other end of a Unix socket, as the kernel reports it.
    pub peer_uid: Option<u32>,
    /// Users that have attached and still have a fid, by their lowest fid: the first is the
    /// user of the client's root directory. At most 64.
    pub attaches: Vec<Attach>,
    /// The agreed largest message.
    pub msize_bytes: u32,
    /// The number of fids in use.
    pub fids: u64,
    /// The number of requests in flight.
    pub tags: u64,
    /// Payload of those requests.
    pub in_flight_bytes: u64,
    /// Replies that the client has not received yet.
    pub unsent_bytes: u64,
    /// Totals of the connection.
    pub totals: ProxyTotals,
}

/// One user of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attach {
    /// The user's name as the client gave it, if any; it is not used if a number came with
    /// it.
    pub uname: Option<String>,
    /// The user for which the proxy acts.
    pub uid: u32,
    /// The primary group id of the user.
    pub gid: u32,
    /// The batch job; empty if there is none.
    pub job: String,
    /// The name of the attached export.
    pub export: String,
}

impl WireUsage {
    /// Adds `other`: counters and present figures sum up, throttled if either is.
    pub fn add(&mut self, other: &WireUsage) {
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.ops += other.ops;
        self.requests += other.requests;
        self.queue_ns += other.queue_ns;
        self.service_ns += other.service_ns;
        self.cost_ns += other.cost_ns;
        self.remote_ns += other.remote_ns;
        self.queued += other.queued;
        self.running += other.running;
        self.slots += other.slots;
        self.throttled |= other.throttled;
    }

    /// Returns the change since `earlier`: counters are differences, present figures stay.
    ///
    /// A counter below its earlier value belongs to a newcomer (the proxy was started
    /// again), so everything is new then.
    pub fn since(&self, earlier: &WireUsage) -> WireUsage {
        let counters = |u: &WireUsage| {
            let payload = [u.read_bytes, u.written_bytes, u.ops, u.requests];
            let times = [u.queue_ns, u.service_ns, u.cost_ns, u.remote_ns];
            payload.into_iter().chain(times)
        };
        if counters(self).zip(counters(earlier)).any(|(now, then)| now < then) {
            return *self;
        }
        WireUsage {
            read_bytes: self.read_bytes - earlier.read_bytes,
            written_bytes: self.written_bytes - earlier.written_bytes,
            ops: self.ops - earlier.ops,
            requests: self.requests - earlier.requests,
            queue_ns: self.queue_ns - earlier.queue_ns,
            service_ns: self.service_ns - earlier.service_ns,
            cost_ns: self.cost_ns - earlier.cost_ns,
            remote_ns: self.remote_ns - earlier.remote_ns,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_give_what_came_between() {
        let then = WireUsage { read_bytes: 100, requests: 2, queued: 9, ..WireUsage::default() };
        let now = WireUsage { read_bytes: 350, requests: 7, queued: 1, ..WireUsage::default() };
        let between = WireUsage { read_bytes: 250, requests: 5, queued: 1, ..WireUsage::default() };
        assert_eq!(now.since(&then), between);
    }

    #[test]
    fn a_subject_of_a_proxy_that_was_started_again_counts_from_zero() {
        let then = WireUsage { read_bytes: 100, ops: 50, ..WireUsage::default() };
        let now = WireUsage { read_bytes: 200, ops: 3, ..WireUsage::default() };
        assert_eq!(now.since(&then), now);
    }
}

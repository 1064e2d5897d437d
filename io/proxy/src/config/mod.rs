//! The proxy's configuration: one TOML file, one typed struct, every key documented.
//!
//! ```text
//!   sluice.toml ─► Config::load ─► flags written over it ─► Config::layout ─► exports, targets
//!                    │ line, caret                            │ directories are read
//!                    └──────────────► ConfigError ◄───────────┘
//! ```
//!
//! Unknown keys are errors, so a misspelt bound is never silently ignored. Each key's
//! doc comment is its entry in docs/CONFIG.md (`settings`).

mod check;
mod docs;
mod error;
mod group;
mod layout;
mod settings;
mod values;

use std::path::{Path, PathBuf};

use http::{Credentials, Endpoints, MetricsAddress, ServerAddress};
use model::{Bytes, Nanos, Rate};
use rules::{Excerpt, WriteMode};

use crate::writes::DIRTY_BUDGET;
use settings::settings;

pub use docs::markdown;
pub use error::{ConfigError, ConfigLocation};
pub use layout::{Layout, ServedExport};
pub use values::{
    ApiSocket, ConfiguredCosts, ControllerUnreachable, GroupsSource, LeasePolicy, Network,
    ParseApiSocketError, ParseChoiceError, ParseLeasePolicyError, ParseNetworkError,
    ParsePercentageError, Percentage, Squash,
};

settings! {
    /// Keys before the first `[[…]]` table. Paths that are not absolute are relative to the
    /// directory of the file.
    pub struct ProxyConfig {
        /// Addresses on which the proxy listens for clients. With port 0 the system chooses a port,
        /// and the proxy prints it. The default accepts connections from this machine only.
        pub listen: Vec<ServerAddress> = vec![ServerAddress::Tcp(([127, 0, 0, 1], 5640).into())],
            "list of addresses, `tcp://IP:PORT` or `unix:///path`";
        /// Address of the control API, which `sluice top` and `sluice rule` use. `auto` is
        /// `unix:///run/sluice/proxy.sock`. If another proxy uses that socket or it cannot be
        /// created, there is no control API, and the proxy logs a warning. With an address of your
        /// own that cannot be used, the proxy does not start. Only the proxy's own user and root
        /// may connect.
        pub api: ApiSocket = ApiSocket::Auto, "`auto`, `off` or `unix:///path`";
        /// Address at which metrics are exported as Prometheus text (docs/METRICS.md), besides the
        /// control API. Any client that can connect can read the names of jobs: on 127.0.0.1 every
        /// user of this machine, on other addresses every machine that can connect. On 127.0.0.1 a
        /// scrape must name an address or `localhost`, so that web pages cannot read the metrics.
        pub metrics: Option<MetricsAddress> = None, "`http://IP:PORT` or `unix:///path`";
        /// The rule file (docs/RULES.md). Without a rule file every request is in one class named
        /// `default`.
        pub rules: Option<PathBuf> = None, "path";
        /// Address of the controller, or of all controllers of one etcd. It publishes the rules and
        /// divides their limits over all proxies. The rule file applies until the controller has
        /// published rules. Without a controller the proxy applies its own rule file.
        pub controller: Option<Endpoints> = None, "`https://HOST:PORT`, `http://127.0.0.1:PORT` or `unix:///path`, or several with commas between them";
        /// CA certificates that the proxy accepts at `https://` addresses of the controller, which
        /// need this key (docs/ACCESS.md).
        pub controller_ca: Option<PathBuf> = None, "path, PEM";
        /// File with the token for the controller, of role `proxy`. Other users must not be able to
        /// read the file.
        pub controller_token_file: Option<PathBuf> = None, "path";
        /// Client certificate for the controller, in place of a token. Its common name is
        /// `proxy_name`.
        pub controller_cert: Option<PathBuf> = None, "path, PEM";
        /// Private key of `controller_cert`. Other users must not be able to read the file.
        pub controller_key: Option<PathBuf> = None, "path, PEM";
        /// Limits that apply while the controller is unreachable. For 10 s after its last reply the
        /// proxy keeps its shares. With `equal` it then lowers shares above 1/N to 1/N, where N is
        /// the number of proxies. After 20 s it raises shares below 1/N to 1/N. With `keep` it
        /// keeps its shares. With `full` it gives the whole of each limit, and no decay throttles.
        /// With `keep` and `full` all proxies together may exceed a limit.
        pub controller_unreachable: ControllerUnreachable = ControllerUnreachable::Equal, "`equal`, `keep` or `full`";
        /// Name of the proxy at the controller, also set by `--name`. It must be unique among the
        /// proxies. The default is the name of this machine up to the first dot.
        pub proxy_name: Option<String> = None, "1 to 63 letters, digits, `_`, `-` and `.`, beginning with a letter or digit";
        /// What the network of this proxy moves for clients, for the controller's calendar of
        /// reservations (docs/RESERVATIONS.md). Reads and writes share it. If all proxies of a target
        /// have it, their sum bounds what is reserved there, and a part of what is reserved at other
        /// targets of these proxies counts there.
        pub network: Option<Rate> = None, "rate such as `10GB/s`";
        /// File to which the proxy writes a compact trace of every request, for `sluice trace`.
        pub trace: Option<PathBuf> = None, "path";
        /// Whether the proxy schedules requests. `false` executes them in order of arrival; use it
        /// to measure the cost of scheduling.
        pub schedule: bool = true, "`true` or `false`";
        /// Users that are replaced by `squash_uid`: only root, all users, or none. Any program that
        /// can open a TCP connection can claim to be root, so use `none` only if every client is
        /// trusted.
        pub squash: Squash = Squash::Root, "`root`, `all` or `none`";
        /// User that replaces squashed users and users with an unknown name. 65534 is `nobody`,
        /// which owns no files. 0 needs `squash = "none"`.
        pub squash_uid: u32 = 65534, "user id";
        /// Group that replaces the group of squashed users. 0 needs `squash = "none"`.
        pub squash_gid: u32 = 65534, "group id";
        /// Source of a user's supplementary groups. `client` uses the groups that clients at
        /// `trusted` addresses send, and the user database of this machine for all other clients.
        pub groups: GroupsSource = GroupsSource::Server, "`server` or `client`";
        /// Addresses of clients that may state the supplementary groups of their users; used with
        /// `groups = "client"`.
        pub trusted: Vec<Network> = Vec::new(), "list of address ranges such as `192.0.2.0/24`, `fd00::/8` or `192.0.2.7`";
        /// Addresses that may connect over TCP. The proxy closes connections from other addresses
        /// at once.
        pub allow: Vec<Network> = values::everybody(), "list of address ranges such as `192.0.2.0/24`, `fd00::/8` or `192.0.2.7`";
        /// Number of threads for requests that the page cache can answer. 0 is one thread per
        /// processor. These requests use only the processor, so more threads do not make them
        /// faster.
        pub threads: u32 = 0, "count, 0 to `threads_max`";
        /// Maximum number of threads, including those that wait for the backend. A call to a
        /// parallel file system may take 30 s. If calls occupy all threads, other requests wait.
        pub threads_max: u32 = 256, "count, 2 to 4096";
        /// Largest message that the proxy offers to clients. Above 4 MiB throughput does not
        /// increase, and one message occupies its connection for longer.
        pub msize_max: Bytes = Bytes::mib(4), "amount of data, 4KiB to 4MiB";
        /// Maximum number of connections, but at most a quarter of the file descriptors that the
        /// process may open. A peer is the address or Unix socket from which connections come. If
        /// the table is full, a new connection replaces an idle connection of the peer with the
        /// most connections. Connections without fids are replaced first, then connections of
        /// mounts, which reconnect, then any other. If no other peer has more connections than the
        /// peer of the new connection, the new connection is closed at once.
        pub connections_max: u32 = 4096, "count, 1 to 1048576";
        /// Maximum number of mount sessions. A session is abandoned while it waits for its mount to
        /// reconnect (`session_timeout`); it counts, too. If the table is full, a new session
        /// replaces an abandoned session of the peer with the most sessions, first one without open
        /// files. If there is none, the new session fails with ENFILE.
        pub sessions_max: u32 = 4096, "count, 1 to 1048576";
        /// Maximum number of descriptors for fids and lock owners of all clients. Fids that share a
        /// descriptor count as one. 0 is what the process may open less connections, pipes and the
        /// proxy's own files: about 11,500 of 20,000. Each peer may hold as many descriptors as are
        /// free divided by the number of peers that hold some. Within a peer the same applies to
        /// its users. So a single user gets a third, and new clients always find free descriptors.
        /// Above its bound, a user's open fails with ENFILE.
        pub open_files_max: u32 = 0, "count, 0 to 16777216";
        /// Maximum number of locked file ranges of all clients, divided over peers and users as in
        /// `open_files_max`. Above its bound, a user's lock request fails with ENOLCK.
        pub locks_max: u32 = 65536, "count, 1 to 16777216";
        /// Maximum memory for requests, unsent replies, values of extended attributes and
        /// identities of mounts of all clients. It is divided over peers and users as in
        /// `open_files_max`. The first 64KiB of each connection are not counted. Above the bound,
        /// the proxy stops reading from the connection, and extended attributes and identities fail
        /// with ENOMEM.
        pub memory_max: Bytes = Bytes::mib(1024), "amount of data, twice `bytes_in_flight_max` or more";
        /// Maximum number of fids of one connection, and also of its lock owners. Above the limit,
        /// creating a fid fails with ENFILE and locking fails with ENOLCK.
        pub fids_max: u32 = 65536, "count, 1 to 16777216";
        /// Maximum number of requests in flight on one connection. At the limit, the proxy stops
        /// reading from the connection until it has answered a request. At most half of the
        /// requests may wait for locks, so that the proxy can always read the requests that release
        /// those locks.
        pub tags_max: u32 = 1024, "count, 1 to 65535";
        /// Maximum payload of the requests in flight on one connection. At the limit, the proxy
        /// stops reading from the connection until it has answered a request.
        pub bytes_in_flight_max: Bytes = Bytes::mib(16), "amount of data, `msize_max` or more";
        /// Maximum number of bytes that a connection may send before its first attach. The default
        /// is enough for version negotiation and some attempts to attach, and prevents clients from
        /// filling memory.
        pub bytes_before_attach: Bytes = Bytes::kib(64), "amount of data, 1KiB or more";
        /// Time after which the proxy closes a connection that has not attached. The proxy looks
        /// twice a second; time in which it was itself stopped or overloaded does not count.
        pub attach_timeout: Nanos = Nanos::from_secs(10), "span of time";
        /// Time that the proxy waits for requests in flight after SIGTERM before it exits.
        pub drain_timeout: Nanos = Nanos::from_secs(30), "span of time";
        /// Maximum number of pipes that move payload from files to sockets without a copy. Each
        /// pipe uses up to `msize_max` of kernel memory, which the kernel bounds for each user
        /// (`fs.pipe-user-pages-soft`). If all pipes are in use, the proxy copies payload.
        pub pipes_max: u32 = 64, "count, 0 to 4096";
        /// Time in a backend call after which a thread counts as blocked. Another thread then
        /// serves the connections in its place. A shorter time wakes threads in vain; a longer time
        /// delays other requests.
        pub promote_after: Nanos = Nanos::from_micros(200), "span of time";
        /// Time for which the thread that reads the sockets polls for the next request before it
        /// sleeps, while requests follow each other closely. The default is about the cost of a
        /// wake-up. The thread yields its processor while it polls. 0 disables polling.
        pub busy_poll: Nanos = Nanos::from_micros(100), "span of time";
        /// Time for which the proxy caches the groups of a user.
        pub group_cache_time: Nanos = Nanos::from_secs(300), "span of time";
        /// File with the key that signs the file handles of mounts: 32 random bytes. The default is
        /// `/var/lib/sluice/handle.key`. The proxy creates a missing file. Mounts survive a restart
        /// of the proxy if the key is the same. Proxies that serve the same exports must share the
        /// key. The file must belong to root, to the proxy's user or to the owner of its directory,
        /// and other users must not be able to write it; otherwise the proxy does not start. The
        /// proxy removes read permission of other users.
        pub handle_key: Option<PathBuf> = None, "path";
        /// Time for which the proxy keeps the session of a mount after its last connection was
        /// lost. The session has its open files, its locks and the replies that the mount may not
        /// have received.
        pub session_timeout: Nanos = Nanos::from_secs(60), "span of time";
        /// Time after a start of the proxy in which clients can reclaim the locks that they held
        /// before it. A reclaimed lock is granted at once. Other lock requests wait until this time
        /// has passed; unlocking does not wait. The grace period needs a `handle_key` that existed
        /// when the proxy started, because under a new key no client has held a lock. After the
        /// grace period, and with `0s`, a reclaim is refused, since another client may have held
        /// the lock. SIGHUP does not change this value.
        pub lock_grace: Nanos = Nanos::from_secs(10), "span of time";
        /// File in which the proxy records which mounts may hold leases, so that a restart of the
        /// proxy waits for them. Each is recorded with the longest `lease_term` that it was granted.
        /// Written if an export has `leases = "read"`. Without such an export the proxy waits for the
        /// mounts that the file lists and then clears it: keep this value when you turn leases off. The
        /// default is `/var/lib/sluice/leases`; without a usable file there the proxy grants no lease
        /// and logs a warning. With a path of your own that cannot be used, the proxy does not start.
        /// Each proxy needs a file of its own. SIGHUP does not change this value, nor the next four.
        pub lease_state: Option<PathBuf> = None, "path";
        /// Maximum number of leases that the proxy has granted. At the limit, requests are answered
        /// without a lease, and mounts ask again.
        pub leases_max: u32 = 1_000_000, "count, 1 to 100000000";
        /// Maximum number of leases of one mount.
        pub mount_leases_max: u32 = 100_000, "count, 1 to 100000000";
        /// Time for which a mount may use its leases after its last renewal. A change waits as long, at
        /// most, for a mount that cannot be reached.
        pub lease_term: Nanos = Nanos::from_secs(20), "span of time, 1s to 1h";
        /// Time that a mount may take to return a lease that a change needs. A mount that takes longer
        /// is not renewed, and has to begin without leases.
        pub lease_recall_limit: Nanos = Nanos::from_secs(10), "span of time, 1ms to 1h";
        /// Maximum number of reads, of writes, and of other requests that one user and job of a
        /// mount may have in flight on each connection. So a throttled job leaves room for the
        /// requests of other jobs, and for those of its own that are not throttled.
        pub window_requests: u32 = 64, "count, 1 to 65535";
        /// Maximum payload of reads, and of writes, that one user and job of a mount may have in
        /// flight on each connection.
        pub window_bytes: Bytes = Bytes::mib(4), "amount of data, 64KiB or more";
        /// The proxies that serve the same directories; see below. Without it the proxy is alone.
        pub group: Option<GroupConfig> = None, "`[group]` table";
        /// Directories that the proxy serves; see below.
        pub export: Vec<ExportConfig> = Vec::new(), "`[[export]]` tables";
        /// Backends that differ from the defaults; see below.
        pub target: Vec<TargetConfig> = Vec::new(), "`[[target]]` tables";
    }
}

settings! {
    /// The proxies that serve the same directories. Mounts that name several proxies need it: each file
    /// has one of these names as its home, so all mounts find the same one, whatever addresses they use.
    /// All proxies of the group have the same `proxies` and `epoch`. After a change of `proxies` reload or
    /// restart all of them; mounts use the new list once they are mounted again.
    pub struct GroupConfig {
        /// Name of this proxy in the group, one of `proxies`; `proxy_name` by default.
        pub name: Option<String> = None, "1 to 64 letters, digits, `_`, `-` and `.`";
        /// Names of all proxies of the group, this one among them, in any order. They are no addresses.
        /// Also set by `--group`. A group of several does not grant leases yet (`leases`).
        pub proxies: Vec<String>, "list of 1 to 64 different names";
        /// Version of the list, to be raised at all proxies with each change of it. A reload refuses a
        /// changed list with the same epoch.
        pub epoch: u64 = 1, "count, 1 or more";
    }
}

settings! {
    /// A directory, and the name by which clients attach to it.
    pub struct ExportConfig {
        /// Name in the client's attach request, which is `NAME` or `NAME?job=ID`.
        pub name: String, "1 to 63 letters, digits, `_`, `-` and `.`";
        /// The exported directory. Clients cannot access anything outside the directory.
        pub dir: PathBuf, "path";
        /// Whether the proxy refuses every change, even if the permissions of the files allow it.
        pub readonly: bool = false, "`true` or `false`";
        /// What the proxy lets mounts keep of the export, and recalls before another client changes it:
        /// names, attributes and opened files with `read`, nothing with `none`. Use `read` only for a
        /// directory that is changed through this one proxy alone: what programs on the file system
        /// itself or other proxies change is not recalled. Names are not kept where the file system
        /// folds their case. A change of this value needs a restart of the proxy.
        /// docs/decisions/0025 lists cases that are not covered yet.
        pub leases: LeasePolicy = LeasePolicy::None, "`none` or `read`";
        /// Name of the `[[target]]` that schedules the export. By default, exports of one file
        /// system share a target that is named after the mount point.
        pub target: Option<String> = None, "name of a `[[target]]`";
    }
}

settings! {
    /// A backend with its own scheduler. A target with the name of a mount point schedules the
    /// exports of that file system that have no `target` key.
    pub struct TargetConfig {
        /// Name of the target in the `target` key of exports, in tables and in metrics.
        pub name: String, "1 to 255 printable characters";
        /// Maximum number of device slots: small requests that the backend executes at once (D in
        /// SFQ(D)). The default is the number in the file `costs`, or 64 without such a file.
        pub slots_max: Option<u32> = None, "count, 1 to 65536";
        /// Unit of the cost of a request: `calibrated` is the time that the backend needs, by the
        /// file `costs`; `bytes` is the number of bytes that it moves.
        pub cost: ConfiguredCosts = ConfiguredCosts::Calibrated, "`calibrated` or `bytes`";
        /// How writes reach the backend (docs/ARCHITECTURE.md). By default the proxy probes the
        /// directory and uses the best mode. On a disk these are `direct` for writes of 512KiB and
        /// more, and `paced` for smaller ones. On a FUSE file system the kernel lets one `direct` write
        /// of a file through at a time, also of several clients; writes of several files go side by side.
        pub write_mode: Option<WriteMode> = None, "`direct`, `dontcache`, `paced` or `cached`";
        /// Bytes that each class may have written and that are not yet on the backend's device.
        /// Above it, the writes of the class wait. A larger budget makes other classes wait longer
        /// for the device.
        pub dirty_budget: Bytes = DIRTY_BUDGET, "amount of data, 64KiB or more";
        /// File with measured costs, written by `sluice calibrate`. By default the proxy uses
        /// built-in costs.
        pub costs: Option<PathBuf> = None, "path";
        /// Upper bound for the mean service time of a small request. While requests take longer,
        /// the proxy uses fewer slots than `slots_max`, which costs throughput. By default it uses
        /// `slots_max` slots.
        pub latency_target: Option<Nanos> = None, "span of time";
        /// Whether the proxy corrects its costs by requests that happen to run alone. The corrected
        /// costs are in memory only.
        pub recalibrate: bool = false, "`true` or `false`";
        /// What the target reads if it only reads, for reservations (docs/CONTROLLER.md). It and
        /// `capacity_write` go before what `costs` has. The controller takes the least that proxies
        /// of the target have configured. Without both, and without `costs`, bytes of the target
        /// cannot be reserved.
        pub capacity_read: Option<Rate> = None, "rate such as `2GB/s`, with `capacity_write`";
        /// What the target writes if it only writes, for reservations.
        pub capacity_write: Option<Rate> = None, "rate such as `1GB/s`, with `capacity_read`";
        /// Metadata operations of the target, for reservations; goes before what `costs` has.
        pub capacity_metadata: Option<Rate> = None, "rate such as `50kops/s`";
        /// Part of the target that is used by what no proxy sees. It is not reserved.
        pub unseen: Percentage = Percentage::default(), "percentage, `0%` to `99%`";
    }
}

impl Default for ProxyConfig {
    /// Makes a configuration of defaults, without exports.
    fn default() -> ProxyConfig {
        toml::from_str("").expect("every key at the top of the file has a default")
    }
}

impl ExportConfig {
    /// Makes a writable export of `dir` with the target of its file system.
    pub fn new(name: &str, dir: &Path) -> ExportConfig {
        let leases = LeasePolicy::None;
        ExportConfig { name: name.into(), dir: dir.into(), readonly: false, leases, target: None }
    }
}

impl TargetConfig {
    /// Makes the target of a file system without a `[[target]]`.
    fn of_file_system(name: String) -> TargetConfig {
        TargetConfig {
            name,
            slots_max: None,
            cost: ConfiguredCosts::Calibrated,
            write_mode: None,
            dirty_budget: DIRTY_BUDGET,
            costs: None,
            latency_target: None,
            recalibrate: false,
            capacity_read: None,
            capacity_write: None,
            capacity_metadata: None,
            unseen: Percentage::default(),
        }
    }
}

impl ProxyConfig {
    /// Reads a configuration file.
    pub fn load(path: &Path) -> Result<ProxyConfig, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let mut config = ProxyConfig::parse(&path.display().to_string(), &text)?;
        config.count_paths_from(path.parent().unwrap_or(Path::new("")));
        Ok(config)
    }

    /// Reads a configuration's text; `file` names it in errors.
    pub fn parse(file: &str, text: &str) -> Result<ProxyConfig, ConfigError> {
        let config: ProxyConfig = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let message = error.message().replace('`', "\"");
            let excerpt = Excerpt::new(text, span);
            ConfigError::InvalidKey(Box::new(ConfigLocation {
                file: file.into(),
                message,
                excerpt,
            }))
        })?;
        config.check().map_err(|fault| fault.in_text(file, text))?;
        Ok(config)
    }

    /// Returns the credentials for the controller.
    pub fn credentials(&self) -> Credentials {
        Credentials {
            ca: self.controller_ca.clone(),
            token_file: self.controller_token_file.clone(),
            token: None,
            cert: self.controller_cert.clone(),
            key: self.controller_key.clone(),
        }
    }

    /// Whether a client at `address` may connect.
    pub fn allows(&self, address: std::net::IpAddr) -> bool {
        self.allow.iter().any(|network| network.contains(address))
    }

    /// Whether a client at `address` may state the groups of its users.
    pub fn trusts(&self, address: std::net::IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    fn count_paths_from(&mut self, base: &Path) {
        let optional = [
            &mut self.rules,
            &mut self.trace,
            &mut self.handle_key,
            &mut self.lease_state,
            &mut self.controller_ca,
            &mut self.controller_token_file,
            &mut self.controller_cert,
            &mut self.controller_key,
        ];
        let optional = optional.into_iter().flatten();
        let exports = self.export.iter_mut().map(|export| &mut export.dir);
        let costs = self.target.iter_mut().filter_map(|target| target.costs.as_mut());
        for path in optional.chain(exports).chain(costs) {
            *path = base.join(&*path);
        }
    }
}

#[cfg(test)]
mod tests;

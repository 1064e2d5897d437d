//! The proxy's configuration: one TOML file, one typed struct, every key documented.
//!
//! ```text
//!   sluice.toml ─► Config::load ─► flags written over it ─► Config::layout ─► exports, targets
//!                    │ line, caret                            │ directories looked at
//!                    └──────────────► ConfigError ◄───────────┘
//! ```
//!
//! Unknown keys are errors, so a misspelt bound never passes for a set one. Each key's
//! doc comment is its entry in docs/CONFIG.md (`settings`).

mod check;
mod docs;
mod error;
mod layout;
mod settings;
mod values;

use std::path::{Path, PathBuf};

use api::{Credentials, Endpoints, MetricsAddress, ServerAddress};
use model::{Bytes, Excerpt, Nanos, WriteMode};

use crate::writes::DIRTY_BUDGET;
use settings::settings;

pub use docs::markdown;
pub use error::{ConfigError, ConfigLocation};
pub use layout::{Layout, ServedExport};
pub use values::{
    ApiSocket, ConfiguredCosts, ControllerLost, GroupsSource, Network, ParseApiSocketError,
    ParseChoiceError, ParseNetworkError, Squash,
};

settings! {
    /// The keys at the top of the file. Paths that are not absolute count from the
    /// file's own directory.
    pub struct ProxyConfig {
        /// Where clients connect. Port 0 lets the system choose; the proxy prints the
        /// port it got. The default is for this machine only: who serves others says so.
        pub listen: Vec<ServerAddress> = vec![ServerAddress::Tcp(([127, 0, 0, 1], 5640).into())],
            "list of addresses, `tcp://IP:PORT` or `unix:///path`";
        /// Where the control API listens, for `sluice top` and `sluice rule`. `auto` is
        /// `unix:///run/sluice/proxy.sock` if that can be made and no other proxy has it,
        /// else none, with a warning. Only the proxy's own user and root may connect.
        pub api: ApiSocket = ApiSocket::Auto, "`auto`, `off` or `unix:///path`";
        /// Where metrics are shown as Prometheus text (docs/METRICS.md), besides the control
        /// API's socket. Whoever can connect reads the names of jobs: on 127.0.0.1 every user
        /// of this machine, on other addresses whoever reaches them. On 127.0.0.1 a scrape names
        /// an address or `localhost`, so that no web page reads them.
        pub metrics: Option<MetricsAddress> = None, "`http://IP:PORT` or `unix:///path`";
        /// The rule file (docs/RULES.md). Without one every request falls into one
        /// class named `default`.
        pub rules: Option<PathBuf> = None, "path";
        /// Where the controller of all proxies answers. It gives the rules, of which each proxy
        /// then holds a part; a rule file counts until it has given any. Without one the
        /// proxy decides alone.
        pub controller: Option<Endpoints> = None, "`https://HOST:PORT`, `http://127.0.0.1:PORT` or `unix:///path`; of several all, with commas";
        /// Whose certificates are believed at `https://` places of it (docs/ACCESS.md).
        pub controller_ca: Option<PathBuf> = None, "path, PEM";
        /// The token that is shown to it, of role `proxy`. Nobody else may read the file.
        pub controller_token_file: Option<PathBuf> = None, "path";
        /// The certificate that is shown to it in place of a token: its common name is `node`.
        pub controller_cert: Option<PathBuf> = None, "path, PEM";
        /// The certificate's key. Nobody else may read the file.
        pub controller_key: Option<PathBuf> = None, "path, PEM";
        /// What limits are when the controller was not heard for ten seconds: `equal`, its 1/N of
        /// each, with N proxies; `keep`, what it held last; `lift`, all of each, and no decay holds
        /// back. With `keep` and `lift` all proxies together may give more than a limit.
        pub controller_lost: ControllerLost = ControllerLost::Equal, "`equal`, `keep` or `lift`";
        /// The proxy's name there: no two proxies may have the same. Without it, this
        /// machine's name, up to the first dot.
        pub node: Option<String> = None, "letters, digits, `_`, `-`, `.`; at most 63";
        /// Where a compact trace of every request is written, for `sluice trace`.
        pub record: Option<PathBuf> = None, "path";
        /// Whether requests are scheduled at all. `false` serves them as they come, to
        /// measure what scheduling costs.
        pub schedule: bool = true, "`true` or `false`";
        /// Which users become the squash user. Anybody who can open a TCP connection can
        /// claim to be root, so root is squashed unless every client is trusted.
        pub squash: Squash = Squash::Root, "`root`, `all` or `none`";
        /// The user that squashed users become, and users that give a name nobody knows.
        /// 65534 is `nobody`, who owns nothing.
        pub squash_uid: u32 = 65534, "user id";
        /// The group that goes with it.
        pub squash_gid: u32 = 65534, "group id";
        /// Who says which supplementary groups a user is in. `client` believes clients
        /// of the `trusted` addresses and asks this machine for the others.
        pub groups: GroupsSource = GroupsSource::Server, "`server` or `client`";
        /// The addresses of clients whose word about groups counts.
        pub trusted: Vec<Network> = Vec::new(), "list of address ranges";
        /// The addresses that may connect over TCP. Others are closed at once.
        pub allow: Vec<Network> = values::everybody(), "list of address ranges";
        /// Threads that serve what the page cache can answer. 0 is one for each processor:
        /// such work costs processor only, more threads would only take turns.
        pub threads: u32 = 0, "count";
        /// The most threads there may be, waiting calls to the backend included. A call to
        /// a parallel file system may take 30 s; this many may hang before others wait.
        pub threads_max: u32 = 256, "count";
        /// The largest message that clients are offered. Beyond 4 MiB nothing gets faster
        /// and one message holds a connection for longer.
        pub msize_max: Bytes = Bytes::mib(4), "amount of data, 4KiB to 4MiB";
        /// The most connections at a time, and no more than a quarter of the descriptors that the
        /// process may have. In a full table, a newcomer gets the place of an idle connection of
        /// the peer that has most: one without fids, then one of a mount, which comes back by
        /// itself, then any. If no peer has more than the newcomer, that is closed at once.
        pub connections_max: u32 = 4096, "count";
        /// The most sessions of mounts at a time, those included that wait for their mount
        /// (`session_keep`). In a full table, a newcomer gets the place of an abandoned one of the
        /// peer that has most, first of those without open files; else it is refused with ENFILE.
        pub sessions_max: u32 = 4096, "count";
        /// The most descriptors that fids and owners of locks may hold, of all clients together; a
        /// fid that shares its descriptor with another counts as one.
        /// 0 is what the process's limit leaves beside connections, pipes and its own files: some
        /// 11,500 of 20,000. Of what is free, each of the peers that hold any may have an equal
        /// part, and each user of a peer an equal part of that: alone a third, and there is always
        /// something left for the next. Beyond it, opening fails with ENFILE.
        pub open_files_max: u32 = 0, "count";
        /// The most locked ranges of files of all clients together, in parts as above. Beyond it,
        /// locking fails with ENOLCK.
        pub locks_max: u32 = 65536, "count";
        /// The most memory for requests, replies that were not taken yet, values of extended
        /// attributes and identities of mounts, of all clients together, in parts as above. The first 64KiB of each
        /// connection are not counted. Beyond it the proxy stops reading from a connection, and
        /// extended attributes and identities fail with ENOMEM.
        pub memory_max: Bytes = Bytes::mib(1024), "amount of data, twice `bytes_in_flight_max` or more";
        /// The most fids of one connection, and the most owners of locks. Beyond it, what would
        /// make one fails with ENFILE, locking with ENOLCK.
        pub fids_max: u32 = 65536, "count";
        /// The most unanswered requests of one connection. Beyond it the proxy stops
        /// reading from that connection until it has answered one. At most half of them
        /// wait for locks, so that what ends the waiting is always read.
        pub tags_max: u32 = 1024, "count, at most 65535";
        /// The most payload of unanswered requests of one connection, as above.
        pub bytes_in_flight_max: Bytes = Bytes::mib(16), "amount of data, `msize_max` or more";
        /// The most bytes that a connection may send before it has attached. Enough for a
        /// version, some attempts and an attach; nothing for who only fills memory.
        pub bytes_before_attach: Bytes = Bytes::kib(64), "amount of data, 1KiB or more";
        /// A connection that has not attached after this time is closed.
        pub attach_timeout: Nanos = Nanos::from_secs(10), "span of time";
        /// How long SIGTERM waits for what is in flight before the proxy ends anyway.
        pub drain_timeout: Nanos = Nanos::from_secs(30), "span of time";
        /// The most pipes for payload on its way from file to socket. Each holds kernel
        /// memory of up to `msize_max`, and a user has a bounded amount of it; beyond it
        /// payload is copied.
        pub pipes_max: u32 = 64, "count";
        /// After this long in a backend call a thread is taken to hang, and another takes
        /// over the connections. Shorter wakes threads in vain, longer delays the others.
        pub takeover: Nanos = Nanos::from_micros(200), "span of time";
        /// How long the thread that reads the sockets looks for the next request before it
        /// sleeps, while they come one after the other: about what it costs to be woken. It
        /// yields its processor meanwhile. Zero for never.
        pub linger: Nanos = Nanos::from_micros(100), "span of time";
        /// How long the groups of a user are remembered before they are asked for again.
        pub group_cache_time: Nanos = Nanos::from_secs(300), "span of time";
        /// The key that signs the handles which mounts keep in place of open files: 32 random
        /// bytes, made if the file is missing. Mounts survive a restart that finds the same
        /// key, and proxies that serve the same exports share it. Without one,
        /// `/var/lib/sluice/handle.key`. It belongs to root, to the proxy's user or to the owner of
        /// its directory, and nobody else may write to it: else the proxy does not start. From
        /// those who may read it, it is taken.
        pub handle_key: Option<PathBuf> = None, "path";
        /// How long the session of a mount is kept after its last connection was lost: its
        /// open files, its locks, and the replies that it may not have got.
        pub session_keep: Nanos = Nanos::from_secs(60), "span of time";
        /// How long after a start locks are for those who had them before it. A client that says so
        /// gets its lock again at once; every other lock waits for the end of this time, unlocking
        /// never. It needs a `handle_key` that was there when the proxy started: under one that was made
        /// then, nobody has had a lock. After it, and with `0s`, nobody gets a lock again by saying
        /// so, since somebody else may have had it meanwhile. SIGHUP does not change it.
        pub lock_grace: Nanos = Nanos::from_secs(10), "span of time";
        /// How many requests one user and job of a mount may have under way on each of its
        /// connections: a job that is held back must leave place for its neighbours.
        pub window_requests: u32 = 64, "count";
        /// And how many bytes of payload.
        pub window_bytes: Bytes = Bytes::mib(4), "amount of data, 64KiB or more";
        /// The directories to serve.
        pub export: Vec<ExportConfig> = Vec::new(), "`[[export]]` tables";
        /// What is known about the backends.
        pub target: Vec<TargetConfig> = Vec::new(), "`[[target]]` tables";
    }
}

settings! {
    /// One `[[export]]`: a directory and the name that clients attach to it by.
    pub struct ExportConfig {
        /// The name in the client's attach: `NAME` or `NAME?job=ID`.
        pub name: String, "letters, digits, `_`, `-`, `.`; at most 63";
        /// The directory. Nothing outside it can be reached.
        pub dir: PathBuf, "path";
        /// Refuse every change, whatever the directory's own permissions say.
        pub readonly: bool = false, "`true` or `false`";
        /// The `[[target]]` that schedules it. Without one, exports of one file system share
        /// a target named after the mount point.
        pub target: Option<String> = None, "name of a target";
    }
}

settings! {
    /// One `[[target]]`: a backend with a scheduler of its own. A target named like a
    /// mount point takes that file system's exports without being named in them.
    pub struct TargetConfig {
        /// The name, in `target` keys, in tables and in metrics.
        pub name: String, "1 to 255 characters";
        /// Device slots: how many small requests the backend serves at once (D in SFQ(D)).
        /// Without it, what calibration found, or the built-in figure.
        pub slots_max: Option<u32> = None, "count";
        /// What a request costs: the backend's time, or its bytes.
        pub cost: ConfiguredCosts = ConfiguredCosts::Calibrated, "`calibrated` or `bytes`";
        /// How writes reach the backend (docs/ARCHITECTURE.md). Without it, the best that a
        /// probe of the directory finds: on a disk `direct` from 512KiB and `paced` below.
        pub write_mode: Option<WriteMode> = None, "`direct`, `dontcache`, `paced` or `cached`";
        /// How many bytes each class may have written and not yet clean before its writes
        /// wait. More lets bursts end sooner and lets others wait longer for the device.
        pub dirty_budget: Bytes = DIRTY_BUDGET, "amount of data";
        /// The file that `sluice calibrate` wrote. Without it, built-in costs.
        pub costs: Option<PathBuf> = None, "path";
        /// How long a small request may take on average once its turn has come. The proxy lowers
        /// its slots below `slots_max` until that holds, which costs throughput. Without it,
        /// `slots_max` holds.
        pub latency: Option<Nanos> = None, "span of time";
        /// Learn costs anew, from requests that happen to run alone.
        pub recalibrate: bool = false, "`true` or `false`";
    }
}

impl Default for ProxyConfig {
    /// A configuration of defaults: no export yet.
    fn default() -> ProxyConfig {
        toml::from_str("").expect("every key at the top of the file has a default")
    }
}

impl ExportConfig {
    /// A writable export of `dir` whose target is that of its file system.
    pub fn new(name: &str, dir: &Path) -> ExportConfig {
        ExportConfig { name: name.into(), dir: dir.into(), readonly: false, target: None }
    }
}

impl TargetConfig {
    /// The target that a file system gets without a `[[target]]` of its own.
    fn of_file_system(name: String) -> TargetConfig {
        TargetConfig {
            name,
            slots_max: None,
            cost: ConfiguredCosts::Calibrated,
            write_mode: None,
            dirty_budget: DIRTY_BUDGET,
            costs: None,
            latency: None,
            recalibrate: false,
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
            ConfigError::Place(Box::new(ConfigLocation { file: file.into(), message, excerpt }))
        })?;
        config.check().map_err(|fault| fault.in_text(file, text))?;
        Ok(config)
    }

    /// The largest message in bytes, as the protocol counts it.
    pub fn msize_max(&self) -> u32 {
        u32::try_from(self.msize_max.get()).unwrap_or(u32::MAX)
    }

    /// What is shown to the controller.
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

    /// Whether a client at `address` is believed about its users' groups.
    pub fn trusts(&self, address: std::net::IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(address))
    }

    fn count_paths_from(&mut self, base: &Path) {
        let optional = [
            &mut self.rules,
            &mut self.record,
            &mut self.handle_key,
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

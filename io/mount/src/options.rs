//! Settings of a mount: the source of its files, its mount point, and its options.
//!
//! ```text
//!   tcp://storage1:5640/scratch  /mnt/scratch  -o ro,attr_timeout=5s,_netdev
//!             └─► MountSource         │            └─► words, each checked or passed over
//!                    └──────────► MountSettings ◄───────┘
//! ```
//!
//! The words are those of mount(8) and fstab(5): a later one overrides an earlier one. What only
//! concerns mount(8), systemd or a comment is accepted and dropped. Every error names the word at
//! fault and what would be right.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use fuse::MountFlags;
use http::{MetricsAddress, ServerAddress};
use model::{Bytes, Nanos};

use crate::jobs::JobSources;

/// Settings of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSettings {
    /// The proxies that serve the files, at least one, all with the same export.
    pub sources: Vec<MountSource>,
    /// The sources as they were given, for the table of mounts: mount(8) compares it.
    pub source: String,
    /// Where the files appear.
    pub at: PathBuf,
    /// Nothing can be changed through this mount. Default: false.
    pub read_only: bool,
    /// Whether users other than the one that mounts may use it. Default: false.
    pub allow_other: bool,
    /// After how long without a proxy requests fail. Default: none, they wait for ever.
    pub soft: Option<Duration>,
    /// How long names and attributes are believed without asking. Default: 1 s.
    pub attr_timeout: Duration,
    /// Whether leases are asked for, under which names and attributes are believed for longer and are
    /// current all the same. Default: true. With `attr_timeout` zero or several sources none is.
    pub leases: bool,
    /// Bytes of writes that are kept, to be written once more if the proxy's machine loses them
    /// before they are durable; 0 keeps none. Default: 256 MiB.
    pub replay_buffer: Bytes,
    /// Where the job of a request is looked for. Default: `cgroup+env`.
    pub jobs: JobSources,
    /// Threads that serve, each with a connection. Default: none, the mount chooses.
    pub threads: Option<usize>,
    /// Requests come over io_uring, one queue and thread for each processor, where the kernel
    /// can. Default: false.
    pub uring: bool,
    /// How long a thread looks for the next request before it sleeps, while they come one after
    /// the other. Default: 100 us.
    pub busy_poll: Duration,
    /// Where metrics are shown (docs/METRICS.md). Default: nowhere.
    pub metrics: Option<MetricsAddress>,
    /// nosuid, nodev and so on, without read-only. Default: nosuid and nodev.
    pub flags: MountFlags,
}

/// A proxy and the name of its export; the text form is `tcp://HOST:PORT/NAME` or
/// `unix:///path/of/socket//NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSource {
    /// Where the proxy listens.
    pub address: ServerAddress,
    /// The proxy's name of the directory; a path, if it is a server such as diod.
    pub export: String,
}

/// Text that no mount can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountSettingsError {
    /// The source is none, or its host has no address.
    #[error("the source {text:?} {fault}")]
    Source {
        /// The text that was given.
        text: String,
        /// The error, and the right form.
        fault: String,
    },
    /// An option has a value that it cannot have, or lacks one.
    #[error("the option {word:?} {fault}")]
    Option {
        /// The word of `-o`.
        word: String,
        /// The error, and the right form.
        fault: String,
    },
}

impl MountSettings {
    /// Settings from a command line: sources with commas between them, a directory, and the
    /// words of `-o` with commas between them. A host's name is looked up.
    ///
    /// # Errors
    /// Names the first word that cannot be.
    pub fn new(
        source: &str,
        at: &Path,
        options: &str,
    ) -> Result<MountSettings, MountSettingsError> {
        let mut settings = MountSettings {
            sources: sources(source)?,
            source: source.into(),
            at: at.into(),
            read_only: false,
            allow_other: false,
            soft: None,
            attr_timeout: ATTR_TIMEOUT_DEFAULT,
            leases: true,
            replay_buffer: REPLAY_BUFFER_DEFAULT,
            jobs: JobSources::default(),
            threads: None,
            uring: false,
            busy_poll: BUSY_POLL_DEFAULT,
            metrics: None,
            flags: FLAGS_DEFAULT,
        };
        for word in options.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            settings
                .apply(word)
                .map_err(|fault| MountSettingsError::Option { word: word.into(), fault })?;
        }
        Ok(settings)
    }

    /// Applies a word of `-o`, or says what is wrong with it.
    fn apply(&mut self, word: &str) -> Result<(), String> {
        match word.split_once('=') {
            None => self.apply_plain(word),
            Some(("soft", time)) => {
                let time = span(time)?;
                if time.is_zero() {
                    return Err("is zero; give a time such as soft=30s".into());
                }
                self.soft = Some(time);
                Ok(())
            }
            Some(("attr_timeout", time)) => span(time).map(|time| self.attr_timeout = time),
            Some(("leases", "on")) => {
                self.leases = true;
                Ok(())
            }
            Some(("leases", "off")) => {
                self.leases = false;
                Ok(())
            }
            Some(("leases", _)) => Err("is not leases=on or leases=off".into()),
            Some(("busy_poll", time)) => span(time).map(|time| self.busy_poll = time),
            Some(("replay_buffer", size)) => {
                self.replay_buffer =
                    size.parse().map_err(|fault| format!("is not valid: {fault}"))?;
                Ok(())
            }
            Some(("job", text)) => {
                self.jobs = text.parse().map_err(|fault| format!("is not valid: {fault}"))?;
                Ok(())
            }
            Some(("metrics", text)) => {
                let address = text.parse().map_err(|fault| format!("is not valid: {fault}"))?;
                self.metrics = Some(address);
                Ok(())
            }
            Some(("threads", number)) => {
                let number = number.parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
                let fault = || format!("needs a number from 1 to {THREADS_MAX}, such as threads=4");
                self.threads = Some(number.ok_or_else(fault)?);
                Ok(())
            }
            Some((name, _)) if is_for_others(name) => Ok(()),
            Some((name, _)) if is_plain(name) => Err(format!("takes no value; use {name}")),
            Some(_) => Err(unknown()),
        }
    }

    fn apply_plain(&mut self, word: &str) -> Result<(), String> {
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "allow_other" => self.allow_other = true,
            "hard" => self.soft = None,
            "uring" => self.uring = true,
            "soft" | "attr_timeout" => return Err(format!("needs a time, such as {word}=30s")),
            "leases" => return Err("needs a value: leases=on or leases=off".into()),
            "busy_poll" => return Err("needs a time, such as busy_poll=100us".into()),
            "replay_buffer" => return Err("needs a size, such as replay_buffer=256MiB".into()),
            "job" => return Err("needs a source, such as job=cgroup+env".into()),
            "metrics" => {
                return Err("needs an address, such as metrics=http://127.0.0.1:9401".into());
            }
            "threads" => return Err("needs a number, such as threads=4".into()),
            _ => match FLAG_WORDS.iter().find(|(name, _, _)| *name == word) {
                Some((_, flag, on)) => self.flags.set(*flag, *on),
                None if is_for_others(word) => {}
                None => return Err(unknown()),
            },
        }
        Ok(())
    }
}

impl FromStr for MountSource {
    type Err = MountSettingsError;

    fn from_str(text: &str) -> Result<MountSource, MountSettingsError> {
        let fault =
            |fault: &str| MountSettingsError::Source { text: text.into(), fault: fault.into() };
        let (address, export) = if let Some(rest) = text.strip_prefix("tcp://") {
            let (node, export) = rest.split_once('/').ok_or_else(|| fault(WANT))?;
            (ServerAddress::Tcp(resolve(node).map_err(|why| fault(&why))?), export)
        } else if text.starts_with("unix:///") {
            let (_, path) = text.split_at("unix://".len());
            let (path, export) = path.split_once("//").ok_or_else(|| fault(WANT))?;
            let address = format!("unix://{path}").parse();
            (address.map_err(|why| fault(&format!("is not valid: {why}")))?, export)
        } else {
            return Err(fault(WANT));
        };
        if !is_export(export) {
            return Err(fault(WANT_EXPORT));
        }
        Ok(MountSource { address, export: export.into() })
    }
}

impl fmt::Display for MountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slashes = if matches!(self.address, ServerAddress::Tcp(_)) { "/" } else { "//" };
        write!(f, "{}{slashes}{}", self.address, self.export)
    }
}

/// Sources with commas between them, of one export.
fn sources(text: &str) -> Result<Vec<MountSource>, MountSettingsError> {
    let sources: Vec<MountSource> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let first = &sources[0].export;
    match sources.iter().find(|source| source.export != *first) {
        None => Ok(sources),
        Some(other) => {
            let other = &other.export;
            let fault =
                format!("names {first:?} and {other:?}; name the same export for all proxies");
            Err(MountSettingsError::Source { text: text.into(), fault })
        }
    }
}

/// The address of `HOST:PORT`; the first one, if the name has several.
fn resolve(node: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = node.parse() {
        return Ok(address);
    }
    let port = node.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    if port.is_none() {
        return Err("has no port; add one, such as tcp://192.0.2.7:5640/scratch".into());
    }
    let mut found = node
        .to_socket_addrs()
        .map_err(|why| format!("has a host that cannot be resolved: {why}"))?;
    found.next().ok_or_else(|| "has a host that resolves to no address".into())
}

/// Whether a proxy accepts it as the name of an export (docs/CONFIG.md), or it is a path, as
/// servers that know only 9P2000.L name theirs.
fn is_export(name: &str) -> bool {
    let named = (1..=63).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    let path = (2..=1024).contains(&name.len())
        && name.starts_with('/')
        && !name.chars().any(|c| c.is_control() || c == ',');
    named || path
}

fn span(text: &str) -> Result<Duration, String> {
    text.parse::<Nanos>().map(Nanos::to_duration).map_err(|fault| format!("is not valid: {fault}"))
}

/// As a span of the core.
pub(crate) fn nanos(time: Duration) -> Nanos {
    Nanos::new(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn unknown() -> String {
    let flags = FLAG_WORDS.map(|(word, _, _)| word).join(", ");
    format!(
        "is not one of ro, rw, allow_other, hard, soft=TIME, attr_timeout=TIME, \
         leases=on, leases=off, replay_buffer=SIZE, job=SOURCE, \
         threads=N, uring, busy_poll=TIME, metrics=ADDRESS, {flags}, and the options of fstab and \
         mount(8)"
    )
}

/// Words that must not have a value.
fn is_plain(name: &str) -> bool {
    ["ro", "rw", "allow_other", "hard"].contains(&name)
        || FLAG_WORDS.iter().any(|(word, _, _)| *word == name)
}

/// Whether fstab(5), mount(8) and systemd.mount(5) reserve the option; mount(8) may pass it on.
fn is_for_others(name: &str) -> bool {
    const WORDS: [&str; 17] = [
        "_netdev", "auto", "comment", "defaults", "fail", "group", "helper", "loud", "nofail",
        "noauto", "nogroup", "noowner", "nouser", "nousers", "owner", "user", "users",
    ];
    WORDS.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

/// Effect of each word on the flags of mount(2). Words that undo one come after it.
const FLAG_WORDS: [(&str, MountFlags, bool); 20] = [
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("nostrictatime", MountFlags::STRICTATIME, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("lazytime", MountFlags::LAZYTIME, true),
    ("nolazytime", MountFlags::LAZYTIME, false),
    ("silent", MountFlags::SILENT, true),
];

const REPLAY_BUFFER_DEFAULT: Bytes = Bytes::mib(256);
/// About what a wake-up on another processor costs on a virtual machine.
const BUSY_POLL_DEFAULT: Duration = Duration::from_micros(100);
const ATTR_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);
/// A file server's files are not to give rights on this node.
const FLAGS_DEFAULT: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const THREADS_MAX: usize = 64;

const WANT: &str = "is not tcp://HOST:PORT/NAME or unix:///path/of/socket//NAME, such as \
                    tcp://192.0.2.7:5640/scratch";
const WANT_EXPORT: &str = "does not end in an export's name: 1 to 63 letters, digits, _, - or ., \
                           or an absolute path, after / for tcp and // for unix";

#[cfg(test)]
mod tests {
    use super::*;

    fn with(options: &str) -> Result<MountSettings, MountSettingsError> {
        MountSettings::new("tcp://127.0.0.1:5640/scratch", Path::new("/mnt"), options)
    }

    /// The words of `-o` that give these settings, without those that change nothing.
    fn options(settings: &MountSettings) -> String {
        let mut words: Vec<String> = Vec::new();
        let mut when = |holds: bool, word: &str| {
            if holds {
                words.push(word.into());
            }
        };
        when(settings.read_only, "ro");
        for (word, flag, on) in FLAG_WORDS {
            let changed = (settings.flags ^ FLAGS_DEFAULT).contains(flag);
            when(changed && settings.flags.contains(flag) == on, word);
        }
        when(settings.allow_other, "allow_other");
        if let Some(time) = settings.soft {
            words.push(format!("soft={}", nanos(time)));
        }
        if settings.attr_timeout != ATTR_TIMEOUT_DEFAULT {
            words.push(format!("attr_timeout={}", nanos(settings.attr_timeout)));
        }
        if !settings.leases {
            words.push("leases=off".into());
        }
        if settings.replay_buffer != REPLAY_BUFFER_DEFAULT {
            words.push(format!("replay_buffer={}", settings.replay_buffer));
        }
        if settings.jobs != JobSources::default() {
            words.push(format!("job={}", settings.jobs));
        }
        if let Some(threads) = settings.threads {
            words.push(format!("threads={threads}"));
        }
        if settings.uring {
            words.push("uring".into());
        }
        if settings.busy_poll != BUSY_POLL_DEFAULT {
            words.push(format!("busy_poll={}", nanos(settings.busy_poll)));
        }
        if let Some(address) = &settings.metrics {
            words.push(format!("metrics={address}"));
        }
        words.join(",")
    }

    #[test]
    fn without_options_everything_is_as_documented() {
        let expected = MountSettings {
            leases: true,
            sources: vec![MountSource {
                address: "tcp://127.0.0.1:5640".parse().unwrap(),
                export: "scratch".into(),
            }],
            source: "tcp://127.0.0.1:5640/scratch".into(),
            at: "/mnt".into(),
            read_only: false,
            allow_other: false,
            soft: None,
            attr_timeout: Duration::from_secs(1),
            replay_buffer: Bytes::mib(256),
            jobs: "cgroup+env".parse().unwrap(),
            threads: None,
            busy_poll: BUSY_POLL_DEFAULT,
            uring: false,
            metrics: None,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        };
        assert_eq!(with(""), Ok(expected));
        assert_eq!(options(&with("").unwrap()), "");
    }

    #[test]
    fn options_parse_and_print_both_ways() {
        let words = [
            "ro",
            "suid",
            "dev",
            "noexec",
            "noatime",
            "nodiratime",
            "relatime",
            "strictatime",
            "sync",
            "dirsync",
            "lazytime",
            "silent",
            "allow_other",
            "soft=30s",
            "attr_timeout=0s",
            "leases=off",
            "replay_buffer=64MiB",
            "threads=4",
            "uring",
            "busy_poll=50us",
            "metrics=unix:///run/sluice/m.sock",
        ];
        for word in words {
            assert_eq!(options(&with(word).unwrap()), word);
        }
        // Every word alone and every two beside each other, in the order in which they print.
        for first in 0..words.len() {
            for second in first + 1..words.len() {
                let text = format!("{},{}", words[first], words[second]);
                let settings = with(&text).unwrap();
                assert_eq!(options(&settings), text);
                assert_eq!(with(&options(&settings)), Ok(settings));
            }
        }
        assert_eq!(options(&with(&words.join(",")).unwrap()), words.join(","));
    }

    #[test]
    fn a_later_word_overrides_an_earlier_one() {
        for (text, printed) in [
            ("ro,rw", ""),
            ("rw,ro", "ro"),
            ("soft=1s,hard", ""),
            ("attr_timeout=2s,attr_timeout=500ms", "attr_timeout=500ms"),
            ("suid,dev,nosuid,nodev", ""),
            ("noexec,exec", ""),
            ("leases=off,leases=on", ""),
            ("noatime,atime", ""),
        ] {
            assert_eq!(options(&with(text).unwrap()), printed, "{text}");
        }
    }

    #[test]
    fn what_fstab_and_systemd_add_is_dropped() {
        let text = "rw,_netdev,nofail,noauto,auto,user,users=x,owner,defaults,comment=mine,\
                    x-systemd.automount,x-systemd.idle-timeout=60,X-mount.mkdir=0755,,";
        assert_eq!(with(text), with(""));
    }

    #[test]
    fn the_word_at_fault_is_named_with_what_would_be_right() {
        for (text, fault) in [
            ("ro,alow_other", "the option \"alow_other\" is not one of ro, rw, "),
            ("leases", "the option \"leases\" needs a value: leases=on or leases=off"),
            ("leases=x", "the option \"leases=x\" is not leases=on or leases=off"),
            ("soft", "the option \"soft\" needs a time, such as soft=30s"),
            ("soft=0s", "the option \"soft=0s\" is zero; give a time such as soft=30s"),
            (
                "attr_timeout=5",
                "the option \"attr_timeout=5\" is not valid: \"5\" is not a span of time such as ",
            ),
            (
                "replay_buffer",
                "the option \"replay_buffer\" needs a size, such as replay_buffer=256MiB",
            ),
            (
                "replay_buffer=x",
                "the option \"replay_buffer=x\" is not valid: \"x\" is not an amount of data",
            ),
            ("job=slurm", "the option \"job=slurm\" is not valid: \"slurm\" is not a source "),
            ("busy_poll", "the option \"busy_poll\" needs a time, such as busy_poll=100us"),
            (
                "metrics",
                "the option \"metrics\" needs an address, such as metrics=http://127.0.0.1:9401",
            ),
            ("metrics=:1", "the option \"metrics=:1\" is not valid: \":1\" is not a place for "),
            (
                "threads=0",
                "the option \"threads=0\" needs a number from 1 to 64, such as threads=4",
            ),
            (
                "threads=x",
                "the option \"threads=x\" needs a number from 1 to 64, such as threads=4",
            ),
            ("ro=1", "the option \"ro=1\" takes no value; use ro"),
            ("size=1", "the option \"size=1\" is not one of ro, "),
        ] {
            let error = with(text).unwrap_err().to_string();
            assert!(error.starts_with(fault), "{text}: {error}");
        }
    }

    #[test]
    fn sources_parse_and_print_both_ways() {
        for text in [
            "tcp://192.0.2.7:5640/scratch",
            "tcp://[2001:db8::7]:5640/a.b-c_d",
            "unix:///run/sluice/9p.sock//scratch",
            "tcp://192.0.2.7:564//srv/scratch",
            "unix:///run/diod.sock///srv/scratch",
        ] {
            assert_eq!(text.parse::<MountSource>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_hosts_name_is_looked_up() {
        let source: MountSource = "tcp://localhost:5640/scratch".parse().unwrap();
        let ServerAddress::Tcp(address) = source.address else { panic!("{source}") };
        assert!(address.ip().is_loopback() && address.port() == 5640, "{address}");
    }

    #[test]
    fn several_proxies_have_the_same_export() {
        let text = "tcp://192.0.2.7:5640/scratch,tcp://192.0.2.8:5640/scratch";
        let settings = MountSettings::new(text, Path::new("/mnt"), "").unwrap();
        let exports: Vec<_> = settings.sources.iter().map(|s| s.export.as_str()).collect();
        assert_eq!((exports, settings.source.as_str()), (vec!["scratch"; 2], text));
    }

    #[test]
    fn what_is_no_source_is_named_with_what_would_be_right() {
        for (text, fault) in [
            ("", "\"\" is not tcp://HOST:PORT/NAME or "),
            ("server:/path", "\"server:/path\" is not tcp://HOST:PORT/NAME or "),
            ("tcp://127.0.0.1:5640", "\"tcp://127.0.0.1:5640\" is not tcp://HOST:PORT/NAME or "),
            ("tcp://127.0.0.1:5640/", "\"tcp://127.0.0.1:5640/\" does not end in an export's "),
            ("tcp://127.0.0.1:5640/a/b", "\"tcp://127.0.0.1:5640/a/b\" does not end in an "),
            ("tcp://127.0.0.1/a", "\"tcp://127.0.0.1/a\" has no port; add one, such as tcp"),
            ("unix:///run/s/a", "\"unix:///run/s/a\" is not tcp://HOST:PORT/NAME or "),
            ("unix:///run/s//", "\"unix:///run/s//\" does not end in an export's name"),
            (
                "tcp://127.0.0.1:1/a,tcp://127.0.0.1:2/b",
                "\"tcp://127.0.0.1:1/a,tcp://127.0.0.1:2/b\" names \"a\" and \"b\"; name the same",
            ),
        ] {
            let error = MountSettings::new(text, Path::new("/"), "").unwrap_err().to_string();
            assert!(error.starts_with(&format!("the source {fault}")), "{text}: {error}");
        }
        let long = format!("unix:///{}//a", "x".repeat(107));
        let error = MountSettings::new(&long, Path::new("/"), "").unwrap_err().to_string();
        assert!(error.contains("is too long: a Unix socket's path has at most 107"), "{error}");
    }
}

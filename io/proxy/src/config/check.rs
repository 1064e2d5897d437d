//! Checks that types cannot express: bounds of numbers, and names that must be known and unique.
//!
//! The same checks run on a file, where an error has its line and caret, and on the file with
//! flags applied, where an error has none.

use std::collections::BTreeSet;

use leases::LeaseTerms;
use model::{Bytes, Nanos};
use rules::Excerpt;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, ConfigLocation, LeasePolicy, ProxyConfig, Squash, TargetConfig};

/// A key with a value that is not valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConfigFault {
    /// The key at the top of the file; for a table or a table in a list, `within` is what is at fault in it.
    key: &'static str,
    within: Option<FaultyKey>,
    message: String,
}

/// A key of a table; of one in a list with its index.
#[derive(Debug, PartialEq, Eq)]
struct FaultyKey {
    index: Option<usize>,
    key: &'static str,
}

impl ConfigFault {
    pub(super) fn new(key: &'static str, message: String) -> ConfigFault {
        ConfigFault { key, within: None, message }
    }

    fn within(list: &'static str, index: usize, key: &'static str, message: String) -> ConfigFault {
        let within = Some(FaultyKey { index: Some(index), key });
        ConfigFault { key: list, within, message }
    }

    pub(super) fn in_table(table: &'static str, key: &'static str, message: String) -> ConfigFault {
        ConfigFault { key: table, within: Some(FaultyKey { index: None, key }), message }
    }

    /// Makes an error with the position of the value in the text.
    pub(super) fn in_text(self, file: &str, text: &str) -> ConfigError {
        let table = DeTable::parse(text).ok();
        let value = table.as_ref().and_then(|table| {
            let value = table.get_ref().get(self.key)?;
            let Some(FaultyKey { index, key }) = &self.within else { return Some(value) };
            let table = match index {
                Some(index) => value.get_ref().get(*index)?,
                None => value,
            };
            match table.get_ref() {
                DeValue::Table(table) => table.get(*key),
                _ => None,
            }
        });
        match value.map(|value| value.span()) {
            Some(span) => ConfigError::InvalidKey(Box::new(ConfigLocation {
                file: file.into(),
                message: self.message,
                excerpt: Excerpt::new(text, span),
            })),
            // A default conflicts with a key of the file: there is no line.
            None => ConfigError::Value { message: format!("{file}: {}", self.unplaced()) },
        }
    }

    /// Makes an error without a position, for a value that came from flags.
    pub(super) fn without_text(self) -> ConfigError {
        ConfigError::Value { message: self.unplaced() }
    }

    fn unplaced(&self) -> String {
        match &self.within {
            Some(FaultyKey { key, .. }) => format!("{}.{key}: {}", self.key, self.message),
            None => format!("{}: {}", self.key, self.message),
        }
    }
}

impl ProxyConfig {
    /// Checks every key that its type does not bound.
    pub(super) fn check(&self) -> Result<(), ConfigFault> {
        self.check_squash()?;
        self.check_node()?;
        self.check_network()?;
        self.check_counts()?;
        self.check_leases()?;
        self.check_sizes()?;
        self.check_group()?;
        self.check_exports()?;
        self.check_targets()
    }

    fn check_squash(&self) -> Result<(), ConfigFault> {
        // Id 2³²−1 means "no id" to the kernel's calls.
        for (key, id) in [("squash_uid", self.squash_uid), ("squash_gid", self.squash_gid)] {
            if id == u32::MAX || (id == 0 && self.squash != Squash::None) {
                return Err(ConfigFault::new(
                    key,
                    format!("{id} is not an unprivileged id such as 65534"),
                ));
            }
        }
        Ok(())
    }

    fn check_node(&self) -> Result<(), ConfigFault> {
        match &self.proxy_name {
            Some(node) if !api::is_name(node) => {
                let message = format!(
                    "{node:?} is not 1 to 63 letters, digits, '_', '-' and '.', beginning with a \
                     letter or digit"
                );
                Err(ConfigFault::new("proxy_name", message))
            }
            _ => Ok(()),
        }
    }

    fn check_network(&self) -> Result<(), ConfigFault> {
        match self.network {
            Some(rate) if !rate.is_bytes() || rate.per_sec() > 1 << 60 => {
                let want = "a rate of bytes, such as 10GB/s, up to 2^60 per second";
                Err(ConfigFault::new("network", format!("{rate} is not {want}")))
            }
            _ => Ok(()),
        }
    }

    fn check_counts(&self) -> Result<(), ConfigFault> {
        let bounds = [
            ("threads_max", self.threads_max, 2, 4096),
            ("threads", self.threads, 0, self.threads_max),
            ("connections_max", self.connections_max, 1, 1 << 20),
            ("sessions_max", self.sessions_max, 1, 1 << 20),
            ("open_files_max", self.open_files_max, 0, 1 << 24),
            ("locks_max", self.locks_max, 1, 1 << 24),
            ("fids_max", self.fids_max, 1, 1 << 24),
            // Tag 65535 is NOTAG, which belongs to Tversion.
            ("tags_max", self.tags_max, 1, 65535),
            ("pipes_max", self.pipes_max, 0, 4096),
            ("window_requests", self.window_requests, 1, 65535),
            ("leases_max", self.leases_max, 1, 100_000_000),
            ("mount_leases_max", self.mount_leases_max, 1, 100_000_000),
        ];
        for (key, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                let message = format!("{value} is not between {least} and {most}");
                return Err(ConfigFault::new(key, message));
            }
        }
        Ok(())
    }

    fn check_leases(&self) -> Result<(), ConfigFault> {
        let hour = LeaseTerms::TERM_MAX;
        let spans = [
            ("lease_term", self.lease_term, Nanos::from_secs(1)),
            ("lease_recall_limit", self.lease_recall_limit, Nanos::from_millis(1)),
        ];
        for (key, value, least) in spans {
            if value < least || value > hour {
                let message = format!("{value} is not between {least} and {hour}");
                return Err(ConfigFault::new(key, message));
            }
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), ConfigFault> {
        let msize = self.msize_max;
        if msize < Bytes::kib(4) || msize > Bytes::mib(4) {
            let message = format!("{msize} is not between 4KiB and 4MiB");
            return Err(ConfigFault::new("msize_max", message));
        }
        if self.bytes_in_flight_max < msize {
            let message = format!(
                "{} is less than one message of msize_max = {msize}",
                self.bytes_in_flight_max
            );
            return Err(ConfigFault::new("bytes_in_flight_max", message));
        }
        let least = self.bytes_in_flight_max.get().saturating_mul(2);
        if self.memory_max.get() < least {
            let message = format!(
                "{} is less than twice bytes_in_flight_max, {}",
                self.memory_max,
                Bytes::new(least)
            );
            return Err(ConfigFault::new("memory_max", message));
        }
        if self.window_bytes < Bytes::kib(64) {
            let message = format!("{} is less than 64KiB", self.window_bytes);
            return Err(ConfigFault::new("window_bytes", message));
        }
        if self.bytes_before_attach < Bytes::kib(1) {
            let message = format!("{} is less than 1KiB", self.bytes_before_attach);
            return Err(ConfigFault::new("bytes_before_attach", message));
        }
        Ok(())
    }

    fn check_exports(&self) -> Result<(), ConfigFault> {
        let mut names = BTreeSet::new();
        for (index, export) in self.export.iter().enumerate() {
            let name = &export.name;
            let fault = |key, message| Err(ConfigFault::within("export", index, key, message));
            if !model::is_export_name(name) {
                let want = "1 to 63 letters, digits, '_', '-' and '.'";
                return fault("name", format!("{name:?} is not {want}"));
            }
            if !names.insert(name) {
                return fault("name", format!("{name:?} names two exports; rename one"));
            }
            // Nothing orders the changes of several proxies.
            let proxies = self.group.as_ref().map_or(1, |group| group.proxies.len());
            if export.leases == LeasePolicy::Read && proxies > 1 {
                return fault(
                    "leases",
                    format!(
                        "\"read\" is for a directory that one proxy serves alone, and [group] \
                         has {proxies} proxies; leave it out"
                    ),
                );
            }
            if let Some(target) = &export.target
                && !self.target.iter().any(|known| known.name == *target)
            {
                return fault("target", format!("{target:?} is not the name of a [[target]]"));
            }
        }
        Ok(())
    }

    fn check_targets(&self) -> Result<(), ConfigFault> {
        let mut names = BTreeSet::new();
        for (index, target) in self.target.iter().enumerate() {
            let name = &target.name;
            let fault = |key, message| Err(ConfigFault::within("target", index, key, message));
            if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
                return fault("name", format!("{name:?} is not 1 to 255 printable characters"));
            }
            if name == api::ALL_TARGETS {
                return fault("name", format!("{name:?} means all targets; choose another name"));
            }
            if !names.insert(name) {
                return fault("name", format!("{name:?} names two targets; rename one"));
            }
            if target.slots_max.is_some_and(|slots| !(1..=65536).contains(&slots)) {
                return fault("slots_max", "the number of slots is not between 1 and 65536".into());
            }
            if target.dirty_budget < Bytes::kib(64) {
                let message = format!("{} is less than 64KiB", target.dirty_budget);
                return fault("dirty_budget", message);
            }
            check_capacity(target).or_else(|(key, message)| fault(key, message))?;
        }
        Ok(())
    }
}

/// Checks what a target gives: the unit of each rate, its bound, and that both directions are there.
fn check_capacity(target: &TargetConfig) -> Result<(), (&'static str, String)> {
    let rates = [
        ("capacity_read", target.capacity_read, true),
        ("capacity_write", target.capacity_write, true),
        ("capacity_metadata", target.capacity_metadata, false),
    ];
    for (key, rate, is_bytes) in rates {
        let Some(rate) = rate else { continue };
        if rate.is_bytes() != is_bytes {
            let want =
                if is_bytes { "bytes, such as 2GB/s" } else { "operations, such as 50kops/s" };
            return Err((key, format!("{rate} is not a rate of {want}")));
        }
        if rate.per_sec() > 1 << 60 {
            return Err((key, format!("{rate} is more than 2^60 per second")));
        }
    }
    match (target.capacity_read, target.capacity_write) {
        (Some(_), None) => Err(("capacity_read", "capacity_write is missing".into())),
        (None, Some(_)) => Err(("capacity_write", "capacity_read is missing".into())),
        _ => Ok(()),
    }
}

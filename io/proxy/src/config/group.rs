//! Checks of the table `[group]`, by itself and against the one before a reload.

use std::collections::BTreeSet;

use ninep::dialect::{PROXIES_MAX, PROXY_NAME_MAX, is_proxy_name};

use super::check::ConfigFault;
use super::{ConfigError, GroupConfig, ProxyConfig};

impl GroupConfig {
    /// Makes the group of a proxy that is called as it is at the controller, in its first epoch.
    pub fn new(proxies: Vec<String>) -> GroupConfig {
        GroupConfig { name: None, proxies, epoch: 1 }
    }

    fn names(&self) -> BTreeSet<&str> {
        self.proxies.iter().map(String::as_str).collect()
    }
}

impl ProxyConfig {
    /// Returns the name of this proxy in its group.
    pub fn name_in_group(&self) -> Option<&str> {
        self.group.as_ref()?.name.as_deref().or(self.proxy_name.as_deref())
    }

    pub(super) fn check_group(&self) -> Result<(), ConfigFault> {
        let Some(group) = &self.group else { return Ok(()) };
        let fault = |key, message| Err(ConfigFault::in_table("group", key, message));
        if !(1..=PROXIES_MAX).contains(&group.proxies.len()) {
            let count = group.proxies.len();
            return fault("proxies", format!("{count} names are not 1 to {PROXIES_MAX}"));
        }
        if let Some(name) = group.proxies.iter().find(|name| !is_proxy_name(name.as_bytes())) {
            let want = format!("1 to {PROXY_NAME_MAX} letters, digits, '_', '-' and '.'");
            return fault("proxies", format!("{name:?} is not {want}"));
        }
        let mut names = BTreeSet::new();
        if let Some(name) = group.proxies.iter().find(|name| !names.insert(*name)) {
            return fault("proxies", format!("{name:?} is in the list twice"));
        }
        let Some(name) = self.name_in_group() else {
            let message = "name is missing; add the name of this proxy in the group, or proxy_name";
            return Err(ConfigFault::new("group", message.into()));
        };
        if !names.contains(&name.to_owned()) {
            let key = if group.name.is_some() { "name" } else { "proxies" };
            let names = group.proxies.join(", ");
            return fault(key, format!("{name:?}, this proxy, is not one of its proxies: {names}"));
        }
        if group.epoch == 0 {
            return fault("epoch", "0 is not 1 or more".into());
        }
        Ok(())
    }

    /// Checks that the epoch says whether the list is another than `before`.
    ///
    /// # Errors
    /// The epoch has decreased, or stayed while the names changed.
    pub(crate) fn check_group_after(&self, before: &ProxyConfig) -> Result<(), ConfigError> {
        let (Some(group), Some(before)) = (&self.group, &before.group) else { return Ok(()) };
        let message = if group.epoch < before.epoch {
            format!("{} is less than {}, which is in force", group.epoch, before.epoch)
        } else if group.epoch == before.epoch && group.names() != before.names() {
            let names = before.proxies.join(", ");
            format!("{} is the epoch of {names}; raise it with each change of proxies", group.epoch)
        } else {
            return Ok(());
        };
        Err(ConfigFault::in_table("group", "epoch", message).without_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ProxyConfig, String> {
        ProxyConfig::parse("f.toml", text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_group_names_this_proxy_and_all_others() {
        let text = "[group]\nname = \"b\"\nproxies = [\"a\", \"b\"]\n";
        let config = parse(text).unwrap();
        let epoch = config.group.as_ref().map(|group| group.epoch);
        assert_eq!((config.name_in_group(), epoch), (Some("b"), Some(1)));
        let text = "proxy_name = \"a\"\n[group]\nproxies = [\"a\"]\nepoch = 7\n";
        let config = parse(text).unwrap();
        let epoch = config.group.as_ref().map(|group| group.epoch);
        assert_eq!((config.name_in_group(), epoch), (Some("a"), Some(7)));
        assert_eq!(parse("").unwrap().name_in_group(), None);
        assert_eq!(parse("proxy_name = \"a\"").unwrap().name_in_group(), None, "it is in no group");
    }

    #[test]
    fn each_fault_of_a_group_is_at_its_value() {
        let many: Vec<_> = (0..65).map(|n| format!("\"p{n}\"")).collect();
        let many = format!("[group]\nname = \"p1\"\nproxies = [{}]", many.join(","));
        let cases = [
            (
                "[group]\nproxies = [\"a\"]",
                "f.toml:1:1: name is missing; add the name of this proxy in the group, or proxy_name",
            ),
            (
                "[group]\nname = \"c\"\nproxies = [\"a\", \"b\"]",
                "f.toml:2:8: \"c\", this proxy, is not one of its proxies: a, b",
            ),
            (
                "proxy_name = \"c\"\n[group]\nproxies = [\"a\", \"b\"]",
                "f.toml:3:11: \"c\", this proxy, is not one of its proxies: a, b",
            ),
            (
                "[group]\nname = \"a\"\nproxies = [\"a\", \"b/c\"]",
                "f.toml:3:11: \"b/c\" is not 1 to 64 letters, digits, '_', '-' and '.'",
            ),
            (
                "[group]\nname = \"a\"\nproxies = [\"a\", \"b\", \"a\"]",
                "f.toml:3:11: \"a\" is in the list twice",
            ),
            ("[group]\nname = \"a\"\nproxies = []", "f.toml:3:11: 0 names are not 1 to 64"),
            (&many, "f.toml:3:11: 65 names are not 1 to 64"),
            (
                "[group]\nname = \"a\"\nproxies = [\"a\"]\nepoch = 0",
                "f.toml:4:9: 0 is not 1 or more",
            ),
            ("[group]\nname = \"a\"", "f.toml:1:1: missing field \"proxies\""),
            (
                "[group]\nname = \"a\"\nproxies = [\"a\"]\nepochs = 2",
                "f.toml:4:1: unknown field \"epochs\", expected one of \"name\", \"proxies\", \
                 \"epoch\"",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).unwrap_err().lines().next(), Some(expected));
        }
    }

    #[test]
    fn a_group_of_several_grants_no_leases() {
        let with = |proxies: &str| {
            parse(&format!(
                "[group]\nname = \"a\"\nproxies = [{proxies}]\n[[export]]\nname = \"x\"\n\
                 dir = \"/\"\nleases = \"read\"\n"
            ))
        };
        assert!(with("\"a\"").is_ok());
        let error = with("\"a\", \"b\"").unwrap_err();
        assert!(error.starts_with("f.toml:7:10: \"read\" is for a directory"), "{error}");
    }

    #[test]
    fn a_reload_changes_the_list_with_the_epoch_alone() {
        let with = |epoch: u64, proxies: &str| {
            parse(&format!("[group]\nname = \"a\"\nepoch = {epoch}\nproxies = {proxies}")).unwrap()
        };
        let (one, two) = (with(2, "[\"a\"]"), with(2, "[\"a\", \"b\"]"));
        let error = two.check_group_after(&one).unwrap_err().to_string();
        assert_eq!(error, "group.epoch: 2 is the epoch of a; raise it with each change of proxies");
        let error = with(1, "[\"a\"]").check_group_after(&one).unwrap_err().to_string();
        assert_eq!(error, "group.epoch: 1 is less than 2, which is in force");
        assert!(with(3, "[\"a\", \"b\"]").check_group_after(&one).is_ok());
        assert!(with(2, "[\"b\", \"a\"]").check_group_after(&two).is_ok(), "the order is nothing");
        let none = parse("").unwrap();
        assert!(none.check_group_after(&one).is_ok() && one.check_group_after(&none).is_ok());
    }
}

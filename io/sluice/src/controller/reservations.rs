//! The section `[reservations]` of the controller's configuration.
//!
//! ```text
//!   best_effort, pool ───────────────────────────┐
//!   [reservations.each_user] … of every one ─────┼─► ReservationSettings
//!   [[reservations.ceiling]] user = 7 … of one ──┘
//! ```

use anyhow::{Context as _, bail, ensure};
use controller::ReservationSettings;
use model::{Bytes, Ops, Rate, Share};
use proxy::config::Percentage;
use reserve::{Capacity, Ceiling, CeilingSubject};
use serde::Deserialize;

/// The section of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReservationConfig {
    best_effort: Option<Percentage>,
    pool: Option<Rate>,
    node: Option<Rate>,
    each_user: Option<CeilingConfig>,
    each_group: Option<CeilingConfig>,
    each_account: Option<CeilingConfig>,
    each_project: Option<CeilingConfig>,
    #[serde(default)]
    ceiling: Vec<OwnCeiling>,
}

/// A ceiling; without a key there is no bound of that kind.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CeilingConfig {
    bytes: Option<Bytes>,
    operations: Option<Ops>,
    reservations: Option<u32>,
}

/// The ceiling of one subject.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnCeiling {
    user: Option<u32>,
    group: Option<u32>,
    account: Option<String>,
    project: Option<u32>,
    bytes: Option<Bytes>,
    operations: Option<Ops>,
    reservations: Option<u32>,
}

impl ReservationConfig {
    /// The settings of the controller.
    ///
    /// # Errors
    /// If a value does not fit.
    pub(super) fn settings(self) -> anyhow::Result<ReservationSettings> {
        let mut settings = ReservationSettings::default();
        if let Some(part) = self.best_effort {
            settings.best_effort = Share::ratio(part.ppm().into(), 1_000_000);
        }
        settings.pool = self.pool.map(|rate| bandwidth("pool", rate)).transpose()?;
        let node = |rate| bandwidth("node", rate).map(|_| rate);
        settings.node = self.node.map(node).transpose()?;
        let ceilings = &mut settings.ceilings;
        for (of, config) in [
            (&mut ceilings.user, self.each_user),
            (&mut ceilings.group, self.each_group),
            (&mut ceilings.account, self.each_account),
            (&mut ceilings.project, self.each_project),
        ] {
            let Some(CeilingConfig { bytes, operations, reservations }) = config else { continue };
            // A user's number of reservations stays bounded.
            let count = reservations.or(of.count);
            *of = Ceiling { bytes, ops: operations, count };
        }
        let count = self.ceiling.len();
        ensure!(count <= OWN_MAX, "{count} ceilings: at most {OWN_MAX} are accepted");
        let mut subjects = std::collections::BTreeSet::new();
        for (at, own) in self.ceiling.into_iter().enumerate() {
            let (subject, ceiling) = own.parts(at + 1)?;
            ensure!(
                subjects.insert(subject.clone()),
                "ceiling {}: {subject} has a ceiling already",
                at + 1
            );
            settings.own_ceilings.push((subject, ceiling));
        }
        Ok(settings)
    }
}

fn bandwidth(key: &str, rate: Rate) -> anyhow::Result<Capacity> {
    let capacity = Capacity::single(rate).filter(|_| rate.is_bytes());
    let want = "a rate in bytes, such as 100GB/s, up to 2^60 per second";
    capacity.with_context(|| format!("{key}: {rate} is not {want}"))
}

impl OwnCeiling {
    fn parts(self, nth: usize) -> anyhow::Result<(CeilingSubject, Ceiling)> {
        let OwnCeiling { user, group, account, project, bytes, operations, reservations } = self;
        let fits = account.as_ref().is_none_or(|name| (1..=ACCOUNT_MAX).contains(&name.len()));
        ensure!(fits, "ceiling {nth}: account has 1 to {ACCOUNT_MAX} bytes");
        let subject = match (user, group, account, project) {
            (Some(uid), None, None, None) => CeilingSubject::User(uid),
            (None, Some(gid), None, None) => CeilingSubject::Group(gid),
            (None, None, Some(name), None) => CeilingSubject::Account(name.into()),
            (None, None, None, Some(id)) => CeilingSubject::Project(id),
            _ => bail!("ceiling {nth}: name exactly one of user, group, account and project"),
        };
        Ok((subject, Ceiling { bytes, ops: operations, count: reservations }))
    }
}

/// The most subjects with a ceiling of their own, as in the calendar.
const OWN_MAX: usize = 65_536;
/// The longest name of an account, as in the calendar.
const ACCOUNT_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<ReservationSettings, String> {
        let config: ReservationConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn section_has_the_part_of_best_effort_a_pool_and_ceilings() {
        let settings = settings(
            "best_effort = \"20%\"\npool = \"100GB/s\"\nnode = \"12GB/s\"\n\
             [each_user]\nbytes = \"10TB\"\n\
             [each_project]\nreservations = 5\noperations = \"7ops\"\n\
             [[ceiling]]\nuser = 1000\nreservations = 9\n\
             [[ceiling]]\naccount = \"lab\"\n",
        )
        .unwrap();
        assert_eq!(settings.best_effort, Share::ratio(1, 5));
        assert_eq!(settings.pool.unwrap().write_per_sec(), 100_000_000_000);
        assert_eq!(settings.node, Rate::bytes_per_sec(12_000_000_000));
        let user = Ceiling {
            bytes: Some(Bytes::new(10_000_000_000_000)),
            count: Some(4_096),
            ..Ceiling::default()
        };
        let project = Ceiling { count: Some(5), ops: Some(Ops::new(7)), ..Ceiling::default() };
        assert_eq!((settings.ceilings.user, settings.ceilings.project), (user, project));
        let [(one, own), (lab, none)] = &*settings.own_ceilings else { panic!("{settings:?}") };
        assert_eq!((one, own.count), (&CeilingSubject::User(1000), Some(9)));
        assert_eq!((lab, none), (&CeilingSubject::Account("lab".into()), &Ceiling::default()));
        assert_eq!(ReservationConfig::default().settings().unwrap(), Default::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, says) in [
            ("best_effort = \"100%\"", "100%"),
            ("pool = \"5ops/s\"", "pool: 5ops/s"),
            ("node = \"5ops/s\"", "node: 5ops/s"),
            ("each_host = {}", "each_host"),
            ("[[ceiling]]\nreservations = 1", "ceiling 1"),
            ("[[ceiling]]\nuser = 1\ngroup = 1", "ceiling 1"),
            ("[[ceiling]]\naccount = \"\"", "account"),
            ("[[ceiling]]\nuser = 1\n[[ceiling]]\nuser = 1", "user 1"),
        ] {
            let error = settings(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}

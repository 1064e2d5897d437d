//! `sluice decay`: usage, entitlement and level of each key of each decay.
//!
//! ```text
//!   GET /v1/decays ─► decays ─► accounts ─► a table, highest usage of the entitlement first
//! ```

use std::fmt::Write as _;
use std::io::Write as _;

use api::{DecayAccountTable, WireDecayAccount, WireDecayAccounts, WireRate};
use clap::ValueEnum;
use model::{Nanos, Rate};

use crate::credentials::ControllerArgs;
use crate::top::table;

/// Show decay accounts: usage, entitlement, level and limit
///
/// LEVEL is `free`, `warned` (80 % of the entitlement used), `throttled` (the limit is lowered), or
/// `floor` (to its lowest value). FREE IN is the time until throttling ends if the key has no
/// further usage.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sluice decay\n  sluice decay --subject uid=1000 --json")]
pub(crate) struct Args {
    /// Action.
    #[arg(value_enum, default_value = "list")]
    action: DecayAction,
    #[command(flatten)]
    controller: ControllerArgs,
    /// Key of the account to show, such as uid=1000 or jobid=dd.500 [default: all accounts]
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// JSON output.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DecayAction {
    /// List the accounts
    List,
}

/// Runs `sluice decay`: prints the accounts of all decays.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let DecayAction::List = args.action;
    let client = args.controller.client()?;
    let decays = client.decays(args.subject.as_deref())?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&decays)? + "\n",
        false => list(&decays, args.subject.as_deref()),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn list(decays: &WireDecayAccounts, subject: Option<&str>) -> String {
    if decays.decays.is_empty() {
        return "no decays: the rules contain no [[decay]]\n".into();
    }
    let rows: Vec<_> = decays.decays.iter().flat_map(|decay| rows(decay, decays.at_ns)).collect();
    if rows.is_empty() {
        return match subject {
            Some(subject) => format!("{subject} has no usage that a decay counts\n"),
            None => "no accounts: no decay has counted usage yet\n".into(),
        };
    }
    let head = ["DECAY", "SUBJECT", "USED", "OF", "RATIO", "LEVEL", "LIMIT", "FREE IN"];
    let mut text = table::aligned(&head, &[2, 3, 4], rows);
    for decay in &decays.decays {
        for account in &decay.accounts {
            if let (Some(pattern), Some(ppm)) = (&account.pattern, account.pattern_factor_ppm) {
                let (whole, rest) = (ppm / 1_000_000, ppm / 10_000 % 100);
                let (name, subject) = (&decay.rule.name, &account.subject);
                let _ = writeln!(
                    text,
                    "{name} {subject}: entitlement × {whole}.{rest:02} for {pattern}"
                );
            }
        }
    }
    for decay in decays.decays.iter().filter(|decay| decay.omitted > 0) {
        let _ = writeln!(text, "{} more accounts of {}", decay.omitted, decay.rule.name);
    }
    if !decays.contended && decays.decays.iter().any(|decay| decay.rule.contention) {
        let _ = writeln!(text, "no contention: decays with contention throttle no key now");
    }
    text
}

fn rows(decay: &DecayAccountTable, at_ns: u64) -> impl Iterator<Item = Vec<String>> {
    let in_bytes = decay.rule.resource != "metadata";
    decay.accounts.iter().map(move |account| {
        let WireDecayAccount { subject, level, used, entitlement, limit, until_ns, .. } = account;
        let free = until_ns.map(|until| until.saturating_sub(at_ns).div_ceil(1_000_000_000));
        vec![
            decay.rule.name.clone(),
            subject.clone(),
            amount(*used, in_bytes),
            amount(*entitlement, in_bytes),
            format!("{}%", u128::from(*used) * 100 / u128::from((*entitlement).max(1))),
            level.clone(),
            limit.map(rate).unwrap_or_default(),
            free.map(|seconds| Nanos::from_secs(seconds).to_string()).unwrap_or_default(),
        ]
    })
}

/// Formats a rate with its unit.
pub(crate) fn rate(form: WireRate) -> String {
    Rate::try_from(form).map_or_else(|error| error.to_string(), |rate| rate.to_string())
}

/// Formats an amount with three digits and a unit.
pub(crate) fn amount(count: u64, in_bytes: bool) -> String {
    let (units, last) = if in_bytes {
        (["B", "kB", "MB", "GB", "TB"], "PB")
    } else {
        (["ops", "kops", "Mops", "Gops", "Tops"], "Pops")
    };
    let mut tenths = u128::from(count) * 10;
    for unit in units {
        if tenths < 10_000 {
            let point = if tenths < 1_000 && unit != units[0] { Some(tenths % 10) } else { None };
            return match point {
                Some(tenth) => format!("{}.{tenth}{unit}", tenths / 10),
                None => format!("{}{unit}", tenths / 10),
            };
        }
        tenths /= 1_000;
    }
    format!("{}{last}", tenths / 10)
}

#[cfg(test)]
mod tests {
    use api::DecayRuleReport;

    use super::*;

    #[test]
    fn amounts_have_three_digits() {
        let cases = [(0, "0B"), (999, "999B"), (1_000, "1.0kB"), (51_234_000_000, "51.2GB")];
        for (count, text) in cases {
            assert_eq!(amount(count, true), text);
        }
        assert_eq!(amount(123_456, false), "123kops");
    }

    #[test]
    fn an_account_is_a_line_and_says_when_it_is_free() {
        let account = WireDecayAccount {
            subject: "uid=1000".into(),
            level: "floor".into(),
            used: 50_400_000_000,
            entitlement: 42_000_000_000,
            limit: Some(WireRate::Bytes(10_000_000)),
            until_ns: Some(95_000_000_001),
            pattern: Some("small-writes".into()),
            pattern_factor_ppm: Some(503_000),
            ..WireDecayAccount::default()
        };
        let rule = DecayRuleReport { name: "writers".into(), ..DecayRuleReport::default() };
        let decay = DecayAccountTable { rule, accounts: vec![account], omitted: 3 };
        let decays =
            WireDecayAccounts { at_ns: 5_000_000_001, contended: true, decays: vec![decay] };
        assert_eq!(
            list(&decays, None),
            "DECAY    SUBJECT     USED      OF  RATIO  LEVEL  LIMIT   FREE IN\n\
             writers  uid=1000  50.4GB  42.0GB   120%  floor  10MB/s  90s\n\
             writers uid=1000: entitlement × 0.50 for small-writes\n\
             3 more accounts of writers\n"
        );
    }
}

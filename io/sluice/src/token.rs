//! `sluice token`: the access tokens of a controller.
//!
//! ```text
//!   --data DIR, controller stopped ──► its records ─┐
//!   --controller URL, it runs ───────► /v1/tokens ──┴► the token, once; names and roles
//! ```

use std::io::Write as _;
use std::path::PathBuf;
use std::time::SystemTime;

use ::controller::{DirectoryError, Offline, OfflineError, StorePlace};
use anyhow::{Context, anyhow, bail};
use api::{NewToken, Role, TokenReport, Tokens};
use clap::Subcommand;
use nix::unistd::User;

use crate::credentials::ControllerArgs;
use crate::when::{self, MomentArg, forms_of_expiry};

/// Create, list and revoke access tokens of a controller
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: TokenAction,
}

const AFTER_HELP: &str = "\
Create the first token with --data while the controller is stopped, or at a controller that has no
tokens yet. From then on every call needs a token. docs/ACCESS.md lists the rights of each role.

Examples:
  sluice token create root --role admin --data /var/lib/sluice/controller
  sluice token create ann --role operate --expires 90d
  sluice token create bob --role user --user bob
  sluice token create slurm --role batch
  sluice token revoke ann";

#[derive(Debug, Subcommand)]
enum TokenAction {
    /// Create a token and print it; it cannot be shown again
    #[command(after_help = forms_of_expiry!())]
    Create {
        /// Name of the token: letters, digits, _ - and . only.
        name: String,
        /// Rights of the token: user (usage of one user), read (all usage), operate (and change
        /// rules), admin (and create tokens), proxy (for proxies), or batch (jobs and reservations of
        /// all users, for a batch system).
        #[arg(long)]
        role: Role,
        /// User whose usage a token of role user shows, by name or number.
        #[arg(long, value_name = "USER", value_parser = user)]
        user: Option<u32>,
        /// Expiry of the token [default: none]
        #[arg(long, value_name = "TIME", value_parser = when::expiry, allow_hyphen_values = true)]
        expires: Option<MomentArg>,
        #[command(flatten)]
        store: TokenStoreArgs,
        /// New records in place of a lost decided.db, without its rules and tokens; requires
        /// --data.
        #[arg(long, requires = "data")]
        accept_lost_records: bool,
        /// JSON output: the token and its record.
        #[arg(long)]
        json: bool,
    },
    /// List tokens with their roles
    List {
        #[command(flatten)]
        store: TokenStoreArgs,
        /// JSON output.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token; calls with it are refused from now on
    Revoke {
        /// Name of the token.
        name: String,
        #[command(flatten)]
        store: TokenStoreArgs,
    },
}

/// The controller, running or stopped, whose tokens are meant.
#[derive(Debug, clap::Args)]
struct TokenStoreArgs {
    /// State directory of a controller that is not running.
    #[arg(long, value_name = "DIR", conflicts_with = "controller")]
    data: Option<PathBuf>,
    /// With --data: store of the controller, as for `sluice controller`.
    #[arg(long, value_name = "STORE", requires = "data", default_value = "sqlite",
          value_parser = crate::controller::store)]
    store: StorePlace,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Runs `sluice token`: creates, lists or revokes tokens.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let text = match args.action {
        TokenAction::Create {
            name,
            role,
            user,
            expires,
            store: place,
            accept_lost_records,
            json,
        } => {
            let expires_s = expires.map(|expires| expires.seconds());
            let new = NewToken { name, role, user, expires_s };
            let made = match place.offline(accept_lost_records)? {
                Some(mut offline) => offline.make_token(&new)?,
                None => place.controller.client()?.make_token(&new)?,
            };
            if json { pretty(&made)? } else { made.token + "\n" }
        }
        TokenAction::List { store: place, json } => {
            let tokens = match place.offline(false)? {
                Some(offline) => offline.tokens(),
                None => place.controller.client()?.tokens()?,
            };
            if json { pretty(&tokens)? } else { table(&tokens, now_s()) }
        }
        TokenAction::Revoke { name, store: place } => {
            match place.offline(false)? {
                Some(mut offline) => offline.revoke_token(&name)?,
                None => place.controller.client()?.revoke_token(&name)?,
            };
            format!("token {name} is revoked\n")
        }
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

impl TokenStoreArgs {
    fn offline(&self, accept_lost: bool) -> anyhow::Result<Option<Offline>> {
        let Some(data) = &self.data else { return Ok(None) };
        match Offline::open(data, &self.store, accept_lost) {
            Err(OfflineError::Directory(DirectoryError::InUse { path, process: holder })) => bail!(
                "a controller, process {holder}, runs on {}; give --controller URL instead of \
                 --data",
                path.display()
            ),
            outcome => Ok(Some(outcome?)),
        }
    }
}

fn table(tokens: &Tokens, now_s: u64) -> String {
    let width = tokens.tokens.iter().map(|token| token.name.len()).max().unwrap_or(0).max(4);
    let mut text = format!("{:width$}  {:7}  {:>7}  ENDS\n", "NAME", "ROLE", "USER");
    for TokenReport { name, role, user, expires_s, .. } in &tokens.tokens {
        let user = user.map_or(String::new(), |user| user.to_string());
        let ends = match expires_s {
            None => "when it is revoked".into(),
            Some(at) if *at <= now_s => "has expired".into(),
            Some(at) => format!("in {}", left(at - now_s)),
        };
        text += &format!("{name:width$}  {role:7}  {user:>7}  {ends}\n");
    }
    text
}

/// Formats a span of time: `3 d`, `5 h`, `2 min`.
fn left(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Parses a user's number, or a user's name on this machine.
pub(crate) fn user(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    match User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        _ => Err(format!("{text:?} is neither a number nor a user of this machine")),
    }
}

/// Returns the seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(crate) fn pretty(value: &impl serde::Serialize) -> anyhow::Result<String> {
    let text = serde_json::to_string_pretty(value).context("cannot write JSON");
    text.map(|text| text + "\n").map_err(|error| anyhow!(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_each_is_for_and_when_it_ends() {
        let token = |name: &str, role, user, expires_s| TokenReport {
            name: name.into(),
            role,
            user,
            created_s: 1,
            expires_s,
        };
        let tokens = Tokens {
            tokens: vec![
                token("a-long-one", Role::Operate, None, None),
                token("b", Role::User, Some(1000), Some(5)),
                token("c", Role::Read, None, Some(100_000)),
            ],
        };
        assert_eq!(
            table(&tokens, 10),
            "NAME        ROLE        USER  ENDS\n\
             a-long-one  operate           when it is revoked\n\
             b           user        1000  has expired\n\
             c           read              in 27 h\n"
        );
    }

    #[test]
    fn users_are_numbers_or_names_of_this_machine() {
        assert_eq!(user("7"), Ok(7));
        assert_eq!(user("root"), Ok(0));
        assert!(user("no such user").unwrap_err().contains("\"no such user\""));
    }
}

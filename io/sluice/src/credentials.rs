//! Address and credentials of the controller of a command: from flags, else from variables.
//!
//! ```text
//!   --ca, --token-file, --cert, --key ─┐
//!   SLUICE_CA, SLUICE_TOKEN_FILE,      ├─► Credentials ─┐
//!   SLUICE_TOKEN ──────────────────────┘                ├─► ApiClient
//!   --controller, SLUICE_CONTROLLER, the default     ───┘
//! ```
//!
//! With a token the controller must be named (`Credentials::controllers`).

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use http::{ApiClient, Credentials, Endpoint, Endpoints};

use crate::failure::CommandError;

/// The caller's credentials, and the authority that the controller's certificate must be from.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CredentialArgs {
    /// Certificate authority of the controller, for https:// URLs [default: $SLUICE_CA]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// File with the access token for the controller, readable by its owner only [default:
    /// $SLUICE_TOKEN_FILE, or the token itself in $SLUICE_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Client certificate for the controller (`sluice cert issue --client`).
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, readable by its owner only.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// The controller to call, and the caller's credentials.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControllerArgs {
    /// URL of the controller: https://HOST:PORT, http://127.0.0.1:PORT or unix:///path, with
    /// commas between several [default: $SLUICE_CONTROLLER, or without a token
    /// http://127.0.0.1:5650]
    #[arg(long, value_name = "URL")]
    controller: Option<Endpoints>,
    #[command(flatten)]
    credentials: CredentialArgs,
}

impl CredentialArgs {
    /// Returns the credentials of the flags, and of variables for flags that are not given.
    pub(crate) fn credentials(&self) -> Credentials {
        let mut credentials = self.files();
        // A flag takes precedence over variables.
        if self.token_file.is_none() {
            credentials.token = variable("SLUICE_TOKEN");
        }
        credentials
    }

    /// Returns the credentials for one address. If the connection is not encrypted, a token from a
    /// variable is omitted; a token from a flag is kept, so that it is refused with the cause.
    pub(crate) fn credentials_for(&self, place: &Endpoint) -> Credentials {
        match place.is_private() {
            true => self.credentials(),
            false => Credentials { token_file: self.token_file.clone(), ..Credentials::default() },
        }
    }

    /// Returns the credentials of a long-running process, with the token in a file.
    pub(crate) fn files(&self) -> Credentials {
        let file = |flag: &Option<PathBuf>, name| {
            flag.clone().or_else(|| variable(name).map(PathBuf::from))
        };
        Credentials {
            ca: file(&self.ca, "SLUICE_CA"),
            token_file: file(&self.token_file, "SLUICE_TOKEN_FILE"),
            token: None,
            cert: self.cert.clone(),
            key: self.key.clone(),
        }
    }
}

impl ControllerArgs {
    /// Connects to the controller that flags, variable or default name.
    pub(crate) fn client(&self) -> anyhow::Result<ApiClient> {
        Ok(ApiClient::at(self.endpoints()?)?.with(&self.credentials.credentials())?)
    }

    /// Returns the variables with which a command of this one calls the same controller, also if it
    /// is the default one: the command has a token, which goes to a named controller only.
    pub(crate) fn environment(&self) -> anyhow::Result<Vec<(&'static str, OsString)>> {
        let mut variables = vec![(VARIABLE, self.endpoints()?.to_string().into())];
        let ca = self.credentials.ca.as_ref().map(|ca| ca.clone().into_os_string());
        variables.extend(ca.map(|ca| ("SLUICE_CA", ca)));
        Ok(variables)
    }

    fn endpoints(&self) -> anyhow::Result<Endpoints> {
        let named = match &self.controller {
            Some(named) => Some(named.clone()),
            None => named_controller()?,
        };
        Ok(self.credentials.credentials().controllers(named)?)
    }
}

/// Returns the controller that the environment names.
pub(crate) fn named_controller() -> anyhow::Result<Option<Endpoints>> {
    match std::env::var(VARIABLE) {
        Ok(text) => Ok(Some(text.parse().context(VARIABLE)?)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(CommandError::argument(VARIABLE, format!("{VARIABLE}: {error}")).into()),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The variable with the controller's URL.
const VARIABLE: &str = "SLUICE_CONTROLLER";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_the_token_of_its_job_is_given_the_name_of_the_controller() {
        // Without a token, as these tests run.
        let args = |controller: Option<&str>| ControllerArgs {
            controller: controller.map(|url| url.parse().unwrap()),
            credentials: CredentialArgs::default(),
        };
        for (given, named) in [
            (None, http::credentials::DEFAULT_CONTROLLER),
            (Some("https://a:1,https://b:1"), "https://a:1,https://b:1"),
        ] {
            let named =
                std::env::var(VARIABLE).ok().filter(|_| given.is_none()).unwrap_or(named.into());
            assert_eq!(args(given).environment().unwrap(), [(VARIABLE, named.into())]);
        }
    }
}

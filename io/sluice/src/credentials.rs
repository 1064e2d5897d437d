//! What commands show a controller, and where it is: flags, and variables where there are none.
//!
//! ```text
//!   --ca, --token-file, --cert, --key ─┐
//!   SLUICE_CA, SLUICE_TOKEN_FILE,      ├─► Credentials ─┐
//!   SLUICE_TOKEN ──────────────────────┘                ├─► Client
//!   --controller, SLUICE_CONTROLLER, the usual place ───┘
//! ```

use std::path::PathBuf;

use anyhow::{Context, bail};
use api::{ApiClient, Credentials, Endpoint, Endpoints};

/// What is shown to a controller, and whom to believe that it is one.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CredentialArgs {
    /// The authority of the controller's certificate, for https:// places [default: $SLUICE_CA]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// A file with the token, which nobody else may read [default: $SLUICE_TOKEN_FILE, or the
    /// token itself in $SLUICE_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// A client certificate.
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its key, which nobody else may read.
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

/// Which controller is asked, and what it is shown.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControllerArgs {
    /// The controller, https://HOST:PORT, http://127.0.0.1:PORT or unix:///path; of several all of
    /// them, with commas [default: $SLUICE_CONTROLLER, or http://127.0.0.1:5650]
    #[arg(long, value_name = "URL")]
    controller: Option<Endpoints>,
    #[command(flatten)]
    credentials: CredentialArgs,
}

impl CredentialArgs {
    /// What the flags say, and the variables where they say nothing.
    pub(crate) fn credentials(&self) -> Credentials {
        let mut credentials = self.files();
        // A flag counts before any variable.
        if self.token_file.is_none() {
            credentials.token = variable("SLUICE_TOKEN");
        }
        credentials
    }

    /// The same for one place: where a token must not be sent, only a flag says that it shall be,
    /// and is told why not.
    pub(crate) fn credentials_for(&self, place: &Endpoint) -> Credentials {
        let clear = matches!(place, Endpoint::Http { .. }) && !place.is_local();
        match clear {
            true => Credentials { token_file: self.token_file.clone(), ..Credentials::default() },
            false => self.credentials(),
        }
    }

    /// The same for what runs for long: the token is in a file.
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
    /// A client of the controller that is meant.
    pub(crate) fn client(&self) -> anyhow::Result<ApiClient> {
        let places = match &self.controller {
            Some(places) => places.clone(),
            None => match named_controller()? {
                Some(places) => places,
                None => crate::controller::DEFAULT_LISTEN.parse().expect("it is a place"),
            },
        };
        Ok(ApiClient::at(places)?.with(&self.credentials.credentials())?)
    }
}

/// The controller that the environment names.
pub(crate) fn named_controller() -> anyhow::Result<Option<Endpoints>> {
    match std::env::var(VARIABLE) {
        Ok(text) => Ok(Some(text.parse().context(VARIABLE)?)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => bail!("{VARIABLE}: {error}"),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Names the controller where no flag does.
const VARIABLE: &str = "SLUICE_CONTROLLER";

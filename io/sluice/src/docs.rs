//! `sluice docs`: documents that are made from the code.

use std::io::Write;

use clap::Subcommand;

/// Prints a document that is made from the code.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    document: MadeDocument,
}

#[derive(Debug, Subcommand)]
enum MadeDocument {
    /// docs/CONFIG.md, the keys of the configuration file.
    Config,
    /// docs/METRICS.md, the names that Prometheus gets.
    Metrics,
    /// docs/ACCESS.md, who may do what at a controller.
    Access,
    /// The OpenAPI description of the proxy's control API, or of the controller's.
    Openapi {
        /// The controller's.
        #[arg(long)]
        controller: bool,
    },
}

/// Prints the document.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let text = match args.document {
        MadeDocument::Config => proxy::config::markdown(),
        MadeDocument::Metrics => api::metrics::markdown(),
        MadeDocument::Access => controller::markdown(),
        MadeDocument::Openapi { controller: false } => proxy::control::openapi() + "\n",
        MadeDocument::Openapi { controller: true } => controller::openapi() + "\n",
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

//! `sluice docs`: documents that are generated from the code.

use std::io::Write;

use clap::Subcommand;

/// Print a document that is generated from the code
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    document: MadeDocument,
}

#[derive(Debug, Subcommand)]
enum MadeDocument {
    /// Print docs/CONFIG.md, the keys of the configuration file
    Config,
    /// Print docs/METRICS.md, the metrics for Prometheus
    Metrics,
    /// Print docs/ACCESS.md, the rights of roles at a controller
    Access,
    /// Print the OpenAPI description of a proxy's or controller's API
    Openapi {
        /// API of the controller instead of the proxy.
        #[arg(long)]
        controller: bool,
    },
}

/// Prints the generated document to standard output.
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

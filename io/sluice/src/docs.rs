//! `sluice docs`: documents that are made from the code.

use std::io::Write;

use clap::Subcommand;

/// Prints a document that is made from the code.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    document: Document,
}

#[derive(Debug, Subcommand)]
enum Document {
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
        Document::Config => proxy::config::markdown(),
        Document::Metrics => api::metrics::markdown(),
        Document::Access => controller::markdown(),
        Document::Openapi { controller: false } => proxy::control::openapi() + "\n",
        Document::Openapi { controller: true } => controller::openapi() + "\n",
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

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
    /// The OpenAPI description of the proxy's control API.
    Openapi,
}

/// Prints the document.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let text = match args.document {
        Document::Config => proxy::config::markdown(),
        Document::Openapi => proxy::control::openapi() + "\n",
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

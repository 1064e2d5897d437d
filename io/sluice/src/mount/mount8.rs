//! `mount.sluice`: the name under which mount(8) calls the program for the type `sluice`.
//!
//! ```text
//!   mount.sluice SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use ::mount::MountSettings;
use anyhow::bail;
use clap::Parser;

/// Mount a proxy's export; called by mount(8), like `sluice mount`
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Args {
    /// Export: tcp://HOST:PORT/NAME or unix:///path/of/socket//NAME.
    source: String,
    /// Mount point.
    dir: PathBuf,
    /// Mount options with commas between them.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Check of the options without mounting.
    #[arg(short)]
    fake: bool,
    /// Accepted and ignored; unknown options are errors.
    #[arg(short)]
    sloppy: bool,
    /// Accepted and ignored; mtab is not written.
    #[arg(short)]
    no_mtab: bool,
    /// Accepted and ignored.
    #[arg(short)]
    verbose: bool,
    /// Not supported.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Accepted and ignored; there is one type.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Returns whether the program was called by the name that mount(8) uses.
pub(crate) fn is_called_by_mount8() -> bool {
    crate::is_called(NAME)
}

/// Mounts and returns an exit status of mount(8).
pub(crate) fn run_for_mount8() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are not errors.
            let status = if error.use_stderr() { WRONG_USE } else { 0 };
            let _ = error.print();
            return ExitCode::from(status);
        }
    };
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::log::print_line(&format!("{NAME}: {error:#}"));
            ExitCode::from(NOT_MOUNTED)
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    if args.namespace.is_some() {
        bail!("-N is not supported; run the command in the namespace with nsenter(1)");
    }
    if args.fake {
        MountSettings::new(&args.source, &args.dir, &args.options.join(","))?;
        return Ok(());
    }
    super::run(super::Args {
        source: args.source,
        dir: args.dir,
        options: args.options,
        foreground: false,
        log: None,
        tells: false,
    })
}

/// Name of the program that mount(8) calls for the type `sluice`.
const NAME: &str = "mount.sluice";
/// Exit statuses of mount(8).
const WRONG_USE: u8 = 1;
const NOT_MOUNTED: u8 = 32;

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(words: &str) -> Args {
        Args::try_parse_from(words.split(' ')).unwrap()
    }

    #[test]
    fn the_words_of_mount8_are_understood() {
        Args::command().debug_assert();
        let args = parsed("mount.sluice tcp://h:1/a /mnt -sfnv -o rw,nosuid -t fuse.sluice");
        assert_eq!(args.options, ["rw,nosuid"]);
        assert!(args.fake && args.sloppy && args.no_mtab && args.verbose);
        let args = parsed("mount.sluice tcp://h:1/a /mnt -v -N /proc/1/ns/mnt -o rw");
        assert_eq!(args.namespace.as_deref(), Some("/proc/1/ns/mnt"));
    }

    #[test]
    fn a_fake_mount_checks_the_options_and_mounts_nothing() {
        assert!(run(parsed("mount.sluice tcp://127.0.0.1:1/a /nowhere/at/all -f -o rw")).is_ok());
        let error = run(parsed("mount.sluice tcp://127.0.0.1:1/a /mnt -f -o rv")).unwrap_err();
        assert!(error.to_string().starts_with("the option \"rv\" is not one of "), "{error}");
    }

    #[test]
    fn another_namespace_is_refused() {
        let error = run(parsed("mount.sluice tcp://127.0.0.1:1/a /mnt -N 1")).unwrap_err();
        assert!(error.to_string().starts_with("-N is not supported"), "{error}");
    }
}

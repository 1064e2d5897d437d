//! The program under the name `mount.sluice`, as mount(8) calls it for the type `sluice`:
//!
//! ```text
//!   mount.sluice SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::mount::MountSettings;
use anyhow::bail;
use clap::Parser;

/// Mounts as `sluice mount` does, called by mount(8).
#[derive(Debug, Parser)]
#[command(name = NAME, version)]
struct Args {
    /// tcp://HOST:PORT/NAME or unix:///path/of/socket//NAME.
    source: String,
    /// The directory where the files appear.
    dir: PathBuf,
    /// Words with commas between them.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Only check the options.
    #[arg(short)]
    fake: bool,
    /// Accepted; unknown options are errors all the same.
    #[arg(short)]
    sloppy: bool,
    /// Accepted; there is no mtab.
    #[arg(short)]
    no_mtab: bool,
    /// Accepted; there is nothing more to say.
    #[arg(short)]
    verbose: bool,
    /// Not supported.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Accepted; there is one type.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Whether the program was called by the name that mount(8) uses.
pub(crate) fn is_called_by_mount8() -> bool {
    let name = std::env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name() == Some(NAME.as_ref()))
}

/// Mounts; the exit status is one of mount(8)'s.
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
            crate::log::say(&format!("{NAME}: {error:#}"));
            ExitCode::from(NOT_MOUNTED)
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    if args.namespace.is_some() {
        bail!("-N is not supported: run it inside that namespace, with nsenter(1)");
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

/// What mount(8) calls for the type `sluice`.
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
        assert!(error.to_string().starts_with("the option \"rv\" is unknown"), "{error}");
    }

    #[test]
    fn another_namespace_is_refused() {
        let error = run(parsed("mount.sluice tcp://127.0.0.1:1/a /mnt -N 1")).unwrap_err();
        assert!(error.to_string().starts_with("-N is not supported"), "{error}");
    }
}

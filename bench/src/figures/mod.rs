//! `sluice-bench figures`: every figure of the project, measured, stored and shown.
//!
//! ```text
//!   groups ─► rows ─► passes × groups × rows × contenders ─► FigureSink ─► bench/results/figures.json
//!                                                                              │
//!                                    docs/FIGURES.md ◄─ document ◄─ judge ◄────┴─ bench/causes.toml
//! ```
//!
//! A pass measures the next round of every row, so that rounds of one row lie far apart: what the
//! machine does for some minutes touches one of them. A round is stored when it ends; a run that is
//! stopped goes on where it was. Everything runs in a network, process and mount namespace of its
//! own, which ends with it.

mod causes;
mod choice;
mod document;
mod fragments;
pub(crate) mod groups;
pub(crate) mod judge;
mod list;
pub(crate) mod machine;
pub(crate) mod row;
pub(crate) mod sink;
pub(crate) mod sources;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use model::Nanos;

use super::inside;
use super::place::RunDir;
use super::programs;
use causes::FigureCauses;
use document::{CAUSES, FigureDocument};
use groups::{FigureGroup, FigureRun, GROUPS, all_rows};
use machine::{CodeId, machine};
use row::FigureRow;
use sink::FigureSink;
use store::{FigureStore, RowKey};

/// Measure the figures of the project, and show them
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: FigureCommand,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum FigureCommand {
    Run(RunArgs),
    /// Print docs/FIGURES.md as the stored figures make it
    Print(FileArgs),
    /// Print a document with its tables of figures made again
    Fill(FillArgs),
    /// Check the form of the stored figures: every row known, every miss with its cause
    Check(CheckArgs),
    /// List the rows and groups: how many rounds each has of how many, and how long they take
    List(ListArgs),
}

/// Measure rows that are not measured yet, from the root of the project's repository
#[derive(Clone, Debug, clap::Args)]
struct RunArgs {
    /// Names of rows or groups; `*` stands for any text [default: all]
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// The file to go on with [default: none, the figures are printed]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Begin nothing new after this time
    #[arg(long, value_name = "TIME")]
    until: Option<Nanos>,
    /// Only this many rounds of each row, from 1
    #[arg(long, value_name = "N")]
    rounds: Option<usize>,
    /// Discard what is stored of the rows and measure them again
    #[arg(long)]
    again: bool,
    /// Measure sources with changes that are not committed; the figures are marked
    #[arg(long)]
    dirty: bool,
    /// One round, short and of small amounts, to see that everything works; never stored
    #[arg(long, conflicts_with = "out")]
    quick: bool,
    /// How long each contender is measured [default: as its row says]; never stored
    #[arg(long, value_name = "TIME", conflicts_with = "out")]
    span: Option<Nanos>,
    /// Only these contenders, with commas between them; never stored
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "out")]
    who: Vec<String>,
    /// Print the samples as JSON
    #[arg(long)]
    json: bool,
    /// Where to make the directory that is served; its file system is what is measured
    /// [default: TMPDIR, or else /var/tmp]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The directory, made by the outer process
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

#[derive(Clone, Debug, clap::Args)]
struct CheckArgs {
    /// Every row must have all its rounds, too, or have been given up
    #[arg(long)]
    complete: bool,
    #[command(flatten)]
    stored: FileArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct FillArgs {
    /// The document to read
    document: PathBuf,
    #[command(flatten)]
    stored: FileArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct ListArgs {
    /// Names of rows or groups; `*` stands for any text [default: all]
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    #[command(flatten)]
    stored: FileArgs,
}

#[derive(Clone, Debug, clap::Args)]
struct FileArgs {
    /// The stored figures
    #[arg(long, value_name = "FILE", default_value = "bench/results/figures.json")]
    file: PathBuf,
}

/// Measures figures, or shows them.
pub(crate) fn run(args: Args, sluice: &dyn Fn() -> anyhow::Result<PathBuf>) -> anyhow::Result<()> {
    match args.what {
        FigureCommand::Run(args) => args.run(&sluice()?),
        FigureCommand::Print(args) => args.show(|document| crate::print(document.text())),
        FigureCommand::Check(CheckArgs { complete, stored }) => stored.show(|document| {
            let faults = document.faults(complete);
            faults.iter().try_for_each(|fault| crate::print(format_args!("{fault}\n")))?;
            ensure!(faults.is_empty(), "{} faults of form", faults.len());
            Ok(())
        }),
        FigureCommand::Fill(args) => {
            let store = FigureStore::open(&args.stored.file)?;
            let text = std::fs::read_to_string(&args.document);
            let text = text.with_context(|| format!("cannot read {}", args.document.display()))?;
            crate::print(fragments::fill(&text, &all_rows(), &store)?)
        }
        FigureCommand::List(args) => {
            let rows = choice::choose(all_rows(), &args.rows)?;
            crate::print(list::text(&rows, &FigureStore::open(&args.stored.file)?))
        }
    }
}

impl FileArgs {
    fn show(
        &self,
        show: impl FnOnce(&FigureDocument<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let store = FigureStore::open(&self.file)?;
        let causes = FigureCauses::read(Path::new(CAUSES))?;
        show(&FigureDocument::new(GROUPS, all_rows(), &store, &causes))
    }
}

impl RunArgs {
    fn run(&self, sluice: &Path) -> anyhow::Result<()> {
        let stop = crate::stop_on_signals()?;
        ensure!(
            !cfg!(debug_assertions) || self.out.is_none(),
            "this is a debug build, which checks itself as it goes: its figures are not stored"
        );
        match &self.inside {
            None => {
                self.chosen()?;
                inside::run(RunDir::make(self.dir.as_deref(), "figures")?, &stop)
            }
            Some(dir) => self.measure(dir, sluice, &stop),
        }
    }

    fn chosen(&self) -> anyhow::Result<Vec<FigureRow>> {
        let mut rows = choice::choose(all_rows(), &self.rows)?;
        for row in &mut rows {
            let rounds = if self.quick { Some(1) } else { self.rounds };
            row.rounds = rounds.map_or(row.rounds, |most| row.rounds.min(most.max(1)));
            if !self.who.is_empty() {
                row.keep(&self.who);
            }
        }
        rows.retain(|row| !row.contenders.is_empty());
        ensure!(!rows.is_empty(), "no chosen row has {}", self.who.join(" or "));
        Ok(rows)
    }

    /// What the inner process does.
    fn measure(&self, dir: &Path, sluice: &Path, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
        inside::own_the_place()?;
        let rows = self.chosen()?;
        let chosen = rows.clone();
        let passes = rows.iter().map(|row| row.rounds).max().unwrap_or(0);
        let mut store = match &self.out {
            Some(path) => FigureStore::open(path)?,
            None => FigureStore::default(),
        };
        if self.again {
            rows.iter().for_each(|row| store.forget(&row.id));
        }
        let keyed = self.keyed(rows, dir)?;
        let until = self.until.map(|time| Instant::now() + time.to_duration());
        let mut sink = FigureSink::new(store, keyed, stop, until);
        sink.version("sluice", &version_of(sluice)?);
        for pass in 1..=passes {
            sink.begin_pass(pass);
            // Each pass measures the costs of its backends once.
            let costs = RunDir::make(Some(dir), "costs")?;
            for group in GROUPS {
                // A group is set up only where there is something to measure.
                if sink.wants_any(&(group.rows)()) {
                    self.measure_group(group, [dir, costs.path()], sluice, stop, &mut sink)?;
                }
            }
        }
        self.print(sink.store(), chosen)?;
        if sink.is_over() {
            eprintln!("stopped before the end: the same command goes on from here");
        }
        Ok(())
    }

    fn print(&self, store: &FigureStore, rows: Vec<FigureRow>) -> anyhow::Result<()> {
        if self.json {
            let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
            return crate::print(format_args!("{}\n", store.json(&ids)?));
        }
        let causes = FigureCauses::read(Path::new(CAUSES))?;
        crate::print(FigureDocument::new(GROUPS, rows, store, &causes).table())?;
        if self.quick {
            crate::print(
                "\nShort spans and small amounts: this shows that everything works, and no figure.\n",
            )?;
        }
        Ok(())
    }

    fn measure_group(
        &self,
        group: &FigureGroup,
        [dir, costs]: [&Path; 2],
        sluice: &Path,
        stop: &Arc<AtomicBool>,
        sink: &mut FigureSink,
    ) -> anyhow::Result<()> {
        let own = RunDir::make(Some(dir), group.name)?;
        let span = self.span.map(Nanos::to_duration);
        let run = FigureRun { dir: own.path(), costs, sluice, stop, is_quick: self.quick, span };
        let measured = (group.measure)(&run, sink);
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            bail!("interrupted: what was measured is stored");
        }
        // One group that cannot be set up must not take the others' figures along.
        if let Err(error) = measured {
            eprintln!("\nsluice-bench: {}: {error:#}", group.name);
        }
        Ok(())
    }

    /// Each row with the conditions under which it is measured.
    fn keyed(&self, rows: Vec<FigureRow>, dir: &Path) -> anyhow::Result<Vec<(FigureRow, RowKey)>> {
        let code = match CodeId::read() {
            // What is only printed may be of any code.
            Err(_) if self.out.is_none() => CodeId::unknown(),
            read => read?,
        };
        ensure!(
            !code.dirty || self.dirty || self.out.is_none(),
            "core, io, bench/src, Cargo.toml or Cargo.lock have changes that are not committed; \
             --dirty measures them, and marks the figures"
        );
        let machine = machine(dir);
        let sums = GROUPS.iter().map(|group| Ok((group.name, code.sums(group)?)));
        let sums = sums.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        let keyed = rows.into_iter().map(|row| {
            let [product, bench] = sums.get(row.group()).context("a row without a group")?.clone();
            let key = RowKey {
                code: product,
                bench,
                commit: code.commit.clone(),
                dirty: code.dirty,
                machine: machine.clone(),
                seconds: row.seconds,
            };
            Ok((row, key))
        });
        keyed.collect()
    }
}

/// The version of the program, and a checksum of it.
fn version_of(sluice: &Path) -> anyhow::Result<String> {
    let mut hash = blake3::Hasher::new();
    let bytes =
        std::fs::read(sluice).with_context(|| format!("cannot read {}", sluice.display()))?;
    hash.update(&bytes);
    let sum = hash.finalize().to_hex();
    Ok(format!("{} {}", programs::version_of(sluice)?, &sum[..12]))
}

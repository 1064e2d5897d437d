//! `sluice-bench demo`: two jobs on one mount, first without rules and then with them.
//!
//! ```text
//!   time ─────────────────────────────────────────────────────────────────►
//!   victim  ├── alone ──┼───── without rules ─────┼───── with rules ──────┤
//!   bully               ├─────────────────────────┼───────────────────────┤
//!                                                 └ PUT /v1/rules
//!   Demo ─► DemoStage (processes, files)    jobs ─► DemoSamples ─► DemoScreen, table, JSON, picture
//! ```
//!
//! Both jobs run through from one phase to the next, so that only the
//! proxy's rules differ. A moment after each change belongs to no phase: what was under
//! way before has to end first. The victim is slowed by its neighbour in what it shares
//! with it, the device and the processors; alone it shows what there is to win.

mod figures;
mod job;
mod picture;
mod rows;
mod rules;
mod screen;
mod stage;
mod summary;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use model::Bytes;
use serde::Serialize;

use self::figures::{DemoFigures, DemoSamples, DemoSpan};
use self::job::{DemoJob, Sizes};
use self::screen::DemoScreen;
use self::stage::{DemoNews, DemoStage};
use self::summary::DemoSummary;
use super::neighbours::NeighbourReading;

pub(crate) use rows::GROUP;

/// Shows what rules do: two jobs on one proxy, without rules and then with them.
///
/// Starts a proxy over a new directory, mounts it as on a node that two jobs
/// share, and lets ordinary programs work there: a bully (fio, 16 writers of 1 MiB)
/// and a victim (fio with random reads of 4 KiB and now and then an fdatasync; shell tools
/// that list, make, rename and remove). Ends with a table and, with --out, a picture, and
/// removes everything else it has made; so it does on Ctrl-C. Mounting needs root.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to run without rules, and as long again with them.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// A few seconds and small files: shows that everything works, not what it is worth.
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Where to make the directory that is served; it needs about a gigabyte
    /// [default: TMPDIR, or else /var/tmp].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where to write the picture [default: nowhere].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print the figures as JSON and nothing else.
    #[arg(long)]
    json: bool,
}

/// A stretch of the demo under one condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum DemoPhase {
    /// The victim has the proxy for itself.
    #[serde(rename = "alone")]
    Alone,
    /// The bully has come and the proxy has no rules.
    #[serde(rename = "without rules")]
    WithoutRules,
    /// The rules are in force.
    #[serde(rename = "with rules")]
    WithRules,
}

/// How long everything takes and how large it is.
struct DemoScale {
    alone_s: f64,
    phase_s: f64,
    /// From a change to the phase after it.
    settle_s: f64,
    /// The same for the bully's coming: its first pass over new files, while the file
    /// system still commits them, is slow for both and would flatter the rules.
    start_s: f64,
    sizes: Sizes,
}

/// Runs the demo until its end or Ctrl-C.
pub(crate) fn run(args: Args, sluice: &Path) -> anyhow::Result<()> {
    let stop = crate::stop_on_signals()?;
    let picture = args.out.as_deref();
    if let Some(picture) = picture {
        let parent = picture.parent().filter(|parent| !parent.as_os_str().is_empty());
        let has_place = parent.is_none_or(|parent| parent.is_dir());
        ensure!(has_place, "there is no directory for {}", picture.display());
    }
    let screen = DemoScreen::new(args.json);
    let mut demo = Demo::set_up(&args, sluice, stop, screen)?;
    demo.play()?;
    let summary = demo.end()?;
    if let Some(picture) = picture {
        picture::draw(picture, &summary)?;
    }
    let mut out = std::io::stdout();
    match args.json {
        true => writeln!(out, "{}", summary.to_json(picture)?)?,
        false => write!(out, "{}", screen::ending(&summary, picture))?,
    }
    Ok(())
}

/// A demo under way.
struct Demo {
    stage: DemoStage,
    scale: DemoScale,
    began: Instant,
    news: Receiver<DemoNews>,
    sender: Sender<DemoNews>,
    stop: Arc<AtomicBool>,
    screen: DemoScreen,
    due: Instant,
    ready: bool,
    working: Vec<DemoJob>,
    record: DemoSamples,
    phases: Vec<(DemoPhase, DemoSpan)>,
    /// When the bully and the rules came, in seconds.
    marks: Vec<(f64, String)>,
    write_mode: String,
    rules: String,
    /// The part of the processors that other programs took in both phases, 0 to 1.
    others: Option<f64>,
}

impl Demo {
    fn set_up(
        args: &Args,
        sluice: &Path,
        stop: Arc<AtomicBool>,
        mut screen: DemoScreen,
    ) -> anyhow::Result<Demo> {
        let scale = DemoScale::of(args);
        let (sender, news) = channel();
        screen.say("making the files and starting the proxy");
        let stage = DemoStage::set_up(args.dir.as_deref(), sluice, scale.sizes, &sender)?;
        let began = Instant::now();
        let mut demo = Demo {
            stage,
            scale,
            began,
            news,
            sender,
            stop,
            screen,
            due: began,
            ready: false,
            working: Vec::new(),
            record: DemoSamples::default(),
            phases: Vec::new(),
            marks: Vec::new(),
            write_mode: String::new(),
            rules: String::new(),
            others: None,
        };
        demo.wait("the proxy does not start", |demo| demo.ready)?;
        demo.write_mode = demo
            .ask()?
            .status()?
            .targets
            .first()
            .map_or_else(String::new, |target| target.write_mode.clone());
        Ok(demo)
    }

    /// All phases, one after the other.
    fn play(&mut self) -> anyhow::Result<()> {
        self.screen.say("mounting the export");
        self.stage.mount()?;
        self.start(DemoJob::Victim)?;
        self.start(DemoJob::Shell)?;
        self.phase(DemoPhase::Alone, self.scale.alone_s)?;
        self.start(DemoJob::Bully)?;
        self.mark("the bully comes");
        let before = NeighbourReading::take(&self.stage.processes());
        self.phase(DemoPhase::WithoutRules, self.scale.phase_s)?;
        self.rules = rules::text(self.figures(DemoPhase::WithoutRules, DemoJob::Bully)?.mb_per_sec);
        self.ask()?.set_rules(&self.rules).context("the proxy refuses the demo's rules")?;
        self.mark("rules in force");
        self.screen.say(&format!("these rules are in force now:\n\n{}", self.rules));
        self.phase(DemoPhase::WithRules, self.scale.phase_s)?;
        let after = NeighbourReading::take(&self.stage.processes());
        self.others = before.zip(after).map(|(before, after)| after.others_since(&before));
        Ok(())
    }

    /// What came out; everything is stopped and removed.
    fn end(self) -> anyhow::Result<DemoSummary> {
        let mut figures = Vec::new();
        for (phase, _) in &self.phases {
            for job in phase.jobs() {
                figures.push((*phase, self.figures(*phase, *job)?));
            }
        }
        let to = self.now();
        let from = self.phases.first().map_or(to, |(_, span)| span.from - self.scale.settle_s);
        Ok(DemoSummary {
            figures,
            record: self.record,
            phases: self.phases,
            span: DemoSpan { from, to },
            marks: self.marks,
            write_mode: self.write_mode,
            rules: self.rules,
            others: self.others,
        })
    }

    fn start(&mut self, job: DemoJob) -> anyhow::Result<()> {
        self.stage.start(job, &self.sender)?;
        self.wait(&format!("the {} does not begin", job.name()), |demo| demo.working.contains(&job))
    }

    /// Lets the jobs work for `seconds` once things have settled.
    fn phase(&mut self, phase: DemoPhase, seconds: f64) -> anyhow::Result<()> {
        let settle_s = match phase {
            DemoPhase::WithoutRules => self.scale.start_s,
            DemoPhase::Alone | DemoPhase::WithRules => self.scale.settle_s,
        };
        let from = self.now() + settle_s;
        let to = from + seconds;
        self.phases.push((phase, DemoSpan { from, to }));
        while self.now() < to {
            self.turn()?;
        }
        // On a busy machine a job may not have done anything in a short phase yet.
        while self.now() < to + LATE_MAX_S && !self.all_have_told() {
            self.turn()?;
            self.phases.last_mut().expect("it was pushed").1.to = self.now();
        }
        self.screen.phase_over(phase);
        Ok(())
    }

    /// Whether the phase that runs has figures of each of its jobs, with something done.
    fn all_have_told(&self) -> bool {
        let (phase, span) = *self.phases.last().expect("a phase runs");
        let done = |job| self.record.figures(job, span).is_some_and(|figures| figures.ops > 0);
        phase.jobs().iter().all(|job| done(*job))
    }

    fn wait(&mut self, trouble: &str, done: impl Fn(&Demo) -> bool) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_MAX;
        while !done(self) {
            ensure!(Instant::now() < deadline, "{trouble} within {} s", START_MAX.as_secs());
            self.turn()?;
        }
        Ok(())
    }

    /// One event: a line of a child, or a tick.
    fn turn(&mut self) -> anyhow::Result<()> {
        let wait = self.due.saturating_duration_since(Instant::now());
        match self.news.recv_timeout(wait.min(PATIENCE)) {
            Ok(news) => self.take(news)?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if Instant::now() >= self.due {
            self.due = Instant::now() + TICK;
            self.stage.cool();
            self.show();
        }
        Ok(())
    }

    fn take(&mut self, news: DemoNews) -> anyhow::Result<()> {
        match news {
            DemoNews::Proxy(Some(line)) => self.ready |= line == "ready",
            DemoNews::Proxy(None) => return Err(self.stage.why_ended("proxy")),
            DemoNews::Job(job, Some(interval)) => {
                if !self.working.contains(&job) {
                    self.working.push(job);
                }
                self.record.add(job, self.now(), interval);
            }
            DemoNews::Job(job, None) => return Err(self.stage.why_ended(job.name())),
        }
        Ok(())
    }

    fn show(&mut self) {
        let now = self.now();
        let Some((running, span)) = self.phases.last().copied() else { return };
        let mut rows = Vec::new();
        for (phase, span) in &self.phases {
            let live = *phase == running && now < span.to;
            let span = if live { DemoSpan::last(LIVE_S, now) } else { *span };
            for job in phase.jobs() {
                rows.extend(self.record.figures(*job, span).map(|figures| (*phase, figures)));
            }
        }
        self.screen.show(&rows, running, (now - span.from).max(0.0), span.to - span.from);
    }

    fn figures(&self, phase: DemoPhase, job: DemoJob) -> anyhow::Result<DemoFigures> {
        let span = self.phases.iter().find(|(of, _)| *of == phase).map(|(_, span)| *span);
        let figures = span.and_then(|span| self.record.figures(job, span));
        figures.with_context(|| format!("the {} reported nothing {}", job.name(), phase.name()))
    }

    fn mark(&mut self, what: &str) {
        self.marks.push((self.now(), what.into()));
    }

    fn ask(&self) -> anyhow::Result<http::ApiClient> {
        Ok(http::ApiClient::new(&self.stage.api().parse()?)?)
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

impl DemoPhase {
    /// Its name in the table.
    fn name(self) -> &'static str {
        match self {
            DemoPhase::Alone => "alone",
            DemoPhase::WithoutRules => "without rules",
            DemoPhase::WithRules => "with rules",
        }
    }

    /// Who works in it.
    fn jobs(self) -> &'static [DemoJob] {
        match self {
            DemoPhase::Alone => &[DemoJob::Victim, DemoJob::Shell],
            DemoPhase::WithoutRules | DemoPhase::WithRules => {
                &[DemoJob::Victim, DemoJob::Shell, DemoJob::Bully]
            }
        }
    }
}

impl DemoScale {
    fn of(args: &Args) -> DemoScale {
        if args.quick {
            let sizes = Sizes { victim: Bytes::mib(32), bully: Bytes::mib(4) };
            return DemoScale { alone_s: 1.0, phase_s: 2.0, settle_s: 0.5, start_s: 0.5, sizes };
        }
        let phase_s = f64::from(args.seconds);
        let sizes = Sizes { victim: Bytes::mib(256), bully: Bytes::mib(32) };
        DemoScale {
            alone_s: (phase_s / 5.0).clamp(1.0, 4.0),
            phase_s,
            settle_s: 1.0,
            start_s: 3.0,
            sizes,
        }
    }
}

/// How often the view is drawn and the victim's file is cooled.
const TICK: Duration = Duration::from_millis(250);
/// How soon a signal is noticed.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long the proxy, or a job's files, may take.
const START_MAX: Duration = Duration::from_secs(120);
/// How much longer a phase may take for want of figures. fio tells nothing before each of its
/// threads has ended a call, and on a slow machine the bully's limit makes some seconds of each.
const LATE_MAX_S: f64 = 120.0;
/// The live view shows what the last second brought, and a little more: an interval
/// that is reported late must not be missing.
const LIVE_S: f64 = 1.1;

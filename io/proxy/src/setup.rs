//! From a configuration to what the server needs: rules, targets, exports, bounds.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use api::{PrivateFileError, ProjectsKnown};
use model::SharePool;
use rules::RuleSet;
use rustc_hash::FxHashMap;
use rustix::fs::{Mode, OFlags};
use rustix::io::ReadWriteFlags;
use sched::{CostMode, Costs};

use crate::config::{self, LeasePolicy, ProxyConfig};
use crate::connection::ConnectionBounds;
use crate::costs_file::CostsFile;
use crate::export::{Export, ExportLeases, ExportNode};
use crate::gate::{Gate, ProxyClock};
use crate::handles::{HandleKey, HandleTable, KeyError, LoadedHandleKey};
use crate::leases::{ProxyLeases, RECORD_PATH, RecordError};
use crate::rules::ActiveRules;
use crate::server::ProxyStartError;
use crate::target::Target;
use crate::writes::{Backing, Writes};

/// Device slots where nothing was measured: enough for any one disk, few enough that
/// a request does not wait long behind those before it.
const SLOTS_DEFAULT: u32 = 64;

/// Default path of the handle key.
const KEY_PATH: &str = "/var/lib/sluice/handle.key";

/// The key of the handles that mounts keep.
pub(crate) fn load_key(config: &ProxyConfig) -> Result<LoadedHandleKey, ProxyStartError> {
    let unusable = |error| {
        ProxyStartError::system("cannot use the handle key")(io::Error::other::<KeyError>(error))
    };
    if let Some(path) = &config.handle_key {
        return HandleKey::load(path).map_err(unusable);
    }
    match HandleKey::load(Path::new(KEY_PATH)) {
        // Of another user, or on a file system without room: handles end with the proxy.
        Err(
            error @ (KeyError::System { .. } | KeyError::Private(PrivateFileError::System { .. })),
        ) => {
            tracing::warn!(%error, "cannot use {KEY_PATH}; mounts will not survive a restart");
            let made = HandleKey::random().map(LoadedHandleKey::new);
            made.map_err(ProxyStartError::system("cannot create a handle key"))
        }
        loaded => loaded.map_err(unusable),
    }
}

type Exports = FxHashMap<String, Arc<Export>>;

/// The rules of the configuration's rule file; none without one.
pub(crate) fn load_rules(config: &ProxyConfig) -> Result<ActiveRules, ProxyStartError> {
    let Some(path) = &config.rules else { return Ok(ActiveRules::default()) };
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(ProxyStartError::system(format!("cannot read the rules {name}")))?;
    let set =
        RuleSet::parse(&text).map_err(|error| ProxyStartError::Rules(error.in_file(&name)))?;
    let text: Arc<str> = text.into();
    Ok(ActiveRules {
        set: Arc::new(set),
        text: text.clone(),
        in_file: Some(text),
        controller: None,
    })
}

/// Opens the exports and makes the targets that schedule them. Targets of `old` with
/// the same name go on, with their queues and what they know of jobs, and so does what is known of
/// the links in an export of the same name and directory.
pub(crate) fn open_exports(
    config: &ProxyConfig,
    gate: &Arc<Gate>,
    key: &HandleKey,
    directories: usize,
    old: &[Arc<Target>],
    exported: &[Arc<Export>],
    has_leases: bool,
) -> Result<(Exports, Vec<Arc<Target>>), ProxyStartError> {
    let layout = config.layout()?;
    let mut opened = Vec::new();
    let mut new: Vec<NewTarget> = Vec::new();
    for export in &layout.exports {
        let failed = |error: io::Error| {
            let dir = export.dir.display();
            ProxyStartError::system(format!("export {}: cannot open {dir}", export.name))(error)
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir =
            rustix::fs::open(&export.dir, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
        let known = &layout.targets[export.target];
        let is_known = old.iter().any(|target| target.name == known.name)
            || new.iter().any(|target| target.params.name == known.name);
        if !is_known {
            new.push(NewTarget::probe(config, known, &dir)?);
        }
        let path = rustix::fs::open(&export.dir, flags | OFlags::PATH, Mode::empty())
            .map_err(|e| failed(e.into()))?;
        let root = Arc::new(ExportNode::new(path, None).map_err(failed)?);
        let open = dir.try_clone().map_err(failed)?;
        opened.push((export, known, dir, open, root));
    }
    // Nothing fails from here on: a target stays in the dispatcher once it is there.
    let mut targets = old.to_vec();
    let is_granted = config.controller.is_some();
    targets.extend(new.into_iter().map(|new| Arc::new(new.add_to(gate, is_granted))));
    let mut exports = Exports::default();
    let any_grants = opened.iter().any(|(export, ..)| export.leases == LeasePolicy::Read);
    for (export, known, dir, open, root) in opened {
        let same =
            |before: &&Arc<Export>| *before.name == *export.name && before.root.same_file(&root);
        let target = targets.iter().find(|target| target.name == known.name);
        let known = exported.iter().find(same);
        let leases = match known {
            // What began under it may be under way, and sessions keep the export that they have.
            Some(before) => before.leases,
            None => ExportLeases {
                grants: exported.is_empty() && export.leases == LeasePolicy::Read,
                // A file may be in several: by a hard link, or below a mount.
                recalls: has_leases || any_grants,
            },
        };
        if leases.grants != (export.leases == LeasePolicy::Read) {
            let (export, leases) = (&export.name, export.leases);
            tracing::warn!(export, "leases = \"{leases}\" needs a restart of the proxy");
        }
        let made = Export {
            name: export.name.as_str().into(),
            dir: export.dir.clone(),
            readonly: export.readonly,
            root: root.clone(),
            target: target.expect("it is known or was made above").clone(),
            project: crate::sys::project(dir.as_fd()).ok(),
            projects: projects_known(&dir, &root),
            leases,
            links: known.map_or_else(Arc::default, |before| before.links.clone()),
            open,
            handles: HandleTable::new(key, &export.name, dir, directories),
        };
        exports.insert(export.name.clone(), Arc::new(made));
    }
    Ok((exports, targets))
}

/// The leases of a proxy that begins. Without a file for the record none is granted.
pub(crate) fn open_leases(
    config: &ProxyConfig,
    clock: ProxyClock,
) -> Result<Arc<ProxyLeases>, ProxyStartError> {
    let layout = config.layout()?;
    let grants = layout.exports.iter().any(|export| export.leases == LeasePolicy::Read);
    let path = config.lease_state.as_deref().unwrap_or(Path::new(RECORD_PATH));
    let leases = match (&config.lease_state, ProxyLeases::open(config, path, grants, clock)) {
        (None, Err(error @ (RecordError::System { .. } | RecordError::InUse(_)))) => {
            match grants {
                true => tracing::warn!(
                    %error, "cannot use {RECORD_PATH}; no lease is granted: set lease_state"
                ),
                false => tracing::warn!(
                    %error, "cannot use {RECORD_PATH}; mounts that it lists are not waited for"
                ),
            }
            ProxyLeases::unused(config, clock)
        }
        (_, leases) => leases.map_err(|error| {
            ProxyStartError::system("cannot use the record of leases")(io::Error::other(error))
        })?,
    };
    Ok(Arc::new(leases))
}

/// Of which files of an export the project is known.
fn projects_known(dir: &OwnedFd, root: &ExportNode) -> ProjectsKnown {
    if crate::sys::project(dir.as_fd()).is_err() {
        return ProjectsKnown::NoProjects;
    }
    match root.project(true) {
        Some(_) => ProjectsKnown::Files,
        None => ProjectsKnown::OpenFiles,
    }
}

/// A target that is not in the dispatcher yet.
struct NewTarget {
    params: sched::TargetParams,
    nowait: bool,
    writes: Writes,
}

impl NewTarget {
    fn probe(
        config: &ProxyConfig,
        known: &config::TargetConfig,
        dir: &OwnedFd,
    ) -> Result<NewTarget, ProxyStartError> {
        let what = |what: &str| ProxyStartError::system(format!("target {}: {what}", known.name));
        let backing = Backing::probe(dir.as_fd()).map_err(what("cannot probe its directory"))?;
        let figures = TargetFigures::of(config, known)?;
        let writes = Writes::start(backing, figures.write_mode, known.dirty_budget)
            .map_err(what("cannot start its write-back thread"))?;
        let nowait = !backing.memory_fs && accepts_nowait(dir);
        Ok(NewTarget { params: figures.target, nowait, writes })
    }

    /// Adds it to the gate; where a controller grants its shares, with nothing yet.
    fn add_to(self, gate: &Arc<Gate>, is_granted: bool) -> Target {
        let target = Target::new(gate, self.params, self.nowait, self.writes);
        if is_granted {
            gate.grant_nothing(SharePool::Target(target.id));
        }
        target
    }
}

/// What a new configuration says about a target.
pub(crate) struct TargetChange {
    target: Arc<Target>,
    figures: TargetFigures,
    dirty_budget: model::Bytes,
}

impl TargetChange {
    /// Reads what a configuration says about the targets that it still has.
    pub(crate) fn all(
        config: &ProxyConfig,
        targets: &[Arc<Target>],
    ) -> Result<Vec<TargetChange>, ProxyStartError> {
        let of = |target: &Arc<Target>| {
            let known = config.target.iter().find(|known| known.name == target.name)?;
            let (target, dirty_budget) = (target.clone(), known.dirty_budget);
            let figures = TargetFigures::of(config, known);
            Some(figures.map(|figures| TargetChange { target, figures, dirty_budget }))
        };
        targets.iter().filter_map(of).collect()
    }

    /// Puts it in force.
    pub(crate) fn apply(self) {
        let TargetChange { target, figures, dirty_budget } = self;
        target.writes.set(figures.write_mode, dirty_budget);
        let (id, params) = (target.id, figures.target);
        target.gate.with_dispatcher(|dispatcher, now| dispatcher.set_target(id, params, now));
    }
}

/// Figures of a target: measured, configured or built in.
struct TargetFigures {
    target: sched::TargetParams,
    write_mode: Option<rules::WriteMode>,
}

impl TargetFigures {
    fn of(
        config: &ProxyConfig,
        known: &config::TargetConfig,
    ) -> Result<TargetFigures, ProxyStartError> {
        let measured = match &known.costs {
            Some(path) => Some(load_costs(path)?),
            None => None,
        };
        let slots = measured.as_ref().map(|measured| measured.slots_max);
        let write_mode = known.write_mode.or(measured.as_ref().and_then(|m| m.write_mode));
        let mut costs = measured.map_or_else(Costs::default, |measured| measured.costs);
        if known.cost == config::ConfiguredCosts::Bytes {
            costs.mode = CostMode::Bytes;
        }
        let target = sched::TargetParams {
            name: known.name.clone(),
            slots_max: known.slots_max.or(slots).unwrap_or(SLOTS_DEFAULT),
            threads: threads(config),
            costs,
            latency: known.latency_target,
            recalibrate: known.recalibrate,
        };
        Ok(TargetFigures { target, write_mode })
    }
}

fn load_costs(path: &Path) -> Result<CostsFile, ProxyStartError> {
    CostsFile::load(path).map_err(|error| ProxyStartError::Costs(error.to_string()))
}

/// Threads that serve what the page cache can answer.
pub(crate) fn threads(config: &ProxyConfig) -> u32 {
    match config.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        threads => threads,
    }
}

/// The bounds of each session.
pub(crate) fn bounds(config: &ProxyConfig) -> ConnectionBounds {
    ConnectionBounds {
        tags_max: config.tags_max as usize,
        bytes_max: config.bytes_in_flight_max.get() as usize,
        before_attach: config.bytes_before_attach.get() as usize,
    }
}

/// Whether reads in this file system can be asked not to wait; tried on a nameless file.
fn accepts_nowait(dir: &OwnedFd) -> bool {
    let Ok(file) = crate::writes::nameless_file(dir.as_fd()) else {
        // A read-only directory: on a file system that refuses, reads then go to the device lane.
        return true;
    };
    let mut byte = [0];
    let into = &mut [std::io::IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(&file, into, 0, ReadWriteFlags::NOWAIT);
    read != Err(rustix::io::Errno::OPNOTSUPP)
}

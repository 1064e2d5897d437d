//! State of the running proxy, for the control API.
//!
//! Figures of classes and subjects are copied while the gate is held and
//! turned into messages after it is free again: a viewer must not make requests wait
//! for its own text.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{
    Attach, Connections, CostPoint, ExportProjects, ExportReport, GroupReport, ProxyStatus,
    ProxyTotals, RuleLoad, TargetReport, Threads, WireClass, WireClasses, WireRules, WireSubject,
    WireSubjects, WireUsage,
};
use rules::RuleSet;

use super::ProxyControl;
use crate::config::{ConfiguredCosts, ProxyConfig};
use crate::connection::Connection;
use crate::export::Export;
use crate::fids::ProxyUser;
use crate::rules::RuleUpdateError;
use crate::server::Server;
use crate::tally::ReplyTally;
use crate::target::Target;

impl ProxyControl for Server {
    fn status(&self) -> ProxyStatus {
        let settings = self.settings();
        let mut targets: Vec<_> = self.targets().iter().map(|t| target(t, &settings)).collect();
        targets.sort_by(|a, b| a.name.cmp(&b.name));
        ProxyStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            t_ns: self.clock.now().as_nanos(),
            draining: self.is_draining(),
            scheduling: settings.schedule,
            threads: Threads { started: self.crew.threads() as u32, max: settings.threads_max },
            listeners: self.addresses().iter().map(|address| address.to_string()).collect(),
            exports: self
                .exports()
                .iter()
                .map(|export| ExportReport {
                    name: export.name.to_string(),
                    dir: export.dir.display().to_string(),
                    readonly: export.readonly,
                    target: export.target.name.clone(),
                })
                .collect(),
            targets,
            connections: Server::connections(self).len() as u64,
            totals: totals(&self.tally()),
            controller: self.link.report(self.clock.now()).map(Box::new),
            group: settings.group.as_ref().map(|group| {
                Box::new(GroupReport {
                    name: settings.name_in_group().unwrap_or_default().into(),
                    epoch: group.epoch,
                    proxies: group.proxies.clone(),
                })
            }),
        }
    }

    fn classes(&self) -> WireClasses {
        let t_ns = self.clock.now().as_nanos();
        let names = self.target_names();
        let reports = self.gate.with_dispatcher(|d, _| d.classes().collect::<Vec<_>>());
        let reports = reports.unwrap_or_default();
        let classes = reports.iter().map(|report| class(names.of(report.target), report)).collect();
        WireClasses { t_ns, classes }
    }

    fn subjects(&self) -> WireSubjects {
        let t_ns = self.clock.now().as_nanos();
        let names = self.target_names();
        let reports = self.gate.with_dispatcher(|d, _| d.subjects().collect::<Vec<_>>());
        let reports = reports.unwrap_or_default();
        let wire = reports.iter().map(|report| subject(names.of(report.target), report));
        let subjects = wire.collect();
        WireSubjects { t_ns, subjects }
    }

    fn why(&self, query: &api::WhyQuery) -> api::Why {
        self.why_of(query)
    }

    fn connections(&self) -> Connections {
        let t_ns = self.clock.now().as_nanos();
        let mut connections: Vec<_> =
            Server::connections(self).iter().map(|c| connection(c)).collect();
        connections.sort_by_key(|connection| connection.id);
        Connections { t_ns, connections }
    }

    fn metrics(&self) -> String {
        self.metrics_page()
    }

    fn rules(&self) -> WireRules {
        let in_force = self.rules_in_force();
        let mut rules = WireRules::of(&in_force.text, &in_force.set);
        rules.file = self.settings().rules.as_ref().map(|path| path.display().to_string());
        rules.saved = in_force.is_saved();
        if in_force.set.has_projids() {
            let known = |export: &Arc<Export>| ExportProjects {
                export: export.name.to_string(),
                known: export.projects,
            };
            rules.projid = self.exports().iter().map(known).collect();
        }
        for target in self.targets() {
            add_loads(&mut rules, &target);
        }
        rules
    }

    fn set_rules(&self, text: &str, over: Option<&str>, save: bool) -> Result<(), RuleUpdateError> {
        Server::set_rules(self, text, over, save)
    }
}

/// Adds what there is of each rule on a target; nothing where nothing is scheduled.
fn add_loads(rules: &mut WireRules, target: &Target) {
    let figures = target.gate.with_dispatcher(|d, now| {
        let limits = d.dependent_limits().map(|(rule, limit)| (rule.to_owned(), limit));
        let limits = limits.collect::<BTreeMap<_, _>>();
        let classes = d.classes().filter(|class| class.target == target.id);
        (classes.collect::<Vec<_>>(), limits, d.reservation_shortfall_ppm(target.id, now))
    });
    let Some((classes, limits, cut_ppm)) = figures else { return };
    rules.reservation_shortfall_ppm.insert(target.name.clone(), cut_ppm);
    let mut loads: BTreeMap<String, RuleLoad> = BTreeMap::new();
    for class in classes {
        let load = loads.entry(class.rule).or_default();
        load.classes += 1;
        load.queued += u64::from(class.queued);
        load.running += u64::from(class.running);
    }
    let mut load_of = |rule: &str| RuleLoad {
        target: target.name.clone(),
        effective_limit: limits.get(rule).map(|limit| limit.to_string()),
        ..loads.remove(rule).unwrap_or_default()
    };
    for rule in &mut rules.rules {
        rule.targets.push(load_of(&rule.name));
    }
    if rules.rules.iter().all(|rule| rule.name != RuleSet::DEFAULT) {
        rules.unmatched.push(load_of(RuleSet::DEFAULT));
    }
}

fn target(target: &Target, settings: &ProxyConfig) -> TargetReport {
    let known = settings.target.iter().find(|known| known.name == target.name);
    let costs = match known {
        Some(known) if known.cost == ConfiguredCosts::Bytes => Some("bytes".into()),
        Some(known) => known.costs.as_ref().map(|path| path.display().to_string()),
        None => None,
    };
    let report = TargetReport {
        name: target.name.clone(),
        write_mode: target.writes.default_text(),
        costs: costs.unwrap_or_else(|| "built in".into()),
        ..TargetReport::default()
    };
    let figures = target.gate.with_dispatcher(|d, now| {
        let id = target.id;
        let device = d.target(id).costs.device.clone();
        (d.slots_max(id), d.queued_at(id), d.reservation_shortfall_ppm(id, now), device)
    });
    let Some((slots_max, queued, reservation_shortfall_ppm, device)) = figures else {
        return report;
    };
    TargetReport {
        slots_max,
        queued: queued as u64,
        reservation_shortfall_ppm,
        read_costs: cost_points(&device.read),
        write_costs: cost_points(&device.write),
        ..report
    }
}

fn cost_points(curve: &sched::Curve) -> Vec<CostPoint> {
    let point = |(size, time): (model::Bytes, model::Nanos)| CostPoint {
        bytes: size.get(),
        cost_ns: time.get(),
    };
    curve.points().map(point).collect()
}

fn class(target: &str, report: &sched::ClassReport) -> WireClass {
    let key: Vec<_> = report.key.iter().map(|value| value.to_string()).collect();
    WireClass {
        id: report.id.to_bits(),
        target: target.into(),
        rule: report.rule.clone(),
        key: key.join(" "),
        weight: report.weight.get(),
        usage: WireUsage {
            queued: report.queued.into(),
            running: report.running.into(),
            slots: report.slots.into(),
            throttled: report.throttled,
            ..sums(&report.usage)
        },
    }
}

fn subject(target: &str, report: &sched::SubjectReport) -> WireSubject {
    WireSubject {
        id: report.id.to_bits(),
        target: target.into(),
        job: report.identity.job.to_string(),
        uid: report.identity.uid,
        gid: report.identity.gid,
        nid: report.identity.nid.to_string(),
        usage: WireUsage {
            queued: report.queued.into(),
            running: report.running.into(),
            slots: report.slots.into(),
            throttled: report.throttled,
            ..sums(&report.usage)
        },
    }
}

fn sums(usage: &sched::Usage) -> WireUsage {
    WireUsage {
        read_bytes: usage.read.get(),
        written_bytes: usage.written.get(),
        ops: usage.ops.get(),
        requests: usage.requests,
        queue_ns: usage.queue_time.get(),
        service_ns: usage.service_time.get(),
        cost_ns: usage.cost.get(),
        remote_ns: usage.remote.get(),
        ..WireUsage::default()
    }
}

fn totals(tally: &ReplyTally) -> ProxyTotals {
    ProxyTotals {
        requests: tally.requests,
        read_bytes: tally.read_bytes,
        written_bytes: tally.written_bytes,
        ops: tally.ops,
        errors: tally.errors,
        cancelled: tally.cancelled,
    }
}

/// The most users of one connection that are reported.
const ATTACHES_MAX: usize = 64;

fn connection(connection: &Connection) -> api::ConnectionInfo {
    let session = connection.session.lock().expect("not poisoned");
    // Clients attach with their first fid, and further users with later ones.
    let mut users = BTreeMap::new();
    let fids = session.fids.lock().expect("not poisoned");
    for (number, fid) in fids.iter() {
        let first = users.entry(Arc::as_ptr(&fid.user)).or_insert((*number, &fid.user));
        first.0 = first.0.min(*number);
    }
    let mut users: Vec<_> = users.into_values().collect();
    users.sort_by_key(|(number, _)| *number);
    api::ConnectionInfo {
        id: connection.id,
        nid: connection.peer.nid.to_string(),
        peer_uid: connection.peer.uid,
        attaches: users.iter().take(ATTACHES_MAX).map(|(_, user)| attach(user)).collect(),
        msize_bytes: session.msize,
        fids: fids.len() as u64,
        tags: session.tags.len() as u64,
        in_flight_bytes: session.bytes as u64,
        unsent_bytes: connection.unsent() as u64,
        totals: totals(&session.tally),
    }
}

fn attach(user: &ProxyUser) -> Attach {
    let who = &user.identity;
    Attach {
        uname: (!user.uname.is_empty()).then(|| user.uname.to_string()),
        uid: who.uid,
        gid: who.gid,
        job: who.job.to_string(),
        export: user.export.name.to_string(),
    }
}

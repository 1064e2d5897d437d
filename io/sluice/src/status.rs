//! `sluice status`: the processes, their connections with each other, and problems.
//!
//! ```text
//!   a proxy:       GET /v1/status ──────────────► itself, its controller ─┬─► problems ─► exit status 1
//!   a controller:  GET /v1/status, /v1/proxies ─► itself, its proxies ────┤
//!   this machine's mounts: .sluice/status ─► each, its proxies ───────────┘
//! ```

mod mounts;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use api::{ControllerStatus, GroupReport, Proxies, ProxyStatus, WireProxyStatus};
use explain::span;
use serde::Serialize;

use crate::server_args::{ApiServer, ServerArgs};
use crate::top::table;
use mounts::MountShown;

/// Show a proxy, or a controller with its proxies, and local mounts
///
/// Shows the address and connections of each process, and problems. The mounts of this machine are
/// shown unless --proxy or --controller is given. Exit status 1 if there is a problem or the server
/// does not answer.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sluice status\n  \
                        sluice status --controller http://127.0.0.1:5650\n  \
                        sluice status --json | jq -r '.problems[]'")]
pub(crate) struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// JSON output.
    #[arg(long)]
    json: bool,
}

/// The status that is shown.
#[derive(Debug, Default, Serialize)]
struct ShownProcess {
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<ProxyStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    controller: Option<ControllerStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    proxies: Vec<WireProxyStatus>,
    /// The mounts of this machine, unless another server was named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<MountShown>,
    /// The problems, one sentence each.
    problems: Vec<String>,
}

/// Runs `sluice status`: prints processes and problems; fails if there are problems.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mounts = match args.server.is_named() {
        true => Vec::new(),
        false => mounts::all().context("cannot read the table of mounts")?,
    };
    // A node may have mounts and no proxy.
    let shown = match !mounts.is_empty() && args.server.is_default_absent()? {
        true => ShownProcess::default(),
        false => fetch(&args.server)?,
    };
    let shown = shown.with(mounts);
    let text = match args.json {
        true => serde_json::to_string_pretty(&shown)? + "\n",
        false => shown.text(),
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(if shown.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Gets the status of a proxy or a controller.
fn fetch(place: &ServerArgs) -> anyhow::Result<ShownProcess> {
    Ok(match place.connect()? {
        ApiServer::Proxy(client) => ShownProcess::of_proxy(client.status()?),
        ApiServer::Controller(client) => {
            let status = client.controller_status()?;
            let proxies = match client.proxies() {
                // A standby has no list of proxies.
                Err(error) if error.is_standby() => Proxies::default(),
                proxies => proxies?,
            };
            ShownProcess::of_controller(status, proxies.proxies)
        }
    })
}

impl ShownProcess {
    fn of_proxy(status: ProxyStatus) -> ShownProcess {
        let mut problems = Vec::new();
        if status.draining {
            problems.push("the proxy is draining: it accepts no new connections".into());
        }
        if let Some(link) = &status.controller {
            if link.duplicate {
                problems.push(format!(
                    "another proxy reports as {}; give one of them another name (--name)",
                    link.name
                ));
            }
            match (&link.problem, link.connected) {
                (Some(problem), _) => problems.push(format!("controller: {problem}")),
                (None, false) => problems.push("the controller has not answered yet".into()),
                (None, true) => {}
            }
        }
        ShownProcess { proxy: Some(status), problems, ..ShownProcess::default() }
    }

    fn of_controller(status: ControllerStatus, proxies: Vec<WireProxyStatus>) -> ShownProcess {
        let mut problems: Vec<_> = proxies.iter().filter_map(problem_of).collect();
        problems.dedup();
        if !status.is_leader && status.leader.is_none() {
            problems.push("no leader: this controller is a standby and sees no leader".into());
        }
        ShownProcess { controller: Some(status), proxies, problems, ..ShownProcess::default() }
    }

    /// Adds the mounts of this machine.
    fn with(mut self, mounts: Vec<MountShown>) -> ShownProcess {
        self.problems.extend(mounts.iter().flat_map(MountShown::problems));
        self.mounts = mounts;
        self
    }

    fn text(&self) -> String {
        let mut rows = Vec::new();
        let mut row = |head: &str, text: String| rows.push(vec![head.to_owned(), text]);
        if let Some(status) = &self.proxy {
            let ProxyStatus { version, pid, t_ns, .. } = status;
            row("proxy", format!("sluice {version}, process {pid}, up for {}", span(*t_ns)));
            status.listeners.iter().for_each(|at| row("listens", at.clone()));
            for export in &status.exports {
                row("export", format!("{} is {}", export.name, export.dir));
            }
            let (threads, most) = (status.threads.started, status.threads.max);
            let connections = status.connections;
            row("serves", format!("{connections} connections, {threads} of {most} threads"));
            if let Some(group) = &status.group {
                let GroupReport { name, epoch, proxies } = &**group;
                row("group", format!("{name} of {}, epoch {epoch}", proxies.join(", ")));
            }
            match &status.controller {
                None => row("controller", "none: the rules are local".into()),
                Some(link) => {
                    let heard = match link.last_reply_ns_ago {
                        Some(ago) => format!("last reply {} ago", span(ago)),
                        None => "no reply yet".into(),
                    };
                    row("controller", format!("{} as {}: {heard}", link.controller, link.name));
                }
            }
        }
        if let Some(status) = &self.controller {
            let ControllerStatus { version, pid, t_ns, term, .. } = status;
            row("controller", format!("sluice {version}, process {pid}, up for {}", span(*t_ns)));
            status.listeners.iter().for_each(|at| row("listens", at.clone()));
            row("store", status.store.clone());
            row(
                "decides",
                match (status.is_leader, &status.leader) {
                    (true, _) => format!("itself, term {term}"),
                    (false, Some(leader)) => format!("{leader}; this one is a standby"),
                    (false, None) => "no leader".into(),
                },
            );
        }
        self.problems.iter().for_each(|problem| row("problem", problem.clone()));
        if self.problems.is_empty() {
            row("problems", "none".into());
        }
        let mut text = String::new();
        let width = rows.iter().map(|cells| cells[0].len()).max().unwrap_or(0);
        for cells in rows {
            text += &format!("{:width$}  {}\n", cells[0], cells[1]);
        }
        if !self.proxies.is_empty() {
            let head = ["PROXY", "TARGET", "LAST REPORT", "RULES AND SHARES", "STATE"];
            let rows = self.proxies.iter().map(|proxy| {
                let parts = match proxy.sent == proxy.acknowledged {
                    true => "in force".to_owned(),
                    false => "sent".to_owned(),
                };
                let state = match (proxy.duplicate, proxy.unreachable) {
                    (true, _) => "duplicate name",
                    (false, true) => "unreachable",
                    (false, false) => "ok",
                };
                let heard = format!("{} ago", span(proxy.last_report_ns_ago));
                vec![proxy.name.clone(), proxy.target.clone(), heard, parts, state.into()]
            });
            text += "\n";
            text += &table::aligned(&head, &[2], rows);
        }
        text += &mounts::text(&self.mounts);
        text
    }
}

fn problem_of(proxy: &WireProxyStatus) -> Option<String> {
    let WireProxyStatus { name, .. } = proxy;
    if proxy.duplicate {
        let text = format!("two proxies report as {name}; give one of them another name (--name)");
        return Some(text);
    }
    let ago = span(proxy.last_report_ns_ago);
    proxy.unreachable.then(|| format!("proxy {name} is unreachable: its last report was {ago} ago"))
}

#[cfg(test)]
mod tests {
    use api::ControllerLink;

    use super::*;

    #[test]
    fn what_is_wrong_with_a_proxy_is_said_and_nothing_else_is() {
        let link = |connected, problem: Option<&str>, duplicate| {
            let problem = problem.map(str::to_owned);
            let link =
                ControllerLink { connected, problem, duplicate, ..ControllerLink::default() };
            ShownProcess::of_proxy(ProxyStatus {
                controller: Some(Box::new(link)),
                ..ProxyStatus::default()
            })
            .problems
            .len()
        };
        assert_eq!(link(true, None, false), 0);
        assert_eq!(link(false, None, false), 1);
        assert_eq!(link(false, Some("needs a token"), false), 1);
        assert_eq!(link(true, None, true), 1);
        assert_eq!(
            ShownProcess::of_proxy(ProxyStatus::default()).problems.len(),
            0,
            "it needs no controller"
        );
    }

    #[test]
    fn a_proxy_shows_its_name_in_the_group_and_the_epoch() {
        let proxies = vec!["io1".into(), "io2".into()];
        let group = Some(Box::new(GroupReport { name: "io2".into(), epoch: 3, proxies }));
        let text =
            |group| ShownProcess::of_proxy(ProxyStatus { group, ..ProxyStatus::default() }).text();
        assert!(text(group).contains("group       io2 of io1, io2, epoch 3\n"));
        assert!(!text(None).contains("group"));
    }

    #[test]
    fn each_proxy_that_is_silent_or_doubled_is_one_problem() {
        let proxy = |name: &str, target: &str, silent, duplicate| WireProxyStatus {
            name: name.into(),
            target: target.into(),
            unreachable: silent,
            duplicate,
            ..WireProxyStatus::default()
        };
        let proxies = vec![
            proxy("a", "x", false, true),
            proxy("a", "y", false, true),
            proxy("b", "x", true, false),
            proxy("c", "x", false, false),
        ];
        let leads = ControllerStatus { is_leader: true, ..ControllerStatus::default() };
        let shown = ShownProcess::of_controller(leads, proxies);
        assert_eq!(shown.problems.len(), 2, "{:?}", shown.problems);
        assert_eq!(shown.text().lines().filter(|line| line.starts_with("problem")).count(), 2);
        assert_eq!(
            ShownProcess::of_controller(ControllerStatus::default(), vec![]).problems.len(),
            1
        );
    }
}

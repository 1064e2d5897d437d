//! Three controllers with one etcd: one decides, and whichever dies, nothing is lost.
//!
//! ```text
//!   readers ─ 9P ─► proxies a, b ─► controllers 1, 2, 3 ─► etcd, three members
//!                                     └ the leader is killed, again and again; it comes back
//! ```

#![allow(clippy::unwrap_used)]

use std::time::Instant;

use api::{ErrorCode, WireRules};
use http::{ApiClient, Endpoints};

use crate::common::{Controller, SLUICE, until};
use crate::controlled::{LIMIT, Reader, api_of, assert_limited, limited, proxy, sum};
use testkit::TestFolder;

/// The controllers of a test; those that were killed stand again.
pub(crate) struct Controllers {
    folder: TestFolder,
    pub(crate) all: Vec<Controller>,
    etcd: Vec<String>,
}

impl Controllers {
    pub(crate) fn start(etcd: &[String]) -> Controllers {
        let folder = TestFolder::new();
        let stand = |at: usize| Controller::stand(&folder.path().join(at.to_string()), etcd);
        let all = (0..3).map(stand).collect();
        Controllers { folder, all, etcd: etcd.to_vec() }
    }

    pub(crate) fn urls(&self) -> String {
        self.all.iter().map(|one| one.url.as_str()).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn client(&self) -> ApiClient {
        ApiClient::at(self.urls().parse::<Endpoints>().unwrap()).unwrap()
    }

    /// Which one says that it decides.
    fn leader(&self) -> Option<usize> {
        let leads = |one: &Controller| {
            let status = one.client().controller_status();
            status.is_ok_and(|status| status.is_leader)
        };
        self.all.iter().position(leads)
    }

    pub(crate) fn wait_for_leader(&self) -> usize {
        let mut leader = None;
        until("one of them leads", || {
            leader = self.leader();
            leader.is_some()
        });
        leader.expect("one of them leads")
    }

    /// Starts one that was killed, where it was.
    pub(crate) fn start_again(&mut self, at: usize) {
        let data = self.folder.path().join(at.to_string());
        self.all[at] = Controller::stand_at(&data, &self.all[at].url.clone(), &self.etcd);
    }
}

/// Sets the rules at whichever controller leads. A machine that stops for longer than a lease has
/// none for a moment.
fn set(client: &ApiClient, text: &str) -> WireRules {
    let mut rules = None;
    until("a leader has the rules", || {
        rules = client.set_rules(text).ok();
        rules.is_some()
    });
    rules.expect("a leader has them")
}

fn counted(client: &ApiClient) -> u64 {
    let rows = client.usage("by=job&from=-1h").map(|table| table.rows).unwrap_or_default();
    rows.iter().find(|row| row.name == "dd.1").map_or(0, |row| row.service.read_bytes)
}

#[test]
fn whichever_controller_dies_another_decides_and_no_rule_and_no_byte_is_lost() {
    let Some(cluster) = testkit::Cluster::start() else { return };
    let mut controllers = Controllers::start(&cluster.endpoints());
    let first = controllers.wait_for_leader();
    let client = controllers.client();
    let mut rules = set(&client, &limited(LIMIT));
    let proxies = ["a", "b"].map(|node| proxy("deaths", node, &controllers.urls()));
    let apis = proxies.each_ref().map(api_of);
    let mut readers: Vec<_> = proxies.iter().map(Reader::start).collect();
    let have = |version: &str| apis.iter().all(|api| api.rules().unwrap().version == version);
    until("the rules have come", || have(&rules.version));
    until("usage was counted", || counted(&client) > 0);

    let mut leader = first;
    let mut term = controllers.all[first].client().controller_status().unwrap().term;
    for round in 1..=3 {
        controllers.all[leader].kill();
        assert_limited(&readers, "while nobody decides");
        let next = controllers.wait_for_leader();
        assert_ne!(next, leader);
        let status = controllers.all[next].client().controller_status().unwrap();
        assert!(status.term > term, "{status:?}");
        let mut kept = None;
        until("a leader has rules", || {
            kept = client.rules().ok();
            kept.is_some()
        });
        assert_eq!(kept.unwrap().text, rules.text, "no rule is lost");
        rules = set(&client, &limited(LIMIT + round));
        until("the next one's rules have come", || have(&rules.version));
        assert_limited(&readers, "with another leader");
        controllers.start_again(leader);
        (leader, term) = (controllers.wait_for_leader(), status.term);
    }
    readers.iter_mut().for_each(Reader::stop);
    let expected = sum(&readers);
    until("every byte was counted, once", || counted(&client) == expected);
    // With the proxies gone, only what the others have copied is left.
    let known = Instant::now();
    drop(proxies);
    until("both that stand by have copied it", || {
        let status = |one: &Controller| one.client().controller_status().ok();
        let all: Vec<_> = controllers.all.iter().filter_map(status).collect();
        let copied = all.iter().filter(|status| {
            let ago = status.replication_lag_ns.map(u128::from);
            !status.is_leader && ago.is_some_and(|ago| ago < known.elapsed().as_nanos())
        });
        copied.count() == 2 && all.iter().any(|status| status.is_leader)
    });
    let leader = controllers.wait_for_leader();
    controllers.all[leader].kill();
    controllers.wait_for_leader();
    until("the next one has it", || counted(&client) == expected);
}

#[test]
fn one_that_stands_by_says_who_leads_and_nothing_else() {
    let Some(cluster) = testkit::Cluster::start() else { return };
    let mut controllers = Controllers::start(&cluster.endpoints());
    // The leader may be another one by the time that it is asked for, where all of them wait for
    // a processor.
    until("one that stands by knows who leads, and says so to who changes rules", || {
        let leader = controllers.wait_for_leader();
        let url = &controllers.all[leader].url;
        let client = controllers.all[(leader + 1) % 3].client();
        let status = client.controller_status().unwrap();
        let refused = client.set_rules(&limited(LIMIT)).err();
        !status.is_leader
            && status.leader.as_deref() == Some(url)
            && refused.is_some_and(|error| {
                error.code() == ErrorCode::NotLeader && error.to_string().contains(url)
            })
    });
    // With all places one finds it by itself.
    set(&controllers.client(), &limited(LIMIT));
    until("the command finds it, too", || {
        let output = std::process::Command::new(SLUICE)
            .args(["rule", "list", "--controller", &controllers.urls()])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).contains("jobs")
    });
    controllers.all.iter_mut().for_each(Controller::kill);
    let none = controllers.client().rules().unwrap_err();
    assert_eq!(none.code(), ErrorCode::Unreachable, "{none}");
}

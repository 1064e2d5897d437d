//! Two proxies of one name, and one that its controller refuses: each of them says so, and the controller too.
//!
//! ```text
//!   proxy a (began first) ──── 409 ◄─┐
//!                                    ├─ sluice controller ─► event, metric, sluice status
//!   proxy a (began later) ─── order ◄┘
//! ```

#![allow(clippy::unwrap_used)]

use std::process::Command;

use api::{ControllerLink, EventKind};
use testkit::TestFolder;

use crate::common::{Controller, Proxy, SLUICE, until};
use crate::controlled::{api_of, proxy};
use crate::entrusted::{client, first_token, showing};

fn link(proxy: &Proxy) -> ControllerLink {
    *api_of(proxy).status().unwrap().controller.expect("it has one")
}

/// What `sluice status --json` finds wrong.
fn problems(place: [&str; 2]) -> usize {
    let output = Command::new(SLUICE).arg("status").args(place).arg("--json").output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = shown["problems"].as_array().unwrap().len();
    assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{shown}");
    problems
}

fn problems_of(proxy: &Proxy) -> usize {
    problems(["--proxy", &format!("unix://{}", proxy.dir.join("api").display())])
}

#[test]
fn two_proxies_of_one_name_are_told_and_the_one_that_stays_is_taken_again() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let client = controller.client();
    let elder = proxy("one-name-elder", "a", &controller.url);
    until("it is known", || client.proxies().unwrap().proxies.len() == 1);
    until("it hears", || link(&elder).connected);
    assert_eq!((problems_of(&elder), problems(["--controller", &controller.url])), (0, 0));

    let younger = proxy("one-name-younger", "a", &controller.url);
    until("the one that began first is refused", || {
        let link = link(&elder);
        link.duplicate && !link.connected && link.refused > 0 && link.problem.is_some()
    });
    until("the other one is reported", || {
        let link = link(&younger);
        link.duplicate && link.connected && link.refused == 0
    });
    assert!(client.proxies().unwrap().proxies.iter().all(|proxy| proxy.duplicate));
    // An event is published after it is stored, which the answers to the proxies do not wait for.
    until("it is told once", || {
        let events = client.events("").unwrap().events;
        let told = events.iter().filter(|event| event.kind == EventKind::Duplicate);
        told.map(|event| event.subject.clone()).collect::<Vec<_>>() == ["a"]
    });
    assert!(problems_of(&elder) > 0 && problems_of(&younger) > 0);
    assert_eq!(problems(["--controller", &controller.url]), 1);

    drop(younger);
    until("the one that is left is taken", || {
        let link = link(&elder);
        link.connected && !link.duplicate
    });
    until("it is not reported any more", || {
        client.proxies().unwrap().proxies.iter().all(|proxy| !proxy.duplicate && !proxy.unreachable)
    });
    assert_eq!(problems_of(&elder), 0);
}

#[test]
fn a_proxy_that_its_controller_refuses_says_why() {
    let data = TestFolder::new();
    let token = first_token(data.path());
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let proxy = proxy("refused", "a", &controller.url);
    until("it is refused", || {
        let link = link(&proxy);
        !link.connected && link.refused > 0 && link.problem.is_some()
    });
    assert_eq!(problems_of(&proxy), 1);
    let known = client(&controller.url, &showing(&token)).proxies().unwrap().proxies;
    assert!(known.is_empty(), "{known:?}");
}

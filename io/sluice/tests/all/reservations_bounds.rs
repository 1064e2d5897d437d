//! What bounds a reservation beside its target: the networks of two proxies, and the nodes of a job.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use testkit::TestFolder;

use crate::common::{Controller, SLUICE, Setup, until};
use crate::entrusted::{sluice, text};

#[test]
fn the_networks_of_both_proxies_and_the_nodes_of_a_job_bound_what_is_reserved() {
    let data = TestFolder::new();
    let config = data.path().join("controller.toml");
    fs::write(&config, "[reservations]\nnode = \"10MB/s\"\n").unwrap();
    let words = ["--config", text(&config)];
    let controller = Controller::start_with(data.path(), "http://127.0.0.1:0", &words);
    let api = controller.client();
    let proxies = ["a", "b"].map(|name| {
        let top = format!(
            "controller = \"{}\"\nproxy_name = \"{name}\"\nnetwork = \"20MB/s\"\n",
            controller.url
        );
        let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
                      [[target]]\nname = \"fs\"\ncapacity_read = \"1GB/s\"\n\
                      capacity_write = \"1GB/s\"\n";
        Setup::new(&format!("bounds-{name}")).top(&top).tables(tables).start()
    });
    until("the networks of both are known", || {
        let resources = api.calendar("").unwrap().resources;
        resources.iter().any(|of| of.kind == "proxy network" && of.read_per_sec == 40_000_000)
    });
    let to = ["--controller", controller.url.as_str()];
    let add = |rate: &str, more: &[&str]| {
        let words =
            ["reserve", "add", "--bandwidth", rate, "--direction", "write", "--for", "10min"];
        let output = Command::new(SLUICE).args(words).args(to).args(more).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, error) = add("35MB/s", &[]);
    assert_eq!(status, Some(4), "{error}");
    assert!(error.contains("proxy network \"fs\""), "{error}");
    let (status, error) = add("33MB/s", &["--nodes", "3"]);
    assert_eq!(status, Some(4), "{error}");
    assert!(error.contains("33MB/s") && error.contains("3 nodes of 10MB/s"), "{error}");
    let (status, error) = add("30MB/s", &["--nodes", "3"]);
    assert_eq!(status, Some(0), "{error}");
    let shown = sluice(&[&["reserve", "calendar"][..], &to].concat()).unwrap();
    assert!(shown.contains("proxy network fs"), "{shown}");
    drop(proxies);
}

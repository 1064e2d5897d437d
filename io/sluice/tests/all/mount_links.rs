//! A limited directory and files of it with other names, as programs on a mount meet them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::path::Path;

use http::ApiClient;

use crate::common::{Proxy, everybodys};
use crate::mounted::{Mounted, can_mount, setup};

/// What is counted is told by its class: no rate holds a test back.
const RULES: &str = "
[[rule]]
name = \"dir\"
match = \"path={/dir}\"

[[meter]]
name = \"ceiling\"
match = \"path={/dir}\"
rate = \"10GB/s\"
";

/// Requests that were counted in the directory, and bytes written there.
fn counted(proxy: &Proxy) -> (u64, u64) {
    let address = format!("unix://{}/api", proxy.dir.display()).parse().unwrap();
    let classes = ApiClient::new(&address).unwrap().classes().unwrap().classes;
    let of = classes.iter().filter(|class| class.rule == "dir").map(|class| &class.usage);
    of.fold((0, 0), |sum, usage| (sum.0 + usage.requests, sum.1 + usage.written_bytes))
}

/// Writes to a file and waits until it is at the server.
fn write(at: &Path, bytes: usize) {
    let mut file = fs::File::options().write(true).open(at).unwrap();
    file.write_all(&vec![1; bytes]).unwrap();
    file.sync_all().unwrap();
}

fn mounted(name: &str) -> Option<(Proxy, Mounted)> {
    if !can_mount() {
        return None;
    }
    let proxy = setup(name).rules(RULES).api().start();
    fs::create_dir(proxy.data().join("dir")).unwrap();
    everybodys(&proxy.data().join("dir"));
    fs::write(proxy.data().join("dir/file"), b"content").unwrap();
    let mount = Mounted::new(&proxy, "attr_timeout=0s");
    Some((proxy, mount))
}

#[test]
fn a_file_of_a_limited_directory_pays_its_meter_under_every_name_of_it() {
    let Some((proxy, mount)) = mounted("mount-links") else { return };
    let (file, link) = (mount.join("dir/file"), mount.join("link"));
    fs::hard_link(&file, &link).unwrap();
    for name in [&file, &link] {
        let before = counted(&proxy).1;
        write(name, 100_000);
        assert_eq!(counted(&proxy).1 - before, 100_000, "{}", name.display());
    }
    // A second mount has never looked the first name up.
    let other = Mounted::new(&proxy, "attr_timeout=0s");
    let before = counted(&proxy).1;
    write(&other.join("link"), 100_000);
    assert_eq!(counted(&proxy).1 - before, 100_000);
    fs::remove_file(&file).unwrap();
    let before = counted(&proxy).1;
    write(&link, 100_000);
    assert_eq!(counted(&proxy).1 - before, 0, "it has no name there any more");
}

#[test]
fn who_looks_at_a_limited_directory_through_a_mount_pays_for_it() {
    let Some((proxy, mount)) = mounted("mount-metadata") else { return };
    let before = counted(&proxy).0;
    for _ in 0..10 {
        fs::metadata(mount.join("dir/file")).unwrap();
    }
    let looked = counted(&proxy).0 - before;
    assert!(looked >= 10, "{looked} requests were counted");
    fs::write(mount.join("outside"), b"").unwrap();
    let before = counted(&proxy).0;
    for _ in 0..10 {
        fs::metadata(mount.join("outside")).unwrap();
    }
    assert_eq!(counted(&proxy).0 - before, 0);
}

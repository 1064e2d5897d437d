//! What proxy and controller make for themselves, and what they find: whose it is, who may read it
//! and who may write it, whatever the umask was.
//!
//! ```text
//!   umask 0 ─► proxy, controller ─► every directory and file ─► nobody else may write, keys and
//!                                                               databases nobody else may read
//!   planted, empty, writable by others ─► no start            readable by others ─► 0600
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, DirEntry};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use api::ErrorCode;
use http::{ApiClient, ClientError, Endpoint, ListenerError, ServerAddress};
use mount::{MountDaemon, MountSettings};
use ninep::{Fid, Request};
use rustix::process::Signal;
use testkit::{TestFolder, root_here};

use crate::common::{Controller, LET_GO, PATIENCE, Proxy, SLUICE, Setup, USER, making_copies};
use crate::controlled::{LIMIT, limited};
use crate::entrusted::{client, first_token, showing, sluice, text};
use crate::mounted::can_mount;

const NOBODY: u32 = 65_534;
/// A shell that lets everybody write to what is made, and runs what follows.
const UMASK_0: [&str; 3] = ["sh", "-c", "umask 0; exec \"$0\" \"$@\""];

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// All that is in a directory, at any depth.
fn all_of(directory: &Path) -> Vec<DirEntry> {
    let mut found: Vec<_> = fs::read_dir(directory).unwrap().map(Result::unwrap).collect();
    for at in 0..found.len() {
        if found[at].file_type().unwrap().is_dir() {
            let inner = all_of(&found[at].path());
            found.extend(inner);
        }
    }
    found
}

/// A command under umask 0.
fn open_to_all() -> Command {
    let mut command = Command::new(UMASK_0[0]);
    command.args(&UMASK_0[1..]).arg(SLUICE);
    command
}

/// Makes a file and a directory for everybody through a proxy, and looks at them beside it.
fn make_for_all(proxy: &Proxy) {
    let mut user = proxy.client();
    user.walk(0, 1, &[]).unwrap();
    user.create(1, "f", ninep::open::RDWR, 0o666).unwrap();
    let request = Request::Mkdir { dfid: Fid(0), name: b"d", mode: 0o777, gid: USER };
    user.call(&request).reply().unwrap();
    assert_eq!(mode(&proxy.data().join("f")), 0o666);
    assert_eq!(mode(&proxy.data().join("d")) & 0o777, 0o777);
}

#[test]
fn a_proxy_started_with_umask_0_makes_nothing_that_others_may_write() {
    let top = "handle_key = \"@/key/deep/handle.key\"\nmetrics = \"unix://@/run/m/metrics.sock\"\n\
               trace = \"@/trace\"\n";
    let top = top.to_owned() + "listen = [\"tcp://127.0.0.1:0\", \"unix://@/run/9p/9p.sock\"]";
    let mut proxy = Setup::new("umask-0").api().top(&top).under(&UMASK_0).start();
    // What a client makes has the permissions that the client asks for.
    make_for_all(&proxy);
    let socket = proxy.dir.join("run/9p/9p.sock");
    for entry in all_of(&proxy.dir) {
        let path = entry.path();
        if path.starts_with(proxy.data()) || path == socket {
            continue;
        }
        assert_eq!(mode(&path) & 0o022, 0, "{path:?} has mode {:04o}", mode(&path));
    }
    assert_eq!(mode(&socket), 0o666, "who may connect is who may attach");
    for name in ["key/deep/handle.key", "trace", "run/m/metrics.sock", "api"] {
        assert_eq!(mode(&proxy.dir.join(name)), 0o600, "{name}");
    }
    proxy.signal(Signal::TERM);
    proxy.wait();
}

#[test]
fn what_clients_make_does_not_hang_on_the_umask_of_the_proxy() {
    let words = ["sh", "-c", "umask 077; exec \"$0\" \"$@\""];
    let proxy = Setup::new("umask-077").under(&words).start();
    make_for_all(&proxy);
    assert_eq!(mode(&proxy.socket()), 0o666, "nor who may attach");
}

#[test]
fn the_directories_of_the_first_proxy_of_a_machine_are_not_everybody_s() {
    if !root_here() {
        return;
    }
    let folder = TestFolder::new();
    // A machine of its own, whose /var/lib/sluice a former version left open.
    let script = format!(
        "{LET_GO}; mount -t tmpfs -o mode=755 t /run && mount -t tmpfs -o mode=755 t /var/lib && \
         mkdir /var/lib/sluice && chmod 777 /var/lib/sluice && umask 0 && exec \"$0\" \"$@\""
    );
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let export = format!("x={}", data.display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script, SLUICE, "proxy"]);
    command.args(["--export", &export, "--listen", "tcp://127.0.0.1:0"]);
    let proxy = making_copies(|| Controller::of(command, "ready"));
    let root = PathBuf::from(format!("/proc/{}/root", proxy.process()));
    for (name, expected) in [
        ("run/sluice", 0o755),
        ("run/sluice/proxy.sock", 0o600),
        ("var/lib/sluice", 0o755),
        ("var/lib/sluice/handle.key", 0o600),
    ] {
        assert_eq!(mode(&root.join(name)), expected, "{name}");
    }
}

/// A proxy that is to end by itself: what it said.
fn proxy_with_key(folder: &TestFolder, key: &Path) -> Output {
    let export = format!("x={}", folder.path().display());
    let config = folder.path().join("sluice.toml");
    fs::write(&config, format!("handle_key = \"{}\"\napi = \"off\"\n", key.display())).unwrap();
    let mut command = Command::new(SLUICE);
    command.args(["proxy", "--config", text(&config), "--export", &export]);
    command.args(["--listen", "tcp://127.0.0.1:0"]).output().unwrap()
}

#[test]
fn a_key_that_others_could_have_written_or_that_is_empty_is_refused() {
    let folder = TestFolder::new();
    let key = folder.path().join("handle.key");
    let refused = |why: &str| {
        let before = fs::read(&key).unwrap();
        let output = proxy_with_key(&folder, &key);
        assert_eq!(output.status.code(), Some(1), "{why}: {output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(text(&key)), "{why}: {said}");
        assert_eq!(fs::read(&key).unwrap(), before, "{why}: it is left as it was found");
    };
    for bytes in [&b""[..], &[0; 32], &[7; 31]] {
        fs::write(&key, bytes).unwrap();
        set_mode(&key, 0o600);
        refused("no key");
    }
    fs::write(&key, [7; 32]).unwrap();
    for mode in [0o620, 0o602, 0o666] {
        set_mode(&key, mode);
        refused("writable");
    }
    if root_here() {
        set_mode(&key, 0o600);
        chown(&key, Some(NOBODY), None).unwrap();
        refused("planted");
    }
}

#[test]
fn a_key_that_others_may_read_is_taken_from_them() {
    let setup = Setup::new("key-readable").top("handle_key = \"handle.key\"");
    let key = setup.dir().join("handle.key");
    let proxy = setup.start();
    let bytes = fs::read(&key).unwrap();
    set_mode(&key, 0o644);
    proxy.crash();
    let proxy = Setup::new("key-readable").again().top("handle_key = \"handle.key\"").start();
    assert_eq!((mode(&key), fs::read(&key).unwrap()), (0o600, bytes));
    drop(proxy);
}

/// Files and directories of a controller with rules, tokens and usage, while it runs.
fn used_controller(data: &Path) -> (Controller, String) {
    let root = first_token(data);
    let mut command = open_to_all();
    command.args(["controller", "--listen", "http://127.0.0.1:0", "--data"]).arg(data);
    let controller = Controller::of(command, "ready");
    client(&controller.url, &showing(&root)).set_rules(&limited(LIMIT)).unwrap();
    (controller, root)
}

#[test]
fn what_a_controller_keeps_is_nobody_else_s_to_read() {
    let folder = TestFolder::new();
    let data = folder.path().join("var/lib/controller");
    let status = open_to_all()
        .args(["token", "create", "first", "--role", "admin", "--data", text(&data)])
        .output()
        .unwrap();
    assert!(status.status.success(), "{status:?}");
    let (controller, _) = used_controller(&data);
    assert_eq!(mode(&data), 0o700);
    for above in [folder.path().join("var"), folder.path().join("var/lib")] {
        assert_eq!(mode(&above), 0o755, "{above:?}");
    }
    let files = |data: &Path| {
        let entries = all_of(data);
        let names: Vec<_> = entries.iter().map(|entry| entry.file_name()).collect();
        for name in ["decided.db", "decided.db-wal", "decided.db-shm", "used.db", "events.db"] {
            assert!(names.iter().any(|found| found == name), "{name} is not in {names:?}");
        }
        entries.into_iter().map(|entry| entry.path()).collect::<Vec<_>>()
    };
    for path in files(&data) {
        assert_eq!(mode(&path), 0o600, "{path:?}");
    }

    // As a former version left them, with what was not yet folded into them.
    drop(controller);
    for path in files(&data) {
        set_mode(&path, 0o644);
    }
    set_mode(&data, 0o777);
    let controller = Controller::start(&data, "http://127.0.0.1:0");
    assert_eq!(mode(&data), 0o755);
    for path in files(&data) {
        if !path.ends_with("lock") {
            assert_eq!(mode(&path), 0o600, "{path:?}");
        }
    }
    drop(controller);
}

#[test]
fn a_database_that_others_could_have_written_stops_the_start() {
    let folder = TestFolder::new();
    let (controller, _) = used_controller(folder.path());
    drop(controller);
    let refused = |path: &Path| {
        let args = ["controller", "--data", text(folder.path()), "--listen", "http://127.0.0.1:0"];
        let error = sluice(&args).unwrap_err();
        assert!(error.contains(text(path)), "{error}");
    };
    for name in ["decided.db", "decided.db-wal", "used.db", "used.db-wal", "events.db", "audit.log"]
    {
        let path = folder.path().join(name);
        set_mode(&path, 0o666);
        refused(&path);
        set_mode(&path, 0o600);
        if root_here() {
            chown(&path, Some(NOBODY), None).unwrap();
            refused(&path);
            chown(&path, Some(0), None).unwrap();
        }
    }
    let controller = Controller::start(folder.path(), "http://127.0.0.1:0");
    let error = controller.client().rules().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unauthenticated, "{error}");
}

#[test]
fn records_that_were_lost_stop_the_start_and_do_not_open_the_door() {
    let folder = TestFolder::new();
    let dir = text(folder.path());
    let (controller, _) = used_controller(folder.path());
    drop(controller);
    let decided = folder.path().join("decided.db");
    for name in ["decided.db-wal", "decided.db-shm", "decided.db"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    let start = ["controller", "--data", dir, "--listen", "http://127.0.0.1:0"];
    let token = ["token", "create", "new", "--role", "admin", "--data", dir];
    for empty in [false, true] {
        if empty {
            fs::write(&decided, "").unwrap();
            set_mode(&decided, 0o600);
        }
        for args in [&start[..], &token, &["token", "list", "--data", dir]] {
            let error = sluice(args).unwrap_err();
            for part in [text(&decided), "used.db", "audit.log", "--accept-lost-records"] {
                assert!(error.contains(part), "{args:?}: {error}");
            }
            assert_eq!(fs::metadata(&decided).map_or(0, |found| found.len()), 0, "{args:?}");
        }
    }
    let accepted = sluice(&[&token[..], &["--accept-lost-records"]].concat()).unwrap();
    let controller = Controller::start(folder.path(), "http://127.0.0.1:0");
    let error = controller.client().rules().unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unauthenticated, "{error}");
    let rules = client(&controller.url, &showing(accepted.trim())).rules().unwrap();
    assert!(rules.rules.is_empty());
}

/// A proxy of a user of its own, with the socket of its API and of 9P in `sockets`.
fn proxy_of(uid: u32, folder: &TestFolder, sockets: &Path) -> Controller {
    let data = folder.path().join("data");
    fs::create_dir_all(&data).unwrap();
    let at = |name: &str| format!("unix://{}", sockets.join(name).display());
    let (export, api, listen) = (format!("x={}", data.display()), at("api"), at("9p"));
    let mut command = Command::new(SLUICE);
    command
        .args(["proxy", "--export", &export, "--api", &api, "--listen", &listen])
        .uid(uid)
        .gid(uid);
    Controller::of(command, "ready")
}

#[test]
fn a_socket_that_a_stranger_put_there_is_not_spoken_to() {
    if !root_here() {
        return;
    }
    let folder = TestFolder::new();
    set_mode(folder.path(), 0o755);
    let sockets = folder.path().join("sockets");
    fs::create_dir(&sockets).unwrap();
    set_mode(&sockets, 0o1777);
    let proxy = proxy_of(NOBODY, &folder, &sockets);
    let (api, ninep) = (sockets.join("api"), sockets.join("9p"));
    assert!(fs::metadata(&api).unwrap().file_type().is_socket());
    let ask = || {
        ApiClient::new(&ServerAddress::Unix(api.clone()))
            .unwrap()
            .with_time_limit(PATIENCE)
            .status()
    };
    let error = ask().unwrap_err();
    let stranger = ListenerError::Stranger { path: api.clone(), uid: NOBODY };
    assert_eq!(error.to_string(), stranger.to_string());
    let place = format!("unix://{}", api.display());
    assert!(sluice(&["rule", "list", "--proxy", &place]).is_err());
    let endpoint: Endpoint = place.parse().unwrap();
    let error = ApiClient::at(&endpoint).unwrap().controller_status().unwrap_err();
    assert!(matches!(error, ClientError::Listener(_)), "{error}");
    let mount = || {
        let at = folder.path().join("at");
        fs::create_dir_all(&at).unwrap();
        let source = format!("unix://{}//x", ninep.display());
        let started = MountDaemon::start(&MountSettings::new(&source, &at, "").unwrap());
        started.map(drop)
    };
    if can_mount() {
        let error = mount().unwrap_err();
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        let mut said = String::new();
        while let Some(error) = cause {
            said += &error.to_string();
            cause = error.source();
        }
        assert!(said.contains(&NOBODY.to_string()), "{said}");
    }

    // The same in a directory of that user's, as a service has one.
    chown(&sockets, Some(NOBODY), None).unwrap();
    assert_eq!(ask().unwrap().pid, proxy.process());
    if can_mount() {
        mount().unwrap();
    }
}

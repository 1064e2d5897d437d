//! One mount of several proxies of the same directory: files have homes, and a proxy that dies
//! has its files moved.
//!
//! ```text
//!              ┌─► proxy `one` ─┐
//!   mount ─────┤                ├─► one directory, one key of handles
//!              └─► proxy `two` ─┘
//! ```

#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::common::{Proxy, Setup, until};
use crate::controlled::api_of;
use crate::mounted::{Mounted, Relay, can_mount, finish};
use mount::{GroupError, MountDaemon, MountError, MountSettings};
use testkit::{TestFolder, until_free};

/// A proxy of a directory that others export too, `NAME-1` or `NAME-2` of a group of these.
fn one_of(name: &str, data: &Path, key: &Path) -> Setup {
    let of = name.strip_suffix(['1', '2']).unwrap();
    let group = [1, 2].map(|number| format!("{of}{number}"));
    alone(name, data, key).group(name, &group.each_ref().map(String::as_str))
}

/// A proxy without a group of a directory that others export too.
fn alone(name: &str, data: &Path, key: &Path) -> Setup {
    let export = format!("[[export]]\nname = \"x\"\ndir = {data:?}\n");
    let setup = Setup::new(name).api().tables(&export);
    setup.top(&format!("squash = \"none\"\nhandle_key = {key:?}"))
}

/// A directory for proxies to share, and a file for their key; removed at the end.
struct Place(TestFolder);

impl Place {
    fn new() -> Place {
        let folder = TestFolder::new();
        fs::create_dir(folder.path().join("data")).unwrap();
        Place(folder)
    }

    fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    fn proxy(&self, name: &str) -> Setup {
        one_of(name, &self.data(), &self.0.path().join("key"))
    }

    fn alone(&self, name: &str) -> Setup {
        alone(name, &self.data(), &self.0.path().join("key"))
    }
}

fn source(proxy: &Proxy) -> String {
    format!("unix://{}//x", proxy.socket().display())
}

/// By the name of this machine, where that is the address at which proxies listen.
fn by_name(proxy: &Proxy) -> String {
    let first = ("localhost", 0).to_socket_addrs().ok().and_then(|mut found| found.next());
    let is_v4 = first.is_some_and(|first| first.ip() == proxy.tcp.ip());
    let host = if is_v4 { "localhost" } else { "127.0.0.1" };
    format!("tcp://{host}:{}/x", proxy.tcp.port())
}

/// Their sources, by the sockets that stay the same when a proxy is started again.
fn sources(proxies: [&Proxy; 2]) -> String {
    proxies.map(source).join(",")
}

/// Requests that a proxy has counted, of all kinds.
fn requests(proxy: &Proxy) -> u64 {
    api_of(proxy).classes().unwrap().classes.iter().map(|class| class.usage.requests).sum()
}

/// What a proxy was told of service elsewhere, in ns of cost.
fn elsewhere(proxy: &Proxy) -> u64 {
    api_of(proxy).classes().unwrap().classes.iter().map(|class| class.usage.remote_ns).sum()
}

/// Which of the proxies serves a mount's file: that which gets the questions about it.
fn home(mount: &Mounted, name: &str, proxies: [&Proxy; 2]) -> usize {
    let file = File::open(mount.join(name)).unwrap();
    let before = proxies.map(requests);
    for _ in 0..10 {
        file.metadata().unwrap();
    }
    let after = proxies.map(requests);
    let asked = [0, 1].map(|at| after[at] - before[at]);
    assert!(asked.iter().any(|asked| *asked >= 10) && asked.contains(&0), "{asked:?}");
    usize::from(asked[1] > 0)
}

#[test]
fn mounts_that_spell_addresses_in_other_ways_and_orders_agree_on_homes() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (one, two) = (place.proxy("agree-1").start(), place.proxy("agree-2").start());
    let names: Vec<_> = (0..16).map(|number| format!("file{number}")).collect();
    names.iter().for_each(|name| fs::write(place.data().join(name), name).unwrap());
    let (at_one, at_two) = (one.tcp.port(), two.tcp.port());
    let spelt = [
        sources([&one, &two]),
        format!("tcp://127.0.0.1:{at_two}/x,tcp://127.0.0.1:{at_one}/x"),
        format!("{},{}", by_name(&one), source(&two)),
    ];
    let homes = spelt.map(|sources| {
        let mount = Mounted::of(&sources, "attr_timeout=0");
        names.iter().map(|name| home(&mount, name, [&one, &two])).collect::<Vec<_>>()
    });
    assert!(homes[0].contains(&0) && homes[0].contains(&1), "{homes:?}");
    assert_eq!(homes[0], homes[1]);
    assert_eq!(homes[0], homes[2]);
}

/// The error of a mount that must not come about.
fn refusal(sources: &str, place: &Place) -> MountError {
    let at = place.0.path().join("at");
    fs::create_dir_all(&at).unwrap();
    let settings = MountSettings::new(sources, &at, "").unwrap();
    MountDaemon::start(&settings).unwrap_err()
}

#[test]
fn proxies_that_are_not_of_one_group_are_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let one = place.proxy("groups-1").start();
    let refused = |sources: String| match refusal(&sources, &place) {
        MountError::Group(error) => error,
        other => panic!("{other}"),
    };
    let with_one = |other: &Proxy| refused(sources([&one, other]));
    let again = refused(format!("{},{}", source(&one), by_name(&one)));
    assert!(matches!(&again, GroupError::SameProxy { name, .. } if name == "groups-1"), "{again}");

    let names = ["groups-1", "groups-2"];
    let setup = |name: &str| place.alone(name);
    let raised = setup("groups-raised").group_in(2, "groups-2", &names).start();
    let error = with_one(&raised);
    assert!(matches!(&error, GroupError::Different { group, other_group, .. }
        if group == "groups-1, groups-2 (epoch 1)" && other_group == "groups-1, groups-2 (epoch 2)"));
    drop(raised);

    let longer = [&names[..], &["groups-3"]].concat();
    let listed = setup("groups-longer").group("groups-2", &longer).start();
    assert!(matches!(with_one(&listed), GroupError::Different { .. }));
    drop(listed);

    let stranger = setup("groups-stranger").group("groups-3", &longer).start();
    let error = with_one(&stranger);
    assert!(matches!(&error, GroupError::NotInGroup { name, .. } if name == "groups-3"), "{error}");
    drop(stranger);

    let (three, four) = (setup("groups-three").start(), setup("groups-four").start());
    let error = with_one(&three);
    assert!(matches!(&error, GroupError::Ungrouped { group, .. }
        if group == "groups-1, groups-2 (epoch 1)"));
    let error = refused(sources([&three, &four]));
    assert!(matches!(&error, GroupError::NoGroup { address }
        if address.to_string() == format!("unix://{}", three.socket().display())));

    let two = place.proxy("groups-2").start();
    let both = sources([&one, &two]);
    let error = refused(format!("{both},unix:///run/sluice/nobody//x"));
    assert!(matches!(&error, GroupError::Surplus { .. }), "{error}");
}

#[test]
fn proxies_that_are_reached_later_serve_their_names_and_other_lists_change_nothing() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let all = ["late-group-1", "late-group-2", "late-group-3"];
    let setup = |at: usize| place.alone(all[at]).group(all[at], &all);
    let mut proxies = [0, 1, 2].map(|at| setup(at).start());
    let sources = proxies.each_ref().map(source).join(",");
    let [one, two, three] = proxies;
    two.crash();
    three.crash();
    let mount = Mounted::of(&sources, "attr_timeout=0");
    let names: Vec<_> = (0..64).map(|number| format!("file{number}")).collect();
    let read_all = || {
        names.iter().for_each(|name| assert_eq!(fs::read(mount.join(name)).unwrap(), b"there"));
    };
    names.iter().for_each(|name| fs::write(mount.join(name), "there").unwrap());
    // Which is which is only known now, and one has another list by now.
    let longer = [&all[..], &["late-group-4"]].concat();
    proxies =
        [one, setup(1).again().start(), setup(2).group_in(2, all[2], &longer).again().start()];
    until("both are used", || {
        read_all();
        proxies.iter().skip(1).all(|proxy| requests(proxy) > 0)
    });
}

#[test]
fn each_proxy_is_told_what_its_mounts_had_of_the_other() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (one, two) = (place.proxy("service-1").start(), place.proxy("service-2").start());
    let mount = Mounted::of(&sources([&one, &two]), "attr_timeout=0");
    for number in 0..64 {
        fs::write(mount.join(&format!("f{number}")), b"").unwrap();
    }
    for number in (0..640).map(|number| number % 64) {
        assert_eq!(fs::metadata(mount.join(&format!("f{number}"))).unwrap().len(), 0);
    }
    // It is told with what comes next.
    until("each has served and was told", || {
        for number in 0..64 {
            fs::metadata(mount.join(&format!("f{number}"))).unwrap();
        }
        [&one, &two].iter().all(|proxy| requests(proxy) > 100 && elsewhere(proxy) > 100_000)
    });
}

#[test]
fn files_and_directories_are_spread_over_the_proxies() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let (one, two) = (place.proxy("spread-1").start(), place.proxy("spread-2").start());
    let mount = Mounted::of(&sources([&one, &two]), "attr_timeout=0");
    for number in 0..32 {
        let folder = mount.join(&format!("folder{number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), number.to_string()).unwrap();
        fs::rename(folder.join("file"), mount.join(&format!("file{number}"))).unwrap();
    }
    let before = [requests(&one), requests(&two)];
    for number in 0..32 {
        let file = mount.join(&format!("file{number}"));
        assert_eq!(fs::read_to_string(file).unwrap(), number.to_string());
    }
    for (proxy, before) in [&one, &two].into_iter().zip(before) {
        assert!(requests(proxy) >= before + 8, "{} more", requests(proxy) - before);
    }
    // Between files of different homes too the kernel finds a way to copy.
    for number in 1..8 {
        fs::copy(mount.join("file0"), mount.join(&format!("file{number}"))).unwrap();
        assert_eq!(fs::read(mount.join(&format!("file{number}"))).unwrap(), b"0");
    }
}

/// Makes, reads and removes files until told to stop; each call must do what it says, once.
fn work(folder: PathBuf, stop: Arc<AtomicBool>) -> JoinHandle<usize> {
    std::thread::spawn(move || {
        fs::create_dir(&folder).unwrap();
        let log = folder.join("log");
        let mut log = OpenOptions::new().append(true).create_new(true).open(log).unwrap();
        let mut rounds = 0;
        while !stop.load(Ordering::SeqCst) {
            let (file, moved) = (folder.join(format!("file{rounds}")), folder.join("moved"));
            let mut made = File::create_new(&file).unwrap();
            made.write_all(rounds.to_string().as_bytes()).unwrap();
            drop(made);
            fs::rename(&file, &moved).unwrap();
            assert_eq!(fs::read_to_string(&moved).unwrap(), rounds.to_string());
            fs::remove_file(&moved).unwrap();
            log.write_all(format!("{rounds:09}\n").as_bytes()).unwrap();
            rounds += 1;
        }
        let written = fs::read_to_string(folder.join("log")).unwrap();
        assert!(written.lines().eq((0..rounds).map(|round| format!("{round:09}"))), "{written}");
        rounds
    })
}

#[test]
fn the_files_of_a_proxy_that_dies_move_and_return() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let names = ["moves-1", "moves-2"];
    let mut proxies = names.map(|name| Some(place.proxy(name).start()));
    let [Some(one), Some(two)] = &proxies else { unreachable!() };
    let mount = Mounted::of(&sources([one, two]), "attr_timeout=0");
    // Open all the while, at either proxy.
    let files: Vec<File> = (0..16)
        .map(|number| {
            fs::write(mount.join(&format!("open{number}")), "before").unwrap();
            OpenOptions::new().write(true).open(mount.join(&format!("open{number}"))).unwrap()
        })
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> =
        (0..4).map(|n| work(mount.join(&format!("worker{n}")), stop.clone())).collect();
    let log = |n: usize| place.data().join(format!("worker{n}/log"));
    let len = |n: usize| log(n).metadata().map_or(0, |found| found.len());
    for dies in [0, 1] {
        let lens: Vec<_> = (0..4).map(len).collect();
        until("all work", || (0..4).all(|n| len(n) > lens[n] + 30));
        proxies[dies].take().unwrap().crash();
        let lens: Vec<_> = (0..4).map(len).collect();
        until("all work goes on with one proxy", || (0..4).all(|n| len(n) > lens[n] + 30));
        for (number, file) in files.iter().enumerate() {
            file.write_all_at(format!("after {dies}").as_bytes(), 0).unwrap();
            file.sync_all().unwrap();
            let there = fs::read_to_string(place.data().join(format!("open{number}"))).unwrap();
            assert_eq!(there, format!("after {dies}"));
        }
        let back = place.proxy(names[dies]).again().start();
        let idle = requests(&back);
        until("its files return to it", || requests(&back) > idle + 30);
        proxies[dies] = Some(back);
    }
    stop.store(true, Ordering::SeqCst);
    let rounds: usize = finish(workers).iter().sum();
    println!("{rounds} rounds over two deaths");
}

/// A lock that is granted between the mount's looking for its own proxy and its going there: the
/// lock would be free for a moment.
#[test]
fn a_session_does_not_return_while_a_lock_is_held_that_was_granted_as_it_looked() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let [one, two] = ["late-lock-1", "late-lock-2"].map(|name| place.proxy(name).start());
    let at = one.tcp;
    let mount = Mounted::of(&format!("tcp://{at}/x,unix://{}//x", two.socket().display()), "");
    let other = Mounted::new(&two, "");
    let names: Vec<_> = (0..16).map(|number| format!("file{number}")).collect();
    for name in &names {
        fs::write(mount.join(name), "before").unwrap();
    }
    one.crash();
    for name in &names {
        assert_eq!(fs::read(mount.join(name)).unwrap(), b"before");
    }
    // It is back, but whoever connects to where it was hears nothing for a while.
    let one = place.proxy("late-lock-1").again().start();
    until_free(&format!("tcp://{at}"));
    let listener = TcpListener::bind(at).unwrap();
    let (looks, _) = listener.accept().unwrap();
    let open = |mount: &Mounted, name| {
        OpenOptions::new().read(true).write(true).open(mount.join(name)).unwrap()
    };
    let files: Vec<_> = names.iter().map(|name| open(&mount, name)).collect();
    files.iter().for_each(|file| file.lock().unwrap());
    let looked = Relay::join(&looks, one.tcp);
    Relay::pass_on(listener, one.tcp);
    until("it has found its proxy", || looked.iter().all(JoinHandle::is_finished));
    for round in 0..30 {
        for file in &files {
            file.write_all_at(format!("{round:06}").as_bytes(), 0).unwrap();
            file.sync_all().unwrap();
        }
    }
    for name in &names {
        let tried = open(&other, name).try_lock();
        assert!(matches!(tried, Err(TryLockError::WouldBlock)), "{name}: {tried:?}");
    }
    let before = requests(&one);
    files.iter().for_each(|file| file.unlock().unwrap());
    until("its files return to it", || {
        assert_eq!(fs::read(mount.join(&names[0])).unwrap(), b"000029");
        names.iter().for_each(|name| drop(open(&mount, name)));
        requests(&one) > before
    });
}

#[test]
fn a_proxy_that_is_not_there_yet_has_its_place_kept() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let one = place.proxy("later-1").start();
    let two = place.proxy("later-2").start();
    let sources = sources([&one, &two]);
    two.crash();
    let mount = Mounted::of(&sources, "attr_timeout=0");
    // So many that some have their home there, whatever the key.
    for number in 0..64 {
        fs::write(mount.join(&format!("file{number}")), "there").unwrap();
    }
    let two = place.proxy("later-2").again().start();
    let read_all = || {
        for number in 0..64 {
            assert_eq!(fs::read(mount.join(&format!("file{number}"))).unwrap(), b"there");
        }
    };
    until("it is used", || {
        read_all();
        requests(&two) > 0
    });
}

#[test]
fn proxies_that_do_not_know_each_others_handles_are_refused() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let one = place.proxy("keys-1").start();
    let two = one_of("keys-2", &place.data(), &place.0.path().join("another-key")).start();
    let error = refusal(&sources([&one, &two]), &place);
    let MountError::Proxy { address, export, why } = &error else { panic!("{error}") };
    assert_eq!(address.to_string(), format!("unix://{}", two.socket().display()));
    assert!(export == "x" && why.contains("handle_key"), "{error}");
}

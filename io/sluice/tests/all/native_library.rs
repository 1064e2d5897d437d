//! The library of programs and its examples, at a controller with a proxy, as processes.
//!
//! ```text
//!   program in C, C++, Python, Fortran, MPI ─ libsluice.so ─► controller ◄─ proxy, target fs
//! ```

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use api::{NewReservation, Role, WireReservation, WireReservationState};
use http::{ApiClient, Credentials};
use testkit::{TestFolder, until};

use crate::common::{Controller, Proxy, Setup};
use crate::entrusted::{client, first_token, secret, showing, sluice, text, token};
use crate::mounted::{Mounted, can_mount};
use crate::native::{C, Workshop, has, library, native, nowhere, run};
use crate::reservations::{MB, SECOND};
use crate::typed::markdown::blocks;

/// A controller, and a proxy of a target of which 42.5 MB/s of writes can be reserved.
struct NativeSite {
    data: TestFolder,
    controller: Controller,
    proxy: Proxy,
}

impl NativeSite {
    fn start(name: &str) -> NativeSite {
        NativeSite::listening(name, "http://127.0.0.1:0")
    }

    /// With `@` for the folder of the controller.
    fn listening(name: &str, listen: &str) -> NativeSite {
        let data = TestFolder::new();
        let listen = listen.replace('@', text(data.path()));
        let controller = Controller::start(data.path(), &listen);
        let proxy = proxy(name, &controller.url, "");
        let site = NativeSite { data, controller, proxy };
        described(&site.api());
        site
    }

    fn api(&self) -> ApiClient {
        self.controller.client()
    }

    /// A new folder for what a program writes.
    fn folder(&self, name: &str) -> std::path::PathBuf {
        let folder = self.data.path().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    /// The reservations of a job, also those that have ended.
    fn of_job(&self, job: &str) -> Vec<WireReservation> {
        self.api().reservations(&format!("ended=true&job={job}")).unwrap().reservations
    }
}

pub(crate) fn proxy(name: &str, url: &str, more: &str) -> Proxy {
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
                  [[target]]\nname = \"fs\"\ncapacity_read = \"100MB/s\"\n\
                  capacity_write = \"50MB/s\"\ncapacity_metadata = \"1000ops/s\"\n";
    let top = format!("squash = \"none\"\ncontroller = \"{url}\"\nproxy_name = \"{name}\"\n{more}");
    Setup::new(&format!("native-{name}")).top(&top).tables(tables).start()
}

pub(crate) fn described(api: &ApiClient) {
    until("the target is described", || {
        let resources = api.calendar("").unwrap().resources;
        resources.iter().any(|of| of.name == "fs" && of.write_per_sec > 0)
    });
}

/// Runs a program with a controller, where it reserves, and without one, where it goes on and says
/// so once.
fn with_and_without(name: &str, made: &[&str], words: &dyn Fn(&str, &Path) -> Command) {
    let site = NativeSite::start(name);
    let folder = site.folder("with");
    let job = format!("{name}.1");
    let (out, err) = run(words(&site.controller.url, &folder).env("SLURM_JOB_ID", &job));
    assert!(out.contains("reserved") && !out.contains("best effort"), "{out}");
    assert_eq!(err, "");
    let reserved = site.of_job(&job);
    assert!(!reserved.is_empty());
    for one in reserved {
        assert_eq!(one.ended.as_deref(), Some("completed"), "{one:?}");
    }
    let without = site.folder("without");
    let (out, err) = run(&mut words(&nowhere(), &without));
    assert!(out.contains("best effort") && !out.contains("reserved"), "{out}");
    assert_eq!(err.matches("going on without reservations").count(), 1, "{err}");
    for folder in [folder, without] {
        let found = |file: &&&str| folder.join(file).exists();
        assert_eq!(made.iter().filter(found).count(), made.len(), "{}", folder.display());
    }
}

#[test]
fn the_library_exports_its_calls_and_nothing_else() {
    if !has("nm") || !has("readelf") {
        return;
    }
    let (symbols, _) = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let symbols: BTreeSet<_> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    let listed = fs::read_to_string(native().join("tests/exports.txt")).unwrap();
    assert_eq!(symbols, listed.lines().collect());
    let header = fs::read_to_string(native().join("library/include/sluice.h")).unwrap();
    for call in symbols {
        assert!(header.contains(&format!("{call}(")), "{call} is not in sluice.h");
    }
    let (needed, _) = run(Command::new("nm").args(["-D", "--undefined-only"]).arg(library()));
    for forbidden in ["pthread_create", "sigaction", "signal", "fork"] {
        let is_it = |line: &str| line.trim_start().trim_start_matches("U ").starts_with(forbidden);
        assert!(!needed.lines().any(is_it), "{forbidden}: {needed}");
    }
    let (dynamic, _) = run(Command::new("readelf").arg("-d").arg(library()));
    assert!(dynamic.contains("[libsluice.so.0]"), "{dynamic}");
}

#[test]
fn the_layout_of_the_structs_is_that_of_version_0_in_every_language() {
    let workshop = Workshop::new();
    if has("cc") {
        let source = native().join("tests/layout.c");
        let include = native().join("library/include");
        let mut command = Command::new("cc");
        run(command.args(["-std=c11", "-fsyntax-only", "-I"]).arg(include).arg(source));
    }
    if has("python3") {
        let sizes = "import ctypes, sluice\n\
            print([ctypes.sizeof(x) for x in (sluice._Settings, sluice._Phase, sluice._Request, \
            sluice._Details, sluice._Refusal, sluice._Usage, sluice._Credit)])";
        let mut command = workshop.command(Path::new("python3"), "");
        let (out, _) = run(command.args(["-c", sizes]));
        assert_eq!(out.trim(), "[48, 64, 120, 544, 696, 32, 32]");
    }
}

#[test]
fn every_call_does_what_the_header_says() {
    let workshop = Workshop::new();
    let Some(program) = workshop.build(&[C, &["-pthread"]].concat(), &["tests/calls.c"]) else {
        return;
    };
    for (name, listen) in [("calls", "http://127.0.0.1:0"), ("unix", "unix://@/socket")] {
        let site = NativeSite::listening(name, listen);
        let (out, err) = run(&mut workshop.command(&program, &site.controller.url));
        assert_eq!((out.as_str(), err.as_str()), ("ok\n", ""), "{listen}");
    }
}

#[test]
fn every_call_goes_over_tls_with_a_token_of_a_user() {
    let workshop = Workshop::new();
    let Some(program) = workshop.build(&[C, &["-pthread"]].concat(), &["tests/calls.c"]) else {
        return;
    };
    let data = TestFolder::new();
    let tls = data.path().join("tls");
    let dir = text(&tls);
    sluice(&["cert", "ca", dir]).unwrap();
    sluice(&["cert", "issue", dir, "c1", "--host", "127.0.0.1"]).unwrap();
    sluice(&["cert", "ca", text(&data.path().join("other"))]).unwrap();
    let root = first_token(data.path());
    let file = |name: &str| format!("{dir}/{name}");
    let (cert, key, ca) = (file("c1.pem"), file("c1.key"), file("ca.pem"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key];
    let controller = Controller::with(data.path(), "https://127.0.0.1:0", &flags, "ready");
    let credentials = Credentials { ca: Some((&ca).into()), ..showing(&root) };
    let admin = client(&controller.url, &credentials);
    let of_proxy = secret(data.path().join("proxy.token"), &token(&admin, "p", Role::Proxy));
    let more =
        format!("controller_ca = \"{ca}\"\ncontroller_token_file = \"{}\"\n", text(&of_proxy));
    let _proxy = proxy("tls", &controller.url, &more);
    described(&admin);
    let of_user = secret(data.path().join("user.token"), &token(&admin, "u", Role::User));
    let command = |ca: &str| {
        let mut command = workshop.command(&program, &controller.url);
        command.env("SLUICE_CA", ca).env("SLUICE_TOKEN_FILE", &of_user);
        command
    };
    let (out, err) = run(&mut command(&ca));
    assert_eq!((out.as_str(), err.as_str()), ("ok\n", ""));
    let other = text(data.path()).to_owned() + "/other/ca.pem";
    let output = command(&other).output().unwrap();
    let refused = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && refused.contains("TLS failed"), "{refused}");
    if has("python3") {
        // One that never begins its part of the handshake.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", silent.local_addr().unwrap());
        let mut python = workshop.command(Path::new("python3"), &url);
        let ask = "import sluice\n\
            try: sluice.Client().details(1, limit=0.1)\n\
            except sluice.Error as error: print(error.code == sluice.TIMED_OUT)";
        let (out, _) = run(python.args(["-c", ask]).env("SLUICE_CA", &ca));
        assert_eq!(out, "True\n");
    }
}

#[test]
fn the_classes_of_cpp_throw_and_remove_what_goes_out_of_scope() {
    let workshop = Workshop::new();
    let compiler = ["g++", "-std=c++11", "-pedantic"];
    let Some(program) = workshop.build(&compiler, &["tests/calls.cpp"]) else { return };
    let site = NativeSite::start("cpp");
    let (out, err) = run(&mut workshop.command(&program, &site.controller.url));
    assert_eq!((out.as_str(), err.as_str()), ("ok\n", ""));
}

#[test]
fn the_package_of_python_has_every_call() {
    if !has("python3") {
        return;
    }
    let workshop = Workshop::new();
    let site = NativeSite::start("python");
    let mut command = workshop.command(Path::new("python3"), &site.controller.url);
    let (out, err) = run(command.arg(native().join("tests/calls.py")));
    assert_eq!((out.as_str(), err.as_str()), ("ok\n", ""));
}

#[test]
fn the_module_of_fortran_has_the_calls_and_the_structs() {
    let workshop = Workshop::new();
    let sources = ["fortran/sluice.f90", "tests/calls.f90"];
    let Some(program) = workshop.build(&["gfortran", "-std=f2018"], &sources) else { return };
    let site = NativeSite::start("fortran");
    let (out, err) = run(&mut workshop.command(&program, &site.controller.url));
    assert_eq!((out.as_str(), err.as_str()), ("ok\n", ""));
}

#[test]
fn a_path_below_a_mount_reserves_for_its_directory_and_is_written_to() {
    if !can_mount() || !has("python3") {
        return;
    }
    let workshop = Workshop::new();
    let site = NativeSite::start("mounted");
    let mount = Mounted::new(&site.proxy, "");
    let folder = mount.join("run7");
    fs::create_dir(&folder).unwrap();
    let reserve = "import sluice, sys\n\
        client = sluice.Client()\n\
        id = client.addReservationSync(write=1e6, seconds=60, path=sys.argv[1], limit=120)\n\
        open(sys.argv[1] + '/dump', 'wb').write(bytes(1 << 20))\n\
        print(id)";
    let mut command = workshop.command(Path::new("python3"), &site.controller.url);
    let (out, _) = run(command.args(["-c", reserve]).arg(&folder));
    let found = site.api().reservation(out.trim().parse().unwrap(), "").unwrap();
    assert_eq!(found.directory.as_deref(), Some("x/run7"));
    assert_eq!(fs::metadata(folder.join("dump")).unwrap().len(), 1 << 20);
}

#[test]
fn a_lost_reply_of_the_controller_leaves_one_reservation() {
    if !has("python3") {
        return;
    }
    let workshop = Workshop::new();
    let site = NativeSite::start("lost");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let controller = site.controller.at().to_owned();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let to = TcpStream::connect(&controller).unwrap();
            let (mut requests, mut sent) = (stream.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut requests, &mut sent));
            let (mut replies, mut stream) = (to, stream);
            let mut reply = Vec::new();
            replies.read_to_end(&mut reply).unwrap();
            if number > 0 {
                let _ = stream.write_all(&reply);
            }
            // The first reply ends here.
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
    let reserve = "import sluice\n\
        print(sluice.Client().addReservationAsync(write=1e6, seconds=60, limit=120))";
    let mut command = workshop.command(Path::new("python3"), &url);
    let (out, _) = run(command.args(["-c", reserve]));
    let all = site.api().reservations("ended=true").unwrap().reservations;
    assert_eq!(all.iter().map(|one| one.id.to_string()).collect::<Vec<_>>(), [out.trim()]);
}

#[test]
fn molecular_dynamics_computes_on_until_its_dump_is_reserved() {
    let workshop = Workshop::new();
    let Some(program) = workshop.build(C, &["examples/md.c"]) else { return };
    let dumps = ["dump.1", "dump.2", "dump.3"];
    with_and_without("md", &dumps, &|url, folder| {
        let mut command = workshop.command(&program, url);
        command.arg(folder).args(["30", "10"]);
        command
    });
}

#[test]
fn molecular_dynamics_requests_again_when_its_reservation_has_gone() {
    let workshop = Workshop::new();
    let Some(program) = workshop.build(C, &["examples/md.c"]) else { return };
    let site = NativeSite::start("again");
    let api = site.api();
    let most = NewReservation {
        write: Some(api::WireRate::Bytes(42 * MB)),
        duration_ns: 3_600 * SECOND,
        user: Some(0),
        ..NewReservation::default()
    };
    let most = api.reserve(&most).unwrap().id;
    let mut command = workshop.command(&program, &site.controller.url);
    command.arg(site.folder("out")).args(["10", "10"]).env("SLURM_JOB_ID", "again.1");
    let md = command.stdout(Stdio::piped()).spawn().unwrap();
    let scheduled = || {
        let found = site.of_job("again.1").into_iter();
        found.filter(|one| one.state == WireReservationState::Scheduled).map(|one| one.id).next()
    };
    until("its dump is scheduled", || scheduled().is_some());
    let first = scheduled().unwrap();
    api.remove_reservation(first).unwrap();
    until("it has requested again", || scheduled().is_some_and(|next| next != first));
    api.remove_reservation(most).unwrap();
    let output = md.wait_with_output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && out.contains(": reserved"), "{out}");
}

#[test]
fn checkpoints_are_reserved_and_whole() {
    let workshop = Workshop::new();
    let sources = ["examples/checkpoint.c", "examples/checkpoint_app.c"];
    let Some(program) = workshop.build(C, &sources) else { return };
    let files = [1, 2, 3].map(|number| format!("checkpoint.{number}/rank0.dat"));
    with_and_without("checkpoint", &files.each_ref().map(String::as_str), &|url, folder| {
        let mut command = workshop.command(&program, url);
        command.arg(folder);
        command
    });
}

#[test]
fn a_dump_is_reserved_in_cpp() {
    let workshop = Workshop::new();
    let compiler = ["g++", "-std=c++11", "-pedantic"];
    let Some(program) = workshop.build(&compiler, &["examples/dump.cpp"]) else { return };
    with_and_without("dump-cpp", &["dump"], &|url, folder| {
        let mut command = workshop.command(&program, url);
        command.arg(folder);
        command
    });
}

#[test]
fn a_dump_is_reserved_in_python() {
    if !has("python3") {
        return;
    }
    let workshop = Workshop::new();
    with_and_without("dump-py", &["dump"], &|url, folder| {
        let mut command = workshop.command(Path::new("python3"), url);
        command.arg(native().join("examples/dump.py")).arg(folder);
        command
    });
}

#[test]
fn a_dump_is_reserved_in_fortran() {
    let workshop = Workshop::new();
    let sources = ["fortran/sluice.f90", "examples/dump.f90"];
    let Some(program) = workshop.build(&["gfortran", "-std=f2018"], &sources) else { return };
    with_and_without("dump-f90", &["dump"], &|url, folder| {
        let mut command = workshop.command(&program, url);
        command.arg(folder);
        command
    });
}

#[test]
fn all_ranks_write_within_the_reservation_of_rank_0() {
    let workshop = Workshop::new();
    if !has("mpirun") {
        return;
    }
    let Some(program) = workshop.build(&["mpicc"], &["examples/mpi_dump.c"]) else { return };
    with_and_without("mpi", &["dump"], &|url, folder| {
        let mut command = workshop.command(Path::new("mpirun"), url);
        command.args(["--allow-run-as-root", "--oversubscribe", "-np", "4"]);
        // one machine, no network: nothing listens and nobody is asked
        let ways = [("btl", "self,vader"), ("pml", "ob1"), ("plm_rsh_agent", "false")];
        for (name, value) in [&ways[..], &[("mpi_yield_when_idle", "1")]].concat() {
            command.env(format!("OMPI_MCA_{name}"), value);
        }
        command.env("TMPDIR", workshop.path());
        command.arg(&program).arg(folder);
        command
    });
}

#[test]
fn the_programs_of_the_guide_reserve_as_they_stand() {
    let document = fs::read_to_string(native().join("../docs/LIBRARY.md")).unwrap();
    let site = NativeSite::start("guide");
    let api = site.api();
    let completed = || {
        let all = api.reservations("ended=true").unwrap().reservations.into_iter();
        all.filter(|one| one.ended.as_deref() == Some("completed")).count()
    };
    let languages: [(&str, &[&str], &str); 4] = [
        ("C", C, "guide.c"),
        ("C++", &["g++", "-std=c++11"], "guide.cpp"),
        ("Python", &["python3"], "guide.py"),
        ("Fortran", &["gfortran"], "guide.f90"),
    ];
    for (section, compiler, file) in languages {
        let workshop = Workshop::new();
        let block = blocks(&document).into_iter().find(|block| block.section == section).unwrap();
        let source = workshop.path().join(file);
        fs::write(&source, block.text).unwrap();
        let source = text(&source);
        let mut command = match section {
            "Python" if has("python3") => {
                let mut python = workshop.command(Path::new("python3"), &site.controller.url);
                python.arg(source);
                python
            }
            "Python" => continue,
            _ => {
                let module: &[&str] =
                    if section == "Fortran" { &["fortran/sluice.f90"] } else { &[] };
                let sources = [module, &[source]].concat();
                let Some(program) = workshop.build(compiler, &sources) else { continue };
                workshop.command(&program, &site.controller.url)
            }
        };
        let before = completed();
        let (out, err) = run(&mut command);
        assert_eq!((out.as_str(), err.as_str()), ("", ""), "{section}");
        assert_eq!(completed(), before + 1, "{section}");
    }
}

#[test]
fn what_is_installed_is_enough_to_build_with() {
    if !has("install") || !has("strip") || !has("cc") {
        return;
    }
    let folder = TestFolder::new();
    let (release, prefix) = (folder.path().join("release"), folder.path().join("usr"));
    fs::create_dir(&release).unwrap();
    std::os::unix::fs::symlink(library(), release.join("libsluice.so")).unwrap();
    let mut install = Command::new(native().join("install.sh"));
    run(install.arg(&prefix).env("CARGO_TARGET_DIR", folder.path()).env_remove("DESTDIR"));
    let source = folder.path().join("version.c");
    let program = folder.path().join("version");
    let text = "#include <stdio.h>\n#include <sluice.h>\n\
                int main(void) { return puts(sluice_version()) < 0; }\n";
    fs::write(&source, text).unwrap();
    let config = fs::read_to_string(prefix.join("lib/pkgconfig/sluice.pc")).unwrap();
    let expanded = config.replace("${prefix}", prefix.to_str().unwrap());
    let flags = |name: &str| {
        let line = expanded.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut cc = Command::new("cc");
    run(cc.args(flags("Cflags:")).arg(&source).args(flags("Libs:")).arg("-o").arg(&program));
    let (out, _) = run(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert_eq!(out.trim(), env!("CARGO_PKG_VERSION"));
    for file in
        ["include/sluice.hpp", "include/sluice.f90", "lib/python3/site-packages/sluice/__init__.py"]
    {
        assert!(prefix.join(file).exists(), "{file}");
    }
}

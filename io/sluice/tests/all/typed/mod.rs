//! Documents, typed as they stand: their blocks go line by line into one shell.
//!
//! ```text
//!   blocks ─► commands ─► bash with job control, in a mount, network and process name space of
//!                         its own: nothing outlives it, and nobody else has its ports
//!                    ◄─── the status of each
//! ```
//!
//! What background jobs and commands say goes to one file, the terminal, which is shown when a test
//! fails. A controller or proxy in the background is waited for until it says `ready`, as whoever
//! types does.

pub(crate) mod markdown;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use testkit::{PATIENCE, TestFolder, root_here, skip, until};

use markdown::{Block, blocks};

use crate::common::{LET_GO, SLUICE, making_copies};

/// A shell that documents are typed into.
pub(crate) struct Shell {
    folder: TestFolder,
    child: Child,
    typed: RefCell<ChildStdin>,
    statuses: Receiver<String>,
}

/// What is not typed: the begin of a block's or a command's text, and why.
pub(crate) type Untyped = &'static [(&'static str, &'static str)];

/// The stage: file systems in memory where the documents have theirs, and addresses of their
/// examples on the loopback device.
const STAGE: &str = r#"
set -e
mount --make-rprivate /
eval "$LET_GO"
for dir in /srv /mnt /run; do mount -t tmpfs -o size=2g,mode=755 tmpfs $dir; done
for dir in /etc/sluice /var/lib/sluice; do
    mkdir -p $dir
    mount -t tmpfs -o size=100m,mode=755 tmpfs $dir
done
printf '127.0.0.1 localhost\n192.0.2.1 c1.site\n192.0.2.7 io1\n192.0.2.8 io2\n192.0.2.9 io3\n' > $STAGE/hosts
mount --bind $STAGE/hosts /etc/hosts
ip link set lo up
for host in 1 7 8 9; do ip address add 192.0.2.$host/32 dev lo; done
cd $HOME
exec bash --norc --noprofile
"#;

impl Shell {
    /// A shell at home in an empty folder; `None`, said aloud, where this machine allows none.
    pub(crate) fn start() -> Option<Shell> {
        if !root_here() {
            return None;
        }
        let name_spaces = ["-m", "-n", "-p", "--fork", "--mount-proc", "--kill-child"];
        let possible =
            making_copies(|| Command::new("unshare").args(name_spaces).arg("true").output());
        if !possible.is_ok_and(|output| output.status.success()) || !Path::new("/dev/fuse").exists()
        {
            skip("needs unshare(1) with name spaces of its own, and /dev/fuse");
            return None;
        }
        let folder = TestFolder::new();
        let (home, bin) = (folder.path().join("home"), folder.path().join("bin"));
        fs::create_dir(&home).unwrap();
        fs::create_dir(&bin).unwrap();
        std::os::unix::fs::symlink(SLUICE, bin.join("sluice")).unwrap();
        // Appended to by all, so that nobody writes over what another one said.
        let terminal =
            fs::File::options().append(true).create(true).open(folder.path().join("terminal"));
        let terminal = terminal.unwrap();
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display());
        let mut command = Command::new("unshare");
        command
            .args(name_spaces)
            .args(["bash", "-c", STAGE])
            .env_clear()
            .envs([("PATH", path.as_str()), ("TERM", "xterm"), ("LANG", "C.UTF-8")])
            .envs([("HOME", home.as_path()), ("STAGE", folder.path())])
            .env("LET_GO", LET_GO)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(terminal);
        making_copies(|| {
            let mut child = command.spawn().unwrap();
            let typed = RefCell::new(child.stdin.take().unwrap());
            let stdout = BufReader::new(child.stdout.take().unwrap());
            let (told, statuses) = channel();
            std::thread::spawn(move || {
                stdout.lines().map_while(Result::ok).try_for_each(|line| told.send(line))
            });
            let shell = Shell { folder, child, typed, statuses };
            // Once it answers it has let go of the copies.
            shell.must("set -m", "the shell starts");
            Some(shell)
        })
    }

    fn terminal(&self) -> PathBuf {
        self.folder.path().join("terminal")
    }

    /// What was to be seen so far.
    pub(crate) fn seen(&self) -> String {
        fs::read_to_string(self.terminal()).unwrap()
    }

    /// Types a command whose output goes to a file; its exit status.
    fn run(&self, command: &str, output: &Path) -> i32 {
        let (terminal, output) = (self.terminal(), output.display());
        let line = format!(
            "{{ {command}\n}} < /dev/null >> {output} 2>> {}\necho $?\n",
            terminal.display()
        );
        self.typed.borrow_mut().write_all(line.as_bytes()).unwrap();
        match self.statuses.recv_timeout(PATIENCE) {
            Ok(status) => status.parse().unwrap(),
            Err(RecvTimeoutError::Timeout) => self.fail(&format!("{command}: no end of it")),
            Err(RecvTimeoutError::Disconnected) => self.fail(&format!("{command}: no shell")),
        }
    }

    /// Types a command that is no part of the document and must do what it is for.
    pub(crate) fn must(&self, command: &str, why: &str) {
        let ready = self.ready();
        let status = self.run(command, &self.terminal());
        if status != 0 {
            self.fail(&format!("{why}: {command}: status {status}"));
        }
        self.wait_for_servers(command, ready);
    }

    /// What a command prints that is no part of the document, and whether it succeeded.
    pub(crate) fn ask(&self, command: &str) -> (bool, String) {
        let file = self.folder.path().join("answer");
        let _ = fs::remove_file(&file);
        let succeeded = self.run(command, &file) == 0;
        (succeeded, fs::read_to_string(&file).unwrap())
    }

    /// Waits until what a command prints is as wanted.
    pub(crate) fn until(&self, what: &str, command: &str, is: impl Fn(&str) -> bool) {
        let mut last = String::new();
        let mut tries = 0;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(what, || {
                let (succeeded, text) = self.ask(command);
                (last, tries) = (text, tries + 1);
                succeeded && is(&last)
            });
        }));
        if outcome.is_err() {
            self.fail(&format!("{what}: {command} printed at last, of {tries} times: {last}"));
        }
    }

    /// Types a block of a document. A command must succeed, unless a comment behind it says that it
    /// is refused. Whether it was typed: a block of a program that is not here is not.
    pub(crate) fn type_in(&self, document: &str, block: &Block, untyped: Untyped) -> bool {
        if block.text.starts_with("[[") {
            self.check_rules(document, block);
            return true;
        }
        if block.text.starts_with("diod ") && !self.ask("command -v diod").0 {
            skip(&format!("{document}:{}: there is no diod here", block.line));
            return false;
        }
        // What follows a prompt is typed; the rest of such a block is what is seen.
        let at_prompt = block.text.lines().next().and_then(|line| line.strip_prefix("$ "));
        let block =
            &at_prompt.map_or(block.clone(), |line| Block { text: line.into(), ..block.clone() });
        for (line, command) in commands(block) {
            let place = format!("{document}:{line}");
            if let Some((_, why)) = untyped.iter().find(|(begin, _)| command.starts_with(begin)) {
                skip(&format!("{place}: {}: {why}", command.lines().next().unwrap_or_default()));
                continue;
            }
            let ready = self.ready();
            let status = self.run(&at_a_terminal(&command), &self.terminal());
            let refused = command.contains("# refused");
            // The status of who waits for what was killed says that it was.
            let killed = command.contains("kill ") && command.contains("wait %") && status > 128;
            if (status == 0 || killed) == refused {
                self.fail(&format!("{place}: {command}: status {status}"));
            }
            self.wait_for_servers(&command, ready);
        }
        true
    }

    /// A block of rules is a rule file without a mistake.
    fn check_rules(&self, document: &str, block: &Block) {
        let file = self.folder.path().join("rules.toml");
        fs::write(&file, &block.text).unwrap();
        let why = format!("{document}:{}: these rules are right", block.line);
        self.must(&format!("sluice rule check {}", file.display()), &why);
    }

    /// How many servers have said that they can be asked.
    fn ready(&self) -> usize {
        self.seen().lines().filter(|line| *line == "ready").count()
    }

    fn wait_for_servers(&self, command: &str, before: usize) {
        let serves = ["sluice proxy ", "sluice controller "].iter().any(|it| command.contains(it));
        if serves && command.trim_end().ends_with('&') {
            self.until(&format!("{command}: ready"), "true", |_| self.ready() > before);
        }
        if command.starts_with("diod ") {
            self.until("diod listens", "ss -Hltn", |text| text.contains(":564 "));
        }
    }

    /// Ends the test with what was to be seen.
    pub(crate) fn fail(&self, why: &str) -> ! {
        let seen = self.seen();
        let skipped = seen.len().saturating_sub(SHOWN_MAX);
        let shown = String::from_utf8_lossy(&seen.as_bytes()[skipped..]);
        panic!("{why}\n---- the terminal ----\n{shown}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The first process of the name space ends with it, and all others with that one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The blocks of a document but for its pictures, which begin as is said. Each of those and of what
/// is not typed must be there, so that the lists stay true.
pub(crate) fn typed_blocks(document: &str, pictures: &[&str], untyped: Untyped) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = fs::read_to_string(&path).unwrap();
    for begin in pictures.iter().chain(untyped.iter().map(|(begin, _)| begin)) {
        assert!(text.contains(begin), "{document} has no {begin:?} any more");
    }
    let mut typed = blocks(&text);
    let is_picture = |block: &Block| pictures.iter().any(|begin| block.text.starts_with(begin));
    typed.retain(|block| !is_picture(block));
    typed
}

/// A block's commands with the numbers of their lines: lines that belong together for bash.
fn commands(block: &Block) -> Vec<(usize, String)> {
    let mut commands = Vec::new();
    let (mut command, mut began) = (String::new(), block.line);
    for (nth, line) in block.text.lines().enumerate() {
        if command.is_empty() {
            began = block.line + nth;
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
        }
        let _ = writeln!(command, "{line}");
        if !line.ends_with('\\') && is_whole(&command) {
            commands.push((began, std::mem::take(&mut command).trim_end().to_owned()));
        }
    }
    assert!(command.is_empty(), "line {began}: bash waits for more: {command}");
    commands
}

/// Whether bash would begin to execute it.
fn is_whole(command: &str) -> bool {
    let check = Command::new("bash").args(["--norc", "-n", "-c", command]).output().unwrap();
    check.status.success() && check.stderr.is_empty()
}

/// What needs a terminal and a finger: `q` ends `sluice top`, Ctrl-C what follows events.
fn at_a_terminal(command: &str) -> String {
    let bare = command.split(" #").next().unwrap_or_default().trim_end();
    match bare {
        "sluice top" => "script -qefc 'sluice top' /dev/null <<< q".into(),
        "sluice events --follow" => format!("timeout -s INT 2 {bare}; [ $? = 124 ]"),
        _ if bare.starts_with("curl -sN ") => format!("timeout -s INT 2 {bare}; [ $? = 124 ]"),
        _ => command.into(),
    }
}

/// So much of the terminal is shown when a test fails.
const SHOWN_MAX: usize = 16 << 10;

#[test]
fn commands_go_on_over_lines_that_belong_together() {
    let text = "mkdir a && \\\n  cd a\n# what is seen\ncat > x <<'END'\n[[rule]]\n\nEND\nfor f in 1; do\n  true\ndone &";
    let block = Block { section: String::new(), line: 7, language: None, text: text.into() };
    let told = commands(&block);
    assert_eq!(told.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [7, 10, 14]);
    assert!(told[1].1.ends_with("\nEND") && told[2].1.ends_with("done &"), "{told:?}");
}

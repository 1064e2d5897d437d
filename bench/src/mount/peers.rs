//! sshfs and GlusterFS, set up from nothing in the bench's own directory.
//!
//! ```text
//!   sshd        own host key, configuration and port; the bench's own key logs in
//!   glusterfsd  posix ─ locks ─ io-threads ─ server       one brick, no glusterd
//!   glusterfs   client ─ write-behind ─ … ─ md-cache      what a volume has by default
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use super::who::{BenchDirs, ServerUnderTest};

/// The command of an sshd that serves files to clients with the bench's key.
pub(crate) fn sshd(place: &BenchDirs, port: u16) -> anyhow::Result<Vec<String>> {
    let program = find_program("sshd")?;
    // Both at once, or a half of the pair would be a note about the wrong one.
    find_program("sshfs")?;
    // Privileges are separated in there; /run is the bench's own.
    fs::create_dir_all("/run/sshd").context("cannot make /run/sshd")?;
    let (host, user) = (place.dir.join("ssh-host"), place.dir.join("ssh-user"));
    for key in [&host, &user] {
        make_key(key)?;
    }
    let public = fs::read(user.with_extension("pub")).context("cannot read a key")?;
    let allowed = place.dir.join("ssh-allowed");
    fs::write(&allowed, public).context("cannot write a key")?;
    let config = place.dir.join("sshd.conf");
    let text = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
         UsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\n\
         PasswordAuthentication no\nUseDNS no\nMaxStartups 100\nSubsystem sftp internal-sftp\n",
        host.display(),
        allowed.display()
    );
    fs::write(&config, text).context("cannot write sshd's configuration")?;
    Ok(words(&program, &["-D", "-e", "-f", &config.display().to_string()]))
}

/// The command that mounts the export over ssh.
pub(crate) fn sshfs(place: &BenchDirs, port: u16, at: &str) -> anyhow::Result<Vec<String>> {
    let program = find_program("sshfs")?;
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective());
    let user = user.context("who am I?")?.context("this user has no name")?.name;
    let source = format!("{user}@127.0.0.1:{}", place.export().display());
    let key = format!("IdentityFile={}", place.dir.join("ssh-user").display());
    let port = format!("port={port}");
    let mut all = words(&program, &["-f", &source, at, "-F", "/dev/null"]);
    // The fastest cipher where the processor knows AES; ssh would take ChaCha20.
    let options = [
        &key,
        &port,
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "Ciphers=aes128-gcm@openssh.com",
        "BatchMode=yes",
        "LogLevel=ERROR",
    ];
    all.extend(options.into_iter().flat_map(|option| ["-o".into(), option.to_owned()]));
    Ok(all)
}

/// The command of the process that serves the brick.
pub(crate) fn glusterfsd(place: &BenchDirs, port: u16) -> anyhow::Result<Vec<String>> {
    let program = find_program("glusterfsd")?;
    let volume = place.dir.join("brick.vol");
    let brick = place.behind(ServerUnderTest::Glusterfs);
    let text = format!(
        "volume posix\n type storage/posix\n option directory {}\nend-volume\n\
         volume locks\n type features/locks\n subvolumes posix\nend-volume\n\
         volume brick\n type performance/io-threads\n option thread-count 16\n \
         subvolumes locks\nend-volume\n\
         volume server\n type protocol/server\n option transport-type tcp\n \
         option transport.address-family inet\n \
         option transport.socket.bind-address 127.0.0.1\n \
         option transport.socket.listen-port {port}\n option auth-path brick\n \
         option auth.addr.brick.allow 127.0.0.1\n subvolumes brick\nend-volume\n",
        brick.display()
    );
    fs::write(&volume, text).context("cannot write GlusterFS's volume")?;
    Ok(gluster(&program, &volume, "brick", None))
}

/// The command that mounts the brick.
pub(crate) fn glusterfs(place: &BenchDirs, port: u16, at: &str) -> anyhow::Result<Vec<String>> {
    let program = find_program("glusterfs")?;
    let volume = place.dir.join("client.vol");
    let mut text = format!(
        "volume client\n type protocol/client\n option transport-type tcp\n \
         option transport.address-family inet\n option remote-host 127.0.0.1\n \
         option remote-port {port}\n option remote-subvolume brick\nend-volume\n"
    );
    let mut below = "client";
    for (name, kind) in CLIENT_LAYERS {
        text.push_str(&format!("volume {name}\n type {kind}\n subvolumes {below}\nend-volume\n"));
        below = name;
    }
    fs::write(&volume, text).context("cannot write GlusterFS's volume")?;
    Ok(gluster(&program, &volume, "client", Some(at)))
}

fn gluster(program: &Path, volume: &Path, part: &str, at: Option<&str>) -> Vec<String> {
    let volume = volume.display().to_string();
    let pid = format!("/run/gluster-{part}.pid");
    let words_all = ["-N", "-f", &volume, "-p", &pid, "-l", "/dev/stderr", "-L", "WARNING"];
    let mut all = words(program, &words_all);
    all.extend(at.map(String::from));
    all
}

fn make_key(path: &Path) -> anyhow::Result<()> {
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(path)
        .output()
        .context("cannot start ssh-keygen")?;
    if !made.status.success() {
        bail!("ssh-keygen: {}", String::from_utf8_lossy(&made.stderr).trim());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).context("a key's mode")
}

fn words(program: &Path, arguments: &[&str]) -> Vec<String> {
    let program = program.display().to_string();
    std::iter::once(program).chain(arguments.iter().map(|word| (*word).to_owned())).collect()
}

/// Looks through PATH, and where Debian puts servers, which is not in everyone's PATH.
fn find_program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let mut candidates = folders.map(|folder| folder.join(name));
    candidates.find(|file| file.is_file()).with_context(|| format!("{name} is not installed"))
}

/// From the brick's side up, as glusterd stacks them for a new volume.
const CLIENT_LAYERS: [(&str, &str); 5] = [
    ("write-behind", "performance/write-behind"),
    ("readdir-ahead", "performance/readdir-ahead"),
    ("open-behind", "performance/open-behind"),
    ("quick-read", "performance/quick-read"),
    ("md-cache", "performance/md-cache"),
];

//! File systems of a test's own: small ones that fill up, and ones that freeze. And
//! files that nobody can open for a while.
//!
//! Each is mounted when made and unmounted when dropped, thawed before. Where the
//! machine has no mounts or loop devices, making one says why and gives `None`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};

use testkit::{everybodys, place, root_here, skip};

/// A file system in memory of a stated size.
pub struct Tmpfs {
    pub dir: PathBuf,
}

/// An ext4 in a file, on a loop device.
pub struct Image {
    pub dir: PathBuf,
    file: PathBuf,
}

/// A file whose opens all hang, by whatever process, until this is dropped.
pub struct HangingOpens {
    asked: Vec<FanotifyEvent>,
    group: Fanotify,
}

/// Runs a command; what it said if it failed.
fn run(command: &str, args: &[&str]) -> Result<(), String> {
    let output =
        Command::new(command).args(args).output().map_err(|e| format!("{command}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command} {args:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

impl Tmpfs {
    pub fn mount(name: &str, size: &str) -> Option<Tmpfs> {
        if !root_here() {
            return None;
        }
        let dir = place(name);
        fs::create_dir_all(&dir).unwrap();
        let size = format!("size={size}");
        if let Err(why) = run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", text(&dir)]) {
            skip(&why);
            return None;
        }
        everybodys(&dir);
        Some(Tmpfs { dir })
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", text(&self.dir)]);
        let _ = fs::remove_dir(&self.dir);
    }
}

impl Image {
    /// An ext4 of so many MiB, made with further `mkfs` arguments and mount options.
    pub fn mount(name: &str, mib: u64, mkfs: &[&str], options: &str) -> Option<Image> {
        if !root_here() {
            return None;
        }
        let image = Image { dir: place(name), file: place(&format!("{name}.img")) };
        fs::create_dir_all(&image.dir).unwrap();
        fs::File::create(&image.file).unwrap().set_len(mib << 20).unwrap();
        let made = run("mkfs.ext4", &[&["-q", "-F"], mkfs, &[text(&image.file)]].concat());
        let options = format!("loop,{options}");
        let mounted = made.and_then(|()| {
            run("mount", &["-t", "ext4", "-o", &options, text(&image.file), text(&image.dir)])
        });
        if let Err(why) = mounted {
            skip(&why);
            return None;
        }
        everybodys(&image.dir);
        Some(image)
    }

    /// From now on whatever would change the file system waits.
    pub fn freeze(&self) {
        run("fsfreeze", &["-f", text(&self.dir)]).unwrap();
    }

    pub fn thaw(&self) {
        run("fsfreeze", &["-u", text(&self.dir)]).unwrap();
    }

    /// Thaws it at the end of a test, wherever that was.
    pub fn thaw_if_frozen(&self) {
        // It fails where nothing is frozen.
        let _ = run("fsfreeze", &["-u", text(&self.dir)]);
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.thaw_if_frozen();
        let _ = run("umount", &["-l", text(&self.dir)]);
        let _ = fs::remove_dir(&self.dir);
        let _ = fs::remove_file(&self.file);
    }
}

impl HangingOpens {
    pub fn of(file: &Path) -> Option<HangingOpens> {
        if !root_here() {
            return None;
        }
        let flags = InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
        let made = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC).and_then(
            |group| {
                let (add, mask) = (MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_OPEN_PERM);
                group.mark(add, mask, rustix::fs::CWD, Some(file)).map(|()| group)
            },
        );
        match made {
            Ok(group) => Some(HangingOpens { asked: Vec::new(), group }),
            Err(error) => {
                skip(&format!("no fanotify that is asked before a file is opened: {error}"));
                None
            }
        }
    }

    /// How many opens hang by now.
    pub fn count(&mut self) -> usize {
        // EAGAIN: no further ones.
        self.asked.extend(self.group.read_events().unwrap_or_default());
        self.asked.len()
    }
}

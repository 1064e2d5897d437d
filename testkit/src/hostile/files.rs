//! Attacks by the files of a mount, as any program of an ordinary user may make them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, Mode, OFlags, XattrFlags, flock, mkdirat, openat, setxattr};

use super::{Attack, Over, keep};
use crate::Dice;

/// A mounted directory in which everybody may make files.
#[derive(Clone, Debug)]
pub struct FilesVictim(pub PathBuf);

/// The attacks on a mounted directory.
pub const ALL: &[Attack<FilesVictim>] = &[
    Attack { name: "opens", round: opens },
    Attack { name: "names", round: names },
    Attack { name: "depths", round: depths },
    Attack { name: "values of attributes", round: attributes },
    Attack { name: "locks", round: locks },
    Attack { name: "unwritten bytes", round: unwritten },
    Attack { name: "holes", round: holes },
    Attack { name: "removed files", round: removed },
    Attack { name: "lists", round: lists },
    Attack { name: "links", round: links },
    Attack { name: "places", round: places },
    Attack { name: "questions", round: questions },
    Attack { name: "killed programs", round: killed },
];

/// Does something in a directory of its own, which is gone afterwards.
fn within(place: &FilesVictim, what: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let own = place.0.join(format!("{:?}", std::thread::current().id()));
    let _ = fs::remove_dir_all(&own);
    fs::create_dir(&own)?;
    let done = what(&own);
    fs::remove_dir_all(&own)?;
    done
}

/// Opens one file as often as it may.
fn opens(place: &FilesVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let file = own.join("f");
        fs::write(&file, "f")?;
        let open = |_| if over() { None } else { File::open(&file).ok() };
        let all: Vec<_> = (0..MANY).map_while(open).collect();
        keep(over);
        drop(all);
        Ok(())
    })
}

/// Makes and looks for what is hardly a name.
fn names(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let long = "n".repeat(255);
        for _ in 0..300 {
            if over() {
                break;
            }
            let part = *dice.one_of(&["\u{202e}", "\n", "\u{1b}[2J", ";rm", "%s", " ", &long]);
            // Too long, some of them.
            let name = format!("{part}{}", dice.below(20));
            let _ = fs::write(own.join(&name), "x");
            let _ = fs::symlink_metadata(own.join(format!("{}", dice.below(1 << 40))));
            let _ = fs::rename(own.join(&name), own.join(part));
        }
        Ok(())
    })
}

/// Makes a folder in a folder in a folder.
fn depths(place: &FilesVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let mut at = File::open(own)?;
        for _ in 0..200 {
            if over() {
                break;
            }
            let name = "a name of some length, so that the whole path is too long";
            mkdirat(&at, name, Mode::RWXU)?;
            at = openat(&at, name, OFlags::DIRECTORY, Mode::empty())?.into();
        }
        Ok(())
    })
}

/// Gives files as many attributes as they take.
fn attributes(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let file = own.join("f");
        fs::write(&file, "f")?;
        for number in 0..200 {
            if over() {
                break;
            }
            let value = dice.bytes(dice.clone().below(65_536) as usize);
            let _ = setxattr(&file, format!("user.{number}"), &value, XattrFlags::empty());
        }
        Ok(())
    })
}

/// Locks many files and keeps them.
fn locks(place: &FilesVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let mut all = Vec::new();
        for number in 0..500 {
            if over() {
                break;
            }
            let file = File::create(own.join(format!("{number}")))?;
            let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
            all.push(file);
        }
        keep(over);
        Ok(())
    })
}

/// Writes much that nobody asked to be on disk.
fn unwritten(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let block = dice.bytes(1 << 20);
        let files: Vec<_> =
            (0..4).map(|nth| File::create(own.join(format!("{nth}")))).collect::<Result<_, _>>()?;
        for _ in 0..32 {
            if over() {
                break;
            }
            (&files[dice.below(4) as usize]).write_all(&block)?;
        }
        Ok(())
    })
}

/// Writes here and there into files of any size.
fn holes(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(own.join("f"))?;
        for _ in 0..200 {
            if over() {
                break;
            }
            let at = dice.below(1 << 40);
            let _ = match dice.below(4) {
                0 => file.set_len(at),
                1 => file.read_at(&mut [0; 4096], at).map(drop),
                2 => file.sync_data(),
                _ => file.write_at(b"here", at).map(drop),
            };
        }
        Ok(())
    })
}

/// Uses files that are removed, and others that took their names.
fn removed(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let mut open = Vec::new();
        for _ in 0..300 {
            if over() {
                break;
            }
            let name = |dice: &mut Dice| own.join(format!("{}", dice.below(4)));
            open.push(File::create(name(dice))?);
            let (from, to) = (name(dice), name(dice));
            let _ = fs::rename(from, to);
            let _ = fs::remove_file(name(dice));
            let _ = dice.one_of(&open).write_at(b"where?", 0);
        }
        Ok(())
    })
}

/// Lists a large folder that changes meanwhile.
fn lists(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        for number in 0..500 {
            if over() {
                return Ok(());
            }
            File::create(own.join(format!("{number}")))?;
        }
        for _ in 0..20 {
            for entry in fs::read_dir(own)? {
                if dice.below(100) == 0 {
                    let _ = fs::remove_file(entry?.path());
                }
            }
        }
        Ok(())
    })
}

/// Gives one file many names, and follows links that lead nowhere and in circles.
fn links(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let file = own.join("f");
        fs::write(&file, "f")?;
        symlink("a", own.join("b"))?;
        symlink("b", own.join("a"))?;
        symlink("../../../../../../../../../etc/shadow", own.join("away"))?;
        for number in 0..200 {
            if over() {
                break;
            }
            let _ = fs::hard_link(&file, own.join(format!("{number}")));
            let _ = fs::read(own.join(*dice.one_of(&["a", "away", "17", "a/b"])));
        }
        Ok(())
    })
}

/// Reads and writes where no file reaches.
fn places(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).open(own.join("f"))?;
        let far = [0, 1, u64::from(u32::MAX), (1 << 63) - 4096, 1 << 63, u64::MAX];
        for _ in 0..300 {
            if over() {
                break;
            }
            let at = *dice.one_of(&far);
            let _ = file.write_at(&[1; 5000], at);
            let _ = file.read_at(&mut [0; 5000], at);
            let _ = file.set_len(at);
            let _ = file.set_len(0);
        }
        Ok(())
    })
}

/// Asks why it is slow, as often as it can.
fn questions(place: &FilesVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    for _ in 0..100 {
        if over() {
            break;
        }
        let mut text = Vec::new();
        // Too often, most of the time.
        let _ =
            File::open(place.0.join(".sluice/why")).and_then(|mut why| why.read_to_end(&mut text));
        let _ = fs::write(place.0.join(".sluice/why"), "x");
        let _ = fs::remove_file(place.0.join(".sluice/why"));
    }
    Ok(())
}

/// Starts programs and kills them.
fn killed(place: &FilesVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    within(place, |own| {
        for _ in 0..10 {
            if over() {
                break;
            }
            let to = format!("of={}", own.join("f").display());
            let mut command = Command::new("dd");
            command.args(["if=/dev/zero", &to, "bs=64k", "count=2000", "conv=fsync"]);
            let mut program = command.stderr(Stdio::null()).spawn()?;
            std::thread::sleep(std::time::Duration::from_millis(dice.below(60)));
            let _ = program.kill();
            program.wait()?;
        }
        Ok(())
    })
}

/// More than anybody gets.
const MANY: u32 = 3_000;

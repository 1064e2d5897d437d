//! Attacks that say what nobody understands.

use std::io;

use ninep::dialect::VERSION;
use ninep::{Fid, NOTAG, Request};

use super::{Hostile, NinepVictim, Over, keep};
use crate::Dice;

/// Announces large messages and sends a byte of each now and then.
pub(super) fn halves(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all = Vec::new();
    for _ in 0..50 {
        let mut one = Hostile::attached(victim, 4 << 20)?;
        one.wire.send(&(4u32 << 20).to_le_bytes())?;
        all.push(one);
    }
    for _ in 0..20 {
        let one = dice.below(all.len() as u64) as usize;
        all[one].wire.send(&dice.bytes(1))?;
        keep(&|| true);
    }
    keep(over);
    Ok(())
}

/// Sends bytes by chance, as the first thing or later.
pub(super) fn noise(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    for _ in 0..50 {
        if over() {
            break;
        }
        let mut one = match dice.below(2) {
            0 => Hostile::connect(victim)?,
            _ => Hostile::attached(victim, 64 << 10)?,
        };
        let len = dice.below(2000) as usize;
        // It may be closed in the middle.
        let _ = one.wire.send(&dice.bytes(len));
    }
    Ok(())
}

/// Sends messages of which some bits are others, in either dialect.
pub(super) fn changed(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    for _ in 0..50 {
        if over() {
            break;
        }
        let mut one = Hostile::reading(victim, 64 << 10)?;
        if dice.below(3) == 0 {
            one.version(64 << 10, VERSION)?;
        }
        for tag in 0..50 {
            let mut bytes = Vec::new();
            message(dice).encode(ninep::Tag(tag), &mut bytes);
            for _ in 0..=dice.below(3) {
                // Its length stays, so that it is taken for a message.
                let at = 4 + dice.below(bytes.len() as u64 - 4) as usize;
                bytes[at] ^= 1 << dice.below(8);
            }
            if one.wire.send(&bytes).is_err() {
                break;
            }
        }
    }
    Ok(())
}

fn message(dice: &mut Dice) -> Request<'static> {
    let (fid, offset) = (Fid(dice.below(3) as u32), dice.below(1 << 20));
    match dice.below(8) {
        0 => Request::Read { fid, offset, count: 4096 },
        1 => Request::Write { fid, offset, data: b"hostile" },
        2 => Request::Readdir { fid, offset, count: 4096 },
        3 => Request::Getattr { fid, mask: u64::MAX },
        4 => Request::Mkdir { dfid: fid, name: b"d", mode: 0o700, gid: 0 },
        5 => Request::Renameat { olddirfid: fid, oldname: b"a", newdirfid: fid, newname: b"b" },
        6 => Request::Xattrwalk { fid, newfid: Fid(9), name: b"user.a" },
        _ => Request::Clunk { fid },
    }
}

/// Asks for names that lead elsewhere, or are none.
pub(super) fn names(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = Hostile::attached(victim, 128 << 10)?;
    let long = "n".repeat(65_000);
    let names = ["..", ".", "", "a/b", "/etc/passwd", "a\0b", "\u{202e}x", "\n", &long];
    for _ in 0..200 {
        if over() {
            break;
        }
        let name = *dice.one_of(&names);
        let _ = one.walk(0, 1, name);
        let name = name.as_bytes();
        one.answer(&Request::Mkdir { dfid: Fid(0), name, mode: 0o700, gid: 0 })?;
        one.answer(&Request::Unlinkat { dirfid: Fid(0), name, flags: 0x200 })?;
        one.answer(&Request::Symlink { fid: Fid(0), name, target: b"/", gid: 0 })?;
        one.answer(&Request::Unlinkat { dirfid: Fid(0), name, flags: 0 })?;
    }
    Ok(())
}

/// Asks at places and for counts that there are not.
pub(super) fn numbers(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = Hostile::reading(victim, 64 << 10)?;
    let far = [0, 1, u64::from(u32::MAX), 1 << 63, u64::MAX - 1, u64::MAX];
    for _ in 0..200 {
        if over() {
            break;
        }
        let (offset, count) = (*dice.one_of(&far), *dice.one_of(&far) as u32);
        let fid = Fid(dice.below(2) as u32);
        one.answer(&Request::Read { fid, offset, count })?;
        one.answer(&Request::Readdir { fid, offset, count })?;
        one.answer(&Request::Getattr { fid, mask: offset })?;
        one.answer(&Request::Lopen { fid, flags: count })?;
    }
    Ok(())
}

/// Begins with sizes that cannot be, and begins again in the middle.
pub(super) fn sizes(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    for _ in 0..50 {
        if over() {
            break;
        }
        let mut one = Hostile::connect(victim)?;
        let msize = *dice.one_of(&[0, 1, 4095, 4096, u32::MAX]);
        one.send_as(NOTAG, &Request::Version { msize, version: ninep::VERSION })?;
        let size = *dice.one_of(&[0u32, 6, 7, 4097, u32::MAX]);
        let _ = one.wire.send(&size.to_le_bytes());
        let mut reader = Hostile::reading(victim, 64 << 10)?;
        for _ in 0..300 {
            reader.send(&Request::Read { fid: Fid(1), offset: 0, count: 60_000 })?;
        }
        reader.send_as(NOTAG, &Request::Version { msize: 1 << 16, version: ninep::VERSION })?;
    }
    Ok(())
}

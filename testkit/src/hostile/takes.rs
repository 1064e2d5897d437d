//! Attacks that take what all share.

use std::io;

use ninep::dialect::{
    AnyRequest, ExtRequest, GroupList, HandleList, RequestHeader, VERSION, encode_request,
    handle_fid,
};
use ninep::{Fid, LOCK_BLOCK, LockKind, NOFID, Request, Tag};

use super::{Hostile, NinepVictim, Over, keep};
use crate::Dice;

/// Opens one file until it is refused, from a few connections.
pub(super) fn opens(victim: &NinepVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all = Vec::new();
    for _ in 0..4 {
        let Ok(mut one) = Hostile::attached(victim, MSIZE) else { break };
        let taken = (1..=MANY).take_while(|fid| {
            let opened = one
                .walk(0, *fid, "f")
                .and_then(|()| one.ask(&Request::Lopen { fid: Fid(*fid), flags: 0 }));
            opened.is_ok() && !over()
        });
        taken.for_each(drop);
        all.push(one);
    }
    keep(over);
    Ok(())
}

/// Takes fids until there are no more.
pub(super) fn fids(victim: &NinepVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = Hostile::attached(victim, MSIZE)?;
    let taken = (1..=4 * MANY).take_while(|fid| {
        let names = ninep::NameList::default();
        let walk = Request::Walk { fid: Fid(0), newfid: Fid(*fid), names };
        one.ask(&walk).is_ok() && !over()
    });
    taken.for_each(drop);
    keep(over);
    Ok(())
}

/// Begins sessions and abandons them.
pub(super) fn sessions(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    for _ in 0..100 {
        if over() {
            break;
        }
        session(victim, dice)?;
    }
    Ok(())
}

/// A session of the dialect.
fn session(victim: &NinepVictim, dice: &mut Dice) -> io::Result<Hostile> {
    let mut one = Hostile::connect(victim)?;
    one.version(MSIZE, VERSION)?;
    let id = u128::from(dice.below(u64::from(u32::MAX))) << 64 | u128::from(dice.below(1 << 40));
    let request = ExtRequest::Session { id, channel: 0, slots: 64, aname: victim.aname.as_bytes() };
    own(&mut one, Tag(1), &RequestHeader::SESSION, request.into())?;
    one.wire.wait(Tag(1))?;
    Ok(one)
}

fn own(
    one: &mut Hostile,
    tag: Tag,
    header: &RequestHeader<'_>,
    request: AnyRequest<'_>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    encode_request(tag, header, &request, &mut bytes);
    one.wire.send(&bytes)
}

/// Connects until there is no place, and attaches some.
pub(super) fn connections(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all = Vec::new();
    for _ in 0..300 {
        let one = match dice.below(3) {
            0 => Hostile::attached(victim, MSIZE),
            _ => Hostile::connect(victim),
        };
        match one {
            Ok(one) if !over() => all.push(one),
            _ => break,
        }
    }
    keep(over);
    Ok(())
}

/// Asks for much, and reads nothing.
pub(super) fn unread(victim: &NinepVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut all = Vec::new();
    for _ in 0..30 {
        let mut one = Hostile::reading(victim, LARGE)?;
        for _ in 0..4 {
            one.send(&Request::Read { fid: Fid(1), offset: 0, count: LARGE - 11 })?;
        }
        all.push(one);
    }
    keep(over);
    Ok(())
}

/// Begins to set attributes, and never goes on.
pub(super) fn sinks(victim: &NinepVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = Hostile::attached(victim, MSIZE)?;
    let sunk = (1..=MANY).take_while(|fid| {
        let (names, fid) = (ninep::NameList::default(), Fid(*fid));
        let walked = one.ask(&Request::Walk { fid: Fid(0), newfid: fid, names });
        let sink = Request::Xattrcreate { fid, name: b"user.a", size: 64 << 10, flags: 0 };
        walked.and_then(|()| one.ask(&sink)).is_ok() && !over()
    });
    sunk.for_each(drop);
    keep(over);
    Ok(())
}

/// Takes locks in pieces.
pub(super) fn ranges(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = Hostile::reading(victim, MSIZE)?;
    for owner in 0..20 {
        for at in 0..500 {
            if over() {
                return Ok(());
            }
            let start = dice.below(1 << 40) + at;
            one.answer(&lock(LockKind::Read, 0, start, owner))?;
        }
    }
    Ok(())
}

/// Waits for locks, many at once.
pub(super) fn waiting_locks(victim: &NinepVictim, _: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut holder = Hostile::attached(victim, MSIZE)?;
    let name = format!("lock-{:?}", std::thread::current().id());
    let make =
        Request::Lcreate { fid: Fid(0), name: name.as_bytes(), flags: 2, mode: 0o666, gid: 0 };
    holder.answer(&make)?;
    let mut hostile = Hostile::attached(victim, MSIZE)?;
    hostile.walk(0, 1, &name)?;
    hostile.ask(&Request::Lopen { fid: Fid(1), flags: 2 })?;
    hostile.answer(&lock(LockKind::Write, 0, 0, 1))?;
    for owner in 2..1000 {
        hostile.send(&lock(LockKind::Write, LOCK_BLOCK, 0, owner))?;
    }
    hostile.drain(over)
}

fn lock(kind: LockKind, flags: u32, start: u64, proc_id: u32) -> Request<'static> {
    Request::Lock { fid: Fid(1), kind, flags, start, length: 1, proc_id, client_id: b"hostile" }
}

/// Comes as one job after the other.
pub(super) fn jobs(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = Hostile::connect(victim)?;
    one.version(MSIZE, ninep::VERSION)?;
    for _ in 0..1000 {
        if over() {
            break;
        }
        let aname = format!("{}?job=hostile.{}", victim.aname, dice.below(1 << 40));
        let (fid, aname) = (Fid(1), aname.as_bytes());
        let attach = Request::Attach { fid, afid: NOFID, uname: b"", aname, n_uname: victim.uid };
        one.ask(&attach)?;
        one.answer(&Request::Clunk { fid })?;
    }
    Ok(())
}

/// Gives one session all the identities that it may have.
pub(super) fn identities(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = session(victim, dice)?;
    for identity in 0..5000 {
        if over() {
            break;
        }
        let job = format!("hostile.{identity}");
        let request = ExtRequest::Identity {
            identity,
            uid: victim.uid,
            gid: victim.uid,
            groups: GroupList::default(),
            job: job.as_bytes(),
            proof: b"",
        };
        own(&mut one, Tag(2), &RequestHeader::SESSION, request.into())?;
        one.wire.wait(Tag(2))?;
    }
    keep(over);
    Ok(())
}

/// Asks why it is slow, as often as it can.
pub(super) fn tells(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = session(victim, dice)?;
    let identity = ExtRequest::Identity {
        identity: 7,
        uid: victim.uid,
        gid: victim.uid,
        groups: GroupList::default(),
        job: b"hostile",
        proof: b"",
    };
    own(&mut one, Tag(2), &RequestHeader::SESSION, identity.into())?;
    one.wire.wait(Tag(2))?;
    let header = RequestHeader { identity: 7, handles: HandleList::NONE, ..RequestHeader::SESSION };
    for tag in 10..200 {
        own(&mut one, Tag(tag), &header, ExtRequest::Info { what: 0, count: 1 << 16 }.into())?;
    }
    one.drain(over)?;
    let ping = ExtRequest::Commit { fid: handle_fid(0) };
    own(&mut one, Tag(3), &RequestHeader::SESSION, ping.into())
}

/// Takes back what it has just asked for, and what it has not.
pub(super) fn flushes(victim: &NinepVictim, dice: &mut Dice, over: Over<'_>) -> io::Result<()> {
    let mut one = Hostile::reading(victim, MSIZE)?;
    for _ in 0..2000 {
        if over() {
            break;
        }
        let read = one.send(&Request::Read { fid: Fid(1), offset: 0, count: 4096 })?;
        let oldtag = if dice.below(2) == 0 { read } else { Tag(dice.below(0xfff0) as u16) };
        let flush = one.send(&Request::Flush { oldtag })?;
        one.wire.wait(flush)?;
    }
    Ok(())
}

const MSIZE: u32 = 64 << 10;
const LARGE: u32 = 4 << 20;
/// More than anybody gets.
const MANY: u32 = 20_000;

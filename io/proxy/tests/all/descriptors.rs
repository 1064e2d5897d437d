//! What the server keeps of what it was asked: no descriptor for a name that was looked
//! up. Alone in its process, because it counts the process's descriptors.

#![allow(clippy::unwrap_used)]

use std::fs;

use ninep::dialect::{ExtReply, ExtRequest, HandleList, handle_fid};
use ninep::open;
use testkit::alone;

use crate::peer::{P9Channel, Served};

const NAMES: usize = 20_000;

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Looks names up, some hundred at a time; the last of their handles.
fn look_up_all(client: &mut P9Channel) -> Vec<u8> {
    let root = client.root.clone();
    let mut last = Vec::new();
    for from in (0..NAMES).step_by(200) {
        let lookup = |nth: usize| {
            let name = format!("{nth}");
            let request = ExtRequest::Lookup { fid: handle_fid(0), name: name.as_bytes() };
            client.send(HandleList::one(&root), request)
        };
        let tags: Vec<_> = (from..from + 200).map(lookup).collect();
        for tag in tags {
            let frame = client.wait(tag);
            let Ok(ExtReply::Lookup { handle, .. }) = frame.own() else { panic!("{frame:?}") };
            last = handle.to_vec();
        }
    }
    last
}

#[test]
fn twenty_thousand_lookups_hold_no_descriptor_and_their_handles_can_be_used() {
    alone(
        module_path!(),
        "twenty_thousand_lookups_hold_no_descriptor_and_their_handles_can_be_used",
        || {
            let served = Served::plain("descriptors");
            for nth in 0..NAMES {
                fs::write(served.data().join(format!("{nth}")), format!("{nth}")).unwrap();
            }
            let mut client = served.client();
            // What is made once, such as threads, pipes and an open root, is there before.
            client.open_name(1, "0", open::RDONLY).unwrap();
            client.read(1, 0, 10).unwrap();
            let before = descriptors();
            let last = look_up_all(&mut client);
            let after = descriptors();
            assert!(after <= before + 16, "{before} descriptors before, {after} after");
            client.open(&last, 2, "", open::RDONLY, 0).unwrap();
            assert_eq!(client.read(2, 0, 10).unwrap(), format!("{}", NAMES - 1).into_bytes());
            // Open files do hold one each: the count would have told.
            for fid in 100..200 {
                client.open(&last, fid, "", open::RDONLY, 0).unwrap();
            }
            assert!(descriptors() >= after + 100);
            for fid in 100..200 {
                client.clunk(fid).unwrap();
            }
            assert!(descriptors() <= after + 16);
        },
    );
}

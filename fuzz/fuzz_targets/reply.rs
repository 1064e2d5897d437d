//! Any bytes as a reply, the way a client meets them, directory entries included.
//!
//! What decodes must encode to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_ninep::{DirEntries, Reply, frame_tag};

fuzz_target!(|frame: &[u8]| {
    let (tag, reply) = match Reply::decode(frame) {
        Ok(decoded) => decoded,
        Err(error) => {
            assert_eq!(error.tag(), frame_tag(frame));
            return;
        }
    };
    let mut again = Vec::new();
    reply.encode(tag, &mut again);
    assert_eq!(again, frame);
    if let Reply::Readdir { data } = reply {
        let mut entries = Vec::new();
        let whole =
            DirEntries::new(data).all(|entry| entry.map(|e| e.encode(&mut entries)).is_ok());
        assert!(data.starts_with(&entries));
        assert_eq!(whole, data.len() == entries.len());
    }
});

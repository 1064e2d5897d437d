//! Any bytes as a request, the way a server meets them.
//!
//! What decodes must encode to the same bytes; the shortcuts that look at a header
//! alone must agree with the whole decoder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_ninep::{Request, frame_kind, frame_len, frame_tag, write_header};

fuzz_target!(|frame: &[u8]| {
    let header = write_header(frame);
    let (tag, request) = match Request::decode(frame) {
        Ok(decoded) => decoded,
        Err(error) => {
            assert_eq!(error.tag(), frame_tag(frame));
            assert!(error.errno() > 0);
            return;
        }
    };
    let mut again = Vec::new();
    request.encode(tag, &mut again);
    assert_eq!(again, frame);
    assert_eq!(frame_len(frame), Some(frame.len() as u32));
    assert_eq!(frame_kind(frame), Some(request.kind()));
    match request {
        Request::Write { fid, offset, data } => {
            assert_eq!(header, Some((tag, fid, offset, data.len() as u32)));
        }
        Request::Walk { names, .. } => {
            assert_eq!(names.count(), names.len());
            assert!(names.len() <= sluice_ninep::WALK_NAMES_MAX);
        }
        _ => assert_eq!(header, None),
    }
});

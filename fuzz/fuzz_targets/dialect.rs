//! Any bytes as a message of the dialect, either way.
//!
//! What decodes must encode to the same bytes, and the lists inside must end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sluice_ninep::dialect::{
    ListEntries, SessionEvents, decode_reply, decode_request, encode_reply, encode_request,
    handle_fid,
};
use sluice_ninep::frame_tag;

fuzz_target!(|frame: &[u8]| {
    let mut again = Vec::new();
    match decode_request(frame) {
        Ok((tag, header, request)) => {
            encode_request(tag, &header, &request, &mut again);
            assert_eq!(again, frame);
            let _ = (header.handles.get(handle_fid(0)), header.handles.get(handle_fid(1)));
        }
        Err(error) => assert_eq!(error.tag(), frame_tag(frame)),
    }
    again.clear();
    match decode_reply(frame) {
        Ok((tag, header, reply)) => {
            encode_reply(tag, header, &reply, &mut again);
            assert_eq!(again, frame);
        }
        Err(error) => assert_eq!(error.tag(), frame_tag(frame)),
    }
    assert!(ListEntries::new(frame).count() <= frame.len() / 12 + 1);
    assert!(SessionEvents::new(frame).count() <= frame.len() / 3 + 1);
});

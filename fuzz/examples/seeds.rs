//! Writes what the fuzzer starts from: one of every message, plain and with the
//! edges of its fields, and every example of docs/RULES.md.
//!
//!   cargo run --example seeds -- CORPUS      makes CORPUS/request/*, reply/*, dialect/* and rules/*

#[path = "../../core/ninep/tests/all/samples/mod.rs"]
mod samples;

use std::path::Path;
use std::{env, fs, io};

use samples::{Values, replies, requests};
use sluice_ninep::Tag;
use sluice_ninep::dialect::{ReplyHeader, RequestHeader, encode_reply, encode_request};

const RULES: &str = include_str!("../../docs/RULES.md");

fn main() -> io::Result<()> {
    let corpus = env::args().nth(1).unwrap_or_else(|| "corpus".into());
    let corpus = Path::new(&corpus);
    let edges = Values {
        word: u32::MAX,
        long: u64::MAX,
        name: vec![b'x'; 255],
        text: Vec::new(),
        data: Vec::new(),
        names: vec![b"n".to_vec(); 16],
    };
    for (label, values) in [("plain", Values::plain()), ("edges", edges)] {
        let mut frames = Vec::new();
        requests(&values, |tag, request| {
            let mut frame = Vec::new();
            request.encode(tag, &mut frame);
            frames.push(("request", request.name(), frame));
        });
        replies(&values, |tag, reply| {
            let mut frame = Vec::new();
            reply.encode(tag, &mut frame);
            frames.push(("reply", reply.name(), frame));
        });
        samples::dialect::requests(&values, |own| {
            let mut frame = Vec::new();
            encode_request(Tag(5), &RequestHeader::SESSION, &own.into(), &mut frame);
            frames.push(("dialect", own.name(), frame));
        });
        samples::dialect::replies(&values, |own| {
            let mut frame = Vec::new();
            encode_reply(Tag(5), ReplyHeader::default(), &own.into(), &mut frame);
            frames.push(("dialect", own.name(), frame));
        });
        for (target, name, frame) in frames {
            fs::create_dir_all(corpus.join(target))?;
            let name = format!("{label}-{name}-{}", frame[4]);
            fs::write(corpus.join(target).join(name), frame)?;
        }
    }
    fs::create_dir_all(corpus.join("rules"))?;
    let examples = RULES.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    for (number, example) in examples.enumerate() {
        fs::write(corpus.join(format!("rules/example-{number}")), example)?;
    }
    Ok(())
}

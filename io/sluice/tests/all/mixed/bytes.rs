//! Workers that change what is in files: each keeps in memory what its file must hold.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Checks, Dice, Obeying, Work};

/// Writes through the page cache, with an fsync now and then.
pub(super) fn writes(mut work: Work) -> Checks {
    let file = new(&work);
    let mut expected = vec![0; LEN];
    file.write_all_at(&expected, 0).unwrap();
    while work.goes_on() {
        put(&file, &mut expected, &mut work.dice);
        match work.dice.below(8) {
            0 => file.sync_all().unwrap(),
            1 => file.sync_data().unwrap(),
            2 => compare(&file, &expected, &mut work.dice),
            _ => {}
        }
    }
    file.sync_all().unwrap();
    holds(work, expected)
}

/// Truncates and lengthens what it writes. Closes the file each time.
pub(super) fn lengths(mut work: Work) -> Checks {
    drop(new(&work));
    let mut expected = Vec::new();
    while work.goes_on() {
        let file = OpenOptions::new().read(true).write(true).open(path(&work)).unwrap();
        let len = work.dice.below(LEN as u64) as usize;
        file.set_len(len as u64).unwrap();
        expected.resize(len, 0);
        if len > 0 {
            put(&file, &mut expected, &mut work.dice);
            compare(&file, &expected, &mut work.dice);
        }
        assert_eq!(file.metadata().unwrap().len(), len as u64);
    }
    holds(work, expected)
}

/// Writes page after page through a shared map, each with an msync.
pub(super) fn maps(work: Work, program: &Path) -> Checks {
    new(&work).set_len(PAGES * PAGE as u64).unwrap();
    let mut expected = vec![0; PAGES as usize * PAGE];
    let mut writer = Obeying::start(Command::new(program).arg(path(&work)));
    let mut round = 0u64;
    while work.goes_on() {
        writer.tell(&round.to_string());
        let at = (round % PAGES) as usize * PAGE;
        for word in expected[at..at + PAGE].chunks_mut(8) {
            word.copy_from_slice(&round.to_ne_bytes());
        }
        round += 1;
    }
    writer.end();
    holds(work, expected)
}

/// Writes some bytes somewhere, within what the file holds.
fn put(file: &File, expected: &mut [u8], dice: &mut Dice) {
    let at = dice.below(expected.len() as u64) as usize;
    let len = (1 + dice.below(20_000) as usize).min(expected.len() - at);
    let first = dice.below(256) as usize;
    for (n, byte) in expected[at..at + len].iter_mut().enumerate() {
        *byte = (first + n * 31 + n / 256) as u8;
    }
    file.write_all_at(&expected[at..at + len], at as u64).unwrap();
}

/// Reads some bytes from somewhere.
fn compare(file: &File, expected: &[u8], dice: &mut Dice) {
    let at = dice.below(expected.len() as u64) as usize;
    let len = (1 + dice.below(60_000) as usize).min(expected.len() - at);
    let mut found = vec![0; len];
    file.read_exact_at(&mut found, at as u64).unwrap();
    assert_same(&found, &expected[at..at + len]);
}

fn holds(work: Work, expected: Vec<u8>) -> Checks {
    Box::new(move |root| {
        assert_same(&fs::read(root.join(&work.name).join(FILE)).unwrap(), &expected);
    })
}

fn assert_same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len());
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!(differs, None, "the first byte that differs of {}", found.len());
}

fn path(work: &Work) -> PathBuf {
    work.folder().join(FILE)
}

fn new(work: &Work) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path(work)).unwrap()
}

/// Compiles the program that writes through a map; none where nothing compiles C. Rust has no
/// safe call for it.
pub(super) fn page_writer(scratch: &Path) -> Option<PathBuf> {
    let program = scratch.join("page-writer");
    fs::write(program.with_extension("c"), PAGE_WRITER).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(program.with_extension("c"));
    cc.status().is_ok_and(|status| status.success()).then_some(program)
}

/// `page-writer FILE`: fills page N modulo 16 with the number N, for each N on a line.
const PAGE_WRITER: &str = r#"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
enum { PAGE = 4096, PAGES = 16 };
int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	if (fd < 0) return 1;
	char *map = mmap(0, PAGE * PAGES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) return 2;
	unsigned long long round;
	while (scanf("%llu", &round) == 1) {
		char *page = map + round % PAGES * PAGE;
		for (int i = 0; i < PAGE / 8; i++) ((uint64_t *)page)[i] = round;
		if (msync(page, PAGE, MS_SYNC)) return 3;
		puts("ok");
		fflush(stdout);
	}
	return 0;
}
"#;

const FILE: &str = "file";
/// Of the files that are written at random, in bytes.
const LEN: usize = 256 << 10;
const PAGE: usize = 4096;
const PAGES: u64 = 16;

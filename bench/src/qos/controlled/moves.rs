//! The sum of a limited class over eight proxies while its clients move between them at random.

use std::time::{Duration, Instant};

use model::Bytes;

use super::super::QosRun;
use super::super::table::{QosRow, QosTable, figures};
use super::reader::{PageReader, PageReaders, windows};
use super::{QosController, proxies, rules};

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let bed = &run.bed;
    bed.file("f", Bytes::kib(64))?;
    let controller = QosController::start(bed, "moves")?;
    let version = controller.client.set_rules(&rules("80MB/s"))?.version;
    let proxies = proxies(bed, PROXIES, &controller.url, &version)?;
    let readers = PageReaders::new();
    let place = |at: u64| &proxies[at as usize % PROXIES].address;
    let all: Vec<_> =
        (0..READERS).map(|at| PageReader::start(&readers, place(at), "f", BLOCK)).collect();
    table.progress("moves: what was saved at first is used up");
    bed.wait(Duration::from_secs(5))?;

    let span = run.time(60, 15);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let began = Instant::now();
    let mut samples = vec![readers.sample()];
    let (mut moves, mut next) = (0u32, began + random.pause());
    while began.elapsed() < span {
        bed.wait(Duration::from_millis(10))?;
        samples.push(readers.sample());
        if Instant::now() >= next {
            all[random.below(READERS) as usize].move_to(place(random.next()));
            next += random.pause();
            moves += 1;
            table.progress(&format!("moves: {moves}"));
        }
    }
    for reader in all {
        reader.end()?;
    }
    let percent = |part: f64| (part - 1.0) * 100.0;
    let (tens, seconds) = (windows(&samples, 10.0, LIMIT), windows(&samples, 1.0, LIMIT));
    let Some(((slow10, fast10), (slow1, fast1))) = tens.zip(seconds) else { return Ok(()) };
    let case = format!("moves: {READERS} clients over {PROXIES} proxies");
    table.add(QosRow {
        case: format!("{case}, any 10 s"),
        target: "within 2 %".into(),
        reached: format!("{:+.2} to {:+.2} %", percent(slow10), percent(fast10)),
        met: Some(slow10 >= 0.98 && fast10 <= 1.02),
        beside: format!("{moves} moves in {} s", span.as_secs()),
        figures: figures([
            ("least_percent", percent(slow10)),
            ("most_percent", percent(fast10)),
            ("moves", f64::from(moves)),
        ]),
    });
    // One tick's part of a second for each move of the time that counts for it.
    let bound = -10.0 * (f64::from(moves) / span.as_secs_f64()).max(1.0);
    table.add(QosRow {
        case: format!("{case}, any 1 s"),
        target: format!("at most +5 %, at least {bound:.0} %: one tick for each move"),
        reached: format!("{:+.2} to {:+.2} %", percent(slow1), percent(fast1)),
        met: Some(fast1 <= 1.05 && percent(slow1) >= bound),
        beside: String::new(),
        figures: figures([("least_percent", percent(slow1)), ("most_percent", percent(fast1))]),
    });
    Ok(())
}

/// Xorshift: a bench needs no better.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A second on average.
    fn pause(&mut self) -> Duration {
        Duration::from_millis(200 + self.below(1_600))
    }
}

const PROXIES: usize = 8;
const READERS: u64 = 32;
const BLOCK: u32 = 64 << 10;
/// As the rule says.
const LIMIT: f64 = 80e6;

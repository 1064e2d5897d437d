//! How soon a limit that is set at the controller is in force on all proxies.

use std::time::{Duration, Instant};

use anyhow::bail;

use super::super::QosRun;
use super::super::table::{QosRow, QosTable, figures};
use super::{QosController, proxies, rules};

pub(super) fn measure(run: &QosRun<'_>, table: &mut QosTable) -> anyhow::Result<()> {
    let bed = &run.bed;
    let controller = QosController::start(bed, "news")?;
    let first = controller.client.set_rules(&rules("100MB/s"))?;
    let proxies = proxies(bed, PROXIES, &controller.url, &first.version)?;
    let mut took_ms: Vec<f64> = Vec::new();
    for round in 0..run.rounds(100, 20) {
        table.progress(&format!("change {round}"));
        let began = Instant::now();
        let text = rules(&format!("{}MB/s", 101 + round));
        let version = controller.client.set_rules(&text)?.version;
        for proxy in &proxies {
            while proxy.api.rules()?.version != version {
                if began.elapsed() > Duration::from_secs(10) {
                    bail!("a change did not come within 10 s");
                }
            }
        }
        took_ms.push(began.elapsed().as_secs_f64() * 1e3);
        bed.wait(Duration::from_millis(37))?;
    }
    took_ms.sort_by(f64::total_cmp);
    let (median, most) = (took_ms[took_ms.len() / 2], took_ms[took_ms.len() - 1]);
    table.add(QosRow {
        case: format!("news: a limit in force on {PROXIES} proxies"),
        target: "within 200 ms".into(),
        reached: format!("{most:.0} ms at most"),
        met: Some(most <= 200.0),
        beside: format!("median {median:.0} ms of {} changes", took_ms.len()),
        figures: figures([("median_ms", median), ("most_ms", most)]),
    });
    Ok(())
}

const PROXIES: usize = 8;

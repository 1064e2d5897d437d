//! The controller's page with a thousand jobs, in a real browser.
//!
//! ```text
//!   crowd.0 … crowd.999, each at proxies a and b ─► controller ◄─ page ◄─ Chromium
//! ```

#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::browser::looks::CROWDED;
use crate::browser::{Browser, WIDE};
use crate::common::{Controller, Proxy, USER};
use ninep::{Fid, Request};
use serde_json::Value;
use testkit::TestFolder;

/// A thousand jobs at each proxy, all asking again and again.
fn crowd(proxies: &[Proxy], stop: &AtomicBool) {
    let mut clients: Vec<_> = proxies.iter().map(|proxy| proxy.client_of("x", USER)).collect();
    for client in &mut clients {
        for job in 0..JOBS {
            client.attach(job + 1, &format!("x?job=crowd.{job}"), USER + job / 40).unwrap();
        }
    }
    while !stop.load(Ordering::Relaxed) {
        for client in &mut clients {
            // All at once: each job is seen at work in each of the page's spans, however long a
            // round trip takes.
            let stat = |job| Request::Getattr { fid: Fid(job + 1), mask: 1 };
            let tags: Vec<_> = (0..JOBS).map(|job| client.send(&stat(job))).collect();
            tags.into_iter().for_each(|tag| assert!(client.wait(tag).is_ok()));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

const JOBS: u32 = 1_000;

#[test]
fn with_a_thousand_jobs_the_greatest_show_and_all_are_found() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    controller.client().set_rules("[[rule]]\nname = \"jobs\"\nper = [\"jobid\"]\n").unwrap();
    let proxies =
        ["a", "b"].map(|node| crate::controlled::proxy("page-crowd", node, &controller.url));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| crowd(&proxies, &stop));
        // Whatever fails below, the crowd goes home.
        let shown = catch_unwind(AssertUnwindSafe(|| crowd_is_shown(&controller.url)));
        stop.store(true, Ordering::Relaxed);
        crowd.join().unwrap();
        shown.unwrap();
    });
}

fn crowd_is_shown(url: &str) {
    let Some(browser) = Browser::open(WIDE, url) else { return };
    browser.choose("#unit", "ops");
    browser.until_says("#payers-more", "901 more");
    assert_eq!(browser.rows("#payers").len(), 100);
    browser.until_told("the greatest, and the others together", || {
        let legend = browser.of("#stack-legend", "children.length");
        legend == 9 && browser.text("#stack-legend").contains("others ")
    });
    browser.until_told("the rule has a class for each at each proxy", || {
        browser.row("#rule-rows", "jobs").is_some_and(|row| row[6] == "2.00k")
    });
    browser.fill("#find", "crowd.777");
    browser.until_told("one of them", || {
        browser.rows("#payers").iter().map(|row| row[0].as_str()).eq(["crowd.777"])
    });
    browser.fill("#find", "crowd.");
    browser.choose("#by", "user");
    browser.fill("#find", "");
    browser.until_told("25 users", || browser.rows("#payers").len() == 25);
    browser.choose("#by", "job");
    browser.has_no(CROWDED);
    let took = "const took = performance.getEntriesByName('update').map((one) => one.duration); \
                return took.length >= 10 && took";
    let mut updates = Value::Null;
    browser.until_told("ten updates", || {
        updates = browser.run(took);
        updates.is_array()
    });
    browser.shot("thousand");
    let mut updates: Vec<f64> = serde_json::from_value(updates).unwrap();
    updates.sort_by(f64::total_cmp);
    let (median, worst) = (updates[updates.len() / 2], updates[updates.len() - 1]);
    let paint =
        browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime");
    let said = format!(
        "{JOBS} jobs: first paint {paint} ms, updates {median:.1} ms, {worst:.1} ms at most"
    );
    // Not by a macro: what a passing test prints by those is shown to nobody.
    let _ = writeln!(std::io::stderr(), "{said}");
}

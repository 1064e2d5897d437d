//! Reservations on the controller's page, in a real browser: calendar, table, and the form with its
//! refusal.
//!
//! ```text
//!   Chromium ─► the page ─┬─► StubController: a calendar, reservations, a refusal with a next start
//!                         └─► a controller with a proxy
//! ```

#![allow(clippy::unwrap_used)]

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::browser::looks::{CROWDED, FAINT, WIDER};
use crate::browser::{Browser, DARK, PHONE, WIDE};
use crate::common::{Controller, Setup};
use crate::stub::StubController;
use testkit::TestFolder;

const SECOND_NS: u64 = 1_000_000_000;

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn resource(name: &str, now_s: u64) -> Value {
    let step = |after_s: u64, read: u64, write: u64| json!({"from_ns": (now_s + after_s) * SECOND_NS, "read_per_sec": read, "write_per_sec": write});
    json!({
        "kind": "target", "name": name, "read_per_sec": 2_000_000_000, "write_per_sec": 1_000_000_000,
        "best_effort_ppm": 150_000, "unseen_ppm": 0, "rules": ["rule jobs: 100MB/s"],
        "steps": [step(0, 500_000_000, 0), step(20_000, 1_000_000_000, 250_000_000), step(40_000, 0, 0)],
        "used": [{"from_ns": (now_s - 10_000) * SECOND_NS, "read_per_sec": 100_000_000, "write_per_sec": 0}],
    })
}

/// The replies of a controller with two targets and two reservations.
fn answer(call: &str, now_s: u64) -> (u16, Value) {
    let (method, path) = call.split_once(' ').unwrap();
    let reservation = |id: u64, state: &str| {
        json!({"id": id, "state": state, "user": 1000 + id, "job": format!("dd.{id}"), "target": "fs",
               "start_ns": (now_s + id) * SECOND_NS, "end_ns": (now_s + 100) * SECOND_NS,
               "write": {"bytes": 500_000_000}})
    };
    match (method, path.split('?').next().unwrap()) {
        ("GET", "/v1/reservations") => {
            let reservations = [reservation(7, "ACTIVE"), reservation(9, "SCHEDULED")];
            (200, json!({"at_ns": now_s * SECOND_NS, "reservations": reservations, "omitted": 0}))
        }
        ("POST", "/v1/reservations") => (200, reservation(11, "SCHEDULED")),
        ("GET", "/v1/calendar") => {
            let resources = [resource("fs", now_s), resource("scratch", now_s)];
            let span = json!({"at_ns": now_s * SECOND_NS, "from_ns": (now_s - 21_600) * SECOND_NS,
                              "until_ns": (now_s + 86_400) * SECOND_NS, "resources": resources});
            (200, span)
        }
        ("GET", "/v1/status") => (200, status("operate")),
        _ => (404, json!({"code": "not_found", "message": "not here"})),
    }
}

fn status(role: &str) -> Value {
    json!({"is_leader": true, "term": 1, "proxies": 2, "role": role})
}

/// Opens the form, which the page offers when it knows that its caller may reserve.
fn open_form(browser: &Browser) {
    let shown = "return !document.getElementById('reservation-new').hidden";
    browser.until("the button is shown", shown);
    browser.click("#reservation-new");
}

#[test]
fn the_form_is_for_those_who_may_reserve() {
    let now = now_s();
    for (role, is_hidden) in [("user", false), ("read", true), ("admin", false)] {
        let stub = StubController::start(move |call| match call {
            "GET /v1/status" => (200, status(role)),
            call => answer(call, now),
        });
        let Some(browser) = Browser::open(WIDE, &stub.url) else { return };
        browser.until(
            "the status",
            "return document.getElementById('standing').dataset.text !== undefined",
        );
        let shown =
            format!("return document.getElementById('reservation-new').hidden === {is_hidden}");
        browser.until(&format!("role {role}: {is_hidden}"), &shown);
    }
}

#[test]
fn the_calendar_and_the_table_show_what_is_promised_in_light_and_dark_and_on_a_phone() {
    let now = now_s();
    let stub = StubController::start(move |call| answer(call, now));
    for look in [WIDE, DARK, PHONE] {
        let Some(browser) = Browser::open(look, &stub.url) else { return };
        browser.until_told("the rows", || browser.rows("#reservation-rows").len() == 2);
        let row = browser.row("#reservation-rows", "7").unwrap();
        assert_eq!(row[1..6], ["ACTIVE", "1007", "dd.7", "target fs", "500 MB/s write"]);
        // Half of the reads and a quarter of the writes are three quarters of the target.
        browser.until_says(
            "#calendar",
            "target fs: 25 % promised now, 75 % at most, 5.0 % used lately",
        );
        browser.until_says("#calendar", "rule jobs: 100MB/s");
        browser.until(
            "two pictures",
            "return document.querySelectorAll('#calendar canvas').length === 2",
        );
        let painted = "const canvas = document.querySelector('#calendar canvas'); \
                       const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); \
                       return data.filter((value, at) => at % 4 === 3 && value > 0).length > 1000";
        browser.until("the picture is painted", painted);
        browser.run("document.getElementById('reservations').scrollIntoView()");
        browser.has_no(CROWDED);
        browser.has_no(FAINT);
        match look.phone {
            true => browser.has_no(WIDER),
            false => browser.shot(if look.dark { "reservations-dark" } else { "reservations" }),
        }
    }
    let asked = stub.lines();
    let calendar =
        asked.iter().find_map(|line| line.strip_prefix("GET /v1/calendar?from=")).unwrap();
    let (from, to) = calendar.split_once("&to=").unwrap();
    let [from, to] = [from, to].map(|text| text.parse::<u64>().unwrap());
    assert_eq!(to - from, 86_400 / 4 * 5, "a day ahead and a quarter of it back");
}

#[test]
fn a_reservation_is_requested_and_a_refusal_offers_the_next_start() {
    let now = now_s();
    // Not on a second, by less than the page can see: the offered start is the next whole one.
    let next = (now + 600) * SECOND_NS + 1;
    let refused = json!({"code": "does_not_fit", "message": "31% fits", "refusal": {
        "kind": "target", "bottleneck": "fs", "taken_by": ["rule jobs: 100MB/s"],
        "fits_now_ppm": 310_000, "next_start_ns": next}});
    let refusals = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let stub = StubController::start(move |call| {
        let is_first = call.starts_with("POST")
            && refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        if is_first { (409, refused.clone()) } else { answer(call, now) }
    });
    let posted = || -> Vec<Value> {
        let calls = stub.calls().into_iter();
        calls.filter(|(line, _)| line.starts_with("POST")).map(|(_, body)| body).collect()
    };
    let Some(browser) = Browser::open(WIDE, &stub.url) else { return };
    browser.until_told("the rows", || browser.rows("#reservation-rows").len() == 2);
    open_form(&browser);
    let submit = "#reservation-form button.main";
    browser.fill("#reservation-form [name=rate]", "fast");
    browser.fill("#reservation-form [name=duration]", "10min");
    browser.click(submit);
    browser.until_says("#reservation-error", "fast");
    browser.fill("#reservation-form [name=rate]", "500MB/s");
    browser.fill("#reservation-form [name=duration]", "0s");
    browser.click(submit);
    browser.until_says("#reservation-error", "0s");
    browser.fill("#reservation-form [name=duration]", "10min");
    browser.fill("#reservation-form [name=job]", "dd.9");
    browser.fill("#reservation-form [name=user]", "1000");
    browser.choose("#reservation-form [name=direction]", "both");
    assert_eq!(posted(), [] as [Value; 0], "nothing was sent so far");
    browser.click(submit);
    browser.until_says("#reservation-error", "31% fits; taken by rule jobs: 100MB/s");
    browser.has_no(CROWDED);
    browser.shot("reservation-refused");
    let rate = json!({"bytes": 500_000_000});
    let mut request = json!({"duration_ns": 600 * SECOND_NS, "read": rate, "write": rate, "job": "dd.9", "user": 1000});
    assert_eq!(posted(), [request.clone()]);
    browser.click("#reservation-later");
    browser.until("the dialog is closed", "return !document.querySelector('dialog[open]')");
    request["not_before_ns"] = json!((now + 601) * SECOND_NS);
    request["exact"] = json!(true);
    assert_eq!(posted(), [request]);
}

#[test]
fn what_is_reserved_on_the_page_becomes_active_and_what_is_refused_starts_after_it() {
    let data = TestFolder::new();
    let controller = Controller::start(data.path(), "http://127.0.0.1:0");
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
                  [[target]]\nname = \"fs\"\ncapacity_read = \"200MB/s\"\n\
                  capacity_write = \"100MB/s\"\n";
    let top = format!("controller = \"{}\"\nproxy_name = \"a\"", controller.url);
    let _proxy = Setup::new("page-reserve").top(&top).tables(tables).start();
    let Some(browser) = Browser::open(WIDE, &controller.url) else { return };
    browser.until_says("#calendar", "target fs");
    let request = |rate: &str| {
        open_form(&browser);
        for (name, text) in [("rate", rate), ("duration", "1h"), ("user", "1000")] {
            browser.fill(&format!("#reservation-form [name={name}]"), text);
        }
    };
    let until_state = |id: &str, state: &str| {
        browser.until_told(&format!("{id} is {state}"), || {
            browser.row("#reservation-rows", id).is_some_and(|row| row[1] == state)
        });
        browser.until("the dialog is closed", "return !document.querySelector('dialog[open]')");
    };
    request("40MB/s");
    browser.click("#reservation-form button.main");
    until_state("1", "ACTIVE");
    browser.until_says("#calendar", "target fs: 40 % promised now");
    // 15 % are never reserved: not beside the first one, whose hour has begun, but after it.
    request("60MB/s");
    browser.run(
        "const at = Date.now() + 60_000 - new Date().getTimezoneOffset() * 60_000; \
         document.querySelector('#reservation-form [name=start]').value \
             = new Date(at).toISOString().slice(0, 19)",
    );
    browser.click("#reservation-form button.main");
    browser.until_says("#reservation-error", "fs");
    browser.click("#reservation-later");
    until_state("2", "SCHEDULED");
    browser.until_says("#calendar", "60 % at most");
    browser.shot("reservations-real");
}

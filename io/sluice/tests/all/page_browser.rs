//! The controller's page in a real browser: what it shows, and what people do on it.
//!
//! ```text
//!   dd.1 ─ proxy a ─┐
//!   dd.2 ─ proxy b ─┴─► controller ◄─ page ◄─ Chromium: wide, dark, a phone; mouse and keyboard
//! ```

#![allow(clippy::unwrap_used)]

use std::time::Instant;

use crate::browser::looks::{CROWDED, FAINT, WIDER};
use crate::browser::{Browser, DARK, PHONE, WIDE};
use crate::common::{Controller, Proxy, USER, until};
use crate::controlled::{LIMIT, Reader, api_of, limited};
use crate::entrusted::{client, first_token, secret, showing, token};
use api::{Role, WireRules};
use fantoccini::key::Key;
use http::ApiClient;
use rustix::process::Signal;
use serde_json::json;
use testkit::TestFolder;

/// A controller with two proxies and a reader at each, each held to a limit.
struct Scene {
    readers: [Reader; 2],
    proxies: [Proxy; 2],
    controller: Controller,
    data: TestFolder,
}

impl Scene {
    fn new(name: &str) -> Scene {
        let data = TestFolder::new();
        let controller = Controller::start(&data.path().join("c"), "http://127.0.0.1:0");
        controller.client().set_rules(&limited(LIMIT)).unwrap();
        let proxies = ["a", "b"].map(|node| crate::controlled::proxy(name, node, &controller.url));
        let [a, b] = &proxies;
        let readers = [Reader::of_job(a, "dd.1", 4), Reader::of_job(b, "dd.2", 4)];
        Scene { readers, proxies, controller, data }
    }

    fn client(&self) -> ApiClient {
        self.controller.client()
    }

    /// The rules that are in force at both proxies, as soon as these are the controller's.
    fn in_force(&self) -> WireRules {
        let rules = self.client().rules().unwrap();
        let given = |proxy: &Proxy| api_of(proxy).rules().unwrap().version == rules.version;
        until("both proxies have the rules", || self.proxies.iter().all(given));
        rules
    }

    fn limit_of(&self, rule: &str) -> Option<String> {
        let rules = self.in_force();
        let found = rules.rules.iter().find(|one| one.name == rule)?;
        Some(found.limits.first()?.rate.clone())
    }
}

/// Megabytes a second of a text as `2.01 MB/s` or `950 kB/s`; zero of another.
fn megabytes(text: &str) -> f64 {
    let units = [("GB/s", 1e3), ("MB/s", 1.0), ("kB/s", 1e-3), ("B/s", 1e-6)];
    let mut numbers = units.iter().filter_map(|(unit, of)| {
        let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
        Some(number * of)
    });
    numbers.next().unwrap_or_default()
}

/// Waits until the page's own dialogs are closed: the rows may show a change that the answer to it
/// has not followed yet.
fn until_closed(browser: &Browser) {
    browser.until("the dialog is closed", "return !document.querySelector('dialog[open]')");
}

/// Waits until the focus is there.
fn until_focus(browser: &Browser, name: &str) {
    browser.until_told(&format!("{name} has the focus"), || focus(browser) == name);
}

/// Whether a text shows a rate of less than this many megabytes a second, and not none.
fn moves(text: &str, most: f64) -> bool {
    let rate = megabytes(text);
    0.0 < rate && rate < most
}

/// How many pixels of a canvas are painted.
fn painted(browser: &Browser, canvas: &str) -> u64 {
    let script = format!(
        "const canvas = document.querySelector('{canvas}'); \
         const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height); \
         return data.reduce((sum, value, at) => sum + (at % 4 === 3 && value > 0), 0)"
    );
    browser.run(&script).as_u64().unwrap()
}

#[test]
fn who_uses_what_shows_by_job_user_and_class_with_what_holds_them() {
    let scene = Scene::new("page-uses");
    let Some(browser) = Browser::open(WIDE, &scene.controller.url) else { return };
    // Both are held to 2 MB/s, and must be shown to have no more; how much it is, is a matter of
    // this machine's speed.
    let has = |name: &str| {
        browser.row("#payers", name).is_some_and(|row| moves(&row[1], 2.6) && row[2] == "0 B/s")
    };
    browser.until_told("jobs with their rates", || has("dd.1") && has("dd.2"));
    browser.until_told("what holds them", || {
        browser.rows("#payers").iter().all(|row| row[6].contains("jobs") && row[6].contains("dd."))
    });
    browser.until_told("the legend has both", || {
        let text = browser.text("#stack-legend");
        text.contains("dd.1 ") && text.contains("dd.2 ") && text.contains("B/s")
    });
    browser.until_told("the picture is painted", || painted(&browser, "#stack") > 1_000);
    let user = USER.to_string();
    for (by, wanted) in [("user", user.as_str()), ("class", "jobs jobid=dd.2"), ("job", "dd.1")] {
        browser.choose("#by", by);
        browser.until_told(&format!("rows by {by}"), || browser.row("#payers", wanted).is_some());
        browser.until_says("#stack-legend", wanted);
    }
    browser.fill("#find", "D.2");
    browser.until_told("the one that was searched for", || {
        browser.rows("#payers").len() == 1 && browser.row("#payers", "dd.2").is_some()
    });
    browser.fill("#find", "nobody");
    browser.until_told("nobody", || browser.rows("#payers").is_empty());
    browser.fill("#find", "dd");

    // Rules with limit against actual, proxies with their targets.
    browser.until_told("the rule's use", || {
        browser.row("#rule-rows", "jobs").is_some_and(|row| {
            let actual = row[4].split_once(',').map_or(0.0, |(bytes, _)| megabytes(bytes));
            row[3] == "2MB/s" && 0.0 < actual && actual < 5.2 && row[6] == "2"
        })
    });
    // The bar is of the same moment: the part of what both of its classes may have together.
    let (actual, bar): (String, String) = serde_json::from_value(browser.run(BAR)).unwrap();
    let actual = megabytes(actual.split_once(',').unwrap().0);
    let percent = bar.split_once(' ').unwrap().0.parse::<f64>().unwrap();
    assert!((percent - actual * 100.0 / 4.0).abs() <= 2.0, "{actual} MB/s, {bar}");
    browser.until_told("the proxies with their targets", || {
        let proxies = browser.rows("#proxy-rows");
        let names: Vec<_> = proxies.iter().map(|row| (row[0].as_str(), row[1].as_str())).collect();
        names == [("a", "fs"), ("b", "fs")]
    });
    browser.until_told("slots are held", || painted(&browser, "#heat") > 20);
    browser.until_says("#event-list", "rules");
    browser.until_says("#quota-list", "[[decay]]");
    browser.until_says("#standing", "2 proxies");
    browser.until_told("all is fresh, and nobody is left out", || {
        !browser.shows("#old") && browser.text("#unanswered").is_empty()
    });
    browser.has_no(CROWDED);
    browser.has_no(WIDER_THAN_WINDOW);
    browser.shot("wide-light");

    // One that dies is not left out in silence.
    scene.proxies[1].signal(Signal::STOP);
    browser.until_says("#unanswered", ": b");
    scene.proxies[1].signal(Signal::CONT);
    browser.until_told("it is counted again", || browser.text("#unanswered").is_empty());
}

#[test]
fn the_report_of_a_job_that_only_reads_has_its_limit_and_nothing_of_writes() {
    let scene = Scene::new("page-report");
    let Some(browser) = Browser::open(WIDE, &scene.controller.url) else { return };
    until("the reads are counted", || {
        scene.client().job_report("dd.1", "").is_ok_and(|report| {
            report.delayed_span_ns > 0 && report.delay_causes.iter().any(|cause| cause.is_limit)
        })
    });
    browser.until_told("the job has a row", || browser.row("#payers", "dd.1").is_some());
    let name = "[...document.querySelectorAll('#payers button.link')]";
    browser.run(&format!("{name}.find((one) => one.textContent === 'dd.1').click()"));
    browser.until_says("#report-lines", "It achieved ");
    let text = browser.text("#report-lines");
    browser.shot("report");
    for part in ["with requests", "Limits delayed it for ", "of its active time", " reads "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("Delayed by the limit of rule jobs (jobid=dd.1): "), "{text}");
    for part in ["NaN", "undefined", " writes ", "requested"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    browser.has_no(CROWDED);
}

/// What a rule does and what its bar says of it.
const BAR: &str = "const row = document.querySelector('#rule-rows .bar').closest('tr'); \
                   return [row.cells[4].innerText, row.querySelector('.bar').ariaLabel]";

/// The document does not scroll sideways.
const WIDER_THAN_WINDOW: &str =
    "return document.scrollingElement.scrollWidth > innerWidth ? ['wider'] : []";

#[test]
fn a_rule_is_started_changed_and_stopped_by_hand_and_is_in_force_at_the_proxies() {
    let scene = Scene::new("page-rule");
    let Some(browser) = Browser::open(WIDE, &scene.controller.url) else { return };
    browser.until_says("#rule-rows", "jobs");
    browser.click("#rule-new");
    for (name, text) in [("name", "slow"), ("match", "jobid={dd.2}"), ("limit", "much")] {
        browser.fill(&format!("#rule-form [name={name}]"), text);
    }
    // What is refused says why and loses nothing.
    browser.click("#rule-form button.main");
    browser.until_says("#rule-error", "much");
    browser.has_no(CROWDED);
    browser.shot("rule-refused");
    let typed = "const form = document.getElementById('rule-form').elements; \
                 return ['name', 'match', 'limit'].map((name) => form[name].value)";
    assert_eq!(browser.run(typed), json!(["slow", "jobid={dd.2}", "much"]));
    assert_eq!(scene.limit_of("slow"), None);

    browser.fill("#rule-form [name=limit]", "500kB/s");
    browser.click("#rule-form button.main");
    browser.until_says("#rule-rows", "slow");
    until_closed(&browser);
    assert_eq!(scene.limit_of("slow").as_deref(), Some("500kB/s"));
    assert_eq!(scene.in_force().rules[0].name, "slow", "before the other, as the form offers");
    browser.until_told("its job is held to it", || {
        browser.row("#payers", "dd.2").is_some_and(|row| moves(&row[1], 0.7))
    });

    // Another one of the name is refused, too.
    browser.click("#rule-new");
    browser.fill("#rule-form [name=name]", "slow");
    browser.click("#rule-form button.main");
    browser.until_says("#rule-error", "\"slow\"");
    browser.click("#rule-form button[value=cancel]");
    until_closed(&browser);

    browser.click("[aria-label='Change rule slow']");
    let shown = "const form = document.getElementById('rule-form').elements; \
                 return [form.name.value, form.match.value, form.limit.value, form.name.readOnly]";
    assert_eq!(browser.run(shown), json!(["slow", "jobid={dd.2}", "500kB/s", true]));
    browser.fill("#rule-form [name=limit]", "10MB/s");
    browser.click("#rule-form button.main");
    browser.until_told("the change shows", || {
        browser.row("#rule-rows", "slow").is_some_and(|row| row[3] == "10MB/s")
    });
    assert_eq!(scene.limit_of("slow").as_deref(), Some("10MB/s"));
    until_closed(&browser);

    browser.click("[aria-label='Stop rule slow']");
    browser.until_says("#stop-title", "slow");
    browser.click("#stop-form button[value=cancel]");
    until_closed(&browser);
    assert!(scene.limit_of("slow").is_some());
    browser.click("[aria-label='Stop rule slow']");
    // Somebody else was faster: that is said, and the question stays.
    scene.client().set_rules(&limited(LIMIT)).unwrap();
    browser.click("#stop-form button.main");
    browser.until_says("#stop-error", "\"slow\"");
    browser.click("#stop-form button[value=cancel]");
    until_closed(&browser);
    browser.click("[aria-label='Stop rule jobs']");
    browser.click("#stop-form button.main");
    browser.until(
        "the rule is gone",
        "return !document.querySelector(\"[aria-label='Stop rule jobs']\")",
    );
    assert_eq!(scene.in_force().rules.len(), 0);
}

/// What has the focus: its name, and what is wrong with how that shows.
const FOCUS: &str = "\
const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
const name = one.id || one.getAttribute('aria-label') || one.name || one.textContent.trim();
const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
const wrong = [];
if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) wrong.push('no ring');
if (!one.matches(':focus-visible')) wrong.push('not visible focus');
if (!one.contains(top) && !top?.contains(one)) wrong.push('something lies over it');
return [name, one === document.body ? [] : wrong];";

/// Tabs, or goes back, until this has the focus; everything on the way shows that it has it.
fn tab_to(browser: &Browser, name: &str, back: bool) -> Vec<String> {
    let mut passed = Vec::new();
    for _ in 0..60 {
        match back {
            true => browser.press(&[Key::Shift.into(), Key::Tab.into()]),
            false => browser.key(Key::Tab),
        }
        // A page that scrolls to what has the focus may still be on its way.
        let mut focus: (String, Vec<String>) = Default::default();
        browser.until_told("the focus shows", || {
            focus = serde_json::from_value(browser.run(FOCUS)).unwrap();
            focus.1.is_empty()
        });
        passed.push(focus.0);
        if passed.last().is_some_and(|last| last == name) {
            return passed;
        }
    }
    panic!("no {name:?} among {passed:?}");
}

fn focus(browser: &Browser) -> String {
    browser.run(FOCUS)[0].as_str().unwrap().to_owned()
}

#[test]
fn all_of_it_goes_by_the_keyboard_and_shows_where_one_is() {
    let scene = Scene::new("page-keys");
    let Some(browser) = Browser::open(WIDE, &scene.controller.url) else { return };
    browser.until_says("#rule-rows", "jobs");
    browser.until_says("#payers", "dd.2");
    let passed = tab_to(&browser, "rule-new", false);
    assert_eq!(passed[0], "Skip to current activity");
    for name in ["Now", "Events", "by", "unit", "find", "held", "Read", "Change rule jobs"] {
        assert!(passed.iter().any(|passed| passed == name), "{name} is not among {passed:?}");
    }
    assert!(!passed.iter().any(|name| name.ends_with("rule default")), "{passed:?}");

    browser.key(Key::Enter);
    until_focus(&browser, "name");
    for text in ["typed", "uid={4242}", "", "", "3MB/s"] {
        browser.type_text(text);
        if text != "3MB/s" {
            browser.key(Key::Tab);
        }
    }
    browser.key(Key::Enter);
    browser.until_says("#rule-rows", "typed");
    assert_eq!(scene.limit_of("typed").as_deref(), Some("3MB/s"));
    // Where he was.
    until_focus(&browser, "rule-new");

    tab_to(&browser, "Change rule typed", true);
    browser.key(Key::Enter);
    tab_to(&browser, "limit", false);
    browser.press(&[Key::Control.into(), 'a']);
    browser.type_text("7MB/s");
    browser.shot("keyboard-change");
    browser.key(Key::Enter);
    browser.until_told("the change shows", || {
        browser.row("#rule-rows", "typed").is_some_and(|row| row[3] == "7MB/s")
    });
    assert_eq!(scene.limit_of("typed").as_deref(), Some("7MB/s"));
    until_focus(&browser, "Change rule typed");

    browser.key(Key::Enter);
    tab_to(&browser, "limit", false);
    browser.type_text("99MB/s");
    browser.key(Key::Escape);
    until_closed(&browser);
    assert_eq!(scene.limit_of("typed").as_deref(), Some("7MB/s"), "nothing was meant");

    tab_to(&browser, "Stop rule typed", false);
    browser.key(Key::Enter);
    browser.until_says("#stop-title", "typed");
    browser.key(Key::Escape);
    until_focus(&browser, "Stop rule typed");
    browser.key(Key::Enter);
    browser
        .until("the question is there", "return Boolean(document.querySelector('dialog[open]'))");
    browser.key(Key::Enter);
    browser.until(
        "the rule is gone",
        "return !document.querySelector(\"[aria-label='Stop rule typed']\")",
    );
    assert_eq!(scene.limit_of("typed"), None);
    // Not lost with the button.
    until_focus(&browser, "rule-new");

    // A column is chosen to sort by.
    tab_to(&browser, "Name", true);
    browser.key(Key::Enter);
    let is_sorted = |way: &str, first: &str| {
        browser.until_told(&format!("{way}, {first} first"), || {
            let row = browser.rows("#payers").into_iter().next();
            browser.of("#payers th", "ariaSort") == way && row.is_some_and(|row| row[0] == first)
        });
    };
    is_sorted("ascending", "dd.1");
    browser.key(Key::Space);
    is_sorted("descending", "dd.2");
}

#[test]
fn on_a_phone_nothing_is_wider_than_its_screen() {
    let scene = Scene::new("page-phone");
    let Some(browser) = Browser::open(PHONE, &scene.controller.url) else { return };
    assert_eq!(browser.run("return screen.width"), 360);
    browser.until_told("figures", || {
        browser.row("#payers", "dd.1").is_some_and(|row| megabytes(&row[1]) > 0.0)
    });
    browser.until_says("#rule-rows", "jobs");
    browser.has_no(WIDER);
    browser.has_no(CROWDED);
    browser.shot("phone");
    browser.run("document.getElementById('rules').scrollIntoView({ behavior: 'instant' })");
    browser.shot("phone-rules");
    browser.click("#rule-new");
    browser.has_no(WIDER);
    browser.has_no(CROWDED);
    let inside = "const box = document.getElementById('rule-dialog').getBoundingClientRect(); \
                  return box.left >= 0 && box.right <= 360 && box.top >= 0 && box.bottom <= innerHeight";
    assert_eq!(browser.run(inside), true);
    browser.shot("phone-dialog");
    browser.fill("#rule-form [name=name]", "by-phone");
    browser.fill("#rule-form [name=limit]", "1MB/s");
    browser.click("#rule-form button.main");
    browser.until_says("#rule-rows", "by-phone");
    assert_eq!(scene.limit_of("by-phone").as_deref(), Some("1MB/s"));
}

#[test]
fn in_dark_and_in_light_mode_all_text_can_be_read() {
    let mut scene = Scene::new("page-dark");
    let decay = "\n[[decay]]\nname = \"readers\"\nper = [\"uid\"]\nresource = \"read\"\nentitlement = \"50kB/s\"\n\
                 max = \"5MB/s\"\nfloor = \"1MB/s\"\nmode = \"decay\"\nhalf_life = \"1min\"\nupdate_interval = \"1s\"\n";
    scene.client().set_rules(&(limited(LIMIT) + decay)).unwrap();
    for look in [DARK, WIDE] {
        let Some(browser) = Browser::open(look, &scene.controller.url) else { return };
        let dark = browser.run("return matchMedia('(prefers-color-scheme: dark)').matches");
        assert_eq!(dark, look.dark);
        browser.until_told("figures", || {
            browser.row("#payers", "dd.1").is_some_and(|row| megabytes(&row[1]) > 0.0)
        });
        browser.until_says("#rule-rows", "jobs");
        // Its use against its quota, and the way down.
        browser.until_says("#quota-list figcaption", "readers, uid=1000");
        browser.until_says("#quota-list figcaption", "1.00 MB/s");
        browser.until_says("#event-list", "readers");
        browser.until_told("the curve is drawn", || painted(&browser, "#quota-list canvas") > 500);
        browser.has_no(FAINT);
        browser.has_no(CROWDED);
        browser.shot(if look.dark { "wide-dark" } else { "wide-decay" });
        browser.click("#rule-new");
        browser.fill("#rule-form [name=name]", "x");
        browser.fill("#rule-form [name=weight]", "heavy");
        browser.click("#rule-form button.main");
        browser.until_says("#rule-error", "heavy");
        browser.has_no(FAINT);
        browser.shot(if look.dark { "dark-dialog" } else { "light-dialog" });
        browser.click("#rule-form button[value=cancel]");
        // What is old is red, and still text.
        scene.controller.signal(Signal::STOP);
        browser.until("what is old is said to be", OLD);
        browser.has_no(FAINT);
        browser.shot(if look.dark { "dark-old" } else { "light-old" });
        scene.controller.signal(Signal::CONT);
    }
    scene.readers.iter_mut().for_each(Reader::stop);
}

/// What is not older than this may be shown without a word.
const OLD_SECONDS: u64 = 8;

/// Whether it is said where the reader looks, however far down the page.
const OLD: &str = "const old = document.getElementById('old'), box = old.getBoundingClientRect(); \
                   return old.checkVisibility() && old.contains(document.elementFromPoint(box.x + 20, box.y + 10))";

#[test]
fn what_is_old_is_said_to_be_until_the_controller_answers_again() {
    let mut scene = Scene::new("page-old");
    let Some(browser) = Browser::open(WIDE, &scene.controller.url) else { return };
    browser.until_says("#payers", "dd.1");
    browser.until("it is fresh", "return document.getElementById('old').hidden");

    // It hangs. What is known now is not older than what is shown without a word.
    let began = Instant::now();
    scene.controller.signal(Signal::STOP);
    browser.until("old", OLD);
    let seconds = |text: &str| -> u64 {
        let mut words = text.split_whitespace().filter_map(|word| word.parse().ok());
        words.next().unwrap_or_else(|| panic!("no number of seconds: {text}"))
    };
    let first = seconds(&browser.text("#old"));
    let most = OLD_SECONDS + began.elapsed().as_secs() + 1;
    assert!((1..=most).contains(&first), "{first} s, where {most} are the most");
    browser.until_told("they grow older", || seconds(&browser.text("#old")) >= first + 2);
    assert!(browser.text("#payers").contains("dd.1"), "what was known stays");
    scene.controller.signal(Signal::CONT);
    browser.until("fresh", "return !document.getElementById('old').checkVisibility()");

    // It is gone, and comes back at the same place.
    scene.controller.kill();
    browser.until("old again", OLD);
    browser.shot("old");
    let url = scene.controller.url.clone();
    scene.controller = Controller::start(&scene.data.path().join("c"), &url);
    browser.until("fresh again", "return !document.getElementById('old').checkVisibility()");
    browser.until_told("figures of now", || {
        browser.row("#payers", "dd.1").is_some_and(|row| megabytes(&row[1]) > 0.0)
    });
}

#[test]
fn with_tokens_the_page_asks_for_one_and_shows_what_its_role_may_see() {
    let data = TestFolder::new();
    let root = first_token(&data.path().join("c"));
    let controller = Controller::start(&data.path().join("c"), "http://127.0.0.1:0");
    let admin = client(&controller.url, &showing(&root));
    admin.set_rules(&limited(LIMIT)).unwrap();
    let [user, read, operate, proxy] = [Role::User, Role::Read, Role::Operate, Role::Proxy]
        .map(|role| token(&admin, role.name(), role));
    let file = secret(data.path().join("proxy.token"), &proxy);
    let top = format!(
        "controller = \"{}\"\nproxy_name = \"a\"\ncontroller_token_file = {file:?}",
        controller.url
    );
    let proxy = crate::common::Setup::new("page-token-a").top(&top).start();
    let _reader = Reader::of_job(&proxy, "dd.1", 4);
    let Some(browser) = Browser::open(WIDE, &controller.url) else { return };
    let show = |token: &str| {
        browser
            .until("the token is asked for", "return document.getElementById('token-dialog').open");
        browser.fill("#token-form [name=token]", token);
        browser.click("#token-form button.main");
    };
    let forget = || {
        browser.run("sessionStorage.clear()");
        browser.reload();
    };
    browser.until("the token is asked for", "return document.getElementById('token-dialog').open");
    assert_eq!(browser.rows("#payers"), Vec::<Vec<String>>::new());
    browser.shot("token");
    show("slc_wrong");
    browser.until_told("it is refused", || !browser.text("#token-error").is_empty());
    show(&operate);
    browser.until_told("figures", || {
        browser.row("#payers", "dd.1").is_some_and(|row| megabytes(&row[1]) > 0.0)
    });
    assert_eq!(browser.of("#token-form [name=token]", "value"), "", "it does not stay in the form");
    browser.reload();
    browser.until_says("#payers", "dd.1");
    assert_eq!(browser.of("#token-dialog", "open"), false, "this tab knows it");
    browser.until_says("#rule-rows", "jobs");
    browser.click("#rule-new");
    browser.fill("#rule-form [name=name]", "mine");
    browser.click("#rule-form button.main");
    browser.until_says("#rule-rows", "mine");
    until_closed(&browser);

    // A token that ends is asked for anew.
    admin.revoke_token("operate").unwrap();
    show(&read);
    until_closed(&browser);
    browser.until_says("#rule-rows", "mine");
    browser.click("[aria-label='Stop rule mine']");
    browser.click("#stop-form button.main");
    browser.until_says("#stop-error", "operate");
    assert_eq!(admin.rules().unwrap().rules.len(), 2, "and nothing was changed");

    forget();
    show(&user);
    for section in ["#rules", "#jobs", "#events"] {
        browser.until_says(&format!("{section} .refusal"), "read");
    }
    assert!(!browser.shows("#rule-new") && !browser.shows("#payers"));
    browser.until_says("#quota-list", "[[decay]]");
    browser.until_told("all is fresh", || !browser.shows("#old"));
    browser.shot("user");
}

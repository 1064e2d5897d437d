//! A real Chromium that a test drives: what is shown, keys, clicks, pictures.
//!
//! ```text
//!   Browser ─ WebDriver ─► chromedriver ─► Chromium ─ http ─► a controller's page
//! ```
//!
//! Each browser has a chromedriver and a profile of its own, gone with it. Nothing waits without
//! a deadline. With `SLUICE_SHOTS=DIR` each [`Browser::shot`] is written there, to be looked at.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod looks;

use std::future::Future;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::error::CmdError;
use fantoccini::key::Key;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::common::{PATIENCE, skip};

/// What the page is looked at with.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    /// In CSS pixels.
    pub(crate) size: (u32, u32),
    /// The reader's system is in dark mode.
    pub(crate) dark: bool,
    /// A touch screen, whose pages are as wide as it is.
    pub(crate) phone: bool,
}

pub(crate) const WIDE: Look = Look { size: (1400, 1000), dark: false, phone: false };
pub(crate) const DARK: Look = Look { dark: true, ..WIDE };
pub(crate) const PHONE: Look = Look { size: (360, 740), dark: false, phone: true };

/// A browser with one page open.
pub(crate) struct Browser {
    runtime: Runtime,
    client: Client,
    driver: Driver,
}

/// chromedriver, which ends what it started when it is told to end.
struct Driver {
    child: Child,
    /// Held open: what it says later has somewhere to go.
    _stdout: BufReader<ChildStdout>,
    port: u16,
}

impl Browser {
    /// Opens `url`; says aloud if there is no Chromium here.
    pub(crate) fn open(look: Look, url: &str) -> Option<Browser> {
        let (Some(chromium), Some(driver)) = (program("chromium"), program("chromedriver")) else {
            skip("needs the programs chromium and chromedriver");
            return None;
        };
        let driver = Driver::start(&driver);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let Value::Object(wanted) = look.capabilities(chromium) else { unreachable!() };
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(wanted);
        let at = format!("http://127.0.0.1:{}", driver.port);
        let connects = async { tokio::time::timeout(PATIENCE, builder.connect(&at)).await };
        let client = runtime.block_on(connects).expect("the browser starts").unwrap();
        let browser = Browser { runtime, client, driver };
        browser.within(browser.client.goto(url)).unwrap();
        Some(browser)
    }

    fn within<T>(&self, work: impl Future<Output = Result<T, CmdError>>) -> Result<T, CmdError> {
        let timed = async { tokio::time::timeout(PATIENCE, work).await };
        self.runtime.block_on(timed).expect("the browser answers")
    }

    // ---- what is shown ----

    /// What a script's `return` gives.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.within(self.client.execute(script, Vec::new()))
            .unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// The text of an element as it is shown; empty where there is no such element.
    pub(crate) fn text(&self, css: &str) -> String {
        let text = self.of(css, "innerText");
        text.as_str().unwrap_or_default().to_owned()
    }

    /// A property of an element.
    pub(crate) fn of(&self, css: &str, property: &str) -> Value {
        self.run(&format!("return document.querySelector({})?.{property} ?? null", json!(css)))
    }

    /// Waits until a script gives true; else the panic shows the page's text.
    pub(crate) fn until(&self, what: &str, script: &str) {
        self.until_told(what, || self.run(script) == json!(true));
    }

    /// Waits for something about the page or what stands behind it.
    pub(crate) fn until_told(&self, what: &str, mut is: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is() {
            if began.elapsed() > PATIENCE {
                self.shot("failed");
                panic!("{what}: not within {PATIENCE:?} on the page:\n{}", self.text("body"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until an element's text contains this.
    pub(crate) fn until_says(&self, css: &str, text: &str) {
        self.until_told(&format!("{css} says {text:?}"), || self.text(css).contains(text));
    }

    /// Whether an element is there to be seen.
    pub(crate) fn shows(&self, css: &str) -> bool {
        let script = "return Boolean(document.querySelector(@)?.checkVisibility())";
        self.run(&script.replace('@', &json!(css).to_string())) == json!(true)
    }

    /// The cells of a table's rows.
    pub(crate) fn rows(&self, table: &str) -> Vec<Vec<String>> {
        let script = "return [...document.querySelectorAll(@)].map((row) => \
                      [...row.cells].map((cell) => cell.innerText))";
        let rows = json!(format!("{table} tbody tr")).to_string();
        serde_json::from_value(self.run(&script.replace('@', &rows))).unwrap()
    }

    /// The row that begins with this name.
    pub(crate) fn row(&self, table: &str, name: &str) -> Option<Vec<String>> {
        self.rows(table).into_iter().find(|row| row[0] == name)
    }

    /// Asserts that a script of `looks` has nothing to complain about.
    pub(crate) fn has_no(&self, complaints: &str) {
        let found = self.run(complaints);
        if found != json!([]) {
            self.shot("failed");
            panic!("{found:#} on the page:\n{}", self.text("body"));
        }
    }

    /// A picture of what is on the screen.
    pub(crate) fn shot(&self, name: &str) {
        let Some(dir) = std::env::var_os("SLUICE_SHOTS").map(PathBuf::from) else { return };
        std::fs::create_dir_all(&dir).unwrap();
        let picture = self.within(self.client.screenshot()).unwrap();
        std::fs::write(dir.join(format!("{name}.png")), picture).unwrap();
    }

    // ---- what somebody does ----

    /// Clicks where the element is: something that lies over it is an error.
    pub(crate) fn click(&self, css: &str) {
        let click = async { self.client.find(Locator::Css(css)).await?.click().await };
        self.within(click).unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    /// Clears a field and types into it.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        let fill = async {
            let field = self.client.find(Locator::Css(css)).await?;
            field.clear().await?;
            field.send_keys(text).await
        };
        self.within(fill).unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    pub(crate) fn choose(&self, css: &str, value: &str) {
        let choose =
            async { self.client.find(Locator::Css(css)).await?.select_by_value(value).await };
        self.within(choose).unwrap_or_else(|error| panic!("{css}: {error}"));
    }

    /// Types on the keyboard, wherever the focus is.
    pub(crate) fn type_text(&self, text: &str) {
        text.chars().for_each(|key| self.press(&[key]));
    }

    /// Presses one key.
    pub(crate) fn key(&self, key: Key) {
        self.press(&[key.into()]);
    }

    /// Presses keys together, and lets them go.
    pub(crate) fn press(&self, keys: &[char]) {
        let mut actions = KeyActions::new("keyboard".into());
        for value in keys {
            actions = actions.then(KeyAction::Down { value: *value });
        }
        for value in keys.iter().rev() {
            actions = actions.then(KeyAction::Up { value: *value });
        }
        self.within(self.client.perform_actions(actions)).unwrap();
    }

    pub(crate) fn reload(&self) {
        self.within(self.client.refresh()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its session; where that fails, with its driver.
        let close = self.client.clone().close();
        let timed = async { tokio::time::timeout(Duration::from_secs(5), close).await };
        let _ = self.runtime.block_on(timed);
    }
}

impl Look {
    fn capabilities(self, chromium: PathBuf) -> Value {
        let (width, height) = self.size;
        let mut args: Vec<String> = FLAGS.map(String::from).into();
        args.push(format!("--window-size={width},{height}"));
        args.push(format!("--blink-settings=preferredColorScheme={}", u8::from(!self.dark)));
        let mut options = json!({ "binary": chromium, "args": args });
        if self.phone {
            let screen =
                json!({ "width": width, "height": height, "pixelRatio": 2, "touch": true });
            options["mobileEmulation"] = json!({ "deviceMetrics": screen });
        }
        json!({ "browserName": "chrome", "goog:chromeOptions": options })
    }
}

impl Driver {
    /// Starts it. The port that it chooses first for both families of addresses may be another
    /// program's in one of them: then it ends, and one that is started again chooses another.
    fn start(program: &Path) -> Driver {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Driver::try_start(program) {
                Ok(driver) => return driver,
                Err(said) => assert!(Instant::now() < deadline, "chromedriver ended: {said}"),
            }
        }
    }

    /// What it said, if it ended before it was ready.
    #[expect(clippy::zombie_processes, reason = "the driver waits for it when it is dropped")]
    fn try_start(program: &Path) -> Result<Driver, String> {
        let mut child =
            Command::new(program).arg("--port=0").stdout(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        loop {
            let from = said.len();
            if stdout.read_line(&mut said).unwrap() == 0 {
                child.wait().unwrap();
                return Err(said);
            }
            // "ChromeDriver was started successfully on port 40001."
            let (_, port) = said[from..].rsplit_once("successfully on port ").unwrap_or_default();
            if let Ok(port) = port.trim().trim_end_matches('.').parse() {
                return Ok(Driver { child, _stdout: stdout, port });
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended: both fail then.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Where a program is, by `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Nothing but the page: no sandbox for root, no calls to anywhere else, no first-run pages.
const FLAGS: [&str; 11] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    // What is clicked is where it was when it was looked for.
    "--force-prefers-reduced-motion",
];
const LOOK_AGAIN: Duration = Duration::from_millis(50);

//! What was measured: cases with their target and whether it was met, and the figures.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::super::figures::machine::machine;
use super::bed::QosTestBed;

/// The results of one guarantee.
pub(crate) struct QosTable {
    name: &'static str,
    command: String,
    machine: String,
    notes: Vec<String>,
    rows: Vec<QosRow>,
}

/// One measured case of a guarantee.
pub(crate) struct QosRow {
    /// The load and its setting.
    pub(crate) case: String,
    /// The guaranteed value, as text.
    pub(crate) target: String,
    /// What came of it.
    pub(crate) reached: String,
    /// `None`: the case is not one of the guarantee, or is here for comparison.
    pub(crate) met: Option<bool>,
    /// What else is to be seen, for people.
    pub(crate) beside: String,
    /// All figures by name.
    pub(crate) figures: Map<String, Value>,
}

impl QosTable {
    pub(crate) fn new(name: &'static str, bed: &QosTestBed, command: String) -> QosTable {
        let machine = machine(bed.dir()).to_string();
        QosTable { name, command, machine, notes: Vec::new(), rows: Vec::new() }
    }

    /// Something that the reader should know.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        eprintln!("  note: {note}");
        self.notes.push(note);
    }

    /// Shows in place what is being done now.
    pub(crate) fn progress(&self, what: &str) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{} · {what}", self.name);
            let _ = std::io::stderr().flush();
        }
    }

    pub(crate) fn add(&mut self, row: QosRow) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        eprintln!(
            "{}: {}: {} ({})  {}",
            self.name,
            row.case,
            row.reached,
            row.verdict(),
            row.beside
        );
        self.rows.push(row);
    }

    /// Prints the table, and writes it and all figures into `out`.
    pub(crate) fn write(&self, out: Option<&Path>) -> anyhow::Result<()> {
        let markdown = self.markdown();
        println!("{markdown}");
        let Some(out) = out else { return Ok(()) };
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let put = |end: &str, content: &str| {
            let path = out.join(format!("qos-{}.{end}", self.name));
            std::fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))
        };
        put("md", &markdown)?;
        let json = serde_json::to_string_pretty(&self.json()).context("cannot write JSON")?;
        put("json", &format!("{json}\n"))
    }

    fn markdown(&self) -> String {
        let mut text = format!("# Guarantees: {}\n\n", self.name);
        let mut line = |line: &str| writeln!(text, "{line}").expect("writing to memory succeeds");
        line(&format!("- machine: {}", self.machine));
        line(&format!("- to repeat: `{}`", self.command));
        for note in &self.notes {
            line(&format!("- note: {note}"));
        }
        let judged: Vec<bool> = self.rows.iter().filter_map(|row| row.met).collect();
        let met = judged.iter().filter(|met| **met).count();
        line(&format!("- {met} of {} targets met", judged.len()));
        line("\n| case | target | reached | | beside |\n|---|---|---|---|---|");
        for row in &self.rows {
            let QosRow { case, target, reached, beside, .. } = row;
            line(&format!("| {case} | {target} | {reached} | {} | {beside} |", row.verdict()));
        }
        text
    }

    fn json(&self) -> Value {
        let row = |row: &QosRow| {
            let QosRow { case, target, reached, met, figures, .. } = row;
            json!({ "case": case, "target": target, "reached": reached, "met": met, "figures": figures })
        };
        json!({
            "guarantee": self.name,
            "machine": self.machine,
            "command": self.command,
            "notes": self.notes,
            "cases": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

impl QosRow {
    fn verdict(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "",
        }
    }
}

/// Figures by name, for [`QosRow::figures`].
pub(crate) fn figures<const N: usize>(pairs: [(&str, f64); N]) -> Map<String, Value> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
}

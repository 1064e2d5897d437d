//! The file that `sluice calibrate` writes and `[[target]] costs` names.
//!
//! ```toml
//! slots_max = 256
//! write_mode = "dontcache"
//!
//! [device]
//! read = [["4KiB", "10.8us"], ["1MiB", "856us"]]
//! write = [["4KiB", "10.1us"], ["1MiB", "267us"]]
//! [device.operations]
//! getattr = "960ns"
//!
//! [cached]
//! read = [["4KiB", "690ns"]]
//! write = [["4KiB", "3.3us"]]
//! ```
//!
//! People may edit it: an unknown key is an error that shows its line, and a kind
//! of operation that is not named keeps its built-in cost.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use model::{Bytes, Nanos, OpKind};
use rules::WriteMode;
use sched::{CostMode, Costs, Curve, CurveError, LaneCosts};
use serde::Deserialize;

/// Costs of a target, from one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostsFile {
    /// The costs of requests; their mode is `Calibrated`.
    pub costs: Costs,
    /// D; the configuration's `slots_max` goes before it.
    pub slots_max: u32,
    /// The recommended write mode; the configuration's goes before it.
    pub write_mode: Option<WriteMode>,
}

/// Errors of a file of costs.
#[derive(Debug, thiserror::Error)]
pub enum CostsFileError {
    /// It cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// It is not TOML, or a key is unknown, missing or of the wrong type.
    #[error("{}: {source}", .path.display())]
    Parse {
        /// The path of the file.
        path: PathBuf,
        /// Where and what, with the line.
        source: Box<toml::de::Error>,
    },
    /// The points of one list make no curve.
    #[error("{}: {curve}: {source}", .path.display())]
    Curve {
        /// The path of the file.
        path: PathBuf,
        /// Which list, such as `device.read`.
        curve: &'static str,
        /// The reason why the points are not a curve.
        source: CurveError,
    },
    /// A number of slots that no target has.
    #[error("{}: slots_max = {value} is not between 1 and {SLOTS_LIMIT}", .path.display())]
    Slots {
        /// The path of the file.
        path: PathBuf,
        /// The value in the file.
        value: u32,
    },
    /// A key under `operations` that is not a kind, or a cost of zero.
    #[error("{}: {lane}.operations: {text}", .path.display())]
    Operation {
        /// The path of the file.
        path: PathBuf,
        /// The lane: `device` or `cached`.
        lane: &'static str,
        /// The error, with the key and its value.
        text: String,
    },
}

/// As in the configuration.
const SLOTS_LIMIT: u32 = 65_536;

impl CostsFile {
    /// Reads a file.
    ///
    /// # Errors
    /// As [`CostsFile::parse`], and when it cannot be read.
    pub fn load(path: &Path) -> Result<CostsFile, CostsFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| CostsFileError::Read { path: path.into(), source })?;
        CostsFile::parse(&text, path)
    }

    /// Reads the text of a file; `path` is for the messages.
    ///
    /// # Errors
    /// If the text does not have the form of the example above; names the line or the key.
    pub fn parse(text: &str, path: &Path) -> Result<CostsFile, CostsFileError> {
        let raw: RawFile = toml::from_str(text)
            .map_err(|source| CostsFileError::Parse { path: path.into(), source: source.into() })?;
        if !(1..=SLOTS_LIMIT).contains(&raw.slots_max) {
            return Err(CostsFileError::Slots { path: path.into(), value: raw.slots_max });
        }
        let built_in = Costs::default();
        let device = raw.device.build(path, DEVICE, &built_in.device)?;
        let cached = raw.cached.build(path, CACHED, &built_in.cached)?;
        let costs = Costs { cached, device, mode: CostMode::Calibrated };
        Ok(CostsFile { costs, slots_max: raw.slots_max, write_mode: raw.write_mode })
    }

    /// The text of the file; each line of `comment` stands above it.
    pub fn to_toml(&self, comment: &str) -> String {
        let mut text: String = comment.lines().map(|line| format!("# {line}\n")).collect();
        let _ = write!(text, "\nslots_max = {}\n", self.slots_max);
        if let Some(mode) = self.write_mode {
            let _ = writeln!(text, "write_mode = \"{mode}\"");
        }
        for (lane, costs) in [("device", &self.costs.device), ("cached", &self.costs.cached)] {
            let _ = write!(text, "\n[{lane}]\n{}", curve_line("read", &costs.read));
            let _ = write!(text, "{}\n[{lane}.operations]\n", curve_line("write", &costs.write));
            for kind in operations() {
                let _ = writeln!(text, "{kind} = \"{}\"", costs.ops[kind as usize]);
            }
        }
        text
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    slots_max: u32,
    write_mode: Option<WriteMode>,
    device: RawLane,
    cached: RawLane,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLane {
    read: Vec<(Bytes, Nanos)>,
    write: Vec<(Bytes, Nanos)>,
    #[serde(default)]
    operations: BTreeMap<String, Nanos>,
}

/// How messages call a lane and its two curves.
type OpNames = [&'static str; 3];
const DEVICE: OpNames = ["device", "device.read", "device.write"];
const CACHED: OpNames = ["cached", "cached.read", "cached.write"];

impl RawLane {
    fn build(
        self,
        path: &Path,
        names: OpNames,
        built_in: &LaneCosts,
    ) -> Result<LaneCosts, CostsFileError> {
        let curve = |name, points: &[(Bytes, Nanos)]| {
            Curve::new(points).map_err(|source| CostsFileError::Curve {
                path: path.into(),
                curve: name,
                source,
            })
        };
        let wrong = |text| CostsFileError::Operation { path: path.into(), lane: names[0], text };
        let mut ops = built_in.ops;
        for (name, cost) in &self.operations {
            let kind: OpKind = name.parse().map_err(|error| wrong(format!("{error}")))?;
            if *cost == Nanos::ZERO {
                return Err(wrong(format!("{name}: the cost is not above zero")));
            }
            ops[kind as usize] = *cost;
        }
        Ok(LaneCosts {
            read: curve(names[1], &self.read)?,
            write: curve(names[2], &self.write)?,
            ops,
        })
    }
}

fn curve_line(name: &str, curve: &Curve) -> String {
    let point = |(size, cost)| format!("[\"{size}\", \"{cost}\"]");
    let points: Vec<_> = curve.points().map(point).collect();
    format!("{name} = [{}]\n", points.join(", "))
}

/// The kinds that have a cost for each operation rather than a curve.
fn operations() -> impl Iterator<Item = OpKind> {
    OpKind::ALL.iter().copied().filter(|kind| !matches!(kind, OpKind::Read | OpKind::Write))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "costs.toml";

    fn example() -> String {
        let file = CostsFile { costs: Costs::default(), slots_max: 64, write_mode: None };
        file.to_toml("example")
    }

    fn error(text: &str) -> String {
        CostsFile::parse(text, Path::new(PATH)).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut costs = Costs::default();
        costs.device.ops[OpKind::Create as usize] = Nanos::new(29_417);
        for write_mode in [None, Some(WriteMode::Paced)] {
            let file = CostsFile { costs: costs.clone(), slots_max: 48, write_mode };
            let text = file.to_toml("two\nlines");
            assert!(text.starts_with("# two\n# lines\n"));
            assert_eq!(CostsFile::parse(&text, Path::new(PATH)).unwrap(), file);
        }
    }

    #[test]
    fn an_unknown_key_and_a_wrong_value_are_shown_with_their_line() {
        let text = error(&example().replace("[device]", "[device]\nspeed = 1"));
        assert!(text.starts_with("costs.toml: TOML parse error at line 6, column 1\n"), "{text}");
        assert!(text.contains("unknown field `speed`"), "{text}");
        let text = error(&example().replacen("\"4KiB\"", "\"4KB!\"", 1));
        assert!(text.contains("\"4KB!\" is not an amount of data"), "{text}");
    }

    #[test]
    fn what_makes_no_costs_is_named() {
        let slots = error(&example().replace("slots_max = 64", "slots_max = 0"));
        assert_eq!(slots, "costs.toml: slots_max = 0 is not between 1 and 65536");
        let falling = example().replacen("\"1MiB\", \"550us\"", "\"1MiB\", \"5us\"", 1);
        let text = error(&falling);
        assert!(text.starts_with("costs.toml: device.read: time 5us of the cost curve"), "{text}");
        let kind = error(&example().replacen("getattr =", "gettr =", 1));
        assert!(
            kind.starts_with("costs.toml: device.operations: \"gettr\" is not a kind"),
            "{kind}"
        );
        let zero = error(&example().replacen("getattr = \"5us\"", "getattr = \"0s\"", 1));
        assert_eq!(zero, "costs.toml: device.operations: getattr: the cost is not above zero");
    }

    #[test]
    fn a_kind_that_is_not_named_keeps_its_built_in_cost() {
        let text = "slots_max = 8\n[device]\nread = [[\"4KiB\", \"9us\"]]\nwrite = [[\"4KiB\", \"9us\"]]\n\
                    [cached]\nread = [[\"4KiB\", \"1us\"]]\nwrite = [[\"4KiB\", \"1us\"]]\n";
        let file = CostsFile::parse(text, Path::new(PATH)).unwrap();
        assert_eq!(file.costs.device.ops, Costs::default().device.ops);
        assert_eq!((file.slots_max, file.write_mode), (8, None));
    }
}

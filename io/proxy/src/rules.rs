//! The rules in force, the text they came from, and how others take their place.
//!
//! ```text
//!   controller ────► text ──────┐ from then on the only one
//!   start, SIGHUP ─► rule file ─┤
//!   PUT /v1/rules ─► text ──────┴► ActiveRules ─► each target's dispatcher: queued requests, too
//!                     │ is it over the version that was read? (else refused: stale)
//!                     └ save ─► rule file, if nobody edited it since it was read
//! ```
//!
//! One change at a time: what a change was made from is still in force when it takes its place.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::WireRules;
use rules::{RuleFileError, RuleSet};

use crate::rule_file::SavedRuleFile;
use crate::server::Server;

/// Rules and the text that they were read from.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveRules {
    pub(crate) set: Arc<RuleSet>,
    pub(crate) text: Arc<str>,
    /// Text of the rule file when it was last read or written; `None` without one.
    pub(crate) in_file: Option<Arc<str>>,
    /// The controller that gave them, if one did.
    pub(crate) controller: Option<Arc<str>>,
}

/// Why other rules are not put in force. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum RuleUpdateError {
    /// The text is wrong.
    #[error("{}", .0.in_file("rules"))]
    Wrong(RuleFileError),
    /// The rules that were to be replaced are not in force any more.
    #[error("the rules were changed: {over} is not the active version; read them again")]
    Stale {
        /// The version that was to be replaced.
        over: String,
    },
    /// The rules are a controller's.
    #[error(
        "the controller at {controller} publishes the rules; change them with sluice rule \
         --controller {controller}"
    )]
    Governed {
        /// The endpoint of the controller.
        controller: String,
    },
    /// The proxy has no rule file.
    #[error("cannot save the rules: no rule file; start the proxy with --rules FILE")]
    NoFile,
    /// The file is not what was read from it.
    #[error(
        "{} was edited since the proxy read it; send SIGHUP to read it, or change without --save",
        .file.display()
    )]
    Edited {
        /// The path of the rule file.
        file: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot save the rules in {}: {source}", .file.display())]
    Save {
        /// The path of the rule file.
        file: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl ActiveRules {
    /// Whether the rule file holds these rules, as far as is known.
    pub(crate) fn is_saved(&self) -> bool {
        self.in_file.as_ref() == Some(&self.text)
    }
}

impl Server {
    /// Puts the text of a rule file in force at once, for what is queued too; if `over` is
    /// given, only in place of the rules of that version; with `save` it is written to the
    /// rule file before.
    ///
    /// # Errors
    /// If the text is wrong, the version is not in force, or it cannot be saved.
    pub fn set_rules(
        &self,
        text: &str,
        over: Option<&str>,
        save: bool,
    ) -> Result<(), RuleUpdateError> {
        let set = Arc::new(RuleSet::parse(text).map_err(RuleUpdateError::Wrong)?);
        let text: Arc<str> = text.into();
        let _alone = self.changing.lock().expect("not poisoned");
        let before = self.rules_in_force();
        if let Some(controller) = before.controller {
            return Err(RuleUpdateError::Governed { controller: controller.to_string() });
        }
        if let Some(over) = over
            && over != WireRules::version_of(&before.text)
        {
            return Err(RuleUpdateError::Stale { over: over.into() });
        }
        let mut in_file = before.in_file;
        if save {
            let settings = self.settings();
            let path = settings.rules.as_deref().ok_or(RuleUpdateError::NoFile)?;
            save_in(path, &text, in_file.as_deref())?;
            in_file = Some(text.clone());
        }
        self.put_in_force(ActiveRules { set, text, in_file, controller: None });
        Ok(())
    }

    /// Activates the rules of a controller; from then on the proxy accepts no others.
    pub(crate) fn apply_controller_rules(
        &self,
        text: &str,
        controller: &str,
    ) -> Result<(), RuleFileError> {
        let set = Arc::new(RuleSet::parse(text)?);
        let _alone = self.changing.lock().expect("not poisoned");
        let in_file = self.rules_in_force().in_file;
        let controller = Some(controller.into());
        self.put_in_force(ActiveRules { set, text: text.into(), in_file, controller });
        Ok(())
    }

    /// Activates rules. The caller holds `changing`.
    pub(crate) fn put_in_force(&self, rules: ActiveRules) {
        let set = rules.set.clone();
        *self.rules.write().expect("not poisoned") = rules;
        self.gate.set_rules(set);
        // A fid is bound to the directories of the rules that it was opened under.
        let plain = self.connections().into_iter();
        let plain = plain.map(|c| c.session.lock().expect("not poisoned").fids.clone());
        let mounted = self.mounts.all().into_iter().map(|session| session.fids.clone());
        for fids in plain.chain(mounted) {
            for fid in fids.lock().expect("not poisoned").values() {
                fid.set_subject(fid.user.subject_of(&fid.node, None, fid.subject()));
            }
        }
        self.poke();
    }

    pub(crate) fn rules_in_force(&self) -> ActiveRules {
        self.rules.read().expect("not poisoned").clone()
    }
}

/// Writes the rule file if it holds what it held when it was read.
fn save_in(path: &Path, text: &str, known: Option<&str>) -> Result<(), RuleUpdateError> {
    let failed = |source| RuleUpdateError::Save { file: path.into(), source };
    let file = SavedRuleFile::lock(path).map_err(failed)?;
    if Some(file.text()) != known {
        return Err(RuleUpdateError::Edited { file: path.into() });
    }
    file.replace(text).map_err(failed)
}

//! placeholder
use std::io;
use std::path::Path;

use model::{Amount, Time};

use crate::gate::Running;

pub(crate) struct Recorder;

impl Recorder {
    pub(crate) fn start(_path: &Path) -> io::Result<Recorder> {
        Ok(Recorder)
    }
    pub(crate) fn note(&self, _running: &Running, _served: Amount, _errno: u32, _now: Time) {}
    pub(crate) fn finish(&self) {}
}

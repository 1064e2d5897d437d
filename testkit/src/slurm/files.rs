//! Sluice's files of `native/slurm` in a cluster's folder, with a program in that folder in place of the
//! installed one.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::copy_program;

/// What a site installs of Sluice.
#[derive(Clone, Copy, Debug)]
pub struct SlurmFiles<'a> {
    /// What the files call in place of `/usr/bin/sluice`.
    pub program: &'a Path,
    /// The library that was built of `native/spank`.
    pub plugin: &'a Path,
    /// Further options of the plug-in, in plugstack.conf.
    pub options: &'a str,
    /// Jobs pass the gate before they start.
    pub gate: bool,
}

impl SlurmFiles<'_> {
    /// Puts the files into a cluster's folder but the hooks, and returns their lines of slurm.conf.
    pub fn install(&self, root: &Path) -> String {
        copy_program(self.plugin, &root.join("sluice_spank.so"));
        let checks = self.text("job_submit.lua");
        let gate = ["local GATE = false", "local GATE = true"];
        assert!(checks.contains(gate[0]), "job_submit.lua has another setting for the gate");
        let checks = checks.replace(gate[0], gate[usize::from(self.gate)]);
        let place = root.display();
        let plugstack =
            format!("optional {place}/sluice_spank.so run_dir={place}/jobs {}\n", self.options);
        let files = [
            ("job_submit.lua", checks),
            ("burst_buffer.lua", self.text("burst_buffer.lua")),
            ("burst_buffer.conf", self.text("burst_buffer.conf")),
            ("plugstack.conf", plugstack),
        ];
        for (name, text) in files {
            fs::write(root.join("etc").join(name), text).unwrap();
        }
        let gate = if self.gate { "BurstBufferType=burst_buffer/lua\n" } else { "" };
        format!("JobSubmitPlugins=lua\n{gate}")
    }

    /// Puts the hooks into a cluster's folder, as `edit` changes them, and returns their lines of slurm.conf.
    pub fn install_hooks(&self, root: &Path, edit: impl Fn(String) -> String) -> String {
        fs::create_dir(root.join("hooks")).unwrap();
        let mut lines = String::new();
        for (key, file) in HOOKS {
            let path = root.join("hooks").join(file);
            write_program(&path, &edit(self.text(file)));
            lines += &format!("{key}={}\n", path.display());
        }
        lines
    }

    fn text(&self, name: &str) -> String {
        let text = fs::read_to_string(native("slurm").join(name)).unwrap();
        text.replace("/usr/bin/sluice", self.program.to_str().unwrap())
    }
}

/// Makes `program` the real one with the settings of slurmctld's machine, or of the node that calls it.
pub fn write_node_program(root: &Path, program: &Path, real: &Path) {
    let copy = program.with_file_name("real");
    copy_program(real, &copy);
    let (place, copy) = (root.display(), copy.display());
    let text = format!(
        "#!/bin/sh\nnode=${{SLURMD_NODENAME:+-$SLURMD_NODENAME}}\n\
         export SLURM_CONF={place}/etc/slurm.conf SLUICE_SLURM_CONFIG={place}/etc/slurm$node.toml\n\
         exec {copy} \"$@\"\n"
    );
    write_program(program, &text);
}

/// Writes a script that can be executed at once, whatever other tests fork meanwhile.
pub fn write_program(path: &Path, text: &str) {
    let source = path.with_extension("text");
    fs::write(&source, text).unwrap();
    copy_program(&source, path);
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A folder or file of `native/`.
pub fn native(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../native").join(name)
}

const HOOKS: [(&str, &str); 4] = [
    ("Prolog", "prolog.sh"),
    ("Epilog", "epilog.sh"),
    ("PrologSlurmctld", "prolog_slurmctld.sh"),
    ("EpilogSlurmctld", "epilog_slurmctld.sh"),
];

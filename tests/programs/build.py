"""A compile: C sources of crates that this project uses itself, built with make and gcc.

ring's C code and SQLite come with the crates of Cargo.lock, so they are there
wherever the project is built. Objects, archive and dependency files are the
same as beside, a second make has nothing to do, and a changed header builds
what includes it and nothing else.
"""

import glob
import hashlib
import json
import os
import shutil
import subprocess

from work import equal, expect, run as command

NEEDS = [("gcc", "gcc"), ("make", "make"), ("cargo", "cargo-web, or rustup")]
SHORT = ["one", "homes"]
MAKEFILE = """\
SOURCES := $(sort $(wildcard *.c))
OBJECTS := $(SOURCES:.c=.o)
CFLAGS := {flags} -g -MMD -ffile-prefix-map=$(CURDIR)=. -Iinclude -I.

all: code.a
code.a: $(OBJECTS)
\tar rcsD $@ $^
-include $(OBJECTS:.o=.d)
"""


def run(work):
    crates = sources()
    for name, lay, is_short in (("ring", lay_ring, True), ("sqlite", lay_sqlite, False)):
        if not is_short and not work.is_long:
            continue
        if name not in crates:
            work.skip(f"compile-{name}", "cargo does not have its sources here")
            continue
        wanted = f"{work.scratch}/{name}"
        lay(crates[name], wanted)
        command("make", "-j2", cwd=wanted)
        found = f"{work.at(0)}/{name}"
        with work.check(f"compile-{name}"):
            lay(crates[name], found)
            command("make", "-j2", cwd=found)
            for folder in work.folders + [work.store]:
                equal(products(f"{folder}/{name}"), products(wanted), "what was built")
        with work.check(f"compile-{name}-again"):
            again(found)


def sources():
    """Folders of the two crates, by the name that is used here."""
    root = os.path.join(os.path.dirname(__file__), "../..")
    # without the platform cargo would look for crates of others, which are not here
    host = f"{os.uname().machine}-unknown-linux-gnu"
    done = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", "--offline",
                           "--filter-platform", host], cwd=root,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        return {}
    names = {"ring": "ring", "libsqlite3-sys": "sqlite"}
    return {names[package["name"]]: os.path.dirname(package["manifest_path"])
            for package in json.loads(done.stdout)["packages"] if package["name"] in names}


def lay_ring(crate, folder):
    """The portable part, as for a machine that nothing is assembled for."""
    os.makedirs(folder)
    shutil.copytree(f"{crate}/include", f"{folder}/include")
    shutil.copytree(f"{crate}/crypto", f"{folder}/crypto")
    shutil.copytree(f"{crate}/third_party", f"{folder}/third_party")
    # its build script gives symbols other names here
    os.mkdir(f"{folder}/include/ring_core_generated")
    open(f"{folder}/include/ring_core_generated/prefix_symbols.h", "w").close()
    for path in sorted(glob.glob(f"{crate}/crypto/**/*.c", recursive=True)):
        relative = os.path.relpath(path, crate)
        with open(f"{folder}/{relative.replace('/', '_')}", "w") as file:
            file.write(f'#include "{relative}"\n')
    write(folder, "-O1 -w")


def lay_sqlite(crate, folder):
    os.makedirs(folder)
    for name in ("sqlite3.c", "sqlite3.h", "sqlite3ext.h"):
        shutil.copy(f"{crate}/sqlite3/{name}", folder)
    write(folder, "-O1 -w")


def write(folder, flags):
    with open(f"{folder}/Makefile", "w") as file:
        file.write(MAKEFILE.format(flags=flags))


def products(folder):
    found = {}
    for path in sorted(glob.glob(f"{folder}/*.[oad]")):
        with open(path, "rb") as file:
            found[os.path.basename(path)] = hashlib.sha256(file.read()).hexdigest()
    expect(found, f"nothing was built in {folder}")
    return found


def again(folder):
    """Times decide what make does: the file system's clock has to be right."""
    equal(command("make", "-j2", cwd=folder).strip(), "make: Nothing to be done for 'all'.", "a second make")
    with open(sorted(glob.glob(f"{folder}/*.c"))[0], "a") as file:
        file.write("\n")
    made = [line for line in command("make", cwd=folder).splitlines() if line.startswith("cc ")]
    equal(len(made), 1, "files compiled after one was changed")
    shutil.rmtree(folder)

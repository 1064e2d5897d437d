"""System calls of file systems, one after another: the result on a mount beside that in a directory.

LTP is in neither Debian 12 nor a registry, so the table is ours, in
calls_names.py and calls_files.py. A case is a function of a new folder; its
result is what it returns, or the name of its error. One that differs must be
in calls.expected, with both results and the reason; one that is there and does
not differ must leave it.
"""

import errno
import os
import re
import signal

from calls_files import FILES
from calls_names import NAMES
from work import Child, equal, expect

NEEDS = []
SHORT = LONG = ["one", "homes"]  # it compares with a directory itself
HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 120  # after which a case "waits"; those that are known to wait have less


def run(work):
    expected = read_expected(f"{HERE}/calls.expected")
    for case in NAMES + FILES:
        name = case.__name__.replace("_", "-")
        with work.check(f"calls-{name}"):
            beside = result(work, case, f"{work.scratch}/{name}")
            mounted = result(work, case, f"{work.at(0)}/{name}")
            if name in expected:
                equal((beside, mounted), expected[name], "calls.expected names other results")
            else:
                equal(mounted, beside, "on the mount")


def read_expected(path):
    """Lines `NAME: BESIDE | MOUNT # why`."""
    found = {}
    with open(path) as file:
        for line in file:
            if line.startswith("#") or not line.strip():
                continue
            parts = re.fullmatch(r"([a-z0-9-]+): (.*) \| (.*?) # (.+)\n", line)
            expect(parts is not None, f"calls.expected: {line}")
            found[parts[1]] = (parts[2], parts[3])
    return found


def result(work, case, folder):
    """What a case finds in a new folder, in a process of its own."""
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    out = f"{work.scratch}/result"

    def attempt():
        signal.alarm(getattr(case, "patience_s", PATIENCE_S))
        os.chdir(folder)
        try:
            text = str(case())
        except OSError as error:
            text = errno.errorcode.get(error.errno, str(error))
        with open(out, "w") as file:
            file.write(text)

    if os.path.exists(out):
        os.unlink(out)
    status = Child(attempt).wait()
    if status == -signal.SIGALRM:
        return "waits"
    expect(status == 0, f"the case ended with {status} in {folder}")
    with open(out) as file:
        return file.read()

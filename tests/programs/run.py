"""The runner: each program in each place, one after the other.

    runner ─┬─ proxies, mounts
            └─ a child for a program in a place ─► its own processes
                    └─ lines of `ok`, `not ok`, `skipped` ─► printed and counted

The runner never touches a mount itself, so that it can be ended, and can end
the rest, whatever a mount does.
"""

import ctypes
import importlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

from places import NotReady, Place, tail
from work import Work, say

PROGRAMS = ["sqlite", "locks", "names", "calls", "copies", "git", "compile", "mpi", "postgres"]
MODULES = {"compile": "build", "git": "versions"}
# where a program runs that says nothing of it, by SHORT or LONG, and after which time it is ended,
# unless it has `seconds`
PLACES = ["plain", "one", "two", "homes"]
SECONDS = 1800
OPTIONS = "allow_other,suid,dev"
PR_SET_CHILD_SUBREAPER = 36
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Tally:
    """Counts and prints what is reported."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def read(self, line):
        self.passed += line.startswith("ok ")
        self.failed += line.startswith("not ok ")
        self.skipped += line.startswith("skipped: ")
        print(line, flush=True)


class Bed:
    """Everything that is there while programs run, and its end."""

    def __init__(self, sluice, cache):
        self.sluice = sluice
        self.work = tempfile.mkdtemp(prefix="programs.", dir=cache)
        # where every user may go, whatever folder the project lies in
        self.ways = tempfile.mkdtemp(prefix="sluice-programs.")
        self.places = {}
        os.chmod(self.work, 0o755)
        os.chmod(self.ways, 0o755)
        os.makedirs(f"{self.work}/store")
        os.mkdir(f"{self.ways}/store")
        subprocess.run(["mount", "--bind", f"{self.work}/store", f"{self.ways}/store"], check=True)

    def place(self, name):
        if name not in self.places:
            options = ",".join(filter(None, [OPTIONS, os.environ.get("MOUNT_OPTIONS")]))
            self.places[name] = Place(name, self.sluice, self.work, self.ways, options)
            self.places[name].start()
        return self.places[name]

    def stop(self, tally):
        """The end in order, which is a check of its own."""
        for name, place in self.places.items():
            if not place.mounts:
                continue
            wrong = place.stop()
            tally.read(f"not ok end {name}: {'; '.join(wrong)}" if wrong else f"ok end {name}")

    def kill_rest(self):
        """Kills what a program left running: all below the runner but proxies and mounts."""
        servers = {server.process.pid for place in self.places.values()
                   for server in place.proxies + place.mounts if server.process is not None}
        for pid in descendants(os.getpid()) - servers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def remove(self):
        """The end in any case."""
        self.kill_rest()
        for place in self.places.values():
            place.force()
        clear_memory(self.work)
        subprocess.run(["umount", "-l", f"{self.ways}/store"], check=False)
        shutil.rmtree(self.ways, ignore_errors=True)
        shutil.rmtree(self.work)


def descendants(pid):
    """Processes below one; who lost its parent came to us."""
    found = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found |= {int(word) for word in file.read().split()}
    except (FileNotFoundError, ProcessLookupError):
        pass
    for child in list(found):
        found |= descendants(child)
    return found


def clear_memory(work):
    """Frees the System V memory of a PostgreSQL that was killed: the seventh line names it."""
    for folder, _, files in os.walk(f"{work}/store"):
        if "postmaster.pid" in files:
            with open(f"{folder}/postmaster.pid") as file:
                words = (file.read().splitlines() + [""] * 7)[6].split()
            if len(words) == 2:
                subprocess.run(["ipcrm", "-m", words[1]], stderr=subprocess.DEVNULL, check=False)


def one(bed, tally, program, name, is_long):
    """Runs a program in a place, in a child with a session of its own."""
    module = importlib.import_module(MODULES.get(program, program))
    try:
        place = bed.place(name)
    except NotReady as error:
        tally.read(f"not ok start {name}: {error}")
        return
    scratch = tempfile.mkdtemp(prefix=f"{program}.", dir=bed.work)
    os.chmod(scratch, 0o777)
    store = f"{place.real}/{program}"
    os.mkdir(store)
    os.chmod(store, 0o777)
    begun = time.monotonic()
    lines, its_lines = os.pipe()
    answers, our_answers = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for number in SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            os.dup2(its_lines, 1)
            module.run(Work(program, place, is_long, scratch, answers))
            os._exit(0)
        except BaseException as error:  # it is said by the runner's last line about it
            say(f"# {' | '.join(traceback.format_exc().splitlines()[-6:])}")
            os._exit(1 if isinstance(error, Exception) else 2)
    os.close(its_lines)
    os.close(answers)

    def read(line):
        if line.startswith("!"):
            order(place, line)
            os.write(our_answers, b".")
        else:
            tally.read(line)

    seconds = module.seconds(is_long) if hasattr(module, "seconds") else SECONDS
    status = follow(pid, lines, read, seconds)
    os.close(our_answers)
    bed.kill_rest()
    if status != 0:
        why = "too late" if status is None else f"ended with {status}"
        tally.read(f"not ok {program} {name}: {why}")
    for server in place.proxies + place.mounts:
        if server.process is None or server.process.poll() is not None:
            tally.read(f"not ok {program} {name}: it ended: {server.base}: {tail(server.base + '.log')}")
    print(f"# {program} {name}: {time.monotonic() - begun:.1f} s", flush=True)


def order(place, line):
    """What a program wants done with a proxy, which is a child of the runner: `!kill 0`, `!start 0`."""
    verb, number = line[1:].split()
    proxy = place.proxies[int(number)]
    if verb == "kill":
        proxy.kill()
    else:
        proxy.start()


def follow(pid, lines, read, seconds):
    """Reads what a child reports until it ends: its status, or None if that was too late."""
    handle = os.pidfd_open(pid)
    end = time.monotonic() + seconds
    rest = b""
    late, sources = False, [lines, handle]
    while True:
        ready = select.select(sources, [], [], max(end - time.monotonic(), 0))[0]
        if lines in ready:
            # whoever it left behind may hold the pipe open, so its end is not waited for
            got = os.read(lines, 65536)
            if not got:
                sources = [handle]
            rest += got
            *whole, rest = rest.split(b"\n")
            for line in whole:
                read(line.decode(errors="replace"))
        elif handle in ready:
            break
        elif not late:
            late, end = True, time.monotonic() + 60
            os.kill(pid, signal.SIGKILL)
        else:
            break
    os.close(lines)
    os.close(handle)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return None if late else status


def missing(program):
    """What a program lacks here, with the package that has it."""
    module = importlib.import_module(MODULES.get(program, program))
    for name, package in module.NEEDS:
        if shutil.which(name) is None:
            return f"no {name} here (it comes with {package})"
    return None


def main():
    sluice, length, *programs = sys.argv[1:]
    for program in programs:
        if program not in PROGRAMS:
            sys.exit(f"programs: no program \"{program}\"; there are {' '.join(PROGRAMS)}")
    is_long = length == "long"
    wanted = os.environ.get("PLACES", " ".join(PLACES)).split()
    tally = Tally()

    def end(number, _frame):
        sys.exit(128 + number)

    for number in SIGNALS:
        signal.signal(number, end)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.umask(0o022)
    bed = Bed(os.path.abspath(sluice), os.environ["CACHE"])
    try:
        for program in programs or PROGRAMS:
            why = missing(program)
            if why:
                tally.read(f"skipped: {program}: {why}")
                continue
            module = importlib.import_module(MODULES.get(program, program))
            for name in getattr(module, "LONG" if is_long else "SHORT", PLACES):
                if name in wanted:
                    one(bed, tally, program, name, is_long)
        bed.stop(tally)
    finally:
        # a second signal does not end the end
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        bed.remove()
    # no result at all is a failure
    failed = tally.failed or (tally.passed == 0)
    print(f"programs: {tally.passed} passed, {int(failed)} failed, {tally.skipped} skipped", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

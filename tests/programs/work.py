"""What programs are run with: their folders, checks that are reported, children, commands."""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback

from places import FAR


class Wrong(Exception):
    """A check that failed, and why."""


def expect(is_so, why):
    if not is_so:
        raise Wrong(why)


def equal(found, wanted, what):
    expect(found == wanted, f"{what}: {shown(found)}, not {shown(wanted)}")


def shown(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}… ({len(text)} characters)"


class Work:
    """One program in one place.

    `folders` are the program's own folder by each way that the place has, so
    one or two names of the same directory; `at(n)` goes round them. `store` is
    that directory without Sluice, `scratch` a directory that is of no place.
    """

    def __init__(self, program, place, is_long, scratch, answers):
        self.place = place
        self.is_long = is_long
        self.scratch = scratch
        self.answers = answers
        self.store = f"{place.store}/{program}"
        self.folders = [f"{way}/{program}" for way in place.ways]

    def at(self, number):
        return self.folders[number % len(self.folders)]

    @contextlib.contextmanager
    def check(self, name):
        """Reports what is done below it as one check; an exception is its failure."""
        try:
            yield
        except Exception as error:  # whatever it is, the other checks go on
            why = str(error) if isinstance(error, Wrong) else \
                f"{type(error).__name__}: {error} ({where(error)})"
            say(f"not ok {name} {self.place.name}: {' '.join(why.split())[:1500]}")
        else:
            say(f"ok {name} {self.place.name}")

    def skip(self, name, why):
        say(f"skipped: {name} {self.place.name}: {why}")

    def proxy(self, verb, number):
        """Kills (`kill`) or starts (`start`) a proxy of the place; returns when it is done."""
        say(f"!{verb} {number}")
        expect(os.read(self.answers, 1) == b".", f"cannot {verb} the proxy")

    def note(self, text):
        say(f"# {text}")


def say(line):
    """One line to the runner, whole whoever else writes."""
    sys.stdout.flush()
    os.write(1, (line + "\n").encode(errors="replace"))


def where(error):
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(frame.filename)}, line {frame.lineno}"


class Child:
    """A process that calls a function; what goes wrong there is raised by `join`."""

    def __init__(self, function, *arguments):
        sys.stdout.flush()
        errors, its_errors = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                function(*arguments)
                status = 0
            except Exception as error:
                text = str(error) if isinstance(error, Wrong) else \
                    f"{type(error).__name__}: {error} ({where(error)})"
                os.write(its_errors, text.encode(errors="replace"))
            finally:
                os._exit(status)
        os.close(its_errors)
        self.errors = errors
        self.handle = os.pidfd_open(self.pid)

    def wait(self, seconds=FAR):
        """Its exit status, negative for a signal."""
        # not select(2): it knows descriptors below 1,024 only, and a long run has more
        ends = select.poll()
        ends.register(self.handle, select.POLLIN)
        if not ends.poll(seconds * 1000):
            self.kill()
            raise Wrong(f"a process had not ended after {seconds} s")
        os.close(self.handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def join(self, seconds=FAR):
        status = self.wait(seconds)
        text = os.read(self.errors, 4096).decode(errors="replace")
        os.close(self.errors)
        if status != 0:
            raise Wrong(text or f"a process ended with {status}")

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


def together(*calls, seconds=FAR):
    """Runs each (function, arguments…) in a process of its own; raises the first failure when all have ended."""
    children = [Child(*call) for call in calls]
    failures = []
    end = time.monotonic() + seconds
    for child in children:
        try:
            child.join(max(end - time.monotonic(), 1))
        except Wrong as error:
            failures.append(str(error))
    if failures:
        raise Wrong(f"{len(failures)} of {len(children)} processes failed: {failures[0]}")


def run(*argv, cwd=None, env=None, user=None, seconds=FAR, status=0, stdin=None):
    """What a command prints, both ways together; raises if it ends otherwise than with `status`."""
    changed = {**os.environ, "LC_ALL": "C.UTF-8", **(env or {})}
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    try:
        done = subprocess.run(argv, cwd=cwd, env=changed, timeout=seconds, input=stdin,
                              stdin=subprocess.DEVNULL if stdin is None else None,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **who)
    except subprocess.TimeoutExpired:
        raise Wrong(f"{' '.join(argv[:4])}: had not ended after {seconds} s") from None
    text = done.stdout.decode(errors="replace")
    if done.returncode != status:
        raise Wrong(f"{' '.join(argv[:6])}: ended with {done.returncode}: {text[-1000:]}")
    return text


def clear(folder):
    """Empties a folder, through whatever it is."""
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)

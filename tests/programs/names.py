"""Names that change on one mount and are used on the other at once.

Log rotation, replacing a file by rename, lock files by O_EXCL and link(2),
removing and making anew, directories that two want to make, a file that two
want to rename. Only what open(2) and the calls that change names find counts:
what stat(2) says may be as old as the option `attr` lets it be.
"""

import contextlib
import os
import time

from work import Child, equal, expect, together

NEEDS = []


def run(work):
    times = 100 if work.is_long else 10
    for check in (rotated, replaced, anew, made_elsewhere, missed, moved_folder, removed_open, appended,
                  rewritten):
        with work.check(f"names-{check.__name__.replace('_', '-')}"):
            check(work, times)
    for take, give in ((take_exclusive, os.unlink), (take_link, os.unlink)):
        with work.check(f"names-lock-by-{take.__name__[5:]}"):
            lock_file(work, take, give, 5 * times)
    for check in (made_once, renamed_once):
        with work.check(f"names-{check.__name__.replace('_', '-')}"):
            check(work, 3 * times)


def put(path, content, flags=os.O_CREAT | os.O_TRUNC):
    file = os.open(path, os.O_WRONLY | flags, 0o644)
    os.write(file, content)
    os.close(file)


def get(path):
    with open(path, "rb") as file:
        return file.read()


def sides(work, number):
    """The two ways, changing places from round to round."""
    return work.at(number), work.at(number + 1)


def rotated(work, times):
    """A log is renamed there; who opens it here to append makes a new one."""
    for number in range(times):
        here, there = sides(work, number)
        name = f"log{number}"
        put(f"{here}/{name}", b"1\n")
        os.rename(f"{there}/{name}", f"{there}/{name}.1")
        put(f"{here}/{name}", b"2\n", os.O_CREAT | os.O_APPEND)
        found = sorted(entry for entry in os.listdir(work.store) if entry.startswith(name))
        equal(found, [name, f"{name}.1"], "files")
        equal(get(f"{work.store}/{name}"), b"2\n", "the new log")
        equal(get(f"{work.store}/{name}.1"), b"1\n", "the old log")
        os.unlink(f"{there}/{name}")
        os.unlink(f"{there}/{name}.1")


def replaced(work, times):
    """A file is replaced there by rename; who opens it here has the new one, who had it open the old one."""
    put(f"{work.at(0)}/replaced", b"old")
    for number in range(times):
        here, there = sides(work, number)
        before = get(f"{here}/replaced")
        with open(f"{here}/replaced", "rb") as file:
            content = b"new %d" % number
            put(f"{there}/replaced.new", content)
            os.rename(f"{there}/replaced.new", f"{there}/replaced")
            equal(get(f"{here}/replaced"), content, "opened after the rename")
            equal(file.read(), before, "opened before the rename")


def anew(work, times):
    """A file is removed there and made here: what is written is in the one that is there."""
    for number in range(times):
        here, there = sides(work, number)
        path = f"anew{number}"
        put(f"{here}/{path}", b"old")
        equal(get(f"{here}/{path}"), b"old", "the old file")
        os.unlink(f"{there}/{path}")
        put(f"{here}/{path}", b"new")
        expect(os.path.exists(f"{work.store}/{path}"), "what was written is in a file that is gone")
        equal(get(f"{work.store}/{path}"), b"new", "beside")
        equal(get(f"{there}/{path}"), b"new", "there")


def made_elsewhere(work, times):
    """A name that was missed here is made there."""
    for number in range(times):
        here, there = sides(work, number)
        path = f"made{number}"
        with contextlib.suppress(FileNotFoundError):
            get(f"{here}/{path}")
        put(f"{there}/{path}", b"there")
        put(f"{here}/{path}", b"+here", os.O_CREAT | os.O_APPEND)
        equal(get(f"{work.store}/{path}"), b"there+here", "beside")


def missed(work, times):
    """A name that was missed here is made there, and opened here without O_CREAT; ROMIO does so."""
    for number in range(times):
        here, there = sides(work, number)
        path = f"missed{number}"
        expect(not os.path.exists(f"{here}/{path}"), "it is there")
        put(f"{there}/{path}", b"there")
        equal(get(f"{here}/{path}"), b"there", "here")


def moved_folder(work, times):
    """A folder that is known here is renamed there and another put in its place: who did that finds both."""
    for number in range(times):
        here, there = sides(work, number)
        name = f"folder{number}"
        os.mkdir(f"{here}/{name}")
        put(f"{here}/{name}/file", b"old")
        os.rename(f"{there}/{name}", f"{there}/{name}.old")
        os.mkdir(f"{there}/{name}")
        put(f"{there}/{name}/file", b"new")
        put(f"{there}/{name}.old/file", b"moved")
        equal(get(f"{there}/{name}/file"), b"new", "there")
        equal(get(f"{there}/{name}.old/file"), b"moved", "there, the old folder")
        equal(get(f"{work.store}/{name}/file"), b"new", "beside")


def removed_open(work, times):
    """A file that is removed there can be read and written here while it is open."""
    for number in range(times):
        here, there = sides(work, number)
        put(f"{here}/removed", b"x" * 9000)
        with open(f"{here}/removed", "r+b", buffering=0) as file:
            os.unlink(f"{there}/removed")
            equal(os.pread(file.fileno(), 10000, 0), b"x" * 9000, "read")
            os.pwrite(file.fileno(), b"more", 8998)
            os.fsync(file.fileno())
            equal(os.pread(file.fileno(), 10000, 8996), b"xxmore", "read after writing")
            equal(os.fstat(file.fileno()).st_size, 9002, "size")
        expect(not os.path.exists(f"{work.store}/removed"), "it came back")


def appended(work, times):
    """Four processes append lines of many sizes: none is lost or cut."""
    path = "appended"
    put(f"{work.at(0)}/{path}", b"")

    def append(process):
        file = os.open(f"{work.at(process)}/{path}", os.O_WRONLY | os.O_APPEND)
        for number in range(10 * times):
            os.write(file, b"%d %d %s\n" % (process, number, b"z" * (number * 37 % 3000)))
        os.close(file)

    together(*((append, process) for process in range(4)))
    content = get(f"{work.store}/{path}")
    found = {process: [] for process in range(4)}
    for line in content.splitlines():
        process, number, rest = line.split(b" ")
        equal(len(rest), int(number) * 37 % 3000, "the length of a line")
        found[int(process)].append(int(number))
    for process, numbers in found.items():
        equal(numbers, list(range(10 * times)), f"lines of process {process}")
    for folder in work.folders:
        expect(get(f"{folder}/{path}") == content, f"{folder} has something else")


def rewritten(work, times):
    """Close-to-open: who opens sees what was written before a close, in place and with other sizes."""
    put(f"{work.at(0)}/rewritten", b"")
    for number in range(3 * times):
        here, there = sides(work, number)
        content = b"%06d" % number * (number * 331 % 3000 + 1)
        put(f"{here}/rewritten", content)
        expect(get(f"{there}/rewritten") == content, f"round {number}: old data, cut by opening")
        content = bytes(byte ^ 1 for byte in content)
        put(f"{there}/rewritten", content, 0)
        expect(get(f"{here}/rewritten") == content, f"round {number}: old data, written in place")


def take_exclusive(folder):
    try:
        os.close(os.open(f"{folder}/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return True
    except FileExistsError:
        return False


def take_link(folder):
    mine = f"{folder}/lock.{os.getpid()}"
    if not os.path.exists(mine):
        put(mine, b"")
    try:
        os.link(mine, f"{folder}/lock")
        return True
    except FileExistsError:
        return False


def lock_file(work, take, give, times):
    """A counter in a file that is opened, read, written and closed while a lock file is there."""
    put(f"{work.at(0)}/counter", b"0")

    def count(folder):
        for _ in range(times):
            while not take(folder):
                time.sleep(0.001)
            value = int(get(f"{folder}/counter"))
            put(f"{folder}/counter", b"%d" % (value + 1))
            give(f"{folder}/lock")

    together((count, work.at(0)), (count, work.at(1)))
    equal(int(get(f"{work.store}/counter")), 2 * times, "the counter")


def won(calls, is_lost):
    """How many of two processes did it."""
    def attempt(call, arguments):
        try:
            call(*arguments)
        except is_lost:
            os._exit(7)

    statuses = [child.wait() for child in [Child(attempt, *call) for call in calls]]
    expect(set(statuses) <= {0, 7}, f"the processes ended with {statuses}")
    return statuses.count(0)


def made_once(work, times):
    """Of two who make the same folder one does."""
    for number in range(times):
        calls = [(os.mkdir, (f"{work.at(side)}/made-once{number}",)) for side in range(2)]
        equal(won(calls, FileExistsError), 1, "made it")


def renamed_once(work, times):
    """Of two who rename the same file one does, and only its name is there."""
    for number in range(times):
        put(f"{work.at(0)}/source{number}", b"x")
        for folder in work.folders:
            get(f"{folder}/source{number}")
        calls = [(os.rename, (f"{work.at(side)}/source{number}", f"{work.at(side)}/target{number}.{side}"))
                 for side in range(2)]
        equal(won(calls, FileNotFoundError), 1, "renamed it")
        there = [side for side in range(2) if os.path.exists(f"{work.store}/target{number}.{side}")]
        equal(len(there), 1, "names that are there")

"""Locks: what is read and written under one, whoever takes it and by whichever mount.

Counters that four processes raise under fcntl, OFD and flock locks, with the
file kept open and opened each time; a read under a lock that sees what was
written under one before; ranges, shared and exclusive locks, waiting, and the
end of whoever holds one.
"""

import contextlib
import errno
import fcntl
import os
import struct
import time

from work import Child, equal, expect, together

NEEDS = []
PROCESSES = 4
OFD_SETLK, OFD_SETLKW = 37, 38
LOCK_WORDS = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}


def run(work):
    each, times = (300, 300) if work.is_long else (40, 30)
    for kind in KINDS:
        for is_kept in (True, False):
            counter(work, kind, is_kept, each)
        fresh(work, kind, times)
        for check in (shared, waits, ends):
            check(work, kind)
    for kind in ("fcntl", "ofd"):
        ranges(work, kind)
        blocks(work, kind, times)


def of_fcntl(file, how, start=0, length=0):
    fcntl.lockf(file, how, length, start)


def of_flock(file, how, start=0, length=0):
    fcntl.flock(file, how)


def of_ofd(file, how, start=0, length=0):
    """A lock of the open file: not of the process, and not of one descriptor."""
    word = LOCK_WORDS[how & ~fcntl.LOCK_NB]
    command = OFD_SETLK if how & fcntl.LOCK_NB else OFD_SETLKW
    fcntl.fcntl(file, command, struct.pack("hhqqi4x", word, os.SEEK_SET, start, length, 0))


KINDS = {"fcntl": of_fcntl, "ofd": of_ofd, "flock": of_flock}


@contextlib.contextmanager
def opened(path, flags=os.O_RDWR):
    file = os.open(path, flags)
    try:
        yield file
    finally:
        os.close(file)


@contextlib.contextmanager
def held(lock, file, how, start=0, length=0):
    lock(file, how, start, length)
    try:
        yield
    finally:
        lock(file, fcntl.LOCK_UN, start, length)


def made(folder, name, content):
    path = f"{folder}/{name}"
    with open(path, "wb") as file:
        file.write(content)
    return name


def counter(work, kind, is_kept, each):
    """Reads, adds one, writes."""
    how = "kept-open" if is_kept else "opened-each-time"
    lock = KINDS[kind]

    def add(file):
        with held(lock, file, fcntl.LOCK_EX):
            value = int(os.pread(file, 16, 0))
            os.pwrite(file, b"%-16d" % (value + 1), 0)

    def many(path):
        if is_kept:
            with opened(path) as file:
                for _ in range(each):
                    add(file)
        else:
            for _ in range(each):
                with opened(path) as file:
                    add(file)

    with work.check(f"locks-{kind}-counter-{how}"):
        name = made(work.at(0), f"counter-{kind}-{how}", b"%-16d" % 0)
        together(*((many, f"{work.at(process)}/{name}") for process in range(PROCESSES)))
        for folder in work.folders + [work.store]:
            with open(f"{folder}/{name}", "rb") as file:
                equal(int(file.read()), PROCESSES * each, f"the counter in {folder}")


def fresh(work, kind, times):
    """One side reads under a lock, the other writes under one, the first reads again; turn by turn."""
    lock = KINDS[kind]
    with work.check(f"locks-{kind}-read-after-write"):
        name = made(work.at(0), f"fresh-{kind}", b"0" * 8192)
        old = 0
        with opened(f"{work.at(0)}/{name}") as first, opened(f"{work.at(1)}/{name}") as second:
            for number in range(1, times + 1):
                reader, writer = (first, second) if number % 2 else (second, first)
                content = b"%d" % (number % 10) * 8192
                with held(lock, reader, fcntl.LOCK_SH):
                    os.pread(reader, 8192, 0)
                with held(lock, writer, fcntl.LOCK_EX):
                    os.pwrite(writer, content, 0)
                with held(lock, reader, fcntl.LOCK_SH):
                    old += os.pread(reader, 8192, 0) != content
        expect(old == 0, f"{old} of {times} reads under a lock have old data")


def grows(file, lock, number):
    with held(lock, file, fcntl.LOCK_EX):
        size = os.fstat(file).st_size
        os.pwrite(file, b"%08d" % number, size)


def blocks(work, kind, times):
    """A file that grows under a lock, by turns: its size is asked for, and nothing is written over."""
    lock = KINDS[kind]
    with work.check(f"locks-{kind}-grows"):
        name = made(work.at(0), f"grows-{kind}", b"")
        with opened(f"{work.at(0)}/{name}") as first, opened(f"{work.at(1)}/{name}") as second:
            for number in range(times):
                grows((first, second)[number % 2], lock, number)
        with open(f"{work.store}/{name}", "rb") as file:
            equal(file.read(), b"".join(b"%08d" % number for number in range(times)), "the file")


def is_refused(lock, path, how, start=0, length=0):
    """Whether another process would have to wait."""
    def attempt():
        with opened(path) as file:
            try:
                lock(file, how | fcntl.LOCK_NB, start, length)
            except OSError as error:
                expect(error.errno in (errno.EAGAIN, errno.EACCES), f"{error}")
                os._exit(7)
    status = Child(attempt).wait()
    expect(status in (0, 7), f"the other process ended with {status}")
    return status == 7


def shared(work, kind):
    """Readers hold one together; a writer is refused, and readers by a writer."""
    lock = KINDS[kind]
    with work.check(f"locks-{kind}-shared-and-exclusive"):
        name = made(work.at(0), f"shared-{kind}", b"x" * 100)
        here, there = f"{work.at(0)}/{name}", f"{work.at(1)}/{name}"
        with opened(here) as file:
            with held(lock, file, fcntl.LOCK_SH):
                expect(not is_refused(lock, there, fcntl.LOCK_SH), "a reader is refused by a reader")
                expect(is_refused(lock, there, fcntl.LOCK_EX), "a writer is let in beside a reader")
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                expect(is_refused(lock, there, fcntl.LOCK_SH), "a reader is let in beside a writer")
                lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                expect(not is_refused(lock, there, fcntl.LOCK_SH), "a reader is refused after the writer")
            expect(not is_refused(lock, there, fcntl.LOCK_EX), "a writer is refused by nobody")


def waits(work, kind):
    """Who waits goes on when the lock is free, not before, and sees what was written."""
    lock = KINDS[kind]
    with work.check(f"locks-{kind}-waits"):
        name = made(work.at(0), f"waits-{kind}", b"before")
        asks, told = os.pipe()

        def other():
            with opened(f"{work.at(1)}/{name}") as file:
                os.pread(file, 6, 0)
                os.write(told, b".")
                with held(lock, file, fcntl.LOCK_EX):
                    equal(os.pread(file, 6, 0), b"after!", "read by who waited")

        with opened(f"{work.at(0)}/{name}") as file:
            with held(lock, file, fcntl.LOCK_EX):
                child = Child(other)
                os.read(asks, 1)
                # time to go wrong; to be right it needs none
                time.sleep(0.3)
                os.pwrite(file, b"after!", 0)
            child.join()
        os.close(asks)
        os.close(told)


def ends(work, kind):
    """The locks of a process that is killed, and of a file that is closed, are free."""
    lock = KINDS[kind]
    with work.check(f"locks-{kind}-holder-ends"):
        name = made(work.at(0), f"ends-{kind}", b"x")
        here, there = f"{work.at(0)}/{name}", f"{work.at(1)}/{name}"
        holds, told = os.pipe()

        def holder():
            with opened(here) as file:
                lock(file, fcntl.LOCK_EX)
                os.write(told, b".")
                time.sleep(3600)

        child = Child(holder)
        os.read(holds, 1)
        expect(is_refused(lock, there, fcntl.LOCK_EX), "not refused while it is held")
        child.kill()
        child.wait()
        # the kernel lets go of the file when the process is gone, the mount then of the lock
        with opened(there) as file:
            lock(file, fcntl.LOCK_EX)
        with opened(here) as file:
            lock(file, fcntl.LOCK_EX)
        with opened(there) as file:
            lock(file, fcntl.LOCK_EX)
        os.close(holds)
        os.close(told)


def ranges(work, kind):
    """Ranges that do not meet are free of each other, and parts can be given back."""
    lock = KINDS[kind]
    with work.check(f"locks-{kind}-ranges"):
        name = made(work.at(0), f"ranges-{kind}", b"x" * 100)
        here, there = f"{work.at(0)}/{name}", f"{work.at(1)}/{name}"

        def free(start, length):
            return not is_refused(lock, there, fcntl.LOCK_EX, start, length)

        with opened(here) as file:
            lock(file, fcntl.LOCK_EX, 10, 20)
            found = [free(0, 10), free(30, 10), free(29, 1), free(10, 1), free(0, 0), free(1 << 40, 5)]
            equal(found, [True, True, False, False, False, True], "free ranges beside 10 to 30")
            lock(file, fcntl.LOCK_UN, 15, 5)
            found = [free(15, 5), free(14, 1), free(20, 1), free(14, 3)]
            equal(found, [True, False, False, False], "free ranges with a hole of 15 to 20")
            lock(file, fcntl.LOCK_EX, 100, 0)
            found = [free(99, 1), free(100, 1), free(1 << 50, 1)]
            equal(found, [True, False, False], "free ranges before a lock to the end")

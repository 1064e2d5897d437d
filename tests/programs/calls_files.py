"""Cases of calls.py about open files: space, holes, maps, copies, locks, watches."""

import errno
import fcntl
import mmap
import os
import resource
import signal
import stat
import struct

import system
from calls_names import make

FILES = []
PAGE = 4096


def case(function):
    FILES.append(function)
    return function


def opened(content=b"", flags=os.O_RDWR):
    make("a", content)
    return os.open("a", flags)


def allocated(mode, start, length):
    """Sixteen pages of letters, after a call of fallocate(2): the size and the first letter of each page."""
    file = opened(b"".join(bytes([65 + page]) * PAGE for page in range(16)))
    system.fallocate(file, mode, start, length)
    size = os.fstat(file).st_size
    letters = b"".join(os.pread(file, 1, at) for at in range(0, size, PAGE))
    return size, letters.replace(b"\0", b".")


@case
def allocate_more():
    return allocated(0, 10 * PAGE, 10 * PAGE)


@case
def allocate_keep_size():
    return allocated(system.FALLOC_KEEP_SIZE, 10 * PAGE, 10 * PAGE)


@case
def allocate_punch():
    return allocated(system.FALLOC_PUNCH | system.FALLOC_KEEP_SIZE, 2 * PAGE, 3 * PAGE)


@case
def allocate_punch_without_keep():
    return allocated(system.FALLOC_PUNCH, 2 * PAGE, 3 * PAGE)


@case
def allocate_zero():
    return allocated(system.FALLOC_ZERO, 15 * PAGE, 3 * PAGE)


@case
def allocate_collapse():
    return allocated(system.FALLOC_COLLAPSE, 2 * PAGE, 3 * PAGE)


@case
def allocate_insert():
    return allocated(system.FALLOC_INSERT, 2 * PAGE, 3 * PAGE)


@case
def allocate_negative():
    return allocated(0, -1, 10)


@case
def allocate_read_only():
    system.fallocate(opened(b"1", os.O_RDONLY), 0, 0, 10)


@case
def holes():
    file = opened()
    os.pwrite(file, b"x" * PAGE, 0)
    os.pwrite(file, b"x" * PAGE, 1 << 20)
    os.ftruncate(file, 3 << 20)
    os.fsync(file)
    return [os.lseek(file, at, how) for at, how in (
        (0, os.SEEK_HOLE), (PAGE, os.SEEK_DATA), (1 << 20, os.SEEK_HOLE))]


@case
def holes_beyond():
    os.lseek(opened(b"123"), 10, os.SEEK_DATA)


@case
def seek_negative():
    os.lseek(opened(b"123"), -1, os.SEEK_SET)


@case
def write_to_read_only():
    os.write(opened(b"1", os.O_RDONLY), b"2")


@case
def append_ignores_place():
    file = opened(b"123", os.O_RDWR | os.O_APPEND)
    os.pwrite(file, b"4", 0)
    return os.pread(file, 10, 0)


@case
def truncate_up_and_down():
    file = opened(b"1234567")
    os.ftruncate(file, 3)
    os.ftruncate(file, 6)
    return os.pread(file, 10, 0)


@case
def size_limit():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    file = opened(b"x" * 900)
    written = os.pwrite(file, b"y" * 200, 900)
    try:
        os.pwrite(file, b"y", 1000)
    except OSError as error:
        return written, errno.errorcode[error.errno]


@case
def direct_aligned():
    file = opened(b"x" * 8192, os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, PAGE)
    page[:] = b"y" * PAGE
    return os.pwritev(file, [page], PAGE), os.preadv(file, [page], 0), page[:2]


@case
def map_shared():
    file = opened(b"x" * PAGE * 2)
    pages = mmap.mmap(file, PAGE * 2)
    pages[PAGE:PAGE + 3] = b"new"
    pages.flush()
    return os.pread(file, 4, PAGE)


@case
def map_sees_write():
    file = opened(b"x" * PAGE)
    pages = mmap.mmap(file, PAGE)
    os.pwrite(file, b"new", 5)
    return pages[4:9]


@case
def map_beyond_end():
    file = opened(b"x" * 100)
    pages = mmap.mmap(file, 100)
    return pages[:100].count(b"x"), mmap.mmap(file, 50)[:1]


@case
def map_read_only_to_write():
    mmap.mmap(opened(b"x" * PAGE, os.O_RDONLY), PAGE)


@case
def copy_range():
    source = opened(b"x" * 100000)
    target = os.open("b", os.O_RDWR | os.O_CREAT)
    done = 0
    while done < 100000:
        done += os.copy_file_range(source, target, 100000 - done)
    return os.fstat(target).st_size


@case
def copy_range_overlapping():
    file = opened(b"x" * 100)
    os.copy_file_range(file, file, 50, 0, 10)


@case
def send_file():
    source = opened(b"x" * 70000)
    target = os.open("b", os.O_RDWR | os.O_CREAT)
    done = 0
    while done < 70000:
        done += os.sendfile(target, source, done, 70000 - done)
    return os.fstat(target).st_size


@case
def splice_both_ways():
    source = opened(b"x" * 5000)
    target = os.open("b", os.O_RDWR | os.O_CREAT)
    out, into = os.pipe()
    moved = os.splice(source, into, 5000)
    return moved, os.splice(out, target, moved), os.fstat(target).st_size


@case
def clone_ioctl():
    source = opened(b"x" * PAGE)
    target = os.open("b", os.O_RDWR | os.O_CREAT)
    fcntl.ioctl(target, 0x40049409, source)


@case
def flags_ioctl_get():
    fcntl.ioctl(opened(), 0x80086601, bytes(8))
    return "flags"


@case
def flags_ioctl_set():
    file = opened()
    fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x10))
    try:
        os.unlink("a")
    finally:
        # what cannot be changed cannot be cleaned up
        fcntl.ioctl(file, 0x40086602, struct.pack("l", 0))


@case
def statx_basic():
    make("a")
    return hex(system.statx_mask("a", system.STATX_BASIC))


@case
def statx_birth():
    make("a")
    return hex(system.statx_mask("a", system.STATX_BTIME))


@case
def sync_range():
    return system.sync_file_range(opened(b"x" * 9000), 0, 9000, 7)


@case
def sync_folder():
    os.fsync(os.open(".", os.O_RDONLY))
    return "synced"


@case
def sync_file_system():
    os.sync()
    return system.checked(system.C.syncfs(opened(b"x")))


@case
def advise():
    file = opened(b"x" * 9000)
    os.posix_fadvise(file, 0, 9000, os.POSIX_FADV_DONTNEED)
    return os.pread(file, 2, 8000)


@case
def removed_while_open():
    file = opened(b"123")
    os.unlink("a")
    os.pwrite(file, b"4", 3)
    os.fchmod(file, 0o640)
    os.ftruncate(file, 2)
    return os.pread(file, 9, 0), os.fstat(file).st_nlink, oct(os.fstat(file).st_mode)


@case
def removed_is_linked_again():
    file = opened(b"123")
    os.unlink("a")
    system.link_open(file, "b")


@case
def lock_deadlock():
    """Two processes have a byte each and want the other's: whoever asks last is refused."""
    make("a", b"12")
    ready, told = os.pipe()
    file = os.open("a", os.O_RDWR)
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 1)
        os.write(told, b".")
    else:
        os.read(ready, 1)
    other = 1 if pid else 0
    is_refused = False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, other)
    except OSError as error:
        is_refused = error.errno == errno.EDEADLK
    if pid == 0:
        os._exit(is_refused)
    fcntl.lockf(file, fcntl.LOCK_UN)
    return "refusals", is_refused + os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


lock_deadlock.patience_s = 5


@case
def lock_read_only_to_write():
    fcntl.lockf(opened(b"1", os.O_RDONLY), fcntl.LOCK_EX)


@case
def flock_read_only_to_write():
    fcntl.flock(opened(b"1", os.O_RDONLY), fcntl.LOCK_EX)
    return "locked"


@case
def lock_ends_with_any_close():
    file = opened(b"1")
    fcntl.lockf(file, fcntl.LOCK_EX)
    os.close(os.open("a", os.O_RDONLY))
    return is_free()


@case
def lock_of_child():
    file = opened(b"1")
    fcntl.lockf(file, fcntl.LOCK_EX)
    return is_free()


def is_free():
    """As another process finds it."""
    pid = os.fork()
    if pid == 0:
        try:
            fcntl.lockf(os.open("a", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@case
def lock_asked_for():
    file = opened(b"123456")
    fcntl.lockf(file, fcntl.LOCK_EX, 2, 1)
    pid = os.fork()
    if pid == 0:
        other = os.open("a", os.O_RDWR)
        asked = fcntl.fcntl(other, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        kind, _, start, length, owner = struct.unpack("hhqqi4x", asked)
        os._exit(0 if (kind, start, length, owner) == (fcntl.F_WRLCK, 1, 2, os.getppid()) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@case
def lease():
    file = opened(b"1", os.O_RDONLY)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_RDLCK


@case
def watch():
    file = system.inotify(".", 0x100 | 0x200 | 0xC0)
    make("a")
    os.rename("a", "b")
    os.unlink("b")
    got = os.read(file, 10000)
    masks = []
    while got:
        _, mask, _, length = struct.unpack_from("iIII", got)
        masks.append(hex(mask))
        got = got[16 + length:]
    return masks


@case
def too_many_open():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    make("a")
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, before[1]))
    files = []
    try:
        while True:
            files.append(os.open("a", os.O_RDONLY))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@case
def pipe_by_name():
    os.mkfifo("a")
    reader = os.open("a", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open("a", os.O_WRONLY)
    os.write(writer, b"123")
    return os.read(reader, 9), stat.S_ISFIFO(os.fstat(reader).st_mode)


@case
def run_while_written():
    make("a", b"#!/bin/sh\nexit 3\n", 0o755)
    file = os.open("a", os.O_WRONLY)
    pid = os.fork()
    if pid == 0:
        try:
            os.execv("./a", ["a"])
        except OSError as error:
            os._exit(error.errno)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(file)
    return errno.errorcode.get(status)


@case
def run_program():
    make("a", b"#!/bin/sh\nexit 3\n", 0o755)
    return os.waitstatus_to_exitcode(os.system("./a"))

"""System calls that python3's os module lacks, through the C library."""

import ctypes
import os

C = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
FALLOC_KEEP_SIZE, FALLOC_PUNCH, FALLOC_COLLAPSE, FALLOC_ZERO, FALLOC_INSERT = 1, 2, 8, 16, 32
STATX_BASIC, STATX_BTIME = 0x7ff, 0x800


def checked(value):
    if value < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return value


def renameat2(source, target, flags):
    return checked(C.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags))


def fallocate(file, mode, start, length):
    return checked(C.fallocate(file, mode, ctypes.c_long(start), ctypes.c_long(length)))


def statx_mask(path, mask):
    """Which of the asked fields are known."""
    buffer = ctypes.create_string_buffer(256)
    checked(C.statx(AT_FDCWD, os.fsencode(path), 0, mask, buffer))
    return int.from_bytes(buffer.raw[:4], "little") & mask


def inotify(path, mask):
    file = checked(C.inotify_init1(os.O_NONBLOCK))
    checked(C.inotify_add_watch(file, os.fsencode(path), mask))
    return file


def name_to_handle(path):
    """The length of a file's handle; 128 bytes are the most there is."""
    buffer = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(132), 136)
    mount = ctypes.c_int()
    checked(C.name_to_handle_at(AT_FDCWD, os.fsencode(path), buffer, ctypes.byref(mount), 0))
    return "a handle"


def link_open(file, path):
    """A name for a file that is open."""
    at_symlink_follow = 0x400
    return checked(C.linkat(AT_FDCWD, f"/proc/self/fd/{file}".encode(), AT_FDCWD, os.fsencode(path),
                            at_symlink_follow))


def sync_file_range(file, start, length, flags):
    return checked(C.sync_file_range(file, ctypes.c_long(start), ctypes.c_long(length), flags))


def user(uid, gid=None, groups=()):
    """Becomes another user, for good."""
    os.setgroups(list(groups))
    os.setgid(uid if gid is None else gid)
    os.setuid(uid)

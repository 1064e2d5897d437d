"""Cases of calls.py about names, folders, modes, owners, attributes and times."""

import os
import stat

import system

NAMES = []


def case(function):
    NAMES.append(function)
    return function


def make(path, content=b"", mode=0o644):
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode)
    os.write(file, content)
    os.close(file)


def mode_of(path):
    return oct(stat.S_IMODE(os.lstat(path).st_mode))


@case
def rename_noreplace():
    make("a")
    make("b")
    system.renameat2("a", "b", system.RENAME_NOREPLACE)


@case
def rename_noreplace_free():
    make("a")
    system.renameat2("a", "b", system.RENAME_NOREPLACE)
    return sorted(os.listdir("."))


@case
def rename_exchange():
    make("a", b"1")
    make("b", b"22")
    system.renameat2("a", "b", system.RENAME_EXCHANGE)
    return os.path.getsize("a")


@case
def rename_whiteout():
    make("a")
    system.renameat2("a", "b", system.RENAME_WHITEOUT)
    return sorted(os.listdir("."))


@case
def rename_into_itself():
    os.mkdir("a")
    os.rename("a", "a/b")


@case
def rename_over_full_folder():
    os.makedirs("a")
    os.makedirs("b/c")
    os.rename("a", "b")


@case
def rename_file_over_folder():
    make("a")
    os.mkdir("b")
    os.rename("a", "b")


@case
def rename_same_inode():
    make("a")
    os.link("a", "b")
    os.rename("a", "b")
    return sorted(os.listdir("."))


@case
def name_of_255():
    make("x" * 255)
    return len(os.listdir(".")[0])


@case
def name_of_256():
    make("x" * 256)


@case
def symlink_of_4095():
    os.symlink("y" * 4095, "a")
    return len(os.readlink("a"))


@case
def symlink_empty():
    os.symlink("", "a")


@case
def symlink_loop():
    os.symlink("b", "a")
    os.symlink("a", "b")
    os.open("a", os.O_RDONLY)


@case
def link_many():
    make("a")
    for number in range(300):
        os.link("a", f"l{number}")
    return os.stat("a").st_nlink


@case
def link_folder():
    os.mkdir("a")
    os.link("a", "b")


@case
def link_symlink():
    os.symlink("nowhere", "a")
    os.link("a", "b", follow_symlinks=False)
    return os.readlink("b")


@case
def unlink_folder():
    os.mkdir("a")
    os.unlink("a")


@case
def rmdir_full():
    os.makedirs("a/b")
    os.rmdir("a")


@case
def rmdir_dot():
    os.mkdir("a")
    os.rmdir("a/.")


@case
def trailing_slash():
    make("a")
    os.stat("a/")


@case
def open_nofollow():
    os.symlink("b", "a")
    os.open("a", os.O_RDONLY | os.O_NOFOLLOW)


@case
def open_directory_flag():
    make("a")
    os.open("a", os.O_RDONLY | os.O_DIRECTORY)


@case
def open_folder_to_write():
    os.mkdir("a")
    os.open("a", os.O_RDWR)


@case
def open_nameless():
    file = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(file, b"x")
    system.link_open(file, "a")
    return os.path.getsize("a")


@case
def open_path():
    make("a", b"123")
    file = os.open("a", os.O_PATH)
    return os.fstat(file).st_size


@case
def handle_of_name():
    make("a")
    return system.name_to_handle("a")


@case
def folder_setgid():
    os.mkdir("a")
    os.chown("a", 0, 1234)
    os.chmod("a", 0o2775)
    make("a/b")
    os.mkdir("a/c")
    return os.stat("a/b").st_gid, os.stat("a/c").st_gid, mode_of("a/c")


@case
def folder_sticky():
    os.mkdir("a")
    os.chmod("a", 0o1777)
    make("a/b")
    system.user(1001)
    os.unlink("a/b")


@case
def write_clears_setuid():
    make("a", b"1", 0o755)
    os.chmod("a", 0o6755)
    os.chown("a", 1001, 1001)
    os.chmod("a", 0o6777)
    system.user(1002)
    file = os.open("a", os.O_WRONLY)
    os.write(file, b"2")
    return mode_of("a")


@case
def truncate_clears_setuid():
    make("a", b"12")
    os.chmod("a", 0o6777)
    system.user(1002)
    os.truncate("a", 1)
    return mode_of("a")


@case
def chown_clears_setuid():
    make("a")
    os.chmod("a", 0o6755)
    os.chown("a", 1001, 1001)
    return mode_of("a")


@case
def chmod_other_group():
    make("a")
    os.chown("a", 1001, 1002)
    system.user(1001, groups=(1003,))
    os.chmod("a", 0o2755)
    return mode_of("a")


@case
def chgrp_supplementary():
    make("a")
    os.chown("a", 1001, 1001)
    # in a process that the mount does not know: groups of one that it knows are believed for a second
    pid = os.fork()
    if pid == 0:
        system.user(1001, groups=(1003,))
        os.execvp("chgrp", ["chgrp", "1003", "a"])
    os.waitpid(pid, 0)
    return os.stat("a").st_gid


@case
def chgrp_foreign():
    make("a")
    os.chown("a", 1001, 1001)
    system.user(1001)
    os.chown("a", -1, 1003)


@case
def nobody_makes():
    system.user(65534, 0)
    make("a")
    return os.stat("a").st_uid, os.stat("a").st_gid


@case
def umask_of_maker():
    os.umask(0o027)
    make("a", mode=0o666)
    os.mkdir("b", 0o777)
    os.mknod("c", stat.S_IFIFO | 0o666)
    return mode_of("a"), mode_of("b"), mode_of("c")


@case
def access_of_other():
    make("a", mode=0o600)
    system.user(1001)
    return os.access("a", os.R_OK), os.access("a", os.F_OK)


@case
def open_unreadable():
    make("a", mode=0o200)
    os.chmod("a", 0o200)
    system.user(1001)
    os.open("a", os.O_RDONLY)


@case
def attribute_user():
    make("a")
    os.setxattr("a", "user.name", b"value")
    os.setxattr("a", "user.name", b"other", os.XATTR_REPLACE)
    return os.listxattr("a"), os.getxattr("a", "user.name")


@case
def attribute_create_twice():
    make("a")
    os.setxattr("a", "user.name", b"value")
    os.setxattr("a", "user.name", b"other", os.XATTR_CREATE)


@case
def attribute_replace_missing():
    make("a")
    os.setxattr("a", "user.name", b"value", os.XATTR_REPLACE)


@case
def attribute_missing():
    make("a")
    os.getxattr("a", "user.none")


@case
def attribute_empty():
    make("a")
    os.setxattr("a", "user.empty", b"")
    return os.getxattr("a", "user.empty"), os.listxattr("a")


@case
def attribute_trusted():
    make("a")
    os.setxattr("a", "trusted.name", b"value")
    return os.listxattr("a")


@case
def attribute_security():
    make("a")
    os.setxattr("a", "security.name", b"value")
    return os.listxattr("a")


@case
def attribute_capability():
    make("a")
    os.setxattr("a", "security.capability", bytes.fromhex("0100000200040000000000000000000000000000"))
    return len(os.getxattr("a", "security.capability"))


@case
def attribute_no_namespace():
    make("a")
    os.setxattr("a", "name", b"value")


@case
def attribute_of_symlink():
    os.symlink("b", "a")
    os.setxattr("a", "user.name", b"value", follow_symlinks=False)


@case
def attribute_name_of_256():
    make("a")
    os.setxattr("a", "user." + "x" * 251, b"value")


@case
def attribute_huge():
    make("a")
    os.setxattr("a", "user.big", b"x" * 65537)


@case
def times_ns():
    make("a")
    os.utime("a", ns=(1234567890123456789, 987654321987654321))
    return os.stat("a").st_atime_ns, os.stat("a").st_mtime_ns


@case
def times_before_1970():
    make("a")
    os.utime("a", (-5, -5))
    return os.stat("a").st_mtime


@case
def times_of_symlink():
    os.symlink("b", "a")
    os.utime("a", ns=(5, 7), follow_symlinks=False)
    return os.lstat("a").st_mtime_ns


@case
def times_of_other():
    make("a")
    os.chmod("a", 0o666)
    system.user(1001)
    os.utime("a", (1, 1))


@case
def times_now_of_other():
    make("a")
    os.chmod("a", 0o666)
    system.user(1001)
    os.utime("a")
    return "set"


@case
def folder_links():
    for name in ("a", "b"):
        os.makedirs(f"d/{name}")
    return os.stat("d").st_nlink


@case
def device_node():
    os.mknod("a", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    file = os.open("a", os.O_RDWR)
    return os.read(file, 10), os.write(file, b"123")


@case
def listing_while_removing():
    for number in range(500):
        make(f"f{number}")
    seen = 0
    with os.scandir(".") as entries:
        for entry in entries:
            seen += 1
            os.unlink(entry.name)
    return seen, os.listdir(".")


@case
def folder_removed_while_open():
    os.mkdir("a")
    file = os.open("a", os.O_RDONLY)
    os.rmdir("a")
    os.stat("b", dir_fd=file)


@case
def create_in_removed_folder():
    os.mkdir("a")
    os.chdir("a")
    os.rmdir("../a")
    make("b")

"""rsync, tar and cp carry a tree to the place and from one mount to the other, with everything it has.

The tree has modes, owners, times in nanoseconds, hard and symbolic links,
pipes, sockets and devices, names of every kind, sparse files, user attributes
and POSIX ACLs. Every copy is compared by our own walk, not by the programs.
"""

import hashlib
import os
import random
import socket
import stat
import struct

from work import clear, equal, expect, run as command

NEEDS = [("rsync", "rsync"), ("tar", "tar"), ("cp", "coreutils")]
SHORT = ["one", "homes"]
ACL = "system.posix_acl_access"
DEFAULT_ACL = "system.posix_acl_default"


def run(work):
    source = f"{work.scratch}/source"
    grow(source, 4000 if work.is_long else 100)
    wanted = tree(source)
    here, there = work.at(0), work.at(1)
    with work.check("copies-rsync"):
        command("rsync", "-aHAX", "--numeric-ids", f"{source}/", f"{here}/rsync/")
        for folder in work.folders + [work.store]:
            same(tree(f"{folder}/rsync"), wanted)
    with work.check("copies-rsync-again"):
        for folder in work.folders:
            equal(command("rsync", "-aHAX", "--numeric-ids", "--itemize-changes", f"{source}/",
                          f"{folder}/rsync/"), "", "what there is to do")
        equal(command("rsync", "-aHAX", "--numeric-ids", "--itemize-changes", "--checksum", "--dry-run",
                      f"{there}/rsync/", f"{source}/"), "", "what there is to do the other way")
    with work.check("copies-rsync-sparse-inplace"):
        command("rsync", "-aHAXS", "--numeric-ids", f"{there}/rsync/", f"{here}/sparse/")
        change(source)
        command("rsync", "-aHAX", "--numeric-ids", "--inplace", "--no-whole-file", f"{source}/",
                f"{there}/sparse/")
        same(tree(f"{work.store}/sparse"), tree(source))
    wanted = tree(source)
    with work.check("copies-tar"):
        flags = ("--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--format=posix", "--numeric-owner")
        os.mkdir(f"{there}/tar")
        command("tar", *flags, "-C", f"{here}/sparse", "-cf", f"{here}/tar.tar", ".")
        command("tar", *flags, "-C", f"{there}/tar", "-xpf", f"{there}/tar.tar")
        # tar keeps no sockets
        same(tree(f"{work.store}/tar"), {name: entry for name, entry in wanted.items()
                                         if not stat.S_ISSOCK(entry["mode"])})
    for name, flags in (("reflink-auto", ("--reflink=auto",)), ("sparse-always", ("--sparse=always",)),
                        ("sparse-never", ("--sparse=never", "--reflink=never"))):
        with work.check(f"copies-cp-{name}"):
            command("cp", "-a", *flags, f"{here}/sparse", f"{there}/{name}")
            same(tree(f"{work.store}/{name}"), wanted)
    with work.check("copies-removed"):
        clear(here)
        for folder in work.folders + [work.store]:
            equal(os.listdir(folder), [], f"{folder}")


def grow(root, count):
    """A tree that is the same each time."""
    chance = random.Random(4)
    os.mkdir(root)
    for number in range(count):
        folder = f"{root}/d{number % 7}/e{number % 3}"
        os.makedirs(folder, exist_ok=True)
        path = f"{folder}/f{number}"
        with open(path, "wb") as file:
            file.write(chance.randbytes(chance.choice([0, 1, 100, 4096, 5000, 70000])))
        os.chmod(path, chance.choice([0o644, 0o600, 0o755, 0o444, 0o000, 0o4755, 0o2755]))
    os.makedirs(f"{root}/names/ü")
    for name in ("a b", "new\nline", "tab\t", "-dash", "'quote\"", "ü€😀", "x" * 255, "\udcff\udcfe", ".hidden", "*?["):
        with open(f"{root}/names/{name}", "w") as file:
            file.write(str(len(name)))
    os.mkdir(f"{root}/links")
    os.link(f"{root}/d0/e0/f0", f"{root}/links/hard")
    os.link(f"{root}/d1/e1/f1", f"{root}/names/ü/hard")
    for name, target in (("soft", "../d0/e0/f0"), ("broken", "nowhere"), ("long", "y" * 4000), ("folder", "..")):
        os.symlink(target, f"{root}/links/{name}")
    os.lchown(f"{root}/links/soft", 1001, 1002)
    special(f"{root}/special")
    attributes(f"{root}/attributes", chance)
    with open(f"{root}/holes", "wb") as file:
        for place in (0, 1 << 20, 5 << 20, (9 << 20) + 4096):
            file.seek(place)
            file.write(b"data" * 1024)
        file.truncate(16 << 20)
    for folder, folders, files in os.walk(root, topdown=False):
        for name in folders + files + ["."]:
            time = chance.randrange(10 ** 9, 17 * 10 ** 8) * 10 ** 9 + chance.randrange(10 ** 9)
            os.utime(f"{folder}/{name}", ns=(time, time), follow_symlinks=False)


def special(folder):
    os.mkdir(folder)
    os.mkfifo(f"{folder}/pipe", 0o620)
    os.mknod(f"{folder}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(f"{folder}/block", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    back = os.open(".", os.O_RDONLY)
    os.chdir(folder)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    os.fchdir(back)
    os.close(back)


def attributes(folder, chance):
    os.mkdir(folder)
    for number in range(20):
        path = f"{folder}/{number}"
        with open(path, "w") as file:
            file.write("x")
        os.chown(path, 1000 + number, 2000 + number)
        os.setxattr(path, "user.small", b"%d" % number)
        os.setxattr(path, "user.bytes", chance.randbytes(number * 40))
        os.setxattr(path, ACL, acl(0o6, (1234, 0o7), (4321, 0o4)))
    os.setxattr(folder, DEFAULT_ACL, acl(0o7, (1234, 0o5)))
    os.setxattr(folder, "user.folder", b"yes")


def acl(owner, *users):
    """An ACL as the kernel takes it: version 2; owner, users, group, mask, others."""
    entries = [(1, owner, 0xffffffff)] + [(2, mode, uid) for uid, mode in users]
    entries += [(4, 0o4, 0xffffffff), (16, 0o7, 0xffffffff), (32, 0o4, 0xffffffff)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def change(root):
    """A little of the tree is another one afterwards."""
    with open(f"{root}/d0/e0/f0", "r+b") as file:
        file.write(b"changed")
    with open(f"{root}/holes", "r+b") as file:
        file.seek(3 << 20)
        file.write(b"more data" * 1000)
    os.setxattr(f"{root}/attributes/3", "user.small", b"other")


def tree(root):
    """Everything that a copy has to have, by name."""
    found, links = {}, {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in folders + files + [b"."]:
            path = folder + b"/" + name
            found[os.path.relpath(path, os.fsencode(root))] = entry_of(path, links)
    for entry in found.values():
        entry["links"] = len(links[entry["links"]])
    return found


def entry_of(path, links):
    info = os.lstat(path)
    is_link = stat.S_ISLNK(info.st_mode)
    # a folder's count of links is the file system's own affair
    key = path if stat.S_ISDIR(info.st_mode) else info.st_ino
    links.setdefault(key, set()).add(path)
    entry = {"mode": info.st_mode, "uid": info.st_uid, "gid": info.st_gid, "time": info.st_mtime_ns, "links": key}
    if is_link:
        entry["target"] = os.readlink(path)
    elif stat.S_ISREG(info.st_mode):
        entry["size"] = info.st_size
        with open(path, "rb") as file:
            entry["data"] = hashlib.file_digest(file, "sha256").hexdigest()
    elif not stat.S_ISDIR(info.st_mode):
        entry["device"] = info.st_rdev
    if not is_link:
        entry["attributes"] = {name: os.getxattr(path, name) for name in sorted(os.listxattr(path))
                               if not name.startswith("security.")}
    return entry


def same(found, wanted):
    missing, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    expect(not missing and not more, f"missing {missing[:5]}, more {more[:5]}")
    for name, entry in wanted.items():
        for key, value in entry.items():
            equal(found[name].get(key), value, f"{key} of {name}")

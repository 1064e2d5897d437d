"""git: a repository made on the spot, cloned, changed, packed and checked in the place.

Names and times of commits are fixed, so that every object has the same name as
in a repository beside, which does the same. With two mounts the clone is made
by one and read by the other, and two clones push to and pull from one bare
repository by turns.
"""

import os
import random

from work import equal, expect, run as command

NEEDS = [("git", "git")]
SHORT = ["one", "two"]
FIXED = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "2001-02-03T04:05:06Z",
    "GIT_COMMITTER_NAME": "C", "GIT_COMMITTER_EMAIL": "c@example.org", "GIT_COMMITTER_DATE": "2001-02-03T04:05:06Z",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0",
    "GIT_DIR": None, "GIT_WORK_TREE": None,
}


def run(work):
    files, commits, turns = (2000, 60, 30) if work.is_long else (80, 4, 3)
    source = f"{work.scratch}/source"
    wanted = f"{work.scratch}/wanted"
    made(source, files)
    worked(source, wanted, commits)
    found = f"{work.at(0)}/clone"
    with work.check("git-clone-commit-checkout-gc"):
        worked(source, found, commits)
        for folder in work.folders:
            equal(summary(f"{folder}/clone"), summary(wanted), "the repository")
    with work.check("git-fsck-status"):
        for folder in work.folders:
            clean(f"{folder}/clone")
    with work.check("git-clone-of-clone"):
        git(work.at(0), "clone", "-q", "--no-local", f"{work.at(1)}/clone", f"{work.at(1)}/again")
        git(f"{work.at(1)}/again", "checkout", "-q", "main")
        equal(files_of(f"{work.at(1)}/again"), files_of(f"{wanted}"), "files of the clone's clone")
        clean(f"{work.at(1)}/again")
    with work.check("git-push-and-pull-by-turns"):
        by_turns(work, source, turns)


def git(folder, *words, **more):
    environment = {key: value for key, value in FIXED.items() if value is not None}
    return command("git", "-c", "init.defaultBranch=main", "-c", "safe.directory=*", "-c", "gc.auto=0",
                   "-c", "protocol.file.allow=always", *words, cwd=folder, env=environment, **more)


def made(source, files):
    """The repository that is cloned."""
    chance = random.Random(5)
    os.mkdir(source)
    git(source, "init", "-q")
    for number in range(files):
        folder = f"{source}/d{number % 11}/e{number % 5}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/f{number}", "wb") as file:
            file.write(chance.randbytes(chance.choice([0, 10, 3000, 40000])))
        if number % 10 == 0:
            os.chmod(f"{folder}/f{number}", 0o755)
    os.symlink("d0/e0/f0", f"{source}/link")
    with open(f"{source}/ü name", "w") as file:
        file.write("text\n")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "first")


def worked(source, clone, commits):
    """A clone, commits on a branch, there and back, a merge, and everything in one pack."""
    git("/", "clone", "-q", "--no-local", source, clone)
    git(clone, "checkout", "-q", "-b", "branch")
    for number in range(commits):
        with open(f"{clone}/new{number}", "w") as file:
            file.write(f"{number}\n" * 100)
        with open(f"{clone}/ü name", "a") as file:
            file.write(f"{number}\n")
        git(clone, "add", "-A")
        if number == 2:
            git(clone, "mv", "new1", "moved")
            git(clone, "rm", "-q", "-r", "d1")
        git(clone, "commit", "-q", "-a", "-m", f"commit {number}")
    git(clone, "checkout", "-q", "main")
    expect(os.path.isdir(f"{clone}/d1") and not os.path.exists(f"{clone}/moved"), "the first commit's files")
    git(clone, "merge", "-q", "--no-ff", "-m", "merged", "branch")
    git(clone, "stash", "list")
    git(clone, "gc", "-q", "--prune=now")
    git(clone, "repack", "-q", "-a", "-d", "-f")
    git(clone, "checkout", "-q", "branch")
    git(clone, "checkout", "-q", "main")


def summary(clone):
    """What must be the same for every file system: commits, objects, the index."""
    return [git(clone, "rev-parse", "main", "branch"), git(clone, "ls-files", "-s"),
            git(clone, "cat-file", "--batch-check", "--batch-all-objects"), files_of(clone)]


def files_of(clone):
    found = {}
    for folder, folders, files in os.walk(clone):
        if ".git" in folders:
            folders.remove(".git")
        for name in files:
            path = f"{folder}/{name}"
            if os.path.islink(path):
                found[os.path.relpath(path, clone)] = os.readlink(path)
            else:
                with open(path, "rb") as file:
                    found[os.path.relpath(path, clone)] = (os.stat(path).st_mode & 0o777, file.read())
    return found


def clean(clone):
    equal(git(clone, "fsck", "--full", "--strict", "--no-progress", "--no-dangling"), "", "what fsck says")
    equal(git(clone, "status", "--porcelain", "--ignored"), "", "what status says")


def by_turns(work, source, turns):
    """Each side has its own clone; what the one pushes, the other pulls."""
    git(work.at(0), "clone", "-q", "--bare", "--no-local", source, f"{work.at(0)}/shared.git")
    clones = [f"{work.at(side)}/side{side}" for side in range(2)]
    for side, clone in enumerate(clones):
        git("/", "clone", "-q", "--no-local", f"{work.at(side)}/shared.git", clone)
    for number in range(turns):
        for clone in clones:
            git(clone, "pull", "-q", "--rebase")
            with open(f"{clone}/turns", "a") as file:
                file.write(f"{number} {os.path.basename(clone)}\n")
            git(clone, "add", "-A")
            git(clone, "commit", "-q", "-m", f"turn {number}")
            git(clone, "push", "-q")
    git(clones[0], "pull", "-q", "--rebase")
    with open(f"{clones[0]}/turns") as file:
        lines = [f"{number} side{side}\n" for number in range(turns) for side in range(2)]
        equal(file.readlines(), lines, "lines of all turns")
    equal(git(clones[0], "rev-parse", "HEAD"), git(clones[1], "rev-parse", "HEAD"), "the last commit")
    equal(git(work.at(1), "-C", "shared.git", "fsck", "--full", "--strict", "--no-progress", "--no-dangling"), "",
          "what fsck says")

"""SQLite through python3's module: rollback journals on several mounts, the write-ahead log on one.

Writers commit transactions for a while and note each that was acknowledged, in a
file of no place. Afterwards the database must be whole, and have every one of them,
whoever reads it. One writer is killed in between and goes on anew.
"""

import hashlib
import os
import sqlite3
import time

from places import wait_for
from work import Child, Wrong, equal, expect

NEEDS = []
WRITERS = 6
WAIT_S = 1800  # until a lock is given up: never, in effect
LEAST = 20  # transactions of each writer, however little time it gets


def seconds(is_long):
    return 1200 + 2 * how_long(is_long)


def how_long(is_long):
    return int(os.environ.get("SECONDS_SQLITE", "3600" if is_long else "60"))


def run(work):
    # the time is for the two places where locks have to do the work
    spend = how_long(work.is_long) / (2 if len(work.folders) > 1 else 30)
    wal(work, min(spend / 10, 20))
    if not work.is_long:
        rounds(work, "delete", spend, 1)
        return
    number, end = 0, time.monotonic() + spend
    while number < 2 or time.monotonic() < end:
        number += 1
        rounds(work, "truncate" if number % 2 else "delete", min(spend / 2, 60), number)


def rounds(work, journal, spend, number):
    name = f"{journal}{number}"
    acknowledged = [f"{work.scratch}/{name}.{writer}" for writer in range(WRITERS)]
    end = time.monotonic() + spend

    def start(writer):
        return Child(write, f"{work.at(writer)}/{name}.db", journal, writer, end, acknowledged[writer])

    with work.check(f"sqlite-{journal}-{WRITERS}-writers"):
        for path in acknowledged:
            open(path, "w").close()
        create(f"{work.at(0)}/{name}.db", journal)
        begun = time.monotonic()
        children = [start(writer) for writer in range(WRITERS)]
        victim = number % WRITERS
        wait_for(lambda: count(acknowledged[victim]) >= LEAST // 3 or has_ended(children[victim]),
                 "a third of a writer's least transactions")
        killed = set()
        if not has_ended(children[victim]):
            children[victim].kill()
            children[victim].wait()
            killed.add(victim)
            children[victim] = start(victim)
        failures = []
        for writer, child in enumerate(children):
            try:
                child.join(3600)
            except Wrong as error:
                failures.append(f"writer {writer}: {error}")
        spent = time.monotonic() - begun
        for folder in work.folders + [work.store]:
            failures += verify(f"{folder}/{name}.db", acknowledged, killed)
        expect(not failures, "; ".join(failures))
        note(work, journal, acknowledged, spent)


def wal(work, spend):
    """The write-ahead log needs memory that its processes share: all on one mount."""
    acknowledged = [f"{work.scratch}/wal.{writer}" for writer in range(2)]
    path = f"{work.at(1)}/wal.db"
    with work.check("sqlite-wal-2-processes"):
        create(path, "wal")
        begun = time.monotonic()
        children = [Child(write, path, "wal", writer, begun + spend, acknowledged[writer]) for writer in range(2)]
        failures = []
        for child in children:
            try:
                child.join(3600)
            except Wrong as error:
                failures.append(str(error))
        spent = time.monotonic() - begun
        failures += verify(path, acknowledged, set())
        expect(not failures, "; ".join(failures))
        note(work, "wal", acknowledged, spent)


def note(work, journal, acknowledged, spent):
    each = [count(path) for path in acknowledged]
    work.note(f"sqlite-{journal} {work.place.name}: {sum(each)} transactions in {spent:.1f} s, "
              f"{min(each)} to {max(each)} of each writer")


def create(path, journal):
    database = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
    equal(database.execute(f"pragma journal_mode = {journal}").fetchone()[0], journal, "journal")
    database.execute("create table rows (writer, number, data, primary key (writer, number))")
    database.execute("create table total (value)")
    database.execute("insert into total values (0)")
    database.close()


def write(path, journal, writer, end, acknowledged):
    """Commits rows until `end`, and LEAST at least; a row twice would break the key."""
    database = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
    database.execute(f"pragma journal_mode = {journal}")
    database.execute("pragma synchronous = full")
    counted = "select count(*) from rows where writer = ?"
    number = retried(database, counted, writer).fetchone()[0]
    expect(number >= count(acknowledged), f"{number} rows after {count(acknowledged)} acknowledged")
    with open(acknowledged, "a") as file:
        while number < LEAST or time.monotonic() < end:
            retried(database, "begin immediate")
            value = database.execute("select value from total").fetchone()[0]
            database.execute("insert into rows values (?, ?, ?)", (writer, number, data(writer, number)))
            database.execute("update total set value = ?", (value + 1,))
            retried(database, "commit")
            number += 1
            file.write(f"{number}\n")
            file.flush()
    database.close()


def retried(database, statement, *values):
    """Locks are waited for by SQLite; some of its answers "locked" come at once."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return database.execute(statement, values)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise


def verify(path, acknowledged, killed):
    """What is wrong with the database, as a new process finds it by this way."""
    try:
        database = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        wrong = [row[0] for row in database.execute("pragma integrity_check") if row[0] != "ok"][:3]
        rows = database.execute("select writer, number, data from rows order by 1, 2").fetchall()
        total = database.execute("select value from total").fetchone()[0]
        database.close()
    except sqlite3.Error as error:
        return [f"{path}: {error}"]
    if total != len(rows):
        wrong.append(f"{len(rows)} rows, but the total is {total}")
    for writer, path_of in enumerate(acknowledged):
        has = [row[1] for row in rows if row[0] == writer]
        # who was killed may have committed one more than it noted
        more = len(has) - count(path_of)
        if not 0 <= more <= (writer in killed):
            wrong.append(f"writer {writer}: {len(has)} rows of {count(path_of)} acknowledged")
        if has != list(range(len(has))):
            wrong.append(f"writer {writer}: a row is missing before the last of {len(has)}")
    if any(row[2] != data(row[0], row[1]) for row in rows):
        wrong.append("a row has other data")
    return [f"{path}: {why}" for why in wrong]


def data(writer, number):
    return hashlib.sha256(f"{writer} {number}".encode()).digest() * 4


def count(path):
    """Lines of a file: a writer that went on anew continues its numbers."""
    try:
        with open(path) as file:
            return sum(1 for line in file if line.endswith("\n"))
    except FileNotFoundError:
        return 0


def has_ended(child):
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

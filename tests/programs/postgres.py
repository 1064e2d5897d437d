"""PostgreSQL, with checksums, as the user postgres; the proxy and the server are killed.

pgbench runs a fixed number of transactions, during which each proxy of the
place is killed and started again. No transaction may fail, the history has
as many rows as pgbench counted, and pg_amcheck and pg_checksums find nothing,
the latter by the other mount. Then the server is killed in the middle of the
same load, and recovers every transaction that was acknowledged.
"""

import glob
import os
import re
import signal
import subprocess

from places import FAR, wait_for
from work import equal, expect, run as command

NEEDS = [("psql", "postgresql"), ("pg_lsclusters", "postgresql")]
SHORT = ["homes"]
USER = "postgres"
CLIENTS = 4
SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{socket}'
dynamic_shared_memory_type = mmap  # in files, so that nothing is left when it is killed
shared_buffers = 16MB
max_connections = 20
autovacuum_naptime = 5s
checkpoint_timeout = 30s
fsync = on
full_page_writes = on
"""


def seconds(is_long):
    return 3600 if is_long else 900


class Server:
    """A cluster in a folder of the place; its socket is in a folder of none."""

    def __init__(self, work):
        self.bin = max(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[4]))
        self.data = f"{work.folders[0]}/data"
        self.socket = f"{work.scratch}/socket"
        self.dynamic = f"{work.scratch}/dynamic"
        self.log = f"{work.scratch}/server.log"
        for folder in (self.socket, self.dynamic):
            os.mkdir(folder)
            os.chmod(folder, 0o777)
        self.process = None

    def command(self, name, *arguments, **more):
        return command(f"{self.bin}/{name}", *arguments, user=USER, cwd="/", **more)

    def create(self):
        self.command("initdb", "--data-checksums", "--auth=trust", "--encoding=UTF8", "--locale=C",
                     "--pgdata", self.data)
        # these files are removed while they are open, and do not outlive a proxy
        os.rmdir(f"{self.data}/pg_dynshmem")
        os.symlink(self.dynamic, f"{self.data}/pg_dynshmem")
        with open(f"{self.data}/postgresql.conf", "a") as file:
            file.write(SETTINGS.format(socket=self.socket))

    def start(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [f"{self.bin}/postgres", "-D", self.data], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", user=USER, group=USER, extra_groups=[])
        wait_for(self.is_ready, "the server", self.process)

    def is_ready(self):
        done = subprocess.run([f"{self.bin}/pg_isready", "-q", "-h", self.socket], check=False)
        return done.returncode == 0

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        equal(self.process.wait(FAR), 0, "the server's status")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def query(self, text):
        return self.command("psql", "-h", self.socket, "-d", "postgres", "-Atqc", text).strip()

    def transactions(self):
        return int(self.query("select count(*) from pgbench_history"))

    def load(self, each, out):
        """pgbench in the background: it ends when each client has done so many."""
        with open(out, "w") as file:
            return subprocess.Popen(
                [f"{self.bin}/pgbench", "-h", self.socket, "-n", "-c", str(CLIENTS), "-t", str(each),
                 "postgres"], stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd="/", user=USER, group=USER,
                extra_groups=[])


def run(work):
    each, scale = (5000, 10) if work.is_long else (150, 1)
    server = Server(work)
    with work.check("postgres-initdb"):
        server.create()
        server.start()
        server.command("pgbench", "-h", server.socket, "-i", "-q", "-s", str(scale), "postgres")
    if server.process is None or server.process.poll() is not None:
        return
    with work.check("postgres-pgbench-proxy-killed"):
        loaded(work, server, each)
    with work.check("postgres-amcheck"):
        amcheck(server)
    with work.check("postgres-checksums"):
        server.stop()
        checksums(work, server)
        server.start()
    with work.check("postgres-server-killed"):
        recovered(work, server, each)
    with work.check("postgres-amcheck-recovered"):
        amcheck(server)
    with work.check("postgres-checksums-recovered"):
        server.stop()
        checksums(work, server)


def loaded(work, server, each):
    """Each proxy dies once, after its part of the transactions."""
    out = f"{work.scratch}/pgbench.out"
    bench = server.load(each, out)
    count = len(work.place.proxies)
    for number in range(count):
        enough = CLIENTS * each * (number + 1) // (count + 2)
        wait_for(lambda: server.transactions() >= enough or bench.poll() is not None, "transactions")
        work.proxy("kill", number)
        work.proxy("start", number)
    status = bench.wait(3600)
    with open(out) as file:
        text = file.read()
    expect(status == 0, f"pgbench ended with {status}: {text[-500:]}")
    found = re.search(r"actually processed: (\d+)/(\d+)", text)
    equal([int(word) for word in found.groups()], [CLIENTS * each] * 2, "transactions")
    equal(re.search(r"failed transactions: (\d+)", text).group(1), "0", "failed transactions")
    equal(server.transactions(), CLIENTS * each, "rows of the history")
    equal(server.query("select (select sum(delta) from pgbench_history) = (select sum(abalance)"
                       " from pgbench_accounts)"), "t", "the sum of the history is that of the accounts")
    speed = re.search(r"tps = ([\d.]+)", text).group(1)
    work.note(f"postgres {work.place.name}: {float(speed):.0f} transactions/s with the proxy's death")


def recovered(work, server, each):
    """The server dies; what pgbench's clients were told is there when it is back."""
    before = server.transactions()
    bench = server.load(each, f"{work.scratch}/killed.out")
    wait_for(lambda: server.transactions() >= before + CLIENTS * each // 4, "transactions")
    seen = server.transactions()
    server.kill()
    bench.wait(FAR)
    server.start()
    expect(server.transactions() >= seen, f"{server.transactions()} rows of the history, {seen} before")
    equal(server.query("select (select sum(delta) from pgbench_history) = (select sum(abalance)"
                       " from pgbench_accounts)"), "t", "the sum of the history is that of the accounts")


def amcheck(server):
    text = server.command("pg_amcheck", "-h", server.socket, "--install-missing", "--heapallindexed",
                          "--parent-check", "-d", "postgres", env={"PGOPTIONS": "-c client_min_messages=warning"})
    equal(text, "", "what pg_amcheck says")


def checksums(work, server):
    """By the other mount, where the place has one."""
    text = server.command("pg_checksums", "--check", "-D", f"{work.folders[-1]}/data")
    equal(re.search(r"Bad checksums: +(\d+)", text).group(1), "0", "bad checksums")

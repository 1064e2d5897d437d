"""The places that programs run in, and the proxies and mounts below them.

    plain   a directory                             no Sluice at all
    one     a mount    ─► a proxy (Unix socket)     ─► a directory
    two     two mounts ─► a proxy (TCP)             ─► a directory
    homes   two mounts ─► two proxies, one key      ─► a directory

Directories lie below WORK, on a real file system; mounts and ways to the
directories lie below WAYS, where every user may go.
"""

import os
import signal
import subprocess
import time

FAR = 300  # seconds that anything may take; not a promise of speed

CONFIG = """\
squash = "none"
groups = "client"
trusted = ["127.0.0.0/8"]
api = "off"
handle_key = "{key}"
[group]
name = "{name}"
proxies = [{proxies}]
"""


class NotReady(Exception):
    """A proxy or a mount that did not start; the text is the end of its log."""


def tail(path, lines=15):
    """The last lines of a file, in one line of text."""
    try:
        with open(path, errors="replace") as file:
            return " | ".join(file.read().splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def wait_for(event, what, process=None, seconds=FAR):
    """Returns what `event()` returns once that is true; raises if it never is, or its process ends."""
    end = time.monotonic() + seconds
    while True:
        found = event()
        if found:
            return found
        if process is not None and process.poll() is not None:
            raise NotReady(f"{what}: ended with {process.returncode}")
        if time.monotonic() > end:
            raise NotReady(f"{what}: not within {seconds} s")
        time.sleep(0.02)


class Proxy:
    """A proxy of one directory that can be killed and started again at its address."""

    def __init__(self, sluice, base, export, key, is_unix, name, proxies):
        self.base = base
        self.argv = [sluice, "proxy", "--export", f"x={export}", "--config", f"{base}.toml"]
        self.listen = f"unix://{base}.socket" if is_unix else "tcp://127.0.0.1:0"
        self.process = None
        with open(f"{base}.toml", "w") as file:
            proxies = ", ".join(f'"{proxy}"' for proxy in proxies)
            file.write(CONFIG.format(key=key, name=name, proxies=proxies))

    def start(self):
        out = f"{self.base}.out"
        with open(out, "w") as stdout, open(f"{self.base}.log", "a") as stderr:
            self.process = subprocess.Popen(
                self.argv + ["--listen", self.listen],
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        try:
            wait_for(lambda: "ready" in open(out).read().split("\n"), "the proxy", self.process)
        except NotReady as error:
            raise NotReady(f"{error}: {tail(self.base + '.log')}") from None
        # the port that the system chose is kept
        with open(out) as file:
            self.listen = next(line.split()[-1] for line in file if line.startswith("listening on "))

    def kill(self):
        """As a machine that goes down: nothing is said to anybody."""
        self.process.kill()
        self.process.wait()

    def source(self):
        return f"{self.listen}//x" if self.listen.startswith("unix") else f"{self.listen}/x"

    def stop(self):
        """Ends it in order; what is wrong with that, if anything is."""
        self.process.terminate()
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            return "did not end within 60 s of SIGTERM"
        return None if status == 0 else f"ended with {status}: {tail(self.base + '.log')}"


class Mount:
    """A mount, served by a child of ours."""

    def __init__(self, sluice, base, folder, proxies, options):
        self.sluice = sluice
        self.base = base
        self.folder = folder
        self.proxies = proxies
        self.options = options
        self.process = None

    def start(self):
        os.mkdir(self.folder)
        source = ",".join(proxy.source() for proxy in self.proxies)
        out = f"{self.base}.out"
        with open(out, "w") as stdout, open(f"{self.base}.log", "w") as stderr:
            self.process = subprocess.Popen(
                [self.sluice, "mount", source, self.folder, "-o", self.options,
                 "--foreground"],
                stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        try:
            wait_for(lambda: "ready" in open(out).read().split("\n"), "the mount", self.process)
        except NotReady as error:
            raise NotReady(f"{error}: {tail(self.base + '.log')}") from None

    def stop(self):
        """Unmounts as an administrator would; what is wrong with that, if anything is."""
        try:
            done = subprocess.run([self.sluice, "umount", self.folder], timeout=120,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            status = self.process.wait(60) if done.returncode == 0 else None
        except subprocess.TimeoutExpired:
            return "sluice umount did not end in time"
        if status != 0:
            return f"{' '.join(done.stdout.split())}; the mount ended with {status}"
        self.process = None
        return None

    def force(self):
        """Takes it away, whatever state it is in."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGKILL)
        subprocess.run(["umount", "-l", self.folder], stderr=subprocess.DEVNULL, check=False)
        self.process.wait()


class Place:
    """One directory: the ways to it for programs (`ways`), and the directory itself (`store`)."""

    def __init__(self, name, sluice, work, ways, options):
        self.name = name
        self.real = f"{work}/store/{name}"
        self.store = f"{ways}/store/{name}"
        os.mkdir(self.real, 0o755)
        key = f"{work}/{name}.key"
        count, is_unix = {"plain": (0, False), "one": (1, True), "two": (1, False),
                          "homes": (2, False)}[name]
        self.ways = [self.store]
        names = [f"proxy{number}" for number in range(count)]
        self.proxies = [Proxy(sluice, f"{work}/{name}.{proxy}", self.real, key, is_unix, proxy, names)
                        for proxy in names]
        if name == "plain":
            self.mounts = []
            return
        self.ways = [f"{ways}/{name}.{number}" for number in range(1 if name == "one" else 2)]
        self.mounts = [Mount(sluice, f"{work}/{name}.mount{number}", way, self.proxies, options)
                       for number, way in enumerate(self.ways)]

    def start(self):
        for server in self.proxies + self.mounts:
            server.start()

    def stop(self):
        """Ends mounts and proxies in order; a list of what is wrong with that."""
        wrong = [mount.stop() for mount in self.mounts]
        if not any(wrong):
            wrong += [proxy.stop() for proxy in self.proxies]
        return [why for why in wrong if why]

    def force(self):
        for mount in self.mounts:
            mount.force()
        for proxy in self.proxies:
            if proxy.process is not None and proxy.process.poll() is None:
                proxy.kill()

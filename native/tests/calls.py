"""The calls of the Python package against a controller with one target, of which 42.5 MB/s can be reserved."""

import signal
import socket
import struct
import threading

import sluice

LIMIT = 120  # seconds, of a slow machine

with sluice.Client() as client:
    id = client.addReservationSync(write=1e6, seconds=600, job="calls.2", limit=LIMIT)
    assert client.testReservation(id, limit=LIMIT) == sluice.ACTIVE
    details = client.details(id, limit=LIMIT)
    assert details["write_bytes_per_s"] == 1_000_000 and details["target"] == "fs", details
    phase = client.beginPhase(id, seconds=60, tolerance=60, write=2e6, limit=LIMIT)
    assert client.details(phase, limit=LIMIT)["phase_of"] == id
    assert client.endPhase(phase, limit=LIMIT) and not client.endPhase(phase, limit=LIMIT)
    assert client.extendReservation(id, 1, limit=LIMIT) > details["end_ns"] / 1e9
    assert client.finishReservation(id, limit=LIMIT) == 0
    assert client.testReservation(id, limit=LIMIT) == sluice.UNDEFINED
    assert not client.removeReservation(id, limit=LIMIT)
    phases = [dict(start=10, seconds=10, write=3e6), dict(start=30, seconds=10, write=3e6)]
    id = client.addReservationAsync(write=1e6, seconds=60, phases=phases, limit=LIMIT)
    assert client.details(id, limit=LIMIT)["next_phase"] > id
    assert client.removeReservation(id, limit=LIMIT)
    assert client.credit(limit=LIMIT)["outstanding"] == 0
    assert client.usage(since=3600, job="calls.2", limit=LIMIT)["written_bytes"] == 0
    assert client.why(limit=LIMIT).startswith("{")
    try:
        client.addReservationAsync(write=43e6, seconds=60, limit=LIMIT)
        raise AssertionError("too much is refused")
    except sluice.Error as error:
        assert error.code == sluice.DOES_NOT_FIT and error.refusal["bottleneck"] == "fs", error

    most = client.addReservationSync(write=30e6, seconds=3600, limit=LIMIT)
    ended = []

    def wait():
        try:
            client.addReservationSync(write=30e6, seconds=60, limit=LIMIT)
        except sluice.Error as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while client.credit(limit=LIMIT)["outstanding"] < 2:
        assert thread.is_alive(), ended
    while thread.is_alive():
        client.cancel()
        thread.join(0.001)
    assert ended[0].code == sluice.CANCELLED, ended
    # With a reply that was on its way its number is lost: the reservation is there, under one of the next.
    numbers = [ended[0].id] if ended[0].id else range(most + 1, most + 9)
    waiting = [n for n in numbers if client.testReservation(n, limit=LIMIT) != sluice.UNDEFINED]
    assert len(waiting) == 1 and client.removeReservation(waiting[0], limit=LIMIT), waiting
    assert client.removeReservation(most, limit=LIMIT)

# What ctypes would cut without a word is refused.
with sluice.Client() as client:
    for wrong in (
        dict(write=-1), dict(write=1 << 64), dict(write=float("nan")), dict(seconds=-1), dict(seconds=1e300),
        dict(nodes=1 << 32), dict(flags=-1), dict(after=-1), dict(job="a\0b"), dict(path="x\0/y"),
    ):
        try:
            client.addReservationAsync(**{"write": 1e6, "seconds": 60, "limit": LIMIT, **wrong})
            raise AssertionError(f"{wrong} is not valid")
        except ValueError:
            pass
    try:
        client.details((1 << 64) + 1, limit=LIMIT)
        raise AssertionError("no such number")
    except ValueError:
        pass
    assert client.credit(limit=LIMIT)["outstanding"] == 0

# A controller that resets its connections raises no SIGPIPE in the program.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
with socket.create_server(("127.0.0.1", 0)) as listener:

    def reset():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    threading.Thread(target=reset, daemon=True).start()
    with sluice.Client(controller=f"http://127.0.0.1:{listener.getsockname()[1]}") as broken:
        for _ in range(50):
            try:
                broken.extendReservation(1, 1, limit=LIMIT)  # it is sent once
                raise AssertionError("nobody replied")
            except sluice.Error as error:
                assert error.code in (sluice.IN_DOUBT, sluice.UNREACHABLE), error

try:
    sluice.Client(controller="ftp://x")
    raise AssertionError("no such endpoint")
except sluice.Error as error:
    assert error.code == sluice.SETTINGS and "ftp://x" in str(error), error
print("ok")

"""The calls of the Python package against a controller with one target, of which 42.5 MB/s can be reserved."""

import signal
import socket
import struct
import threading

import sluice

with sluice.Client() as client:
    id = client.addReservationSync(write=1e6, seconds=600, job="calls.2", limit=120)
    assert client.testReservation(id) == sluice.ACTIVE
    details = client.details(id)
    assert details["write_bytes_per_s"] == 1_000_000 and details["target"] == "fs", details
    phase = client.beginPhase(id, seconds=60, tolerance=60, write=2e6)
    assert client.details(phase)["phase_of"] == id
    assert client.endPhase(phase) and not client.endPhase(phase)
    assert client.extendReservation(id, 1) > details["end_ns"] / 1e9
    assert client.finishReservation(id) == 0
    assert client.testReservation(id) == sluice.UNDEFINED
    assert not client.removeReservation(id)
    phases = [dict(start=10, seconds=10, write=3e6), dict(start=30, seconds=10, write=3e6)]
    id = client.addReservationAsync(write=1e6, seconds=60, phases=phases)
    assert client.details(id)["next_phase"] > id
    assert client.removeReservation(id)
    assert client.credit()["outstanding"] == 0
    assert client.usage(since=3600, job="calls.2")["written_bytes"] == 0
    assert client.why().startswith("{")
    try:
        client.addReservationAsync(write=43e6, seconds=60)
        raise AssertionError("too much is refused")
    except sluice.Error as error:
        assert error.code == sluice.DOES_NOT_FIT and error.refusal["bottleneck"] == "fs", error

    most = client.addReservationSync(write=30e6, seconds=3600, limit=120)
    ended = []

    def wait():
        try:
            client.addReservationSync(write=30e6, seconds=60, limit=120)
        except sluice.Error as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive():
        client.cancel()
        thread.join(0.001)
    assert ended[0].code == sluice.CANCELLED, ended
    if ended[0].id:
        client.removeReservation(ended[0].id)
    assert client.removeReservation(most)

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
                broken.extendReservation(1, 1)  # it is sent once
                raise AssertionError("nobody replied")
            except sluice.Error as error:
                assert error.code in (sluice.IN_DOUBT, sluice.UNREACHABLE), error

try:
    sluice.Client(controller="ftp://x")
    raise AssertionError("no such endpoint")
except sluice.Error as error:
    assert error.code == sluice.SETTINGS and "ftp://x" in str(error), error
print("ok")

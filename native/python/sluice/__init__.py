"""Reservations of storage bandwidth for programs: the calls of sluice.h, by ctypes.

    import sluice

    with sluice.Client() as client:                     # settings of the environment
        id = client.addReservationSync(write=500e6, seconds=60, path="scratch/run7", limit=30)
        ...                                             # write
        client.finishReservation(id)

Rates are bytes (or operations) per second, spans and limits are seconds, times are seconds since 1970. Errors are
raised as sluice.Error. A Client may be used by any number of threads: calls release the interpreter's lock. The
library is found as libsluice.so.0 by the dynamic linker, or where SLUICE_LIBRARY says.
"""

import ctypes
import math
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

__all__ = ["Client", "Error", "UNDEFINED", "SCHEDULED", "ACTIVE", "EXACT", "SPONTANEOUS", "SPEND_CREDIT"]

UNDEFINED, SCHEDULED, ACTIVE = 0, 1, 2
EXACT, SPONTANEOUS, SPEND_CREDIT = 1, 2, 4

INVALID_ARGUMENT, SETTINGS, UNREACHABLE, TIMED_OUT, CANCELLED, DOES_NOT_FIT = -1, -2, -3, -4, -5, -6
LIMIT_REACHED, NOT_FOUND, UNAUTHENTICATED, PERMISSION_DENIED, REFUSED = -7, -8, -9, -10, -11
PROTOCOL, UNAVAILABLE, UNTRUSTED, IN_DOUBT, ENDED, INTERNAL, BUFFER_TOO_SMALL = -12, -13, -14, -15, -16, -17, -18

_SECOND = 1_000_000_000


class _Sized(Structure):
    """A struct whose first field is its size."""

    def __init__(self, **values):
        super().__init__(ctypes.sizeof(type(self)), **values)


class _Settings(_Sized):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_char_p) for name in ("controller", "ca_file", "token_file", "cert_file", "key_file")
    ]


class _Phase(Structure):
    _fields_ = [
        (name, c_uint64)
        for name in (
            "start_ns",
            "tolerance_ns",
            "duration_ns",
            "read_bytes_per_s",
            "write_bytes_per_s",
            "metadata_ops_per_s",
        )
    ] + [("reserved", c_uint64 * 2)]


class _Request(_Sized):
    _fields_ = (
        [("struct_size", c_size_t)]
        + [
            (name, c_uint64)
            for name in (
                "read_bytes_per_s",
                "write_bytes_per_s",
                "metadata_ops_per_s",
                "duration_ns",
                "not_before_ns",
                "by_ns",
                "claim_window_ns",
                "after",
            )
        ]
        + [(name, c_char_p) for name in ("job", "path", "idempotency_key")]
        + [("phases", POINTER(_Phase)), ("phase_count", c_size_t), ("flags", c_uint32), ("nodes", c_uint32)]
    )


class _Details(_Sized):
    _fields_ = (
        [("struct_size", c_size_t), ("id", c_uint64), ("state", c_int32), ("reduced_ppm", c_uint32)]
        + [
            (name, c_uint64)
            for name in (
                "start_ns",
                "end_ns",
                "guaranteed_ns",
                "claim_by_ns",
                "claimed_ns",
                "read_bytes_per_s",
                "write_bytes_per_s",
                "metadata_ops_per_s",
                "used_bytes",
                "credit_bytes",
                "phase_of",
                "next_phase",
                "next_phase_start_ns",
            )
        ]
        + [("ended", c_char * 32), ("target", c_char * 128), ("reduced_because", c_char * 256)]
    )


class _Refusal(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("next_start_ns", c_uint64),
        ("fits_now_ppm", c_uint32),
        ("reserved", c_uint32),
        ("kind", c_char * 32),
        ("bottleneck", c_char * 128),
        ("taken_by", c_char * 512),
    ]


class _Usage(_Sized):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_uint64) for name in ("read_bytes", "written_bytes", "delayed_ns")
    ]


class _Credit(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes", c_uint64),
        ("outstanding_bytes", c_uint64),
        ("outstanding", c_uint32),
        ("reserved", c_uint32),
    ]


_CALLS = {
    "sluice_version": (c_char_p, []),
    "sluice_strerror": (c_char_p, [c_int]),
    "sluice_error_text": (c_char_p, []),
    "sluice_open": (c_int, [POINTER(_Settings), POINTER(c_void_p)]),
    "sluice_close": (None, [c_void_p]),
    "sluice_cancel": (c_int, [c_void_p]),
    "sluice_add_reservation_async": (c_int, [c_void_p, POINTER(_Request), c_uint32, POINTER(c_uint64)]),
    "sluice_add_reservation_sync": (c_int, [c_void_p, POINTER(_Request), c_uint32, POINTER(c_uint64)]),
    "sluice_test_reservation": (c_int, [c_void_p, c_uint64, c_uint32]),
    "sluice_wait_reservation": (c_int, [c_void_p, c_uint64, c_uint32]),
    "sluice_remove_reservation": (c_int, [c_void_p, c_uint64, c_uint32]),
    "sluice_finish_reservation": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(c_uint64)]),
    "sluice_extend_reservation": (c_int, [c_void_p, c_uint64, c_uint64, c_uint32, POINTER(c_uint64)]),
    "sluice_begin_phase": (c_int, [c_void_p, c_uint64, POINTER(_Phase), c_uint32, POINTER(c_uint64)]),
    "sluice_expect_phase": (c_int, [c_void_p, c_uint64, POINTER(_Phase), c_uint32, POINTER(c_uint64)]),
    "sluice_end_phase": (c_int, [c_void_p, c_uint64, c_uint32]),
    "sluice_get_details": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(_Details)]),
    "sluice_get_refusal": (c_int, [POINTER(_Refusal)]),
    "sluice_get_usage": (c_int, [c_void_p, c_char_p, c_uint32, c_uint32, POINTER(_Usage)]),
    "sluice_get_credit": (c_int, [c_void_p, c_uint32, POINTER(_Credit)]),
    "sluice_get_why": (c_int, [c_void_p, c_char_p, c_uint32, c_void_p, c_size_t, POINTER(c_size_t)]),
}


def _load():
    library = ctypes.CDLL(os.environ.get("SLUICE_LIBRARY", "libsluice.so.0"))
    for name, (result, arguments) in _CALLS.items():
        call = getattr(library, name)
        call.restype, call.argtypes = result, arguments
    return library


_library = _load()


class Error(Exception):
    """Why a call failed: code, text, and after DOES_NOT_FIT the refusal; id: a reservation that stays, or 0."""

    def __init__(self, code, id=0):
        text = _library.sluice_error_text().decode(errors="replace")
        super().__init__(f"{_library.sluice_strerror(code).decode()}: {text}")
        self.code, self.id, self.refusal = code, id, None
        if code == DOES_NOT_FIT:
            refusal = _Refusal()
            if _library.sluice_get_refusal(byref(refusal)) == 0:
                self.refusal = _dict(refusal)


def _dict(struct):
    """The fields of a struct without its size; times and spans stay nanoseconds."""
    out = {}
    for name, *_ in struct._fields_:
        value = getattr(struct, name)
        if name not in ("struct_size", "reserved"):
            out[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return out


def _check(code, id=0):
    if code < 0:
        raise Error(code, id)
    return code


def _bytes(text):
    encoded = None if text is None else os.fsencode(text)
    if encoded is not None and b"\0" in encoded:
        raise ValueError(f"{text!r} has a NUL in it")
    return encoded


def _whole(value, bits=64):
    """A number as an unsigned integer of so many bits; ctypes would cut it without a word."""
    if not math.isfinite(value) or not 0 <= round(value) < 1 << bits:
        raise ValueError(f"{value!r} is not a number from 0 to {(1 << bits) - 1}")
    return round(value)


def _ns(seconds):
    if not math.isfinite(seconds * _SECOND) or not 0 <= round(seconds * _SECOND) < 1 << 64:
        raise ValueError(f"{seconds!r} is not a number of seconds from 0 to {(1 << 64) // _SECOND}")
    return round(seconds * _SECOND)


def _ms(limit):
    if math.isnan(limit):
        raise ValueError("a time limit is not a number of seconds")
    return max(1, round(min(limit * 1000, 0xFFFF_FFFF)))


def _phase(start=0, tolerance=0, seconds=0, read=0, write=0, metadata=0):
    return _Phase(_ns(start), _ns(tolerance), _ns(seconds), _whole(read), _whole(write), _whole(metadata))


def _request(seconds, read=0, write=0, metadata=0, not_before=0, by=0, claim_window=0, after=0, job=None, path=None,
             key=None, phases=(), flags=0, nodes=0):
    made = [_phase(**phase) for phase in phases]
    return _Request(
        read_bytes_per_s=_whole(read), write_bytes_per_s=_whole(write), metadata_ops_per_s=_whole(metadata),
        duration_ns=_ns(seconds), not_before_ns=_ns(not_before), by_ns=_ns(by), claim_window_ns=_ns(claim_window),
        after=_whole(after), job=_bytes(job), path=_bytes(path), idempotency_key=_bytes(key),
        phases=(_Phase * len(made))(*made) if made else None, phase_count=len(made), flags=_whole(flags, 32),
        nodes=_whole(nodes, 32),
    )


class Client:
    """A handle. Settings that are not given come from SLUICE_CONTROLLER, SLUICE_CA and SLUICE_TOKEN_FILE."""

    def __init__(self, controller=None, ca_file=None, token_file=None, cert_file=None, key_file=None):
        self._handle = c_void_p()
        settings = _Settings(
            controller=_bytes(controller), ca_file=_bytes(ca_file), token_file=_bytes(token_file),
            cert_file=_bytes(cert_file), key_file=_bytes(key_file),
        )
        _check(_library.sluice_open(byref(settings), byref(self._handle)))

    def close(self):
        """Closes the handle, which no thread uses any more; reservations stay."""
        handle, self._handle = self._handle, c_void_p()
        _library.sluice_close(handle)

    def __del__(self):
        # Neither if the constructor raised before there was a handle, nor if the interpreter ends.
        if getattr(self, "_handle", None) and _library is not None:
            _library.sluice_close(self._handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def addReservationAsync(self, *, limit=5, **request):
        """Requests a reservation (seconds, read, write, metadata, path, job, …) and returns its number."""
        id = c_uint64()
        _check(_library.sluice_add_reservation_async(self._handle, byref(_request(**request)), _ms(limit), byref(id)))
        return id.value

    def addReservationSync(self, *, limit, **request):
        """Requests a reservation and returns when it is ACTIVE. After an error it stays if Error.id is not 0."""
        id = c_uint64()
        wanted = _request(**request)
        code = _library.sluice_add_reservation_sync(self._handle, byref(wanted), _ms(limit), byref(id))
        _check(code, id.value)
        return id.value

    def testReservation(self, id, limit=5):
        """Returns UNDEFINED, SCHEDULED or ACTIVE, and claims it if ACTIVE. UNDEFINED after SCHEDULED: ask again."""
        return _check(_library.sluice_test_reservation(self._handle, _whole(id), _ms(limit)))

    def waitReservation(self, id, limit):
        """Returns ACTIVE as soon as it is, UNDEFINED if it has ended, SCHEDULED when the limit has passed."""
        return _check(_library.sluice_wait_reservation(self._handle, _whole(id), _ms(limit)))

    def removeReservation(self, id, limit=5):
        """Removes it; false if it was UNDEFINED."""
        return _check(_library.sluice_remove_reservation(self._handle, _whole(id), _ms(limit))) == 1

    def finishReservation(self, id, limit=5):
        """Ends it early and returns the credit in bytes."""
        credit = c_uint64()
        _check(_library.sluice_finish_reservation(self._handle, _whole(id), _ms(limit), byref(credit)))
        return credit.value

    def extendReservation(self, id, seconds, limit=5):
        """Extends a claimed reservation and returns its new end, in seconds since 1970."""
        end = c_uint64()
        _check(_library.sluice_extend_reservation(self._handle, _whole(id), _ns(seconds), _ms(limit), byref(end)))
        return end.value / _SECOND

    def beginPhase(self, id, limit=5, **phase):
        """Adds a phase that begins now (seconds, tolerance, read, write, metadata); returns its number."""
        made = c_uint64()
        _check(_library.sluice_begin_phase(self._handle, _whole(id), byref(_phase(**phase)), _ms(limit), byref(made)))
        return made.value

    def expectPhase(self, id, limit=5, **phase):
        """Adds a phase that begins at start, in seconds since 1970; returns its number."""
        made = c_uint64()
        _check(_library.sluice_expect_phase(self._handle, _whole(id), byref(_phase(**phase)), _ms(limit), byref(made)))
        return made.value

    def endPhase(self, phase, limit=5):
        """Ends a phase early; false if it had ended."""
        return _check(_library.sluice_end_phase(self._handle, _whole(phase), _ms(limit))) == 1

    def details(self, id, limit=5):
        """Returns the fields of sluice_details as a dictionary; does not claim."""
        out = _Details()
        _check(_library.sluice_get_details(self._handle, _whole(id), _ms(limit), byref(out)))
        return _dict(out)

    def usage(self, since, job=None, limit=5):
        """Returns what was served in the last `since` seconds, as a dictionary."""
        out = _Usage()
        _check(_library.sluice_get_usage(self._handle, _bytes(job), _whole(since, 32), _ms(limit), byref(out)))
        return _dict(out)

    def credit(self, limit=5):
        """Returns the credit of the caller, as a dictionary."""
        out = _Credit()
        _check(_library.sluice_get_credit(self._handle, _ms(limit), byref(out)))
        return _dict(out)

    def why(self, job=None, limit=5):
        """Returns what limits and delays a job, or all requests of the user, as JSON text."""
        size = 1 << 16
        while True:
            buffer, needed = ctypes.create_string_buffer(size), c_size_t()
            code = _library.sluice_get_why(self._handle, _bytes(job), _ms(limit), buffer, size, byref(needed))
            if code != BUFFER_TOO_SMALL:
                _check(code)
                return buffer.value.decode()
            size = 2 * needed.value

    def cancel(self):
        """Lets the calls of other threads on this handle raise CANCELLED."""
        return _check(_library.sluice_cancel(self._handle))

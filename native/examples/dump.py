"""dump.py DIRECTORY: writes DIRECTORY/dump within a reservation."""

import os
import sys

import sluice


def end(call, reservation):
    """Ends a reservation by a call. If that fails it ends with its time, and the dump is as good."""
    try:
        call(reservation, limit=60)
    except sluice.Error as error:
        print(f"dump: reservation {reservation}: {error}", file=sys.stderr)


def reserve(client):
    """Returns the number of an active reservation, or none, which is said."""
    try:
        return client.addReservationSync(
            write=1e6, seconds=10, claim_window=30, job=os.environ.get("SLURM_JOB_ID"), limit=120
        )
    except sluice.Error as error:
        print(f"dump: {error}; going on without reservations", file=sys.stderr)
        if error.id:
            end(client.removeReservation, error.id)  # it was not active in time
        return None


def write(directory):
    with open(os.path.join(directory, "dump"), "wb") as file:
        file.write(bytes(1 << 20))


def main(directory):
    try:
        client = sluice.Client()
    except sluice.Error as error:
        print(f"dump: {error}; going on without reservations", file=sys.stderr)
        write(directory)
        print("dump: best effort")
        return
    with client:
        reservation = reserve(client)
        try:
            write(directory)
        finally:
            if reservation is not None:
                end(client.finishReservation, reservation)
    print("dump:", "best effort" if reservation is None else "reserved")


if __name__ == "__main__":
    main(sys.argv[1])

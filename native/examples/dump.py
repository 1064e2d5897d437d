"""dump.py DIRECTORY: writes DIRECTORY/dump within a reservation."""

import os
import sys

import sluice


def reserve():
    """Returns a client and the number of an active reservation, or two times none, which is said."""
    client = None
    try:
        client = sluice.Client()
        return client, client.addReservationSync(
            write=1e6, seconds=10, claim_window=30, job=os.environ.get("SLURM_JOB_ID"), limit=120
        )
    except sluice.Error as error:
        print(f"dump: {error}; going on without reservations", file=sys.stderr)
        if error.id:
            client.removeReservation(error.id)  # it was not active in time
        return None, None


def main(directory):
    client, reservation = reserve()
    with open(os.path.join(directory, "dump"), "wb") as file:
        file.write(bytes(1 << 20))
    if client is not None:
        client.finishReservation(reservation)
        client.close()
    print("dump:", "best effort" if client is None else "reserved")


if __name__ == "__main__":
    main(sys.argv[1])

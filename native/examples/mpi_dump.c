/*
 * mpi_dump DIRECTORY: all ranks write a part of one file within a reservation that rank 0 makes.
 *
 * Rank 0 alone talks to the controller. The others wait at the broadcast, so all write within the reservation.
 */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>
#include <sluice.h>

enum { PART = 1 << 18, RESERVE_MS = 120000, LIMIT_MS = 60000 };

int main(int argc, char **argv) {
    static char state[PART];
    char name[4096];
    int rank, ranks, reserved = 0;
    sluice_client *client = NULL;
    uint64_t id = 0;
    MPI_File file;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    snprintf(name, sizeof name, "%s/dump", argc > 1 ? argv[1] : ".");

    if (rank == 0) {
        sluice_request request = SLUICE_REQUEST_INIT;
        request.write_bytes_per_s = 1000000; /* of all ranks together */
        request.duration_ns = 10 * SLUICE_SECOND;
        request.claim_window_ns = 30 * SLUICE_SECOND;
        request.job = getenv("SLURM_JOB_ID");
        int status = sluice_open(NULL, &client);
        if (status == SLUICE_OK) status = sluice_add_reservation_sync(client, &request, RESERVE_MS, &id);
        reserved = status == SLUICE_OK;
        if (!reserved) fprintf(stderr, "mpi_dump: %s; going on without reservations\n", sluice_error_text());
    }
    MPI_Bcast(&reserved, 1, MPI_INT, 0, MPI_COMM_WORLD);

    int failed = MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    if (!failed) {
        failed = MPI_File_write_at_all(file, (MPI_Offset)rank * PART, state, PART, MPI_CHAR, MPI_STATUS_IGNORE);
        failed |= MPI_File_close(&file);
    }
    MPI_Barrier(MPI_COMM_WORLD);

    if (rank == 0) {
        if (reserved) sluice_finish_reservation(client, id, LIMIT_MS, NULL);
        else if (id != 0) sluice_remove_reservation(client, id, LIMIT_MS);
        printf("%d ranks: %s\n", ranks, reserved ? "reserved" : "best effort");
        sluice_close(client);
    }
    MPI_Finalize();
    return failed != 0;
}

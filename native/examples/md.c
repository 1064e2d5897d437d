/*
 * md: molecular dynamics in the manner of ESPResSo++, which reserves bandwidth for each dump of its state.
 *
 *     md DIRECTORY STEPS STEPS-BETWEEN-DUMPS [BYTES [BYTES-PER-SECOND]]
 *
 * BYTES is the size of a dump (64 KiB if it is not named), and BYTES-PER-SECOND the rate that it requests (1 MB/s).
 *
 * A dump is due: the program requests a reservation and computes on. After each step it tests. When the reservation is
 * ACTIVE, it dumps the state of then, and finishes the reservation. If it is UNDEFINED after it was SCHEDULED, it ended
 * before the program used it: the program requests again. Without a controller dumps are written at once, best effort.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <sluice.h>

enum { LIMIT_MS = 60000, WAIT_MS = 120000 };

struct particle {
    double x, v;
};

static struct particle *particles;
static size_t count = 4096; /* of particles */

/* Says once that there is no reservation, and why. */
static void go_on_without(void) {
    static int said;
    if (!said) fprintf(stderr, "md: %s; going on without reservations\n", sluice_error_text());
    said = 1;
}

static void compute(void) {
    struct timespec step = {0, 2000000};
    for (size_t i = 0; i < count; i++) {
        particles[i].v -= 0.001 * particles[i].x;
        particles[i].x += 0.001 * particles[i].v;
    }
    nanosleep(&step, NULL); /* stands for the work of a real step */
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Writes the state, and returns once it is on disk. */
static int dump(const char *directory, int number, long step, const char *how) {
    char name[4096];
    double began = now();
    snprintf(name, sizeof name, "%s/dump.%d", directory, number);
    FILE *file = fopen(name, "w");
    /* Its length first: writes behind the end of a file go one after another on most file systems. */
    if (file == NULL || ftruncate(fileno(file), (off_t)(count * sizeof *particles)) != 0 ||
        fwrite(particles, sizeof *particles, count, file) != count || fflush(file) != 0 || fsync(fileno(file)) != 0 ||
        fclose(file) != 0) {
        perror(name);
        return 1;
    }
    printf("dump %d at step %ld: %s, %.3f s\n", number, step, how, now() - began);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 6) {
        fprintf(stderr, "usage: md DIRECTORY STEPS STEPS-BETWEEN-DUMPS [BYTES [BYTES-PER-SECOND]]\n");
        return 2;
    }
    long steps = atol(argv[2]), between = atol(argv[3]);
    if (between < 1) between = 1;
    long long bytes = argc > 4 ? atoll(argv[4]) : (long long)(count * sizeof *particles);
    long long rate = argc > 5 ? atoll(argv[5]) : 1000000;
    if (bytes < (long long)sizeof *particles || rate < 1) {
        fprintf(stderr, "md: BYTES must be at least %zu, and BYTES-PER-SECOND at least 1\n", sizeof *particles);
        return 2;
    }
    count = (size_t)bytes / sizeof *particles;
    particles = calloc(count, sizeof *particles);
    if (particles == NULL) {
        perror("md");
        return 1;
    }
    for (size_t i = 0; i < count; i++) particles[i].x = (double)i;

    sluice_client *client;
    if (sluice_open(NULL, &client) != SLUICE_OK) go_on_without();

    sluice_request request = SLUICE_REQUEST_INIT;
    request.write_bytes_per_s = (uint64_t)rate;
    request.duration_ns = (uint64_t)(bytes / rate + 10) * SLUICE_SECOND; /* some time more than a dump takes */
    request.claim_window_ns = 30 * SLUICE_SECOND; /* longer than a step takes */
    request.flags = SLUICE_SPONTANEOUS;
    request.job = getenv("SLURM_JOB_ID");

    int dumps = 0, due = 0;
    uint64_t id = 0;
    for (long step = 1; step <= steps || due > 0; step++) {
        compute();
        if (step <= steps && step % between == 0) due++;
        if (due == 0) continue;
        int state = SLUICE_ERROR_UNREACHABLE;
        if (client != NULL && id == 0) {
            state = sluice_add_reservation_async(client, &request, LIMIT_MS, &id);
            if (state == SLUICE_OK) continue; /* tested after the next step */
        } else if (client != NULL && step > steps) {
            state = sluice_wait_reservation(client, id, WAIT_MS); /* nothing is left to compute */
        } else if (client != NULL) {
            state = sluice_test_reservation(client, id, LIMIT_MS);
        }
        if (state == SLUICE_SCHEDULED && step <= steps) continue;
        if (state == SLUICE_UNDEFINED) { /* it has lapsed: request again */
            id = 0;
            continue;
        }
        if (state < 0) go_on_without();
        if (dump(argv[1], ++dumps, step, state == SLUICE_ACTIVE ? "reserved" : "best effort")) return 1;
        if (id != 0) sluice_finish_reservation(client, id, LIMIT_MS, NULL);
        id = 0;
        due--;
    }
    sluice_close(client);
    free(particles);
    return 0;
}

/* checkpoint.c: see checkpoint.h. */
#include "checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <sluice.h>

enum { RESERVE_MS = 120000, LIMIT_MS = 10000 };

struct checkpoint_set {
    sluice_client *client;
    sluice_request request;
    uint64_t reservation;
    char directory[2048];
    int number;
    int said;
};

static void go_on_without(struct checkpoint_set *set) {
    if (!set->said) fprintf(stderr, "checkpoint: %s; going on without reservations\n", sluice_error_text());
    set->said = 1;
}

static void path_of(const struct checkpoint_set *set, const char *end, char *path, size_t size) {
    snprintf(path, size, "%s/checkpoint.%d%s", set->directory, set->number, end);
}

int checkpoint_open(struct checkpoint_set **out, const char *directory, uint64_t bytes, uint64_t bytes_per_s) {
    struct checkpoint_set *set = calloc(1, sizeof *set);
    if (set == NULL) return -1;
    if (bytes_per_s == 0 || strlen(directory) >= sizeof set->directory - 64) {
        free(set);
        errno = EINVAL;
        return -1;
    }
    strcpy(set->directory, directory);
    sluice_request request = SLUICE_REQUEST_INIT;
    request.write_bytes_per_s = bytes_per_s;
    /* a quarter more than the bytes take, and a second to open and close files */
    request.duration_ns = (bytes / bytes_per_s + bytes / bytes_per_s / 4 + 1) * SLUICE_SECOND;
    request.claim_window_ns = 30 * SLUICE_SECOND;
    request.job = getenv("SLURM_JOB_ID");
    set->request = request;
    if (sluice_open(NULL, &set->client) != SLUICE_OK) go_on_without(set);
    *out = set;
    return 0;
}

int checkpoint_start(struct checkpoint_set *set) {
    char path[4096];
    set->number++;
    path_of(set, ".part", path, sizeof path);
    if (mkdir(path, 0777) != 0) return -1;
    uint64_t id = 0;
    int status = SLUICE_ERROR_UNREACHABLE;
    if (set->client != NULL) status = sluice_add_reservation_sync(set->client, &set->request, RESERVE_MS, &id);
    if (status != SLUICE_OK) {
        go_on_without(set);
        if (id != 0) sluice_remove_reservation(set->client, id, LIMIT_MS); /* it was not active in time */
        id = 0;
    }
    set->reservation = id;
    return 0;
}

int checkpoint_route(struct checkpoint_set *set, const char *file, char *path, size_t size) {
    char folder[4096];
    path_of(set, ".part", folder, sizeof folder);
    int length = snprintf(path, size, "%s/%s", folder, file);
    if (length >= 0 && (size_t)length < size && strchr(file, '/') == NULL) return 0;
    errno = EINVAL;
    return -1;
}

int checkpoint_complete(struct checkpoint_set *set, int valid) {
    char part[4096], whole[4096];
    if (set->reservation != 0) sluice_finish_reservation(set->client, set->reservation, LIMIT_MS, NULL);
    set->reservation = 0;
    if (!valid) return 0; /* the next run finds it as .part and ignores it */
    path_of(set, ".part", part, sizeof part);
    path_of(set, "", whole, sizeof whole);
    return rename(part, whole);
}

int checkpoint_is_reserved(const struct checkpoint_set *set) { return set->reservation != 0; }

void checkpoint_close(struct checkpoint_set *set) {
    sluice_close(set->client);
    free(set);
}

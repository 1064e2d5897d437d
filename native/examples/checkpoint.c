/* checkpoint.c: see checkpoint.h. */
#define _POSIX_C_SOURCE 200809L
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sluice.h>

enum { RESERVE_MS = 120000, LIMIT_MS = 60000 };

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

/* The number of a name such as "checkpoint.7"; 0 if it is another name. */
static int number_of(const char *name) {
    static const char prefix[] = "checkpoint.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return 0;
    char *end;
    long number = strtol(name + sizeof prefix - 1, &end, 10);
    return *end == '\0' && number > 0 && number < INT_MAX ? (int)number : 0;
}

/* Calls `each` with the name of each entry of a directory, until it fails. A link is not followed. */
static int for_each(const char *path, int (*each)(int directory, const char *name, void *with), void *with) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (directory == NULL) {
        if (fd >= 0) close(fd);
        return -1;
    }
    int failed = 0;
    struct dirent *entry;
    errno = 0;
    while (!failed && (entry = readdir(directory)) != NULL) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            failed = each(fd, entry->d_name, with);
        if (!failed) errno = 0; /* readdir says by it alone that it failed */
    }
    int reason = errno;
    closedir(directory);
    errno = reason;
    return reason != 0 ? -1 : 0;
}

static int highest(int directory, const char *name, void *most) {
    int number = number_of(name);
    (void)directory;
    if (number > *(int *)most) *(int *)most = number;
    return 0;
}

static int removed(int directory, const char *name, void *unused) {
    (void)unused;
    return unlinkat(directory, name, 0);
}

/* Writes a file or directory to its disk. */
static int synced(int directory, const char *name, void *unused) {
    (void)unused;
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    int failed = fsync(fd);
    int reason = errno;
    close(fd);
    errno = reason;
    return failed;
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
    /* those of earlier runs stay */
    if (for_each(directory, highest, &set->number) != 0) {
        free(set);
        return -1;
    }
    sluice_request request = SLUICE_REQUEST_INIT;
    request.write_bytes_per_s = bytes_per_s;
    /* a quarter more than the bytes take, rounded up, and a second to open and close files */
    uint64_t seconds = bytes / bytes_per_s + 1;
    request.duration_ns = (seconds + (seconds + 3) / 4 + 1) * SLUICE_SECOND;
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
    /* one that was not completed is used again, without its files */
    if (mkdir(path, 0777) != 0 && (errno != EEXIST || for_each(path, removed, NULL) != 0)) {
        set->number--;
        return -1;
    }
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
    path_of(set, ".part", part, sizeof part);
    path_of(set, "", whole, sizeof whole);
    /* all of it is on disk before it has its name, and while it is reserved */
    int failed = valid ? for_each(part, synced, NULL) || synced(AT_FDCWD, part, NULL) : 0;
    int reason = errno;
    if (set->reservation != 0) sluice_finish_reservation(set->client, set->reservation, LIMIT_MS, NULL);
    set->reservation = 0;
    errno = reason;
    if (valid && !failed) failed = rename(part, whole) || synced(AT_FDCWD, set->directory, NULL);
    else set->number--; /* the next start uses it again */
    return failed ? -1 : 0;
}

int checkpoint_is_reserved(const struct checkpoint_set *set) { return set->reservation != 0; }

void checkpoint_close(struct checkpoint_set *set) {
    sluice_close(set->client);
    free(set);
}

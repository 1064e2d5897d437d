/*
 * calls: every call of sluice.h against a controller with one target "fs", of which 42.5 MB/s of writes can be reserved.
 * Prints "ok" alone: the library prints nothing.
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sluice.h>

#define MB UINT64_C(1000000)
enum { LIMIT = 120000, THREADS = 8, SIGNALS = 31 };

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition,                   \
                    sluice_error_text());                                                                             \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static sluice_client *client;

static sluice_request writes(uint64_t rate, uint64_t seconds) {
    sluice_request request = SLUICE_REQUEST_INIT;
    request.write_bytes_per_s = rate;
    request.duration_ns = seconds * SLUICE_SECOND;
    return request;
}

static void bad_arguments(void) {
    sluice_request request = writes(MB, 60);
    sluice_details details = SLUICE_DETAILS_INIT;
    uint64_t id = 7;
    CHECK(sluice_add_reservation_async(NULL, &request, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(id == 0);
    id = 7;
    CHECK(sluice_begin_phase(client, 1, NULL, 0, &id) == SLUICE_ERROR_INVALID_ARGUMENT && id == 0);
    id = 7;
    CHECK(sluice_add_reservation_async(client, NULL, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(id == 0);
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, NULL) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(sluice_add_reservation_async(client, &request, 0, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(sluice_error_text(), "limit_ms") != NULL);
    request.struct_size = 8;
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(sluice_error_text(), "struct_size") != NULL);
    request = writes(MB, 0);
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    request = writes(MB, 60);
    request.job = "\xff";
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    request.job = NULL;
    request.path = "/not/a/mount/of/sluice";
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    request.path = NULL;
    request.phase_count = 65;
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    request = writes(MB, 60);
    request.flags = 64;
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(sluice_get_details(client, 999999, LIMIT, &details) == SLUICE_ERROR_NOT_FOUND);
    details.struct_size = 1;
    CHECK(sluice_get_details(client, 1, LIMIT, &details) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(sluice_open(NULL, NULL) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(sluice_test_reservation(client, 999999, LIMIT) == SLUICE_UNDEFINED);
    CHECK(sluice_remove_reservation(client, 999999, LIMIT) == 0);
    for (int code = 1; code > -20; code--) CHECK(strlen(sluice_strerror(code)) > 0);
    sluice_settings settings = SLUICE_SETTINGS_INIT;
    sluice_client *other;
    settings.controller = "ftp://x";
    CHECK(sluice_open(&settings, &other) == SLUICE_ERROR_SETTINGS && other == NULL);
    sluice_close(NULL);
}

static void life(void) {
    sluice_request request = writes(10 * MB, 600);
    sluice_details details = SLUICE_DETAILS_INIT;
    uint64_t id, again, end, credit = 1;
    request.job = "calls.1";
    request.path = "x/out";
    request.idempotency_key = "calls-1";
    CHECK(sluice_add_reservation_sync(client, &request, LIMIT, &id) == SLUICE_OK && id != 0);
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &again) == SLUICE_OK && again == id);
    CHECK(sluice_test_reservation(client, id, LIMIT) == SLUICE_ACTIVE);
    CHECK(sluice_wait_reservation(client, id, LIMIT) == SLUICE_ACTIVE);
    CHECK(sluice_get_details(client, id, LIMIT, &details) == SLUICE_OK);
    CHECK(details.id == id && details.state == SLUICE_ACTIVE && details.write_bytes_per_s == 10 * MB);
    CHECK(details.end_ns - details.start_ns == 600 * SLUICE_SECOND && details.claimed_ns != 0);
    CHECK(strcmp(details.target, "fs") == 0 && details.ended[0] == 0 && details.reduced_ppm == 1000000);
    CHECK(sluice_extend_reservation(client, id, 5 * SLUICE_SECOND, LIMIT, &end) == SLUICE_OK);
    CHECK(end == details.end_ns + 5 * SLUICE_SECOND);
    CHECK(sluice_finish_reservation(client, id, LIMIT, &credit) == SLUICE_OK && credit == 0);
    CHECK(sluice_finish_reservation(client, id, LIMIT, NULL) == SLUICE_ERROR_NOT_FOUND);
    CHECK(sluice_test_reservation(client, id, LIMIT) == SLUICE_UNDEFINED);
    CHECK(sluice_get_details(client, id, LIMIT, &details) == SLUICE_OK);
    CHECK(details.state == SLUICE_UNDEFINED && strcmp(details.ended, "completed") == 0);

    request = writes(MB, 60);
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_OK);
    CHECK(sluice_remove_reservation(client, id, LIMIT) == 1);
    CHECK(sluice_remove_reservation(client, id, LIMIT) == 0);
}

static void refusals(void) {
    sluice_request request = writes(43 * MB, 60);
    sluice_refusal refusal = SLUICE_REFUSAL_INIT;
    uint64_t id;
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_ERROR_DOES_NOT_FIT && id == 0);
    CHECK(sluice_get_refusal(&refusal) == SLUICE_OK);
    CHECK(strcmp(refusal.bottleneck, "fs") == 0 && strcmp(refusal.kind, "target") == 0);
    CHECK(refusal.next_start_ns == 0 && refusal.fits_now_ppm > 0 && refusal.fits_now_ppm < 1000000);
    CHECK(sluice_add_reservation_async(client, NULL, LIMIT, &id) < 0);
    CHECK(sluice_get_refusal(&refusal) == SLUICE_ERROR_NOT_FOUND);
}

static void phases(void) {
    sluice_request request = writes(5 * MB, 3000);
    sluice_phase phase = SLUICE_PHASE_INIT;
    sluice_details details = SLUICE_DETAILS_INIT;
    uint64_t id, begun, expected;
    CHECK(sluice_add_reservation_sync(client, &request, LIMIT, &id) == SLUICE_OK);
    phase.write_bytes_per_s = 20 * MB;
    phase.duration_ns = 300 * SLUICE_SECOND;
    phase.tolerance_ns = 60 * SLUICE_SECOND;
    CHECK(sluice_begin_phase(client, id, &phase, LIMIT, &begun) == SLUICE_OK && begun != id);
    CHECK(sluice_expect_phase(client, id, &phase, LIMIT, &expected) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(sluice_get_details(client, id, LIMIT, &details) == SLUICE_OK);
    phase.start_ns = details.start_ns + 2000 * SLUICE_SECOND;
    CHECK(sluice_begin_phase(client, id, &phase, LIMIT, &expected) == SLUICE_ERROR_INVALID_ARGUMENT);
    CHECK(sluice_expect_phase(client, id, &phase, LIMIT, &expected) == SLUICE_OK);
    CHECK(sluice_wait_reservation(client, begun, LIMIT) == SLUICE_ACTIVE);
    CHECK(sluice_get_details(client, id, LIMIT, &details) == SLUICE_OK);
    CHECK(details.next_phase == expected && details.next_phase_start_ns == phase.start_ns);
    CHECK(sluice_get_details(client, begun, LIMIT, &details) == SLUICE_OK && details.phase_of == id);
    CHECK(sluice_end_phase(client, begun, LIMIT) == 1);
    CHECK(sluice_end_phase(client, begun, LIMIT) == 0);
    CHECK(sluice_end_phase(client, expected, LIMIT) == 1);
    CHECK(sluice_remove_reservation(client, id, LIMIT) == 1);

    sluice_phase two[2] = {SLUICE_PHASE_INIT, SLUICE_PHASE_INIT};
    for (int i = 0; i < 2; i++) {
        two[i].start_ns = (uint64_t)(i + 1) * 900 * SLUICE_SECOND;
        two[i].duration_ns = 60 * SLUICE_SECOND;
        two[i].write_bytes_per_s = 20 * MB;
    }
    request.phases = two;
    request.phase_count = 2;
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_OK);
    CHECK(sluice_get_details(client, id, LIMIT, &details) == SLUICE_OK && details.next_phase != 0);
    CHECK(details.next_phase_start_ns == details.start_ns + 900 * SLUICE_SECOND);
    CHECK(sluice_remove_reservation(client, id, LIMIT) == 1);
}

static void own(void) {
    sluice_credit credit = SLUICE_CREDIT_INIT;
    sluice_usage usage = SLUICE_USAGE_INIT;
    char little[2], *why;
    size_t needed;
    CHECK(sluice_get_credit(client, LIMIT, &credit) == SLUICE_OK && credit.outstanding == 0);
    CHECK(sluice_get_usage(client, NULL, 3600, LIMIT, &usage) == SLUICE_OK);
    CHECK(sluice_get_usage(client, "calls.1", 3600, LIMIT, &usage) == SLUICE_OK && usage.written_bytes == 0);
    CHECK(sluice_get_why(client, NULL, LIMIT, little, sizeof little, &needed) == SLUICE_ERROR_BUFFER_TOO_SMALL);
    why = malloc(needed + 4096);
    CHECK(why != NULL && sluice_get_why(client, NULL, LIMIT, why, needed + 4096, NULL) == SLUICE_OK);
    CHECK(why[0] == '{' && strstr(why, "\"waits\"") != NULL);
    free(why);
}

static void *one_of_many(void *unused) {
    sluice_request request = writes(MB / 10, 60);
    uint64_t id;
    for (int i = 0; i < 5; i++) {
        CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_OK);
        CHECK(sluice_test_reservation(client, id, LIMIT) > 0);
        CHECK(sluice_add_reservation_async(client, NULL, LIMIT, &id) == SLUICE_ERROR_INVALID_ARGUMENT);
        CHECK(strstr(sluice_error_text(), "sluice_request") != NULL);
        id = 0;
    }
    return unused;
}

static void many_threads(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, one_of_many, NULL) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static int cancelled_code, has_returned;
static uint64_t cancelled_id;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *wait_in_vain(void *unused) {
    sluice_request request = writes(30 * MB, 60);
    int code = sluice_add_reservation_sync(client, &request, LIMIT, &cancelled_id);
    pthread_mutex_lock(&lock);
    cancelled_code = code;
    has_returned = 1;
    pthread_mutex_unlock(&lock);
    return unused;
}

static void cancelled_waits(void) {
    sluice_request most = writes(30 * MB, 3600);
    struct timespec moment = {0, 1000000};
    pthread_t thread;
    uint64_t id, other;
    int done = 0;
    CHECK(sluice_add_reservation_sync(client, &most, LIMIT, &id) == SLUICE_OK);
    CHECK(pthread_create(&thread, NULL, wait_in_vain, NULL) == 0);
    while (!done) {
        sluice_cancel(client);
        nanosleep(&moment, NULL);
        pthread_mutex_lock(&lock);
        done = has_returned;
        pthread_mutex_unlock(&lock);
    }
    CHECK(pthread_join(thread, NULL) == 0 && cancelled_code == SLUICE_ERROR_CANCELLED);
    if (cancelled_id != 0) CHECK(sluice_remove_reservation(client, cancelled_id, LIMIT) == 1);

    CHECK(sluice_add_reservation_sync(client, &most, 500, &other) == SLUICE_ERROR_TIMED_OUT);
    if (other != 0) CHECK(sluice_remove_reservation(client, other, LIMIT) == 1);
    CHECK(sluice_remove_reservation(client, id, LIMIT) == 1);
}

static void forked(void) {
    sluice_request request = writes(MB, 60);
    uint64_t id;
    int status;
    CHECK(sluice_add_reservation_async(client, &request, LIMIT, &id) == SLUICE_OK);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(sluice_test_reservation(client, id, LIMIT) > 0 ? 0 : 1);
    CHECK(sluice_test_reservation(client, id, LIMIT) > 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(sluice_remove_reservation(client, id, LIMIT) == 1);
}

/* How many entries a directory has, without . and .. */
static int entries(const char *name) {
    int count = -2;
    DIR *directory = opendir(name);
    while (directory != NULL && readdir(directory) != NULL) count++;
    if (directory != NULL) closedir(directory);
    return count;
}

int main(void) {
    struct sigaction before[SIGNALS], after;
    for (int i = 1; i < SIGNALS; i++) sigaction(i, NULL, &before[i]);
    int descriptors = entries("/proc/self/fd");
    CHECK(sluice_open(NULL, &client) == SLUICE_OK);
    bad_arguments();
    life();
    refusals();
    phases();
    own();
    forked();
    CHECK(entries("/proc/self/task") == 1);
    CHECK(entries("/proc/self/fd") == descriptors);
    cancelled_waits();
    many_threads();
    sluice_close(client);
    for (int i = 1; i < SIGNALS; i++) {
        sigaction(i, NULL, &after);
        CHECK(after.sa_handler == before[i].sa_handler && after.sa_flags == before[i].sa_flags);
    }
    puts("ok");
    return 0;
}

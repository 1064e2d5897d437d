/*
 * sluice.h: reservations of storage bandwidth for programs. docs/LIBRARY.md is the guide to it.
 *
 *     sluice_client *client;
 *     if (sluice_open(NULL, &client) == SLUICE_OK) {         // SLUICE_CONTROLLER, SLUICE_CA, SLUICE_TOKEN_FILE
 *         sluice_request request = SLUICE_REQUEST_INIT;
 *         request.write_bytes_per_s = 500000000;              // 500 MB/s
 *         request.duration_ns = 60 * SLUICE_SECOND;
 *         uint64_t id;
 *         if (sluice_add_reservation_sync(client, &request, 30000, &id) == SLUICE_OK) {
 *             ... write ...
 *             sluice_finish_reservation(client, id, 5000, NULL);
 *         }
 *         sluice_close(client);
 *     }
 *
 * Units: rates are bytes per second (10^6 bytes are 1 MB) or operations per second; spans are nanoseconds; times are
 * nanoseconds since 1970 by the controller's clock; time limits are milliseconds, 1 to 4294967295. In each struct 0
 * and NULL mean "not given".
 *
 * Results: 0 or more is success, less is a code of sluice_error. sluice_error_text() has the reason, for people.
 *
 * Time limits: each call ends within limit_ms, whatever the network and the controllers do. sluice_open has none: it
 * connects to nothing, but resolves the names of the controllers, which takes as long as the system's resolver does. It
 * reads the environment, so no other thread may change that (setenv) at the same time.
 *
 * Threads: a handle may be used by any number of threads at once, up to 4,096 calls. It must not be closed while
 * another thread uses it. The error text and the refusal are those of the calling thread.
 *
 * Processes: the library starts no thread, prints nothing and touches no signal. A handle can be used after fork(),
 * in both processes, if no other thread was within a call of it at the moment of the fork.
 *
 * Privileges: a program that was started set-user-id, set-group-id or with capabilities of its file gets nothing from
 * the environment, also after it has changed its ids.
 *
 * Texts are UTF-8, end with NUL and have up to 8,192 bytes.
 */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One second in nanoseconds. */
#define SLUICE_SECOND UINT64_C(1000000000)

/* A handle: the controllers of one file system, and the credentials of the caller. */
typedef struct sluice_client sluice_client;

/* Codes of errors. A code keeps its number and its meaning; new ones may be added. */
typedef enum sluice_error {
    SLUICE_OK = 0,
    /* An argument is invalid; the text names it. */
    SLUICE_ERROR_INVALID_ARGUMENT = -1,
    /* An address, a certificate or a token file is invalid, or others may read the token. */
    SLUICE_ERROR_SETTINGS = -2,
    /* No controller can be reached: nothing was requested. */
    SLUICE_ERROR_UNREACHABLE = -3,
    /* The time limit has passed. The call may have been executed. */
    SLUICE_ERROR_TIMED_OUT = -4,
    /* Another thread has called sluice_cancel. The call may have been executed. */
    SLUICE_ERROR_CANCELLED = -5,
    /* The reservation does not fit: sluice_get_refusal says why, and what would. */
    SLUICE_ERROR_DOES_NOT_FIT = -6,
    /* A ceiling of the user, group, account or project is reached. */
    SLUICE_ERROR_LIMIT_REACHED = -7,
    /* The reservation does not exist, has ended, or is another user's. */
    SLUICE_ERROR_NOT_FOUND = -8,
    /* The controller requires a token, or this one is unknown or has expired. */
    SLUICE_ERROR_UNAUTHENTICATED = -9,
    /* The token does not permit the call. */
    SLUICE_ERROR_PERMISSION_DENIED = -10,
    /* The controller refused the call for another reason. */
    SLUICE_ERROR_REFUSED = -11,
    /* The reply is not one of a controller, or too long. */
    SLUICE_ERROR_PROTOCOL = -12,
    /* No controller leads, or the leader is overloaded, until the time limit. */
    SLUICE_ERROR_UNAVAILABLE = -13,
    /* The certificate or the user of the listener is not the expected one, or it refused this side's certificate. */
    SLUICE_ERROR_UNTRUSTED = -14,
    /* The connection broke, and the call is one that must not be repeated: it may have been executed. */
    SLUICE_ERROR_IN_DOUBT = -15,
    /* The reservation ended before it was active. */
    SLUICE_ERROR_ENDED = -16,
    /* An error within the library or the controller. */
    SLUICE_ERROR_INTERNAL = -17,
    /* The buffer is too small; *needed has the size that suffices. */
    SLUICE_ERROR_BUFFER_TOO_SMALL = -18
} sluice_error;

/* States of a reservation. */
typedef enum sluice_state {
    /* It does not exist or has ended. After SCHEDULED it means: request again. */
    SLUICE_UNDEFINED = 0,
    /* It is accepted and has not begun. Its start may become earlier. */
    SLUICE_SCHEDULED = 1,
    /* It is served before others now. */
    SLUICE_ACTIVE = 2
} sluice_state;

/* What a handle is opened with. */
typedef struct sluice_settings {
    size_t struct_size;
    /* Endpoints of the controllers, separated by commas; each name must be known. NULL: SLUICE_CONTROLLER, else
       http://127.0.0.1:5650, which is refused if there is a token: any user may listen there. */
    const char *controller;
    /* The CA of https:// controllers, PEM. NULL: SLUICE_CA. */
    const char *ca_file;
    /* A file with the token that no other user may read. NULL: SLUICE_TOKEN_FILE. It is read by sluice_open. */
    const char *token_file;
    /* A client certificate and its key, PEM; both or neither. */
    const char *cert_file;
    const char *key_file;
} sluice_settings;
#define SLUICE_SETTINGS_INIT {sizeof(sluice_settings), NULL, NULL, NULL, NULL, NULL}

/* A part of the time of a reservation with higher rates. */
typedef struct sluice_phase {
    /* In a request: after the start of the reservation. Of sluice_expect_phase: a time. Of sluice_begin_phase: 0. */
    uint64_t start_ns;
    /* How much later it may start. */
    uint64_t tolerance_ns;
    /* How long it lasts, 1 or more. */
    uint64_t duration_ns;
    /* The whole rates in the phase; 0: that of the reservation. */
    uint64_t read_bytes_per_s;
    uint64_t write_bytes_per_s;
    uint64_t metadata_ops_per_s;
    /* 0 */
    uint64_t reserved[2];
} sluice_phase;
#define SLUICE_PHASE_INIT {0, 0, 0, 0, 0, 0, {0, 0}}

/* Bits of sluice_request.flags. */
/* It starts exactly at not_before_ns or is refused. */
#define SLUICE_EXACT 1u
/* It is queued without a guaranteed start, and starts when it fits. */
#define SLUICE_SPONTANEOUS 2u
/* A credit is spent to be queued before others; with SLUICE_SPONTANEOUS only. */
#define SLUICE_SPEND_CREDIT 4u

/* A request for a reservation. At least one rate and the duration are required. */
typedef struct sluice_request {
    size_t struct_size;
    uint64_t read_bytes_per_s;
    uint64_t write_bytes_per_s;
    uint64_t metadata_ops_per_s;
    /* How long it lasts, from its start or, with a claim window, from its claim: 1 or more. */
    uint64_t duration_ns;
    /* The earliest start, a time; 0: now. */
    uint64_t not_before_ns;
    /* The time by which it is to have ended; 0: whenever it fits. */
    uint64_t by_ns;
    /* How long after ACTIVE it waits for its owner: until a test, or a request of the job. With 0 its time runs from
       its start on, and may end between two tests. */
    uint64_t claim_window_ns;
    /* The reservation after whose end it may start; 0: none. */
    uint64_t after;
    /* The job whose requests it serves. NULL: all requests of the user, or with the token of a job that job's. */
    const char *job;
    /* EXPORT/DIR, or an absolute path below a mount of this machine, without symbolic links: the directory to whose
       files it is limited. NULL: all files. */
    const char *path;
    /* 1 to 64 printable ASCII characters without blanks: while the reservation has not ended, another request with
       this key returns it. NULL: a random key, for the repeats of this call. */
    const char *idempotency_key;
    /* Up to 64, in the order of their starts. */
    const sluice_phase *phases;
    size_t phase_count;
    /* SLUICE_EXACT, SLUICE_SPONTANEOUS, SLUICE_SPEND_CREDIT */
    uint32_t flags;
    /* Nodes of the job, 1 to 65536; 0: not given. */
    uint32_t nodes;
} sluice_request;
#define SLUICE_REQUEST_INIT {sizeof(sluice_request), 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, 0, 0, 0}

/* A reservation. Texts that are too long are cut. */
typedef struct sluice_details {
    size_t struct_size;
    uint64_t id;
    /* sluice_state */
    int32_t state;
    /* What an active reservation has of its rates, in millionths; 1000000: all. */
    uint32_t reduced_ppm;
    /* Its start, 0 while it waits in the queue, and its end. */
    uint64_t start_ns;
    uint64_t end_ns;
    /* The start that was guaranteed at first. */
    uint64_t guaranteed_ns;
    /* Until when it must be claimed; 0: its time runs, or it has no claim window. */
    uint64_t claim_by_ns;
    /* When its time began to run. */
    uint64_t claimed_ns;
    uint64_t read_bytes_per_s;
    uint64_t write_bytes_per_s;
    uint64_t metadata_ops_per_s;
    /* What its job or user has moved since claimed_ns, counted by the minute. */
    uint64_t used_bytes;
    /* The credit that its early end gave. */
    uint64_t credit_bytes;
    /* The reservation of which it is a phase. */
    uint64_t phase_of;
    /* Its next phase and that one's start; 0: none. */
    uint64_t next_phase;
    uint64_t next_phase_start_ns;
    /* Why it has ended: completed, removed, expired, lapsed, …; empty: it has not. */
    char ended[32];
    char target[128];
    /* Why it has less than its rates. */
    char reduced_because[256];
} sluice_details;
#define SLUICE_DETAILS_INIT {sizeof(sluice_details), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "", "", ""}

/* Why a reservation does not fit, and what would. */
typedef struct sluice_refusal {
    size_t struct_size;
    /* The first start at which all of it fits; 0: none within the horizon. */
    uint64_t next_start_ns;
    /* The part of the rates that fits from the earliest start on, in millionths. */
    uint32_t fits_now_ppm;
    uint32_t reserved;
    /* The resource of which the least fits: its kind, such as "target", and its name. */
    char kind[32];
    char bottleneck[128];
    /* What else has it, separated by "; ". */
    char taken_by[512];
} sluice_refusal;
#define SLUICE_REFUSAL_INIT {sizeof(sluice_refusal), 0, 0, 0, "", "", ""}

/* What was served to the caller or its job. */
typedef struct sluice_usage {
    size_t struct_size;
    uint64_t read_bytes;
    uint64_t written_bytes;
    /* The time that limits delayed its requests, summed up. */
    uint64_t delayed_ns;
} sluice_usage;
#define SLUICE_USAGE_INIT {sizeof(sluice_usage), 0, 0, 0}

/* The credit of the caller. */
typedef struct sluice_credit {
    size_t struct_size;
    uint64_t bytes;
    /* Reserved bytes of its reservations that have not ended, and the number of these. */
    uint64_t outstanding_bytes;
    uint32_t outstanding;
    uint32_t reserved;
} sluice_credit;
#define SLUICE_CREDIT_INIT {sizeof(sluice_credit), 0, 0, 0, 0}

/* The version of the library, such as "0.1.0". */
const char *sluice_version(void);

/* The meaning of a code, in a few words; never NULL. */
const char *sluice_strerror(int code);

/* The reason of this thread's last error, until its next one; never NULL. It names the value at fault. */
const char *sluice_error_text(void);

/* Opens a handle. NULL as settings: the environment. Connects to nothing; *client is NULL after an error. */
int sluice_open(const sluice_settings *settings, sluice_client **client);

/* Closes a handle, which no thread uses any more. NULL is permitted. Reservations stay. */
void sluice_close(sluice_client *client);

/* Lets all calls that are under way on the handle return SLUICE_ERROR_CANCELLED. Calls that begin later are not
   affected. Returns how many there were. Not for signal handlers. */
int sluice_cancel(sluice_client *client);

/* addReservationAsync: requests a reservation and returns its number. It is SCHEDULED then, or soon ACTIVE. If a reply
   is lost, the call is repeated with the same key: there is one reservation. */
int sluice_add_reservation_async(sluice_client *client, const sluice_request *request, uint32_t limit_ms, uint64_t *id);

/* addReservationSync: requests a reservation and returns when it is ACTIVE and claimed. If it fails, whatever the
   error is, and *id is not 0, the reservation was made, and stays unless it has ended: wait for it again, or remove
   it. */
int sluice_add_reservation_sync(sluice_client *client, const sluice_request *request, uint32_t limit_ms, uint64_t *id);

/* testReservation: returns SLUICE_UNDEFINED, SLUICE_SCHEDULED or SLUICE_ACTIVE. The first test that returns
   SLUICE_ACTIVE claims the reservation: its time runs. A number that does not exist is SLUICE_UNDEFINED. */
int sluice_test_reservation(sluice_client *client, uint64_t id, uint32_t limit_ms);

/* Returns SLUICE_ACTIVE as soon as it is and claims it, SLUICE_UNDEFINED if it has ended, and SLUICE_SCHEDULED when
   the time limit has passed. */
int sluice_wait_reservation(sluice_client *client, uint64_t id, uint32_t limit_ms);

/* removeReservation: returns 1 if it is removed, 0 if it was UNDEFINED. There is no credit. */
int sluice_remove_reservation(sluice_client *client, uint64_t id, uint32_t limit_ms);

/* Ends a reservation early. *credit_bytes, unless NULL, is the credit for the rest: 0 if too little was used. */
int sluice_finish_reservation(sluice_client *client, uint64_t id, uint32_t limit_ms, uint64_t *credit_bytes);

/* Lets a claimed reservation end later by more_ns, if that time is free. *end_ns, unless NULL, is its new end. After
   SLUICE_ERROR_IN_DOUBT or SLUICE_ERROR_TIMED_OUT sluice_get_details says which end it has. */
int sluice_extend_reservation(sluice_client *client, uint64_t id, uint64_t more_ns, uint32_t limit_ms, uint64_t *end_ns);

/* Adds a phase that begins now, or within its tolerance, to a reservation: higher rates. */
int sluice_begin_phase(sluice_client *client, uint64_t id, const sluice_phase *phase, uint32_t limit_ms, uint64_t *phase_id);

/* Adds a phase that is expected at phase->start_ns. */
int sluice_expect_phase(sluice_client *client, uint64_t id, const sluice_phase *phase, uint32_t limit_ms, uint64_t *phase_id);

/* Ends a phase early, or removes one that has not begun: 1. Returns 0 if it had ended. */
int sluice_end_phase(sluice_client *client, uint64_t phase_id, uint32_t limit_ms);

/* Reads a reservation without claiming it: also one that ended lately, with the reason. */
int sluice_get_details(sluice_client *client, uint64_t id, uint32_t limit_ms, sluice_details *details);

/* The refusal of this thread's last error; SLUICE_ERROR_NOT_FOUND if that is not SLUICE_ERROR_DOES_NOT_FIT. */
int sluice_get_refusal(sluice_refusal *refusal);

/* What was served in the last since_s seconds, 1 or more: to a job, or with NULL to the user of this process. The
   controller counts by the minute. */
int sluice_get_usage(sluice_client *client, const char *job, uint32_t since_s, uint32_t limit_ms, sluice_usage *usage);

/* The credit of the caller. */
int sluice_get_credit(sluice_client *client, uint32_t limit_ms, sluice_credit *credit);

/* What limits and delays a job, or with NULL all requests of the user of this process, as JSON (docs/WHY.md). *needed,
   unless NULL, is the size of the text with its NUL. */
int sluice_get_why(sluice_client *client, const char *job, uint32_t limit_ms, char *buffer, size_t size, size_t *needed);

#ifdef __cplusplus
}
#endif

#endif

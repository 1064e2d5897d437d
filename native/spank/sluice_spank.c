/*
 * SPANK plug-in: options of srun, sbatch and salloc that reserve bandwidth for a job, and the
 * environment with which its programs use the reservation.
 *
 *   --qos-bw=RATE[:read|write]   checked here, on the user's terminal
 *   --qos-time=SPAN                    |
 *   --qos-path=PATH                    |  SPANK_SLUICE_QOS_{BW,TIME,PATH,PHASES}
 *   --qos-phases=FILE                  +--> job_submit.lua: job.spank_job_env
 *                                      +--> prologs and epilogs: their environment
 *
 *   RUN_DIR/JOB/token, if it is there ---> SLUICE_TOKEN_FILE of each task
 *   controller=, ca=                  ---> SLUICE_CONTROLLER, SLUICE_CA of each task
 *
 * The plug-in connects to nothing, also not in slurmstepd: a controller that does not answer
 * cannot delay or fail a step through it. The forms of rates and spans are those of
 * `sluice reserve add`; the controller checks all values again.
 *
 * Build:      gcc -std=gnu11 -Wall -Wextra -Werror -O2 -fPIC -shared -o sluice_spank.so sluice_spank.c
 * Use:        a line "optional /path/sluice_spank.so [ARGUMENT...]" in plugstack.conf, on submitting
 *             hosts and nodes
 * Arguments:  run_dir=DIR      where prolog.sh puts tokens [default: /run/sluice/jobs]
 *             controller=URLS  controllers, with commas between them
 *             ca=FILE          certificate of the authority that signed theirs
 * Needs:      slurm/spank.h of Slurm 22.05 or newer
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(sluice, 1);

#define PATH_BYTES_MAX 1024
/* 64 phases need 6 KiB. The file travels with the job, and slurmctld keeps it for each. */
#define PHASES_BYTES_MAX (16 * 1024)

enum option_index { OPTION_BW, OPTION_TIME, OPTION_PATH, OPTION_PHASES, OPTION_COUNT };

static const char *const option_names[OPTION_COUNT] = {
	"--qos-bw", "--qos-time", "--qos-path", "--qos-phases"
};
static const char *const variables[OPTION_COUNT] = {
	"SLUICE_QOS_BW", "SLUICE_QOS_TIME", "SLUICE_QOS_PATH", "SLUICE_QOS_PHASES"
};

/* What hooks get of each option; of --qos-phases the text of the file. NULL: not given. */
static char *values[OPTION_COUNT];

/* Set once an option was refused: its message is enough. */
static int refused;

/* The arguments in plugstack.conf; NULL: not given. They live as long as the plug-in. */
static const char *run_dir = "/run/sluice/jobs";
static const char *controller;
static const char *ca_file;

struct unit {
	const char *name;
	uint64_t size;
};

/* As in core/model: decimal prefixes count in thousands, binary ones in 1024s. */
static const struct unit rate_units[] = {
	{ "PiB/s", UINT64_C(1) << 50 }, { "TiB/s", UINT64_C(1) << 40 },
	{ "GiB/s", UINT64_C(1) << 30 }, { "MiB/s", UINT64_C(1) << 20 },
	{ "KiB/s", UINT64_C(1) << 10 }, { "PB/s", UINT64_C(1000000000000000) },
	{ "TB/s", UINT64_C(1000000000000) }, { "GB/s", 1000000000 },
	{ "MB/s", 1000000 }, { "kB/s", 1000 }, { "KB/s", 1000 }, { "B/s", 1 }, { NULL, 0 }
};
static const struct unit span_units[] = { /* in milliseconds */
	{ "h", 3600000 }, { "min", 60000 }, { "s", 1000 }, { "ms", 1 }, { NULL, 0 }
};

/* Reports a value that is not accepted: which, and what would be right. */
static int refuse(enum option_index option, const char *value, const char *right)
{
	slurm_error("%s: \"%.200s\" is not %s", option_names[option], value, right);
	refused = 1;
	return ESPANK_BAD_ARG;
}

/*
 * Parses a number with a unit, "1.5GB/s", rounded down. Returns 0 if text has another form, is
 * below one or does not fit: no valid value is 0.
 */
static uint64_t parse_with_unit(const char *text, size_t length, const struct unit *units)
{
	uint64_t whole = 0, billionths = 0, place = 100000000, size = 0;
	size_t at = 0, digits;

	for (; at < length && isdigit((unsigned char)text[at]); at++) {
		if (whole > (UINT64_MAX - 9) / 10)
			return 0;
		whole = whole * 10 + (uint64_t)(text[at] - '0');
	}
	if (at == 0)
		return 0;
	if (at < length && text[at] == '.') {
		digits = ++at;
		for (; at < length && isdigit((unsigned char)text[at]); at++, place /= 10)
			billionths += (uint64_t)(text[at] - '0') * place;
		if (at == digits || at - digits > 9)
			return 0;
	}
	while (at < length && text[at] == ' ')
		at++;
	for (; units->name; units++)
		if (strlen(units->name) == length - at && !strncmp(units->name, text + at, length - at))
			size = units->size;
	if (size == 0 || whole > INT64_MAX / size)
		return 0;
	/* The fraction times the size, without 128 bits: sizes are below 2^51, fractions below 2^30. */
	return whole * size + (size / 1000000000) * billionths +
	       (size % 1000000000) * billionths / 1000000000;
}

static int keep(enum option_index option, const char *text)
{
	char *copy = strdup(text);

	if (!copy)
		return ESPANK_ERROR;
	free(values[option]);
	values[option] = copy;
	return ESPANK_SUCCESS;
}

static int on_bw(int val, const char *text, int remote)
{
	const char *colon = strchr(text, ':');
	size_t length = colon ? (size_t)(colon - text) : strlen(text);

	(void)val;
	if (remote)
		return ESPANK_SUCCESS;
	if (colon && strcmp(colon + 1, "read") && strcmp(colon + 1, "write"))
		return refuse(OPTION_BW, text, "a rate with the direction read or write, such as "
			      "1GB/s:write; without a direction, the rate is for each of both");
	if (length > 40 || parse_with_unit(text, length, rate_units) == 0)
		return refuse(OPTION_BW, text,
			      "a rate above zero such as 500MB/s, 1.5GiB/s or 1GB/s:write");
	return keep(OPTION_BW, text);
}

static int on_time(int val, const char *text, int remote)
{
	(void)val;
	if (remote)
		return ESPANK_SUCCESS;
	/* A reservation shorter than a second ends before its job has begun its first step. */
	if (strlen(text) > 40 || parse_with_unit(text, strlen(text), span_units) < 1000)
		return refuse(OPTION_TIME, text, "a span of 1s or more such as 90s, 10min or 2h");
	return keep(OPTION_TIME, text);
}

/* Whether a component of path is "..", which would leave the directory that is checked. */
static int has_parent_component(const char *path)
{
	const char *at = path;

	while (at) {
		at += *at == '/';
		if (!strncmp(at, "..", 2) && (at[2] == '/' || at[2] == '\0'))
			return 1;
		at = strchr(at, '/');
	}
	return 0;
}

static int on_path(int val, const char *text, int remote)
{
	const char *at;

	(void)val;
	if (remote)
		return ESPANK_SUCCESS;
	for (at = text; *at; at++)
		if (iscntrl((unsigned char)*at))
			return refuse(OPTION_PATH, text, "a path without control characters");
	if (text[0] == '\0' || strlen(text) > PATH_BYTES_MAX || has_parent_component(text))
		return refuse(OPTION_PATH, text, "a directory of at most 1024 bytes and without "
			      "\"..\", such as /mnt/scratch/run7 or scratch/run7");
	return keep(OPTION_PATH, text);
}

/* Reads the file of phases; NULL with the cause in *cause. */
static char *read_phases(const char *file, const char **cause)
{
	struct stat status;
	ssize_t got = 0, length = 0;
	char *text = NULL;
	/* O_NONBLOCK: a FIFO without a writer must not hang the submission. */
	int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 || fstat(fd, &status) < 0)
		*cause = strerror(errno);
	else if (!S_ISREG(status.st_mode))
		*cause = "it is not a regular file";
	else if (status.st_size > PHASES_BYTES_MAX)
		*cause = "it is larger than 16 KiB";
	else if (!(text = calloc(1, PHASES_BYTES_MAX + 1)))
		*cause = "out of memory";
	while (text && length < PHASES_BYTES_MAX &&
	       (got = read(fd, text + length, (size_t)(PHASES_BYTES_MAX - length))) > 0)
		length += got;
	if (text && got < 0)
		*cause = strerror(errno);
	else if (text && (strlen(text) != (size_t)length || !strstr(text, "[[phase]]")))
		*cause = "it has no [[phase]]";
	else if (text) {
		close(fd);
		return text;
	}
	free(text);
	if (fd >= 0)
		close(fd);
	return NULL;
}

static int on_phases(int val, const char *file, int remote)
{
	const char *cause = NULL;
	char *text;

	(void)val;
	if (remote)
		return ESPANK_SUCCESS;
	text = read_phases(file, &cause);
	if (!text) {
		slurm_error("--qos-phases: cannot use \"%.200s\": %s; give a file as for "
			    "sluice reserve add --phases", file, cause);
		refused = 1;
		return ESPANK_BAD_ARG;
	}
	free(values[OPTION_PHASES]);
	values[OPTION_PHASES] = text;
	return ESPANK_SUCCESS;
}

static struct spank_option options[OPTION_COUNT] = {
	{ (char *)"qos-bw", (char *)"RATE[:read|write]",
	  (char *)"reserve storage bandwidth for the whole job, such as 1GB/s:write", 1, 0, on_bw },
	{ (char *)"qos-time", (char *)"SPAN",
	  (char *)"how long to reserve it, such as 10min [default: the time limit]", 1, 0, on_time },
	{ (char *)"qos-path", (char *)"PATH",
	  (char *)"reserve it for files in this directory only", 1, 0, on_path },
	{ (char *)"qos-phases", (char *)"FILE",
	  (char *)"reserve more for the phases in this file", 1, 0, on_phases },
};

/* Reads one argument of plugstack.conf. A wrong one is reported and left out: jobs go on. */
static void read_argument(const char *text)
{
	if (!strncmp(text, "run_dir=/", 9))
		run_dir = text + 8;
	else if (!strncmp(text, "controller=", 11) && text[11])
		controller = text + 11;
	else if (!strncmp(text, "ca=/", 4))
		ca_file = text + 3;
	else
		slurm_error("sluice: plugstack.conf: \"%.200s\" is not run_dir=/DIR, "
			    "controller=URL[,URL] or ca=/FILE", text);
}

/* Options can be registered here only; this runs in every context. */
int slurm_spank_init(spank_t sp, int ac, char **av)
{
	int at, result = ESPANK_SUCCESS;

	for (at = 0; at < ac; at++)
		read_argument(av[at]);
	for (at = 0; at < OPTION_COUNT && result == ESPANK_SUCCESS; at++)
		result = spank_option_register(sp, &options[at]);
	return result;
}

/*
 * Hands the options to job_submit and the prologs; only where a job is submitted. An error here
 * stops no submission if plugstack.conf has the plug-in as optional, so what depends on several
 * options, such as --qos-time without --qos-bw, is refused in job_submit.lua.
 */
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	spank_context_t context = spank_context();
	int option, result = ESPANK_SUCCESS;

	(void)ac;
	(void)av;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR)
		return ESPANK_SUCCESS;
	if (refused)
		return ESPANK_BAD_ARG;
	for (option = 0; option < OPTION_COUNT && result == ESPANK_SUCCESS; option++)
		if (values[option])
			result = spank_job_control_setenv(sp, variables[option], values[option], 1);
	if (result != ESPANK_SUCCESS)
		slurm_error("--qos-bw: cannot pass it to the job: %s", spank_strerror(result));
	return result;
}

/* Sets a variable of the task's environment if the plug-in has a value for it. */
static void set_variable(spank_t sp, const char *name, const char *value, int overwrite)
{
	spank_err_t result = ESPANK_SUCCESS;

	if (value)
		result = spank_setenv(sp, name, value, overwrite);
	/* ENV_EXISTS: what the user has set stays. */
	if (result != ESPANK_SUCCESS && result != ESPANK_ENV_EXISTS)
		slurm_error("sluice: cannot set %s: %s", name, spank_strerror(result));
}

/*
 * Points the task to the token of its job. Runs in slurmstepd once for each step on a node, with
 * the rights of the job's user, who alone may read the token. An inherited path is of the job in
 * which this one was submitted, and is removed: its token is not for this job.
 */
int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	char path[PATH_BYTES_MAX];
	uint32_t job = 0;
	int length;

	(void)ac;
	(void)av;
	set_variable(sp, "SLUICE_CONTROLLER", controller, 0);
	set_variable(sp, "SLUICE_CA", ca_file, 0);
	if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return ESPANK_SUCCESS;
	length = snprintf(path, sizeof(path), "%s/%u/token", run_dir, job);
	if (length > 0 && (size_t)length < sizeof(path) &&
	    faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) == 0) {
		set_variable(sp, "SLUICE_TOKEN_FILE", path, 1);
		/* One of the user's own, from the submitting shell, would take its place. */
		(void)spank_unsetenv(sp, "SLUICE_TOKEN");
	} else if (spank_getenv(sp, "SLUICE_TOKEN_FILE", path, sizeof(path)) == ESPANK_SUCCESS &&
		 !strncmp(path, run_dir, strlen(run_dir)) && path[strlen(run_dir)] == '/')
		(void)spank_unsetenv(sp, "SLUICE_TOKEN_FILE");
	return ESPANK_SUCCESS;
}

/*
 * Locks of two clients of one directory, which meet in it: one is a process in the
 * guest, over v9fs, the other one on the host, in a mount of sluice.
 *
 *   beside DIR               makes DIR with what they need, before either is started
 *   beside DIR SIDE OTHER    both are started with one DIR, and each other's SIDE
 *
 * For each kind of lock: what one holds the other cannot take; who waits gets it when it
 * is given back, not sooner, and reads what was written before that; counters that both
 * count up lose nothing, and files that both fill are never of two. Prints `ok NAME` or
 * `not ok NAME: why` for each; exit status 0 if all are ok.
 *
 * They wait for each other's names in DIR: with a deadline, PATIENCE.
 *
 * Build: cc -O2 -static -o beside beside.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 1125, PATIENCE = 300, STEPS = 30, COUNTERS = 2, KINDS = 4 };

#define DIE(...) die(__LINE__, __VA_ARGS__)
#define T(c) do { if (!(c)) DIE("%s: %s", #c, strerror(errno)); } while (0)

static const char *mine, *theirs;

static void die(int line, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "# %s, line %d: ", mine, line);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

/* ---- names by which they tell each other ---- */

static int is_there(const char *name)
{
	struct stat st;
	return stat(name, &st) == 0;
}

static const char *name_of(const char *kind, const char *event, const char *side)
{
	static char names[4][100];
	static int next;
	char *name = names[next++ % 4];
	snprintf(name, sizeof names[0], "%s-%s-%s", kind, event, side);
	return name;
}

static void tell(const char *kind, const char *event)
{
	int fd = open(name_of(kind, event, mine), O_WRONLY | O_CREAT | O_EXCL, 0644);
	T(fd >= 0);
	T(close(fd) == 0);
}

static void await(const char *kind, const char *event)
{
	const char *name = name_of(kind, event, theirs);
	time_t end = time(NULL) + PATIENCE;
	while (!is_there(name)) {
		if (time(NULL) > end)
			DIE("%s: not within %d s", name, PATIENCE);
		usleep(5000);
	}
}

/* ---- locks ---- */

static const char *const kinds[KINDS] = { "flock", "fcntl", "ofd", "range" };

/* Takes (LOCK_EX, LOCK_SH), tries (| LOCK_NB) or gives back (LOCK_UN). */
static int set(int kind, int fd, int how)
{
	if (kind == 0)
		return flock(fd, how);
	struct flock l = { .l_whence = SEEK_SET };
	l.l_type = how & LOCK_EX ? F_WRLCK : how & LOCK_SH ? F_RDLCK : F_UNLCK;
	if (kind == 3)
		l.l_start = 7, l.l_len = 1;
	int waits = !(how & LOCK_NB);
	if (kind == 2)
		return fcntl(fd, waits ? F_OFD_SETLKW : F_OFD_SETLK, &l);
	return fcntl(fd, waits ? F_SETLKW : F_SETLK, &l);
}

static void fill(int fd, uint64_t number)
{
	static uint64_t b[WORDS];
	for (int i = 0; i < WORDS; i++)
		b[i] = number;
	T(pwrite(fd, b, sizeof b, 0) == sizeof b);
}

/* The number that the whole file is filled with. */
static uint64_t content(int fd)
{
	static uint64_t b[WORDS];
	T(pread(fd, b, sizeof b, 0) == sizeof b);
	for (int i = 1; i < WORDS; i++)
		if (b[i] != b[0])
			DIE("word %d is %llu, the first one %llu", i, (unsigned long long)b[i], (unsigned long long)b[0]);
	return b[0];
}

static int file_of(const char *kind, const char *what)
{
	char name[100];
	snprintf(name, sizeof name, "%s-%s", kind, what);
	int fd = open(name, O_RDWR);
	if (fd < 0)
		DIE("%s: %s", name, strerror(errno));
	return fd;
}

/* Holds the lock until the other has found that it cannot have it, and is about to wait. */
static void holds(int kind)
{
	const char *name = kinds[kind];
	int fd = file_of(name, mine);
	T(set(kind, fd, LOCK_EX) == 0);
	tell(name, "held");
	await(name, "tried");
	fill(fd, 1);
	fill(fd, 2);
	tell(name, "written");
	T(set(kind, fd, LOCK_UN) == 0);
	await(name, "read");
	T(close(fd) == 0);
}

static void waits(int kind)
{
	const char *name = kinds[kind];
	int fd = file_of(name, theirs);
	T(content(fd) == 0);
	await(name, "held");
	for (int n = 0; n < 2; n++)
		if (set(kind, fd, (n ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0 || (errno != EAGAIN && errno != EACCES))
			DIE("a lock that is held is taken by another, or: %s", strerror(errno));
	tell(name, "tried");
	T(set(kind, fd, LOCK_EX) == 0);
	if (!is_there(name_of(name, "written", theirs)))
		DIE("granted before it was given back");
	if (content(fd) != 2)
		DIE("what was written before the lock was given back is not read: %llu", (unsigned long long)content(fd));
	T(set(kind, fd, LOCK_UN) == 0);
	tell(name, "read");
	T(close(fd) == 0);
}

/* One of COUNTERS of this side: counts as long as its like there, so that they meet. */
static void counts(int kind, int number)
{
	const char *name = kinds[kind];
	char stepped[20], sum[20];
	snprintf(stepped, sizeof stepped, "stepped%d", number);
	snprintf(sum, sizeof sum, "sum%d", number);
	int fd = file_of(name, "count");
	uint64_t steps = 0;
	while (steps < STEPS || !is_there(name_of(name, stepped, theirs))) {
		T(set(kind, fd, LOCK_EX) == 0);
		fill(fd, content(fd) + 1);
		T(set(kind, fd, LOCK_UN) == 0);
		if (++steps == STEPS)
			tell(name, stepped);
	}
	T(close(fd) == 0);
	fd = open(name_of(name, sum, mine), O_WRONLY | O_CREAT | O_EXCL, 0644);
	T(fd >= 0);
	T(write(fd, &steps, sizeof steps) == sizeof steps);
	T(close(fd) == 0);
}

static void ends_well(pid_t p)
{
	int st;
	T(waitpid(p, &st, 0) == p);
	if (st)
		DIE("one that counts ended with %d", st);
}

static void count(int kind)
{
	const char *name = kinds[kind];
	pid_t p[COUNTERS];
	for (int n = 0; n < COUNTERS; n++) {
		p[n] = fork();
		T(p[n] >= 0);
		if (p[n] == 0) {
			counts(kind, n);
			_exit(0);
		}
	}
	for (int n = 0; n < COUNTERS; n++)
		ends_well(p[n]);
	tell(name, "counted");
	await(name, "counted");
	uint64_t all = 0;
	for (int n = 0; n < 2 * COUNTERS; n++) {
		char sum[20];
		uint64_t steps;
		snprintf(sum, sizeof sum, "sum%d", n / 2);
		int fd = open(name_of(name, sum, n % 2 ? mine : theirs), O_RDONLY);
		T(fd >= 0);
		T(read(fd, &steps, sizeof steps) == sizeof steps);
		T(close(fd) == 0);
		all += steps;
	}
	int fd = file_of(name, "count");
	T(set(kind, fd, LOCK_SH) == 0);
	if (content(fd) != all)
		DIE("%llu of %llu steps", (unsigned long long)content(fd), (unsigned long long)all);
	printf("# %s: %s counted %llu with %s\n", mine, name, (unsigned long long)all, theirs);
	T(close(fd) == 0);
}

/* In a process of its own: a check that fails ends it, and with it its locks. */
static int check(const char *what, void (*fn)(int), int kind)
{
	struct timespec from, to;
	int st;
	clock_gettime(CLOCK_MONOTONIC, &from);
	fflush(stdout);
	pid_t p = fork();
	if (p == 0) {
		fn(kind);
		fflush(stdout);
		_exit(0);
	}
	if (p < 0 || waitpid(p, &st, 0) != p)
		st = 1;
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%s beside-%s-%s-%s %.2fs\n", st ? "not ok" : "ok", mine, kinds[kind], what,
	       to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9);
	return st == 0;
}

static int prepare(const char *dir)
{
	static const char *const whats[] = { "host", "guest", "count" };
	T(mkdir(dir, 0755) == 0);
	T(chdir(dir) == 0);
	for (int n = 0; n < KINDS * 3; n++) {
		char name[100];
		snprintf(name, sizeof name, "%s-%s", kinds[n / 3], whats[n % 3]);
		int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0644);
		T(fd >= 0);
		fill(fd, 0);
		T(close(fd) == 0);
	}
	return 0;
}

int main(int argc, char **argv)
{
	mine = argc == 4 ? argv[2] : "beside";
	theirs = argc == 4 ? argv[3] : "";
	if (argc == 2)
		return prepare(argv[1]);
	if (argc != 4) {
		fprintf(stderr, "usage: beside DIR [SIDE OTHER]\n");
		return 2;
	}
	T(chdir(argv[1]) == 0);
	int good = 1, first = strcmp(mine, theirs) < 0;
	/* a check that fails leaves the other one waiting: none follows */
	for (int kind = 0; good && kind < KINDS; kind++) {
		good = check(first ? "holds" : "waits", first ? holds : waits, kind);
		good = good && check(first ? "waits" : "holds", first ? waits : holds, kind);
		good = good && check("counts", count, kind);
	}
	return !good;
}

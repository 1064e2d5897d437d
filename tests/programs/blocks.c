/* MPI-IO with data checks: blocks of all ranks in one file, or a file for each.
 *
 *   blocks WAY… -- BLOCK COUNT shared|own independent|collective|posix
 *
 * Rank r uses the way r modulo their number. It writes COUNT blocks of BLOCK
 * bytes, in the shared file interleaved with those of the others; then every
 * rank reads what the next one wrote, by its own way, twice: once written with
 * the file open (after MPI_File_sync), once closed and opened again. Each byte
 * says whose it is and where it stands. Prints "blocks: right" or ends with 1.
 *
 *   blocks WAY… -- COUNT tree
 *
 * Each rank makes COUNT files in a directory of its own, then looks up, reads
 * and removes those of the next one. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int rank, ranks, wrong;
static const char *way;

static void fail(const char *what, long where)
{
	if (wrong++ < 3)
		fprintf(stderr, "rank %d: %s at %ld: %s\n", rank, what, where, strerror(errno));
}

static void check(int code, const char *what)
{
	char text[MPI_MAX_ERROR_STRING];
	int length;

	if (code == MPI_SUCCESS)
		return;
	MPI_Error_string(code, text, &length);
	fprintf(stderr, "rank %d: %s: %s\n", rank, what, text);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A byte depends on who wrote it, in which round, and where it stands in all. */
static unsigned char byte_of(int owner, int round, long number, long at)
{
	unsigned long mixed = (unsigned long)number * 2654435761u + (unsigned long)at * 40503u + round * 77u;

	return (unsigned char)((mixed >> 8) + owner * 31 + 1);
}

static void fill(unsigned char *block, long size, int owner, int round, long number)
{
	for (long at = 0; at < size; at++)
		block[at] = byte_of(owner, round, number, at);
}

static void compare(const unsigned char *block, long size, int owner, int round, long number)
{
	for (long at = 0; at < size; at++)
		if (block[at] != byte_of(owner, round, number, at)) {
			errno = 0;
			fail("a wrong byte in a block", number * size + at);
			return;
		}
}

struct shape {
	long size, count;
	int shared, collective, posix;
};

static long place_of(const struct shape *shape, int owner, long number)
{
	return shape->shared ? (number * ranks + owner) * shape->size : number * shape->size;
}

static void name_of(const struct shape *shape, int owner, char *path, size_t length)
{
	if (shape->shared)
		snprintf(path, length, "%s/shared", way);
	else
		snprintf(path, length, "%s/own.%d", way, owner);
}

static MPI_File open_file(const struct shape *shape, int owner, int flags)
{
	char path[4096];
	MPI_File file;

	name_of(shape, owner, path, sizeof(path));
	check(MPI_File_open(shape->shared ? MPI_COMM_WORLD : MPI_COMM_SELF, path, flags, MPI_INFO_NULL, &file),
	      "open");
	return file;
}

static void transfer(const struct shape *shape, MPI_File file, int owner, int round, int is_write)
{
	unsigned char *block = malloc(shape->size);
	MPI_Status status;
	int done;

	for (long number = 0; number < shape->count; number++) {
		MPI_Offset at = place_of(shape, owner, number);

		if (is_write) {
			fill(block, shape->size, owner, round, number);
			check((shape->collective ? MPI_File_write_at_all : MPI_File_write_at)(
				      file, at, block, shape->size, MPI_BYTE, &status), "write");
		} else {
			memset(block, 0, shape->size);
			check((shape->collective ? MPI_File_read_at_all : MPI_File_read_at)(
				      file, at, block, shape->size, MPI_BYTE, &status), "read");
		}
		MPI_Get_count(&status, MPI_BYTE, &done);
		if (done != shape->size)
			fail("a short transfer", at);
		if (!is_write)
			compare(block, shape->size, owner, round, number);
	}
	free(block);
}

/* The same without MPI's library for files. */
static void transfer_posix(const struct shape *shape, int owner, int round, int is_write)
{
	char path[4096];
	unsigned char *block = malloc(shape->size);

	name_of(shape, owner, path, sizeof(path));
	int file = open(path, is_write ? O_RDWR | O_CREAT : O_RDONLY, 0644);
	if (file < 0) {
		fail("open", 0);
		free(block);
		return;
	}
	for (long number = 0; number < shape->count; number++) {
		long at = place_of(shape, owner, number);

		if (is_write)
			fill(block, shape->size, owner, round, number);
		if ((is_write ? pwrite(file, block, shape->size, at) : pread(file, block, shape->size, at)) != shape->size)
			fail("a short transfer", at);
		if (!is_write)
			compare(block, shape->size, owner, round, number);
	}
	if (close(file) != 0)
		fail("close", 0);
	free(block);
}

static void blocks(const struct shape *shape)
{
	int next = (rank + 1) % ranks;
	int flags = MPI_MODE_RDWR | MPI_MODE_CREATE;

	if (shape->posix) {
		for (int round = 0; round < 2; round++) {
			transfer_posix(shape, rank, round, 1);
			MPI_Barrier(MPI_COMM_WORLD);
			transfer_posix(shape, next, round, 0);
			MPI_Barrier(MPI_COMM_WORLD);
		}
		return;
	}
	MPI_File file = open_file(shape, rank, flags);
	transfer(shape, file, rank, 0, 1);
	if (shape->shared) {
		/* sync, barrier, sync: what MPI asks for between a write and a read of another rank */
		check(MPI_File_sync(file), "sync");
		MPI_Barrier(MPI_COMM_WORLD);
		check(MPI_File_sync(file), "sync");
		transfer(shape, file, next, 0, 0);
		MPI_Barrier(MPI_COMM_WORLD);
		transfer(shape, file, rank, 1, 1);
	}
	check(MPI_File_close(&file), "close");
	MPI_Barrier(MPI_COMM_WORLD);
	file = open_file(shape, next, MPI_MODE_RDONLY);
	transfer(shape, file, next, shape->shared, 0);
	check(MPI_File_close(&file), "close");
}

static void tree(long count)
{
	int next = (rank + 1) % ranks;
	char path[4096], text[64], found[64];
	struct stat info;

	snprintf(path, sizeof(path), "%s/tree.%d", way, rank);
	if (mkdir(path, 0755) != 0)
		fail("mkdir", rank);
	for (long number = 0; number < count; number++) {
		snprintf(path, sizeof(path), "%s/tree.%d/file.%ld", way, rank, number);
		int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
		int length = snprintf(text, sizeof(text), "%d %ld", rank, number);
		if (file < 0 || write(file, text, length) != length || close(file) != 0)
			fail("create", number);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	for (long number = 0; number < count; number++) {
		snprintf(path, sizeof(path), "%s/tree.%d/file.%ld", way, next, number);
		int length = snprintf(text, sizeof(text), "%d %ld", next, number);
		if (stat(path, &info) != 0 || info.st_size != length)
			fail("stat", number);
		int file = open(path, O_RDONLY);
		if (file < 0 || read(file, found, sizeof(found)) != length || memcmp(found, text, length) != 0)
			fail("read", number);
		close(file);
		if (unlink(path) != 0)
			fail("unlink", number);
	}
	snprintf(path, sizeof(path), "%s/tree.%d", way, next);
	if (rmdir(path) != 0)
		fail("rmdir", next);
}

int main(int argc, char **argv)
{
	int ways = 0, all = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	while (1 + ways < argc && strcmp(argv[1 + ways], "--") != 0)
		ways++;
	char **words = argv + ways + 2;
	int count = argc - ways - 2;
	if (ways < 1 || (count != 4 && count != 2))
		MPI_Abort(MPI_COMM_WORLD, 2);
	way = argv[1 + rank % ways];
	if (count == 2) {
		tree(atol(words[0]));
	} else {
		struct shape shape = {
			.size = atol(words[0]), .count = atol(words[1]), .shared = strcmp(words[2], "shared") == 0,
			.collective = strcmp(words[3], "collective") == 0, .posix = strcmp(words[3], "posix") == 0,
		};
		blocks(&shape);
	}
	MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0 && all == 0)
		puts("blocks: right");
	MPI_Finalize();
	return all != 0;
}

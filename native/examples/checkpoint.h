/*
 * checkpoint.h: checkpoints over files in the manner of SCR, whose writes are reserved.
 *
 *     checkpoint_open(&set, "/mnt/scratch/run7", 1 GB, 500 MB/s)
 *     checkpoint_start(set)      reserves the time that the bytes take
 *     checkpoint_route(set, "rank0.dat", path, sizeof path)   where to write the file
 *     ... write ...
 *     checkpoint_complete(set, 1)  finishes the reservation; the checkpoint is there as a whole, or not at all
 *
 * Checkpoint N is the directory checkpoint.N, also after a power failure: its files are on disk before it has that name.
 * A run counts on from the highest number that is there. checkpoint.N.part is one that was not completed; the next start
 * of the same number removes its files. Files have no directories of their own.
 *
 * Each returns 0, or -1 with errno. Without a controller checkpoints are written best effort, which is said once.
 */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

struct checkpoint_set;

/* Opens a set of checkpoints below an existing directory: each has about `bytes`, written at `bytes_per_s`. */
int checkpoint_open(struct checkpoint_set **set, const char *directory, uint64_t bytes, uint64_t bytes_per_s);
int checkpoint_start(struct checkpoint_set *set);
int checkpoint_route(struct checkpoint_set *set, const char *file, char *path, size_t size);
int checkpoint_complete(struct checkpoint_set *set, int valid);
/* Whether the checkpoint that was started has a reservation. */
int checkpoint_is_reserved(const struct checkpoint_set *set);
void checkpoint_close(struct checkpoint_set *set);

#endif

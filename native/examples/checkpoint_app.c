/* checkpoint_app: a program that writes three checkpoints with checkpoint.h, into DIRECTORY. */
#include <stdio.h>

#include "checkpoint.h"

enum { BYTES = 1 << 20 };

int main(int argc, char **argv) {
    static char state[BYTES];
    char path[4096];
    struct checkpoint_set *set;
    if (argc != 2) {
        fprintf(stderr, "usage: checkpoint_app DIRECTORY\n");
        return 2;
    }
    if (checkpoint_open(&set, argv[1], BYTES, 1000000) != 0) {
        perror(argv[1]);
        return 1;
    }
    for (int number = 1; number <= 3; number++) {
        if (checkpoint_start(set) != 0) {
            perror("checkpoint_start");
            return 1;
        }
        int reserved = checkpoint_is_reserved(set);
        int valid = 0;
        if (checkpoint_route(set, "rank0.dat", path, sizeof path) == 0) {
            FILE *file = fopen(path, "w");
            if (file != NULL) valid = (fwrite(state, BYTES, 1, file) == 1) & (fclose(file) == 0);
        }
        if (checkpoint_complete(set, valid) != 0 || !valid) {
            perror(path);
            return 1;
        }
        printf("checkpoint %d: %s\n", number, reserved ? "reserved" : "best effort");
    }
    checkpoint_close(set);
    return 0;
}

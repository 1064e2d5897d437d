/*
 * privileged: what a handle has from the environment in a program that was started with the rights of another user, and
 * has taken these for good since. Prints whether the kernel says so, and the code of sluice_open.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <sluice.h>

int main(void) {
    sluice_client *client;
    if (setreuid(geteuid(), geteuid()) != 0) return 1;
    printf("%lu %d\n", getauxval(AT_SECURE), sluice_open(NULL, &client));
    sluice_close(client);
    return 0;
}

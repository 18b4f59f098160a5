/* Threads that run the operations of a program together. See pool.c. */
#ifndef LIMELIGHT_POOL_H
#define LIMELIGHT_POOL_H

#include "program.h"

typedef struct Pool Pool;

/* The operations of one run, in order. */
typedef struct {
    const Operation *const *operations;
    int32_t num_operations;
    size_t scratch_bytes; /* that each thread gets */
} Work;

/* Runs the operations on the threads of the pool, or on the calling thread alone if it is NULL. Returns 0, or -1 if
   memory is short: then nothing has run. */
int pool_run(Pool *pool, const Work *work);

#endif

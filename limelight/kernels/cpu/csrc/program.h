/* A recorded forward pass: operations whose arguments are bound to fixed addresses, run in order by one call.

   An operation is a struct that begins with `Operation`. Its work is split into units, which the threads of a pool take
   one after the other; no unit of an operation begins before all units of the one before have ended. How many units
   there are may depend on the buffers of the step (row counts, lengths), never on the number of threads. */
#ifndef LIMELIGHT_PROGRAM_H
#define LIMELIGHT_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define CACHE_LINE 64

typedef struct {
    int32_t index;   /* of the thread within its pool */
    void *scratch;   /* the largest scratch that any operation asked for, aligned to CACHE_LINE; its contents are lost */
} Worker;

typedef struct Operation Operation;
struct Operation {
    const char *name;                              /* a literal, for profiles */
    int32_t (*count)(const Operation *);           /* units of this run; 0: nothing to do. No side effects. */
    void (*run)(const Operation *, int32_t unit, Worker *);
};

typedef struct Program Program;

/* Appends a copy of the operation, `bytes` long. Returns 0, or -1 if memory is short. */
int program_append(Program *program, const Operation *operation, size_t bytes, size_t scratch_bytes);

static inline int32_t divide_up(int64_t value, int64_t by) { return (int32_t)((value + by - 1) / by); }

/* The next multiple of CACHE_LINE. */
static inline size_t whole_lines(size_t bytes) { return (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }

static inline int32_t minimum(int32_t a, int32_t b) { return a < b ? a : b; }

static inline int32_t maximum(int32_t a, int32_t b) { return a > b ? a : b; }

#endif

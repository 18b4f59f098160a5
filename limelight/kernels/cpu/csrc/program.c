/* See program.h. */
#include "program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"

struct Program {
    const Operation **operations; /* each in memory of its own, aligned to CACHE_LINE */
    int32_t num_operations, capacity;
    size_t scratch_bytes;
};

EXPORT Program *limelight_program_new(void) { return calloc(1, sizeof(Program)); }

EXPORT void limelight_program_free(Program *program) {
    if (!program) return;
    for (int32_t i = 0; i < program->num_operations; i++) free((void *)program->operations[i]);
    free(program->operations);
    free(program);
}

int program_append(Program *program, const Operation *operation, size_t bytes, size_t scratch_bytes) {
    if (program->num_operations == program->capacity) {
        int32_t capacity = 2 * program->capacity + 64;
        const Operation **moved = realloc(program->operations, (size_t)capacity * sizeof *moved);
        if (!moved) return -1;
        program->operations = moved;
        program->capacity = capacity;
    }
    void *copy = aligned_alloc(CACHE_LINE, whole_lines(bytes));
    if (!copy) return -1;
    memcpy(copy, operation, bytes);
    program->operations[program->num_operations++] = copy;
    if (scratch_bytes > program->scratch_bytes) program->scratch_bytes = scratch_bytes;
    return 0;
}

static Work work_of(const Program *program, int32_t first, int32_t count) {
    return (Work){program->operations + first, count, whole_lines(program->scratch_bytes)};
}

/* Returns 0, or -1 if memory is short. */
EXPORT int limelight_program_run(const Program *program, Pool *pool) {
    const Work work = work_of(program, 0, program->num_operations);
    return pool_run(pool, &work);
}

/* The operations from `first` to `end - 1`: the rest of a program whose beginning has been run, say. */
EXPORT int limelight_program_run_part(const Program *program, Pool *pool, int32_t first, int32_t end) {
    assert(first >= 0 && first <= end && end <= program->num_operations);
    const Work work = work_of(program, first, end - first);
    return pool_run(pool, &work);
}

EXPORT int limelight_program_num_operations(const Program *program) { return program->num_operations; }

EXPORT const char *limelight_program_operation_name(const Program *program, int32_t index) {
    assert(index >= 0 && index < program->num_operations);
    return program->operations[index]->name;
}

/* Runs the program, adding to `seconds` [operations] what each took. Returns 0, or -1 if memory is short. */
EXPORT int limelight_program_profile(const Program *program, Pool *pool, double *seconds) {
    for (int32_t i = 0; i < program->num_operations; i++) {
        const Work work = work_of(program, i, 1);
        struct timespec before, after;
        clock_gettime(CLOCK_MONOTONIC, &before);
        if (pool_run(pool, &work)) return -1;
        clock_gettime(CLOCK_MONOTONIC, &after);
        seconds[i] += (double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec);
    }
    return 0;
}

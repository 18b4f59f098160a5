/* See program.h. */
#include "program.h"

#include <stdlib.h>
#include <string.h>

struct Program {
    char *bytes;              /* the operations, one after the other, each aligned to CACHE_LINE */
    size_t num_bytes, capacity;
    size_t *starts;
    int32_t num_operations, operations_capacity;
    size_t scratch_bytes;
};

EXPORT Program *limelight_program_new(void) { return calloc(1, sizeof(Program)); }

EXPORT void limelight_program_free(Program *program) {
    if (!program) return;
    free(program->bytes);
    free(program->starts);
    free(program);
}

int program_append(Program *program, const Operation *operation, size_t bytes, size_t scratch_bytes) {
    size_t rounded = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    if (program->num_bytes + rounded > program->capacity) {
        size_t capacity = 2 * (program->num_bytes + rounded);
        char *moved = realloc(program->bytes, capacity);
        if (!moved) return -1;
        program->bytes = moved;
        program->capacity = capacity;
    }
    if (program->num_operations == program->operations_capacity) {
        int32_t capacity = 2 * program->operations_capacity + 64;
        size_t *moved = realloc(program->starts, (size_t)capacity * sizeof *moved);
        if (!moved) return -1;
        program->starts = moved;
        program->operations_capacity = capacity;
    }
    memcpy(program->bytes + program->num_bytes, operation, bytes);
    program->starts[program->num_operations++] = program->num_bytes;
    program->num_bytes += rounded;
    if (scratch_bytes > program->scratch_bytes) program->scratch_bytes = scratch_bytes;
    return 0;
}

/* Returns 0, or -1 if memory is short. */
EXPORT int limelight_program_run(Program *program, void *pool) {
    (void)pool;
    void *scratch = NULL;
    size_t scratch_bytes = (program->scratch_bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    if (scratch_bytes && !(scratch = aligned_alloc(CACHE_LINE, scratch_bytes))) return -1;
    Worker worker = {0, scratch};
    for (int32_t i = 0; i < program->num_operations; i++) {
        const Operation *operation = (const Operation *)(program->bytes + program->starts[i]);
        int32_t count = operation->count(operation);
        for (int32_t unit = 0; unit < count; unit++) operation->run(operation, unit, &worker);
    }
    free(scratch);
    return 0;
}

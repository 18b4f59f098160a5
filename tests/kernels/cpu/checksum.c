/* An operation for tests of the pool: each unit adds to its own counter what it finds in the counters of the operation
   before, so that a unit that is lost, run twice or run too early shows in all later ones. */
#include "program.h"

typedef struct {
    Operation operation;
    const int32_t *num_units;
    const int32_t *num_before; /* or NULL */
    const uint64_t *before;    /* counters of the operation before */
    uint64_t *counters;
    uint64_t salt;
    int64_t scratch_bytes;
} Checksum;

static int32_t count_checksum(const Operation *operation) { return *((const Checksum *)operation)->num_units; }

static void run_checksum(const Operation *operation, int32_t unit, Worker *worker) {
    const Checksum *this = (const Checksum *)operation;
    uint64_t sum = this->salt + (uint64_t)unit;
    for (int32_t i = 0; this->num_before && i < *this->num_before; i++) sum = sum * 0x9e3779b97f4a7c15u + this->before[i];
    unsigned char *scratch = worker->scratch;
    for (int64_t i = 0; i < this->scratch_bytes; i++) scratch[i] = (unsigned char)(sum + (uint64_t)i);
    for (int64_t i = 0; i < this->scratch_bytes; i++) sum = sum * 31 + scratch[i];
    this->counters[unit] += sum;
}

EXPORT int limelight_record_checksum(Program *program, const int32_t *num_units, const int32_t *num_before,
                                     const uint64_t *before, uint64_t *counters, int64_t salt, int64_t scratch_bytes) {
    Checksum this = {{"checksum", count_checksum, run_checksum},
                     num_units, num_before, before, counters, (uint64_t)salt, scratch_bytes};
    return program_append(program, &this.operation, sizeof this, (size_t)scratch_bytes);
}

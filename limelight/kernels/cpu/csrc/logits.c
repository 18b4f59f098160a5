/* What lies between the last layer and drawing: the rows that draw, and the soft cap of their logits. */
#include "program.h"
#include "vector_math.h"

#define ROWS_AT_ONCE 16
#define NUMBERS_AT_ONCE 8192

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const char *values;  /* [any, row_bytes] */
    const int32_t *rows; /* [num_rows] */
    char *chosen;        /* [num_rows, row_bytes] */
    int64_t row_bytes;
} SelectRows;

static int32_t count_select_rows(const Operation *operation) {
    return divide_up(*((const SelectRows *)operation)->num_rows, ROWS_AT_ONCE);
}

static void run_select_rows(const Operation *operation, int32_t unit, Worker *worker) {
    const SelectRows *this = (const SelectRows *)operation;
    const int32_t first = unit * ROWS_AT_ONCE;
    (void)worker;
    for (int32_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++)
        memcpy(this->chosen + row * this->row_bytes, this->values + this->rows[row] * this->row_bytes,
               (size_t)this->row_bytes);
}

EXPORT int limelight_record_select_rows(Program *program, const int32_t *num_rows, const char *values,
                                        const int32_t *rows, char *chosen, int64_t row_bytes) {
    SelectRows this = {{"select_rows", count_select_rows, run_select_rows}, num_rows, values, rows, chosen, row_bytes};
    return program_append(program, &this.operation, sizeof this, 0);
}

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    float *values; /* [num_rows, width]; x becomes cap * tanh(x / cap) */
    int32_t width;
    float cap;
} SoftCap;

static int32_t count_soft_cap(const Operation *operation) {
    const SoftCap *this = (const SoftCap *)operation;
    return *this->num_rows * divide_up(this->width, NUMBERS_AT_ONCE);
}

static void run_soft_cap(const Operation *operation, int32_t unit, Worker *worker) {
    const SoftCap *this = (const SoftCap *)operation;
    const int32_t slices = divide_up(this->width, NUMBERS_AT_ONCE), first = unit % slices * NUMBERS_AT_ONCE;
    const int32_t count = minimum(NUMBERS_AT_ONCE, this->width - first), whole = count / LANES * LANES;
    float *values = this->values + unit / slices * (int64_t)this->width + first;
    const vfloat cap = vset(this->cap);
    (void)worker;
    for (int32_t i = 0; i < whole; i += LANES) vstore(values + i, cap * vtanh(vload(values + i) / cap));
    if (count > whole)
        vstore_part(values + whole, cap * vtanh(vload_part(values + whole, count - whole, 0.0f) / cap), count - whole);
}

EXPORT int limelight_record_soft_cap(Program *program, const int32_t *num_rows, float *values, int32_t width,
                                     float cap) {
    SoftCap this = {{"soft_cap", count_soft_cap, run_soft_cap}, num_rows, values, width, cap};
    return program_append(program, &this.operation, sizeof this, 0);
}

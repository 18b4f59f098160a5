/* Quantising rows as an operation of its own, for values whose producer cannot do it on the way. */
#include "quantize.h"

#define ROWS_AT_ONCE 4

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const float *values; /* [rows, width] */
    uint8_t *quantized;
    int32_t width;
} Quantize;

static int32_t count_quantize(const Operation *operation) {
    return divide_up(*((const Quantize *)operation)->num_rows, ROWS_AT_ONCE);
}

static void run_quantize(const Operation *operation, int32_t unit, Worker *worker) {
    const Quantize *this = (const Quantize *)operation;
    const int32_t first = unit * ROWS_AT_ONCE;
    (void)worker;
    for (int64_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++)
        quantize_row(this->quantized + row * (int64_t)quantized_row_bytes(this->width),
                     this->values + row * this->width, this->width);
}

EXPORT int limelight_record_quantize(Program *program, const int32_t *num_rows, const float *values,
                                     uint8_t *quantized, int32_t width) {
    Quantize this = {{"quantize", count_quantize, run_quantize}, num_rows, values, quantized, width};
    return program_append(program, &this.operation, sizeof this, 0);
}

EXPORT int64_t limelight_quantized_row_bytes(int32_t width) { return (int64_t)quantized_row_bytes(width); }

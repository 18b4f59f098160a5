/* RMSNorm, with the addition before it (Zhang & Sennrich 2019, arXiv 1910.07467). */
#include "quantize.h"

#define ROWS_AT_ONCE 4

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const float *hidden;  /* [rows, width] */
    float *residual;      /* [rows, width] or NULL; becomes hidden + residual */
    const float *weight;  /* [width] */
    float *normed;        /* [rows, width] */
    uint8_t *quantized;   /* rows of quantize.h, or NULL */
    int32_t width;
    float epsilon;
} AddNorm;

static int32_t count_add_norm(const Operation *operation) {
    return divide_up(*((const AddNorm *)operation)->num_rows, ROWS_AT_ONCE);
}

static void add_norm_row(const AddNorm *this, int64_t row) {
    const int32_t width = this->width, whole = width / LANES * LANES, rest = width - whole;
    const float *hidden = this->hidden + row * width;
    const float *total = hidden;
    float *normed = this->normed + row * width;
    vfloat squares = vset(0.0f);
    if (this->residual) {
        float *sum = this->residual + row * width;
        for (int32_t i = 0; i < whole; i += LANES) {
            vfloat x = vload(hidden + i) + vload(sum + i);
            vstore(sum + i, x);
            squares = vfma(x, x, squares);
        }
        if (rest) {
            vfloat x = vload_part(hidden + whole, rest, 0.0f) + vload_part(sum + whole, rest, 0.0f);
            vstore_part(sum + whole, x, rest);
            squares = vfma(x, x, squares);
        }
        total = sum;
    } else {
        for (int32_t i = 0; i < whole; i += LANES) {
            vfloat x = vload(hidden + i);
            squares = vfma(x, x, squares);
        }
        if (rest) {
            vfloat x = vload_part(hidden + whole, rest, 0.0f);
            squares = vfma(x, x, squares);
        }
    }
    const vfloat factor = vset(1.0f / sqrtf(vsum(squares) / (float)width + this->epsilon));
    for (int32_t i = 0; i < whole; i += LANES) vstore(normed + i, vload(total + i) * factor * vload(this->weight + i));
    if (rest) {
        vfloat x = vload_part(total + whole, rest, 0.0f) * factor * vload_part(this->weight + whole, rest, 0.0f);
        vstore_part(normed + whole, x, rest);
    }
    if (this->quantized) quantize_row(this->quantized + row * (int64_t)quantized_row_bytes(width), normed, width);
}

static void run_add_norm(const Operation *operation, int32_t unit, Worker *worker) {
    const AddNorm *this = (const AddNorm *)operation;
    const int32_t first = unit * ROWS_AT_ONCE;
    (void)worker;
    for (int32_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++) add_norm_row(this, row);
}

EXPORT int limelight_record_add_norm(Program *program, const int32_t *num_rows, const float *hidden, float *residual,
                                     const float *weight, float *normed, uint8_t *quantized, int32_t width,
                                     float epsilon) {
    AddNorm this = {{"add_norm", count_add_norm, run_add_norm},
                    num_rows, hidden, residual, weight, normed, quantized, width, epsilon};
    return program_append(program, &this.operation, sizeof this, 0);
}

/* Gates: of gated MLPs, and of what a shared expert adds. */
#include "gate.h"
#include "quantize.h"

#define NUMBERS_AT_ONCE 8192

static inline int32_t rows_at_once(int32_t width) { return maximum(NUMBERS_AT_ONCE / width, 1); }

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const float *gate_up; /* [rows, 2 * width] */
    float *outputs;       /* [rows, width] */
    uint8_t *quantized;   /* rows of quantize.h, or NULL */
    int32_t width, activation;
    float limit;
} Gate;

static int32_t count_gate(const Operation *operation) {
    const Gate *this = (const Gate *)operation;
    return divide_up(*this->num_rows, rows_at_once(this->width));
}

static void run_gate(const Operation *operation, int32_t unit, Worker *worker) {
    const Gate *this = (const Gate *)operation;
    const int32_t at_once = rows_at_once(this->width), first = unit * at_once;
    const int64_t width = this->width;
    (void)worker;
    for (int64_t row = first; row < minimum(first + at_once, *this->num_rows); row++) {
        const float *gate = this->gate_up + 2 * row * width;
        float *to = this->outputs + row * width;
        gate_row(to, gate, gate + width, this->width, this->activation, this->limit);
        if (this->quantized)
            quantize_row(this->quantized + row * (int64_t)quantized_row_bytes(this->width), to, this->width);
    }
}

EXPORT int limelight_record_gate(Program *program, const int32_t *num_rows, const float *gate_up, float *outputs,
                                 uint8_t *quantized, int32_t width, int32_t activation, float limit) {
    Gate this = {{"gate", count_gate, run_gate}, num_rows, gate_up, outputs, quantized, width, activation, limit};
    return program_append(program, &this.operation, sizeof this, 0);
}

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    float *outputs;      /* [rows, width]; becomes outputs + sigmoid(scores) * values */
    const float *scores; /* [rows] */
    const float *values; /* [rows, width] */
    int32_t width;
} AddGated;

static int32_t count_add_gated(const Operation *operation) {
    const AddGated *this = (const AddGated *)operation;
    return divide_up(*this->num_rows, rows_at_once(this->width));
}

static void run_add_gated(const Operation *operation, int32_t unit, Worker *worker) {
    const AddGated *this = (const AddGated *)operation;
    const int32_t at_once = rows_at_once(this->width), first = unit * at_once;
    const int32_t whole = this->width / LANES * LANES, rest = this->width - whole;
    (void)worker;
    for (int64_t row = first; row < minimum(first + at_once, *this->num_rows); row++) {
        float *to = this->outputs + row * this->width;
        const float *values = this->values + row * this->width;
        const vfloat share = vsigmoid(vset(this->scores[row]));
        for (int32_t i = 0; i < whole; i += LANES) vstore(to + i, vfma(share, vload(values + i), vload(to + i)));
        if (rest) {
            vfloat x = vfma(share, vload_part(values + whole, rest, 0.0f), vload_part(to + whole, rest, 0.0f));
            vstore_part(to + whole, x, rest);
        }
    }
}

EXPORT int limelight_record_add_gated(Program *program, const int32_t *num_rows, float *outputs, const float *scores,
                                      const float *values, int32_t width) {
    AddGated this = {{"add_gated", count_add_gated, run_add_gated}, num_rows, outputs, scores, values, width};
    return program_append(program, &this.operation, sizeof this, 0);
}

/* Gates: of gated MLPs, and of what a shared expert adds. */
#include "gate.h"
#include "quantize.h"

#define NUMBERS_AT_ONCE 4096 /* a multiple of GROUP */

/* A unit is some rows, or a slice of one that is wide. */
static inline int32_t num_slices(int32_t width) { return divide_up(width, NUMBERS_AT_ONCE); }
static inline int32_t rows_at_once(int32_t width) { return maximum(NUMBERS_AT_ONCE / width, 1); }
static inline int32_t count_units(int32_t num_rows, int32_t width) {
    return divide_up(num_rows, rows_at_once(width)) * num_slices(width);
}

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
    return count_units(*this->num_rows, this->width);
}

static void run_gate(const Operation *operation, int32_t unit, Worker *worker) {
    const Gate *this = (const Gate *)operation;
    const int64_t width = this->width;
    const int32_t slices = num_slices(this->width), first = unit % slices * NUMBERS_AT_ONCE;
    const int32_t count = minimum(NUMBERS_AT_ONCE, this->width - first);
    const int32_t at_once = rows_at_once(this->width), first_row = unit / slices * at_once;
    (void)worker;
    for (int64_t row = first_row; row < minimum(first_row + at_once, *this->num_rows); row++) {
        const float *gate = this->gate_up + 2 * row * width + first;
        float *to = this->outputs + row * width + first;
        gate_row(to, gate, gate + width, count, this->activation, this->limit);
        if (this->quantized)
            quantize_row(this->quantized + row * (int64_t)quantized_row_bytes(this->width) +
                         (size_t)first / GROUP * sizeof(QuantizedGroup), to, count);
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
    return count_units(*this->num_rows, this->width);
}

static void run_add_gated(const Operation *operation, int32_t unit, Worker *worker) {
    const AddGated *this = (const AddGated *)operation;
    const int32_t slices = num_slices(this->width), first = unit % slices * NUMBERS_AT_ONCE;
    const int32_t count = minimum(NUMBERS_AT_ONCE, this->width - first), whole = count / LANES * LANES;
    const int32_t at_once = rows_at_once(this->width), first_row = unit / slices * at_once;
    (void)worker;
    for (int64_t row = first_row; row < minimum(first_row + at_once, *this->num_rows); row++) {
        float *to = this->outputs + row * this->width + first;
        const float *values = this->values + row * this->width + first;
        const vfloat share = vsigmoid(vset(this->scores[row]));
        for (int32_t i = 0; i < whole; i += LANES) vstore(to + i, vfma(share, vload(values + i), vload(to + i)));
        if (count > whole) {
            const vfloat x = vload_part(values + whole, count - whole, 0.0f);
            vstore_part(to + whole, vfma(share, x, vload_part(to + whole, count - whole, 0.0f)), count - whole);
        }
    }
}

EXPORT int limelight_record_add_gated(Program *program, const int32_t *num_rows, float *outputs, const float *scores,
                                      const float *values, int32_t width) {
    AddGated this = {{"add_gated", count_add_gated, run_add_gated}, num_rows, outputs, scores, values, width};
    return program_append(program, &this.operation, sizeof this, 0);
}

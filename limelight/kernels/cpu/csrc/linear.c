/* See linear.h; and the operation of a fused projection: parts of different formats side by side. */
#include "linear.h"

#include <stdlib.h>

#if defined(LIMELIGHT_AVX512) || defined(LIMELIGHT_AVX2)
#include "linear_panel.h"
#else
#include "linear_portable.h"
#endif

#define PANEL_SCRATCH_BYTES (MULTIPLY_SCRATCH_BYTES - ROWS_AT_ONCE * PANEL * (int)sizeof(float))

static void multiply_block(const PackedMatrix *matrix, const uint8_t *rows, int64_t row_bytes, int32_t num_rows,
                           int32_t first, int32_t last, float *out, int64_t out_stride, uint8_t *scratch) {
    const int64_t panel_bytes = panel_size(&FORMATS[matrix->format], matrix->num_inputs);
    for (int32_t panel = first; panel < last; panel++) {
        const int32_t output = panel * PANEL, count = minimum(PANEL, matrix->num_outputs - output);
        float *target = out + output;
        int64_t stride = out_stride;
        if (count < PANEL) { /* a panel that is wider than what is left of the outputs */
            target = (float *)(scratch + PANEL_SCRATCH_BYTES);
            stride = PANEL;
        }
        multiply_panel(matrix, matrix->panels + panel * panel_bytes, rows, row_bytes, num_rows, target, stride, scratch);
        if (!matrix->bias && count == PANEL) continue;
        for (int32_t row = 0; row < num_rows; row++)
            for (int32_t i = 0; i < count; i++)
                out[row * out_stride + output + i] =
                    target[row * stride + i] + (matrix->bias ? matrix->bias[output + i] : 0.0f);
    }
}

void multiply(const PackedMatrix *matrix, const void *rows, int64_t row_bytes, int32_t num_rows, int32_t first,
              int32_t last, float *out, int64_t out_stride, void *scratch) {
    for (int32_t row = 0, count; row < num_rows; row += count) {
        count = minimum(ROWS_AT_ONCE, num_rows - row);
        multiply_block(matrix, (const uint8_t *)rows + row * row_bytes, row_bytes, count, first, last,
                       out + row * out_stride, out_stride, scratch);
    }
}

EXPORT int limelight_rows_as_packed(int format) { return rows_as_packed(format); }

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const float *values;      /* [rows, num_inputs]; NULL if no part multiplies floats */
    const uint8_t *quantized; /* rows of quantize.h; NULL if all do */
    float *out;               /* [rows, num_outputs] */
    int32_t num_inputs, num_outputs, num_parts;
    PackedMatrix parts[];     /* their outputs side by side */
} Linear;

/* Rows of a step in blocks, and the panels of a part in ranges: a unit is one of each. */
typedef struct {
    int32_t rows, num_blocks, num_ranges;
} Split;

/* About how long processors take, in picoseconds: for a byte of a panel, and for a product of a row with an input of a
   panel. A unit should take UNIT_PICOSECONDS. */
#define BYTE_PICOSECONDS 50
#define CODES_PICOSECONDS 160
#define FLOATS_PICOSECONDS 400
#define UNIT_PICOSECONDS 4000000

static Split split(const PackedMatrix *part, int32_t num_rows) {
    const int32_t num_blocks = divide_up(num_rows, ROWS_AT_ONCE), panels = num_panels(part);
    const int32_t rows = num_blocks == 1 ? num_rows : divide_up(divide_up(num_rows, num_blocks), 24) * 24;
    const int64_t reading = panel_size(&FORMATS[part->format], part->num_inputs) * BYTE_PICOSECONDS;
    const int64_t adding =
        (int64_t)rows * part->num_inputs * (takes_quantized(part) ? CODES_PICOSECONDS : FLOATS_PICOSECONDS);
    const int64_t wanted = (reading > adding ? reading : adding) * panels / UNIT_PICOSECONDS;
    int32_t num_ranges = 1;
    while (num_ranges < wanted && num_ranges < panels) num_ranges *= 2;
    return (Split){rows, divide_up(num_rows, rows), minimum(num_ranges, panels)};
}

static int32_t count_linear(const Operation *operation) {
    const Linear *this = (const Linear *)operation;
    const int32_t num_rows = *this->num_rows;
    int32_t units = 0;
    for (int32_t i = 0; num_rows && i < this->num_parts; i++) {
        const Split of_part = split(&this->parts[i], num_rows);
        units += of_part.num_blocks * of_part.num_ranges;
    }
    return units;
}

static void run_linear(const Operation *operation, int32_t unit, Worker *worker) {
    const Linear *this = (const Linear *)operation;
    const PackedMatrix *part = this->parts;
    float *out = this->out;
    Split of_part = split(part, *this->num_rows);
    while (unit >= of_part.num_blocks * of_part.num_ranges) {
        unit -= of_part.num_blocks * of_part.num_ranges;
        out += part->num_outputs;
        part++;
        of_part = split(part, *this->num_rows);
    }
    const int64_t row_bytes = takes_quantized(part) ? (int64_t)quantized_row_bytes(this->num_inputs)
                                                    : this->num_inputs * (int64_t)sizeof(float);
    const uint8_t *rows = takes_quantized(part) ? this->quantized : (const uint8_t *)this->values;
    const int64_t first_row = (int64_t)(unit / of_part.num_ranges) * of_part.rows, range = unit % of_part.num_ranges;
    multiply(part, rows + first_row * row_bytes, row_bytes, minimum(of_part.rows, *this->num_rows - (int32_t)first_row),
             (int32_t)(range * num_panels(part) / of_part.num_ranges),
             (int32_t)((range + 1) * num_panels(part) / of_part.num_ranges), out + first_row * this->num_outputs,
             this->num_outputs, worker->scratch);
}

/* `parts` are [num_parts, 5]: format, outputs, where in `memory` the panels and the biases begin (-1: no biases), and the
   most rows that are multiplied with panels as they are (`limelight_rows_as_packed` unless both ways are compared). */
EXPORT int limelight_record_linear(Program *program, const int32_t *num_rows, const float *values,
                                   const uint8_t *quantized, float *out, const uint8_t *memory, const int64_t *parts,
                                   int32_t num_parts, int32_t num_inputs, int32_t num_outputs) {
    const size_t bytes = sizeof(Linear) + (size_t)num_parts * sizeof(PackedMatrix);
    Linear *this = malloc(bytes);
    if (!this) return -1;
    *this = (Linear){{"linear", count_linear, run_linear}, num_rows, values, quantized, out, num_inputs, num_outputs,
                     num_parts};
    for (int32_t i = 0; i < num_parts; i++, parts += 5)
        this->parts[i] = (PackedMatrix){memory + parts[2], parts[3] < 0 ? NULL : (const float *)(memory + parts[3]),
                                        (int32_t)parts[0], num_inputs, (int32_t)parts[1], (int32_t)parts[4]};
    const int result = program_append(program, &this->operation, bytes, MULTIPLY_SCRATCH_BYTES);
    free(this);
    return result;
}

/* One panel times many rows: which tile of a multiplier multiplies how many rows. */
#ifndef LIMELIGHT_LINEAR_PANEL_H
#define LIMELIGHT_LINEAR_PANEL_H

#include "linear_multiplier.h"

static const Multiplier *const MULTIPLIERS[NUM_FORMATS] = {
    [F32] = &MULTIPLIER_F32,
    [F16] = &MULTIPLIER_F16,
    [BF16] = &MULTIPLIER_BF16,
    [Q4_0] = &MULTIPLIER_Q4_0,
    [Q4_1] = &MULTIPLIER_Q4_1,
    [Q5_0] = &MULTIPLIER_Q5_0,
    [Q5_1] = &MULTIPLIER_Q5_1,
    [Q8_0] = &MULTIPLIER_Q8_0,
    [Q2_K] = &MULTIPLIER_Q2_K,
    [Q3_K] = &MULTIPLIER_Q3_K,
    [Q4_K] = &MULTIPLIER_Q4_K,
    [Q5_K] = &MULTIPLIER_Q5_K,
    [Q6_K] = &MULTIPLIER_Q6_K,
    [IQ4_NL] = &MULTIPLIER_IQ4_NL,
    [IQ4_XS] = &MULTIPLIER_IQ4_XS,
    [MXFP4] = &MULTIPLIER_MXFP4,
};

#define AHEAD_BYTES 1280   /* how far the reading of a packed panel is ahead of its use */
#define CODES_AT_ONCE 24   /* groups, and */
#define FLOATS_AT_ONCE 256 /* inputs, that are unpacked at once: they fit into the first cache */

#ifdef LIMELIGHT_AVX512
int32_t rows_as_packed(int32_t format) {
    (void)format;
    return 8;
}
#else
/* Unpacking bytes only widens their scales, which pays for no number of rows. But parts of a panel that are multiplied with
   all rows, one after the other, are also what fits into the caches where a row is long: so 32 is the most. */
static const int32_t ROWS_AS_PACKED[NUM_FORMATS] = {
    [F32] = 8,   [F16] = 32,  [BF16] = 16, [Q4_0] = 10, [Q4_1] = 10, [Q5_0] = 32,  [Q5_1] = 32,  [Q8_0] = 32,
    [Q2_K] = 10, [Q3_K] = 12, [Q4_K] = 6,  [Q5_K] = 16, [Q6_K] = 12, [IQ4_NL] = 8, [IQ4_XS] = 6, [MXFP4] = 8,
};

int32_t rows_as_packed(int32_t format) { return ROWS_AS_PACKED[format]; }
#endif

static void multiply_as_packed(const Multiplier *multiplier, const uint8_t *panel, const uint8_t *rows,
                               int64_t row_bytes, int32_t num_rows, int32_t steps, float *out, int64_t out_stride) {
    const uint8_t *ahead = panel + AHEAD_BYTES;
    for (int32_t row = 0, count; row < num_rows; row += count) {
        const int32_t left = num_rows - row;
        count = divide_up(left, divide_up(left, FEW_ROWS));
        multiplier->few[count](panel, rows + row * row_bytes, row_bytes, steps, out + row * out_stride, out_stride, 0,
                               ahead);
        ahead = NULL;
    }
}

static void multiply_panel(const PackedMatrix *matrix, const uint8_t *panel, const uint8_t *rows, int64_t row_bytes,
                           int32_t num_rows, float *out, int64_t out_stride, uint8_t *scratch) {
    const Format *format = &FORMATS[matrix->format];
    const Multiplier *multiplier = MULTIPLIERS[matrix->format];
    const int is_float = format->codes == FLOATS;
    const int32_t steps = is_float ? matrix->num_inputs : divide_up(matrix->num_inputs, GROUP);
    if (num_rows <= matrix->rows_as_packed) {
        multiply_as_packed(multiplier, panel, rows, row_bytes, num_rows, steps, out, out_stride);
        return;
    }
    const int32_t at_once = is_float ? FLOATS_AT_ONCE : CODES_AT_ONCE;
    const int64_t input_bytes = is_float ? (int64_t)sizeof(float) : (int64_t)sizeof(QuantizedGroup);
    const int32_t steps_of_block = format->block == LARGE_BLOCK ? LARGE_BLOCK / GROUP : 1;
    for (int32_t step = 0; step < steps; step += at_once) {
        const int32_t some = minimum(at_once, steps - step);
        const uint8_t *part = panel + (int64_t)step / steps_of_block * format->panel_bytes;
        const uint8_t *weights = part, *ahead = part + (int64_t)some / steps_of_block * format->panel_bytes;
        if (multiplier->unpack) {
            multiplier->unpack(part, some, scratch);
            weights = scratch;
        }
        for (int32_t row = 0, count; row < num_rows; row += count) {
            const int32_t left = num_rows - row;
            count = divide_up(left, divide_up(left, MOST_ROWS));
            multiplier->many[count](weights, rows + row * row_bytes + step * input_bytes, row_bytes, some,
                                    out + row * out_stride, out_stride, step > 0, ahead);
            ahead = NULL;
        }
    }
}

#endif

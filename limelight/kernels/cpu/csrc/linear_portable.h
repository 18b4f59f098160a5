/* Products in plain C: a group of a panel is decoded, then multiplied with all rows. The order of operations is that of
   `linear.h`, but products are rounded before they are added. */
#ifndef LIMELIGHT_LINEAR_PORTABLE_H
#define LIMELIGHT_LINEAR_PORTABLE_H

#include "decode.h"
#include "linear.h"

typedef struct {
    int16_t codes[GROUP][PANEL];
    float scales[2][PANEL], minima[2][PANEL];
} DecodedGroup;

static void decode_group(const Format *format, PanelGroup group, DecodedGroup *decoded) {
    for (int quad = 0; quad < GROUP / 4; quad++)
        for (int output = 0; output < PANEL; output++)
            for (int i = 0; i < 4; i++)
                decoded->codes[quad * 4 + i][output] = (int16_t)code_at(format, group, quad, output, i);
    for (int part = 0; part < GROUP / format->group; part++)
        for (int output = 0; output < PANEL; output++) {
            const float scale = scale_at(format, group, part, output);
            decoded->scales[part][output] = scale;
            decoded->minima[part][output] = stores_minima(format) ? minimum_at(format, group, part, output)
                                                                  : scale * (float)-format->zero;
        }
}

static void multiply_group(const Format *format, const DecodedGroup *decoded, const QuantizedGroup *row, float *sums) {
    const int parts = GROUP / format->group;
    for (int part = 0; part < parts; part++) {
        const float scaled_sum = parts == 1   ? row->scaled_sum
                                 : part == 1 ? row->scaled_high_sum
                                             : row->scaled_sum - row->scaled_high_sum;
        int32_t products[PANEL] = {0};
        for (int i = part * format->group; i < (part + 1) * format->group; i++)
            for (int output = 0; output < PANEL; output++)
                products[output] += (int16_t)(decoded->codes[i][output] * row->codes[i]);
        for (int output = 0; output < PANEL; output++) {
            sums[output] += (float)products[output] * (decoded->scales[part][output] * row->scale);
            if (format->quads) sums[output] += decoded->minima[part][output] * scaled_sum;
        }
    }
}

int32_t rows_as_packed(int32_t format) {
    (void)format;
    return 0;
}

static void multiply_panel(const PackedMatrix *matrix, const uint8_t *panel, const uint8_t *rows, int64_t row_bytes,
                           int32_t num_rows, float *out, int64_t out_stride, uint8_t *scratch) {
    const Format *format = &FORMATS[matrix->format];
    const int32_t num_inputs = matrix->num_inputs;
    (void)scratch;
    for (int32_t row = 0; row < num_rows; row++) memset(out + row * out_stride, 0, PANEL * sizeof(float));
    if (format->codes == FLOATS) {
        for (int32_t i = 0; i < num_inputs; i++) {
            float weights[PANEL];
            for (int output = 0; output < PANEL; output++)
                weights[output] = float_at(matrix->format, panel + (int64_t)i * format->panel_bytes, output);
            for (int32_t row = 0; row < num_rows; row++) {
                const float input = ((const float *)(rows + row * row_bytes))[i];
                float *sums = out + row * out_stride;
                for (int output = 0; output < PANEL; output++) sums[output] += weights[output] * input;
            }
        }
        return;
    }
    for (int32_t group = 0; group < divide_up(num_inputs, GROUP); group++) {
        DecodedGroup decoded;
        decode_group(format, panel_group(format, panel, group), &decoded);
        for (int32_t row = 0; row < num_rows; row++)
            multiply_group(format, &decoded, (const QuantizedGroup *)(rows + row * row_bytes) + group,
                           out + row * out_stride);
    }
}

#endif

/* See linear.h. */
#include "linear.h"

#if defined(LIMELIGHT_AVX512) || defined(LIMELIGHT_AVX2)
#include "linear_tile.h"
#else
#include "linear_portable.h"
#endif

#define PANEL_SCRATCH_BYTES (MULTIPLY_SCRATCH_BYTES - ROWS_AT_ONCE * PANEL * (int)sizeof(float))

static void multiply_rows(const PackedMatrix *matrix, const uint8_t *rows, int64_t row_bytes, int32_t num_rows,
                          int32_t first, int32_t last, float *out, int64_t out_stride, uint8_t *scratch) {
    const int64_t panel_bytes = panel_size(&FORMATS[matrix->format], matrix->num_inputs);
    for (int32_t panel = first; panel < last; panel++) {
        const int32_t output = panel * PANEL, count = minimum(PANEL, matrix->num_outputs - output);
        float *target = out + output;
        int64_t stride = out_stride;
        if (count < PANEL) { /* the last panel is wider than what is left of the row */
            target = (float *)(scratch + PANEL_SCRATCH_BYTES);
            stride = PANEL;
        }
        multiply_panel(matrix->format, matrix->panels + panel * panel_bytes, rows, row_bytes, num_rows,
                       matrix->num_inputs, target, stride, scratch);
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
        multiply_rows(matrix, (const uint8_t *)rows + row * row_bytes, row_bytes, count, first, last,
                      out + row * out_stride, out_stride, scratch);
    }
}

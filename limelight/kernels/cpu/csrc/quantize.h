/* Rows of activations as int8 with a scale for each group of 32, for products with quantised weights.

   One row is one piece of memory, `quantized_row_bytes(width)` long, a multiple of CACHE_LINE. What lies in it is known
   here and in linear.c only; the operations that make rows for a product call `quantize_row`. */
#ifndef LIMELIGHT_QUANTIZE_H
#define LIMELIGHT_QUANTIZE_H

#include "program.h"
#include "vector.h"

#define GROUP 32

/* int8 codes [groups * 32], then float scales [groups], then int32 sums of the codes of each 16 [2 * groups]. */
static inline size_t quantized_row_bytes(int32_t width) {
    size_t groups = (size_t)divide_up(width, GROUP);
    return (groups * (GROUP + 4 + 8) + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static inline int8_t *row_codes(uint8_t *row) { return (int8_t *)row; }
static inline float *row_scales(uint8_t *row, int32_t width) { return (float *)(row + (size_t)divide_up(width, GROUP) * GROUP); }
static inline int32_t *row_sums(uint8_t *row, int32_t width) {
    return (int32_t *)(row + (size_t)divide_up(width, GROUP) * (GROUP + 4));
}

/* Codes are round(x / scale), scale = max |x| of the group / 127; the last group is filled with zeros. */
static inline void quantize_row(uint8_t *row, const float *values, int32_t width) {
    int8_t *codes = row_codes(row);
    float *scales = row_scales(row, width);
    int32_t *sums = row_sums(row, width);
    for (int32_t group = 0; group * GROUP < width; group++) {
        const float *from = values + group * GROUP;
        int32_t count = minimum(GROUP, width - group * GROUP);
        float largest = 0.0f;
        for (int32_t i = 0; i < count; i++) largest = fabsf(from[i]) > largest ? fabsf(from[i]) : largest;
        float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
        scales[group] = largest / 127.0f;
        sums[2 * group] = sums[2 * group + 1] = 0;
        for (int32_t i = 0; i < GROUP; i++) {
            int32_t code = i < count ? (int32_t)lrintf(from[i] * inverse) : 0;
            codes[group * GROUP + i] = (int8_t)code;
            sums[2 * group + i / 16] += code;
        }
    }
}

#endif

/* Rows of activations as int8 with a scale for each group of 32, for products with quantised weights.

   One row is one piece of memory, `quantized_row_bytes(width)` long, a multiple of CACHE_LINE: a `QuantizedGroup` for
   each group, so that one pointer serves a product for codes, scales and sums. The last group is filled up with zeros.
   The operations that make rows for a product call `quantize_row`. */
#ifndef LIMELIGHT_QUANTIZE_H
#define LIMELIGHT_QUANTIZE_H

#include "program.h"
#include "vector.h"

#define GROUP 32

/* The values are about scale * codes. */
typedef struct {
    int8_t codes[GROUP];    /* -127 to 127 */
    float scale;            /* largest magnitude / 127; not a number if a value of the group is not finite */
    float scaled_sum;       /* scale * sum */
    float scaled_high_sum;  /* the same of the last 16 codes */
    int32_t sum;            /* of the codes */
} QuantizedGroup;

static inline size_t quantized_row_bytes(int32_t width) {
    return whole_lines((size_t)divide_up(width, GROUP) * sizeof(QuantizedGroup));
}

/* Sets all but the codes. */
static inline void finish_group(QuantizedGroup *group, float scale, int32_t sum, int32_t high_sum) {
    group->scale = scale;
    group->scaled_sum = scale * (float)sum;
    group->scaled_high_sum = scale * (float)high_sum;
    group->sum = sum;
}

/* The scale of a group whose largest magnitude has the bits `bits`, and what values become codes by: 0 for groups whose
   codes are all zero, because a value is not finite or all are so small (below 2**-119) that it would overflow. */
static inline float inverse_scale(int32_t bits, float *scale) {
    float largest;
    memcpy(&largest, &bits, 4);
    *scale = bits < 0x04000000 ? 0.0f : bits < 0x7f800000 ? largest / 127.0f : NAN;
    return bits < 0x04000000 || bits >= 0x7f800000 ? 0.0f : 127.0f / largest;
}

/* Codes are round(x * (127 / largest)), ties to even. Magnitudes are compared as integers: a value that is not a number
   has larger bits than all others. */
#if defined(LIMELIGHT_AVX512) || defined(LIMELIGHT_AVX2)
static inline int32_t sum_of_lanes(__m128i lanes) {
    lanes = _mm_add_epi32(lanes, _mm_shuffle_epi32(lanes, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(lanes, _mm_shuffle_epi32(lanes, 0xb1)));
}
static inline void quantize_group(QuantizedGroup *group, const float *values) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 x[4];
    for (int i = 0; i < 4; i++) x[i] = _mm256_loadu_ps(values + 8 * i);
    __m256i largest = _mm256_and_si256(_mm256_castps_si256(x[0]), magnitude);
    for (int i = 1; i < 4; i++)
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude));
    __m128i best = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    best = _mm_max_epi32(best, _mm_shuffle_epi32(best, 0x4e));
    best = _mm_max_epi32(best, _mm_shuffle_epi32(best, 0xb1));
    float scale;
    const float inverse = inverse_scale(_mm_cvtsi128_si32(best), &scale);
    if (inverse == 0.0f) {
        memset(group->codes, 0, GROUP);
        finish_group(group, scale, 0, 0);
        return;
    }
    __m256i codes[4];
    for (int i = 0; i < 4; i++) codes[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], _mm256_set1_ps(inverse)));
    /* Packing works within halves of 128 bits: fours of codes come out as 0 2 4 6 1 3 5 7. */
    const __m256i low = _mm256_packs_epi32(codes[0], codes[1]), high = _mm256_packs_epi32(codes[2], codes[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)group->codes, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i low_sums = _mm256_madd_epi16(low, ones), high_sums = _mm256_madd_epi16(high, ones);
    const int32_t high_sum =
        sum_of_lanes(_mm_add_epi32(_mm256_castsi256_si128(high_sums), _mm256_extracti128_si256(high_sums, 1)));
    const int32_t low_sum =
        sum_of_lanes(_mm_add_epi32(_mm256_castsi256_si128(low_sums), _mm256_extracti128_si256(low_sums, 1)));
    finish_group(group, scale, low_sum + high_sum, high_sum);
}
#else
static inline void quantize_group(QuantizedGroup *group, const float *values) {
    int32_t bits[GROUP], largest = 0, sum = 0, high_sum = 0;
    float scaled[GROUP], scale;
    memcpy(bits, values, sizeof bits);
    for (int i = 0; i < GROUP; i++) largest = (bits[i] & 0x7fffffff) > largest ? bits[i] & 0x7fffffff : largest;
    const float inverse = inverse_scale(largest, &scale);
    if (inverse == 0.0f) {
        memset(group->codes, 0, GROUP);
        finish_group(group, scale, 0, 0);
        return;
    }
    for (int i = 0; i < GROUP; i++) scaled[i] = values[i] * inverse + ROUNDING;
    memcpy(bits, scaled, sizeof bits);
    for (int i = 0; i < GROUP; i++) group->codes[i] = (int8_t)(bits[i] - 0x4b400000);
    for (int i = 0; i < GROUP; i++) sum += group->codes[i];
    for (int i = GROUP / 2; i < GROUP; i++) high_sum += group->codes[i];
    finish_group(group, scale, sum, high_sum);
}
#endif

static inline void quantize_row(uint8_t *row, const float *values, int32_t width) {
    QuantizedGroup *group = (QuantizedGroup *)row;
    const int32_t whole = width / GROUP * GROUP;
    for (int32_t i = 0; i < whole; i += GROUP) quantize_group(group++, values + i);
    if (whole < width) {
        float last[GROUP] = {0.0f};
        memcpy(last, values + whole, (size_t)(width - whole) * 4);
        quantize_group(group, last);
    }
}

#endif

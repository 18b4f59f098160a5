/* What `linear_tile.h` is made of, for AVX-512 VNNI: a panel is one vector of 16 outputs.

   vpdpbusd adds four products of unsigned and signed codes to 32 bits. Signed codes are shifted by 128 to be unsigned,
   and 128 * the sum of the inputs is subtracted. */
#ifndef LIMELIGHT_LINEAR_AVX512_H
#define LIMELIGHT_LINEAR_AVX512_H

#include "linear.h"

#define VECTORS 1

typedef __m512i vcodes;

static inline vcodes load_codes(const uint8_t *from) { return _mm512_loadu_si512(from); }
static inline vcodes low_nibbles(vcodes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
static inline vcodes high_nibbles(vcodes v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
static inline vcodes look_up(const int8_t *table, vcodes v) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), v);
}
static inline vcodes four_inputs(const int8_t *codes) {
    int32_t bits;
    memcpy(&bits, codes, 4);
    return _mm512_set1_epi32(bits);
}

/* Adds the products of four codes of 16 outputs to `sum`, or sets it for the first of a group. */
ALWAYS_INLINE void add_quad(const Format *format, const int quad, const int num_quads, vcodes weights,
                            const QuantizedGroup *row, vcodes inputs, __m512i *part, __m512i *sum) {
    (void)part;
    (void)num_quads;
    if (format->quads == 0) {
        if (quad == 0) *sum = _mm512_set1_epi32(-128 * row->sum);
        weights = _mm512_xor_si512(weights, _mm512_set1_epi8(-128));
    } else if (quad == 0) {
        *sum = _mm512_setzero_si512();
    }
    *sum = _mm512_dpbusd_epi32(*sum, weights, inputs);
}

static inline vfloat from_integers(__m512i v) { return __builtin_convertvector((vint)v, vfloat); }
#ifdef LIMELIGHT_EMULATE /* SIMDe does not have all conversions */
static inline vfloat load_halves(const uint8_t *from) {
    const __m256 halves[2] = {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)),
                              _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 16)))};
    return vload((const float *)halves);
}
static inline vfloat load_small(const uint8_t *from) { /* signed bytes */
    typedef int8_t bytes __attribute__((vector_size(LANES)));
    bytes v;
    memcpy(&v, from, sizeof v);
    return __builtin_convertvector(__builtin_convertvector(v, vint), vfloat);
}
#else
static inline vfloat load_halves(const uint8_t *from) {
    return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}
static inline vfloat load_small(const uint8_t *from) { /* signed bytes */
    return from_integers(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
}
#endif

#endif

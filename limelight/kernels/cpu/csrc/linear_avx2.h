/* What `linear_tile.h` is made of, for AVX2: a panel is two vectors of 8 outputs.

   vpmaddubsw multiplies unsigned with signed codes and adds two neighbours up in 16 bits; as many of these sums as cannot
   overflow are added before they are widened. Signed codes go as magnitudes, their signs given to the inputs. */
#ifndef LIMELIGHT_LINEAR_AVX2_H
#define LIMELIGHT_LINEAR_AVX2_H

#include "linear.h"

#define VECTORS 2

typedef __m256i vcodes;

static inline vcodes load_codes(const uint8_t *from) { return _mm256_load_si256((const __m256i *)from); }
static inline vcodes low_nibbles(vcodes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
static inline vcodes high_nibbles(vcodes v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
static inline vcodes look_up(const int8_t *table, vcodes v) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), v);
}
static inline vcodes four_inputs(const int8_t *codes) {
    int32_t bits;
    memcpy(&bits, codes, 4);
    return _mm256_set1_epi32(bits);
}

/* Keeps the compiler from adding sums of 16 bits up in another order, which would take more registers. */
#define KEEP_ORDER(v) __asm__("" : "+x"(v))

/* Adds the products of four codes of 8 outputs to `sum`, or sets it for the first of the `num_quads` of a group. */
ALWAYS_INLINE void add_quad(const Format *format, const int quad, const int num_quads, vcodes weights,
                            const QuantizedGroup *row, vcodes inputs, __m256i *part, __m256i *sum) {
    const __m256i ones = _mm256_set1_epi16(1);
    (void)row;
    if (format->quads == 0) {
        const __m256i pairs =
            _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(inputs, weights));
        const __m256i products = _mm256_madd_epi16(pairs, ones);
        *sum = quad ? _mm256_add_epi32(*sum, products) : products;
        KEEP_ORDER(*sum);
        return;
    }
    const __m256i pairs = _mm256_maddubs_epi16(weights, inputs);
    *part = quad % format->quads ? _mm256_add_epi16(*part, pairs) : pairs;
    KEEP_ORDER(*part);
    if (quad % format->quads == format->quads - 1 || quad == num_quads - 1) {
        const __m256i products = _mm256_madd_epi16(*part, ones);
        *sum = quad >= format->quads ? _mm256_add_epi32(*sum, products) : products;
    }
}

static inline vfloat from_integers(__m256i v) { return __builtin_convertvector((vint)v, vfloat); }
static inline vfloat load_halves(const uint8_t *from) {
    return (vfloat)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}
static inline vfloat load_small(const uint8_t *from) { /* signed bytes */
    return from_integers(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
}

#endif

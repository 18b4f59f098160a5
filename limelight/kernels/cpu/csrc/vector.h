/* Vectors of floats, as wide as the variant allows: one source for all variants. Arithmetic operators work on `vfloat`.

   `vsum` and `vexp` do the same operations in the same order wherever they are called, so that equal inputs give equal
   bits in every path. */
#ifndef LIMELIGHT_VECTOR_H
#define LIMELIGHT_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(LIMELIGHT_AVX512)
#ifdef LIMELIGHT_EMULATE /* on processors without AVX-512, for tests: SIMDe's versions of the intrinsics */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif
#define LANES 16
#elif defined(LIMELIGHT_AVX2)
#include <immintrin.h>
#define LANES 8
#else
#define LANES 4
#endif

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));

static inline vfloat vload(const float *from) { vfloat v; memcpy(&v, from, sizeof v); return v; }
static inline void vstore(float *to, vfloat v) { memcpy(to, &v, sizeof v); }
static inline vfloat vset(float value) { return value - (vfloat){0}; } /* not a sum: -0 stays as it is */

/* Lanes of `a` where `which` has all bits set, those of `b` where it has none. */
static inline vfloat vchoose(vint which, vfloat a, vfloat b) {
    return (vfloat)((which & (vint)a) | (~which & (vint)b));
}

/* The first `count` (0 to LANES) lanes; the others are `fill`. */
static inline vfloat vload_part(const float *from, int count, float fill) {
    vfloat v = vset(fill);
    memcpy(&v, from, (size_t)count * 4);
    return v;
}
static inline void vstore_part(float *to, vfloat v, int count) { memcpy(to, &v, (size_t)count * 4); }

/* The lanes from `begin` to `end - 1`, which may lie outside of the vector; the others are `fill`. */
static inline vfloat vkeep(vfloat v, int begin, int end, float fill) {
    vint lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    return vchoose((lane >= begin) & (lane < end), v, vset(fill));
}

static inline vfloat vfma(vfloat a, vfloat b, vfloat c) {
#if defined(LIMELIGHT_AVX512)
    return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(LIMELIGHT_AVX2)
    return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}
static inline vfloat vmax(vfloat a, vfloat b) {
#if defined(LIMELIGHT_AVX512)
    return (vfloat)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(LIMELIGHT_AVX2)
    return (vfloat)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vchoose(a > b, a, b);
#endif
}
static inline vfloat vmin(vfloat a, vfloat b) { /* of two where one is not a number the second, as vmax */
#if defined(LIMELIGHT_AVX512)
    return (vfloat)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(LIMELIGHT_AVX2)
    return (vfloat)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vchoose(a < b, a, b);
#endif
}

/* Lanes added as a tree: i with i + LANES / 2, and so on. */
static inline float vsum(vfloat v) {
#if LANES > 4 && !defined(LIMELIGHT_EMULATE)
#if LANES == 16
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#else
    const __m256 eight = (__m256)v;
#endif
    __m128 sums = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    sums = _mm_add_ps(sums, _mm_movehl_ps(sums, sums));
    return _mm_cvtss_f32(_mm_add_ss(sums, _mm_movehdup_ps(sums)));
#else
    float lanes[LANES];
    memcpy(lanes, &v, sizeof v);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
#endif
}
static inline float vgreatest(vfloat v) {
#if defined(LIMELIGHT_AVX512) && !defined(LIMELIGHT_EMULATE)
    return _mm512_reduce_max_ps((__m512)v);
#elif defined(LIMELIGHT_AVX2)
    __m128 most = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
#else
    float lanes[LANES], best;
    memcpy(lanes, &v, sizeof v);
    best = lanes[0];
    for (int i = 1; i < LANES; i++) best = lanes[i] > best ? lanes[i] : best;
    return best;
#endif
}

/* 1.5 * 2**23. Adding it to a magnitude below 2**22 rounds to an integer, ties to even, in the lowest bits. */
#define ROUNDING 12582912.0f

/* e**x within 2 ulp or so; 0 below -87.3, x is taken for 88 above. exp(x) = 2**n * 2**f, f in [-0.5, 0.5]. */
static inline vfloat vexp(vfloat x) {
    const vfloat magic = vset(ROUNDING);
    const vint is_zero = x < -87.33654f;
    /* The second of two where one is not a number: it must not be hidden. */
    x = vmin(vset(88.0f), vmax(vset(-87.33654f), x));
    const vfloat shifted = vfma(x, vset(1.44269504f), magic), n = shifted - magic;
    vfloat r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    vfloat p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(5.0000001201e-1f));
    p = vfma(p, r * r, r + 1.0f);
    const vint power = ((vint)shifted << 23) + (127 << 23);
    return (vfloat)((vint)(p * (vfloat)power) & ~is_zero);
}

/* Wide and narrow numbers of the KV pool and of weights. */
static inline float from_bfloat16(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}
static inline vfloat vload_bfloat16(const uint16_t *from) {
#if defined(LIMELIGHT_AVX512) && !defined(LIMELIGHT_EMULATE)
    return (vfloat)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)), 16);
#elif defined(LIMELIGHT_AVX2)
    return (vfloat)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)), 16);
#else
    typedef uint16_t half __attribute__((vector_size(LANES * 2)));
    half v;
    memcpy(&v, from, sizeof v);
    return (vfloat)(__builtin_convertvector(v, vint) << 16);
#endif
}
static inline vfloat vload_bfloat16_part(const uint16_t *from, int count) { /* the other lanes are 0 */
    uint16_t lanes[LANES] = {0};
    memcpy(lanes, from, (size_t)count * 2);
    return vload_bfloat16(lanes);
}
static inline uint16_t to_bfloat16(float value) { /* to nearest, ties to even; a NaN stays one */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#if defined(__F16C__)
static inline float from_float16(uint16_t value) { return _cvtsh_ss(value); }
static inline uint16_t to_float16(float value) { return (uint16_t)_cvtss_sh(value, 0); }
#else
static inline float from_float16(uint16_t value) {
    uint32_t sign = (uint32_t)(value & 0x8000) << 16, exponent = value >> 10 & 31, fraction = value & 1023, bits;
    float result;
    if (exponent == 31) bits = sign | 0x7f800000 | fraction << 13;
    else if (exponent) bits = sign | (exponent + 112) << 23 | fraction << 13;
    else {
        result = (float)fraction * 5.9604644775390625e-8f;
        return sign ? -result : result;
    }
    memcpy(&result, &bits, 4);
    return result;
}
static inline uint16_t to_float16(float value) { /* to nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* subnormal or zero */
        float scaled;
        memcpy(&scaled, &magnitude, 4);
        return (uint16_t)(sign | (uint32_t)lrintf(scaled * 16777216.0f));
    }
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (magnitude - 0x38000000) >> 13);
}
#endif

static inline vfloat vload_float16(const uint16_t *from) {
#if defined(LIMELIGHT_AVX512) && !defined(LIMELIGHT_EMULATE)
    return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#else
    vfloat v;
#if defined(__F16C__)
    for (int i = 0; i < LANES; i += 8) {
        const __m256 half = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i)));
        memcpy((float *)&v + i, &half, sizeof half);
    }
#else
    for (int i = 0; i < LANES; i++) v[i] = from_float16(from[i]);
#endif
    return v;
#endif
}

#endif

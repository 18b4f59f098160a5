/* Functions of vectors beyond `vexp`. Each does the same operations in the same order wherever it is called.

   The polynomials are least maximum fits of the functions named, found with 40 digits and rounded to float. */
#ifndef LIMELIGHT_VECTOR_MATH_H
#define LIMELIGHT_VECTOR_MATH_H

#include "vector.h"

static inline vfloat vabs(vfloat v) { return (vfloat)((vint)v & 0x7fffffff); }

/* A bit for each lane, that of lane 0 lowest. */
static inline int32_t vbits(vint mask) {
#if defined(LIMELIGHT_AVX512)
    return (int32_t)_mm512_movepi32_mask((__m512i)mask);
#elif defined(LIMELIGHT_AVX2)
    return _mm256_movemask_ps((__m256)mask);
#else
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (mask[i] < 0) << i;
    return bits;
#endif
}

/* Coefficients from the highest power down. */
static inline vfloat vpolynomial(vfloat x, const float *coefficients, int count) {
    vfloat result = vset(coefficients[0]);
    for (int i = 1; i < count; i++) result = vfma(result, x, vset(coefficients[i]));
    return result;
}

#define LOG2_E 1.44269504f

/* 2**x within 2 ulp or so, x below 127; 0 below -126.5. x = n + f, f in [-0.5, 0.5]. */
static inline vfloat vexp2(vfloat x) {
    static const float POWER[] = {0.00132647273f, 0.00967151299f, 0.0555073358f, 0.240222424f, 0.693147004f, 1.0f};
    const vfloat magic = vset(ROUNDING);
    x = vmax(vset(-127.0f), x); /* the second where one is not a number: it must not be hidden */
    const vfloat shifted = x + magic, f = x - (shifted - magic);
    const vint power = ((vint)shifted << 23) + (127 << 23);
    return vpolynomial(f, POWER, 6) * (vfloat)power;
}

/* 1 / (1 + e**-x), to the last bits on both sides. */
static inline vfloat vsigmoid(vfloat x) {
    const vfloat e = vexp(-vabs(x));
    return vchoose(x < 0.0f, e, vset(1.0f)) / (1.0f + e);
}

static inline vfloat vtanh(vfloat x) {
    static const float ODD[] = {-0.00564828143f, 0.0205897912f, -0.0537251160f, 0.133312747f, -0.333332747f};
    const vfloat size = vabs(x), square = x * x;
    const vint is_near = size < 0.625f;
    const vfloat near = vfma(x * square, vpolynomial(square, ODD, 5), x);
    if (!vbits(~is_near)) return near;
    const vfloat e = vexp(-2.0f * size);
    const vfloat far = (vfloat)((vint)((1.0f - e) / (1.0f + e)) | ((vint)x & INT32_MIN));
    return vchoose(is_near, near, far);
}

/* The standard normal distribution function: its lower tail is e**(-x*x/2) times a smooth function of 1 / (1 + 0.3 |x|). */
static inline vfloat vnormal(vfloat x) {
    static const float TAIL[] = {-0.0206132270f, 0.112377942f, -0.228072599f, 0.191588446f, -0.0792529210f,
                                 0.0960607976f, 0.0784245655f, 0.110227540f, 0.119572818f, 0.119686633f};
    const vfloat size = vabs(x), s = 1.0f / vfma(size, vset(0.3f), vset(1.0f));
    const vfloat tail = vexp(-0.5f * size * size) * s * vpolynomial(s, TAIL, 10);
    return vchoose(x < 0.0f, tail, 1.0f - tail);
}

/* log(x + rest) within 1 ulp or so, x positive and normal, `rest` what rounding took from x (or 0).
   x = 2**n * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)). */
static inline vfloat vlog(vfloat x, vfloat rest) {
    static const float CUBIC[] = {-0.0763422549f, 0.127614677f, -0.131602332f, 0.142017767f,
                                  -0.166233540f, 0.200012267f, -0.250008225f, 0.333333313f};
    const vint n = ((vint)x - 0x3f3504f3) >> 23;
    const vfloat exponent = __builtin_convertvector(n, vfloat);
    const vfloat f = (vfloat)((vint)x - (n << 23)) - 1.0f, square = f * f;
    vfloat low = vfma(square * f, vpolynomial(f, CUBIC, 8), vfma(exponent, vset(-2.12194440e-4f), rest));
    low = vfma(square, vset(-0.5f), low);
    return vfma(exponent, vset(0.693359375f), f + low);
}

#endif

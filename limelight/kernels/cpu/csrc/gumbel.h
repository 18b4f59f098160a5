/* Gumbel noise that depends on nothing but its key: the words of gumbel_noise.py, bit for bit. */
#ifndef LIMELIGHT_GUMBEL_H
#define LIMELIGHT_GUMBEL_H

#include "vector_math.h"

#define LARGEST_GUMBEL 22.19f

typedef uint32_t vword __attribute__((vector_size(LANES * 4)));

typedef struct {
    uint32_t first, second;
} NoiseKey;

/* Finaliser of splitmix64 (Steele, Lea, Flood 2014). */
static inline uint64_t mix64(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9u;
    value = (value ^ value >> 27) * 0x94D049BB133111EBu;
    return value ^ value >> 31;
}

static inline NoiseKey noise_key(int64_t seed, int64_t position) {
    const uint64_t key = mix64(mix64((uint64_t)seed) + (uint64_t)position);
    return (NoiseKey){(uint32_t)key, (uint32_t)(key >> 32)};
}

/* `lowbias32` (Wellons 2018). */
static inline vword mix32(vword words) {
    words = (words ^ words >> 16) * 0x7FEB352Du;
    words = (words ^ words >> 15) * 0x846CA68Bu;
    return words ^ words >> 16;
}

/* Between 2**-32 and the largest float below one, for each token id. */
static inline vfloat noise_uniform(NoiseKey key, vint ids) {
    const vword words = mix32(mix32((vword)ids * 0x9E3779B9u + key.first) + key.second);
    const vfloat uniform = (__builtin_convertvector((vint)(words & 0x7FFFFFFFu), vfloat) + 0.5f) * 0x1p-31f;
    return vmin(uniform, vset(0x1.fffffep-1f));
}

/* -log(-log(1 - uniform)). */
static inline vfloat gumbel_of(vfloat uniform) {
    const vfloat kept = 1.0f - uniform;
    const vfloat lost = (1.0f - kept) - uniform; /* exact; divided by `kept` it is what the logarithm lacks */
    return -vlog(-vlog(kept, lost * (2.0f - kept)), vset(0.0f));
}

/* Never below `gumbel_of`, at a fraction of the cost: -log(uniform), its logarithm replaced by a chord. */
static inline vfloat gumbel_bound(vfloat uniform) {
    const float log_2 = 0.693147181f;
    return vfma(__builtin_convertvector((vint)uniform, vfloat), vset(-log_2 * 0x1p-23f), vset(127.0f * log_2 + 1e-3f));
}

#endif

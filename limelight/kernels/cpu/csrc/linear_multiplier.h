/* What multiplies rows with a panel, for each format. The files `linear_floats.c` to `linear_signed.c` have one of them for
   each kind of codes that products need: they take long to compile, and are compiled side by side. */
#ifndef LIMELIGHT_LINEAR_MULTIPLIER_H
#define LIMELIGHT_LINEAR_MULTIPLIER_H

#include "linear.h"

/* Rows that a tile of packed panels has at most, and one of unpacked panels. */
#define FEW_ROWS 4
#ifdef LIMELIGHT_AVX512
#define MOST_ROWS 8
#else
#define MOST_ROWS 4 /* sums of more do not stay in 16 registers */
#endif

/* Steps are groups of 32 inputs, or single inputs of floats. `ahead` is what to fetch into the cache meanwhile, or NULL;
   if the product `continues`, its sums so far are in `out`. */
typedef void Tile(const uint8_t *weights, const uint8_t *rows, int64_t row_bytes, int32_t steps, float *out,
                  int64_t out_stride, int continues, const uint8_t *ahead);
typedef void Unpack(const uint8_t *panel, int32_t steps, uint8_t *unpacked);

typedef struct {
    Tile *few[FEW_ROWS + 1];
    Unpack *unpack; /* NULL: a panel is as `many` takes it */
    Tile *many[MOST_ROWS + 1];
} Multiplier;

extern const Multiplier
    MULTIPLIER_F32, MULTIPLIER_F16, MULTIPLIER_BF16, MULTIPLIER_Q4_0,
    MULTIPLIER_Q4_1, MULTIPLIER_Q5_0, MULTIPLIER_Q5_1, MULTIPLIER_Q8_0,
    MULTIPLIER_Q2_K, MULTIPLIER_Q3_K, MULTIPLIER_Q4_K, MULTIPLIER_Q5_K,
    MULTIPLIER_Q6_K, MULTIPLIER_IQ4_NL, MULTIPLIER_IQ4_XS, MULTIPLIER_MXFP4;

#endif

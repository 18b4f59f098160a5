/* How matrices are packed for products: by panels of 16 outputs, each one stream of memory that is read once.

   A panel of floats holds, for each input, 16 numbers. A panel of codes holds a record for each block of inputs:

   - Scales of a block of 256, before its codes: 16 float16 scales (and 16 scales of the minima), then for each group of
     inputs 16 small scales of a byte (and 16 small minima).
   - Codes: four inputs of 16 outputs take 64 bytes, four for each output. Codes of 4 bits share bytes: low halves are
     inputs 8 i to 8 i + 3 and high halves 8 i + 4 to 8 i + 7. Codes of other widths take a byte.
   - Scales of a block of 32, behind its codes: 16 float16 scales (bfloat16 for MXFP4), and 16 minima where there are some.

   A value is scale * code + minimum, exactly as in the file. Where a format has no minima, codes are shifted by `zero` to
   become unsigned, and the minimum is -zero * scale. */
#ifndef LIMELIGHT_FORMATS_H
#define LIMELIGHT_FORMATS_H

#include "quantize.h"

#define PANEL 16
#define LARGE_BLOCK 256

/* Stored formats; `packing.py` has their names in the same order. */
enum {
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, NUM_FORMATS
};

typedef enum { FLOATS, NIBBLES, TABLE_NIBBLES, BYTES } Codes;

typedef enum {
    HALF_SCALES,        /* float16 scales */
    HALF_SCALES_MINIMA,
    BRAIN_SCALES,       /* bfloat16 scales */
    SMALL_SCALES,       /* of blocks of 256 */
    SMALL_SCALES_MINIMA,
    WIDE_SCALES_MINIMA  /* float32: panels that are unpacked for many rows */
} Scales;

typedef struct {
    Codes codes;
    Scales scales;
    int32_t block;        /* inputs of a record */
    int32_t panel_bytes;  /* of a record */
    int32_t group;        /* inputs with one scale */
    int32_t zero;
    int32_t quads;        /* so many products of four codes with int8 add up to 16 bits at most; 0: codes are signed */
    int32_t stored_bytes; /* of a block of one row in the file */
} Format;

static const Format FORMATS[NUM_FORMATS] = {
    [F32] = {.codes = FLOATS, .block = 1, .panel_bytes = 64, .stored_bytes = 4},
    [F16] = {.codes = FLOATS, .block = 1, .panel_bytes = 32, .stored_bytes = 2},
    [BF16] = {.codes = FLOATS, .block = 1, .panel_bytes = 32, .stored_bytes = 2},
    [Q4_0] = {NIBBLES, HALF_SCALES, 32, 288, 32, 8, 8, 18},
    [Q4_1] = {NIBBLES, HALF_SCALES_MINIMA, 32, 320, 32, 0, 8, 20},
    [Q5_0] = {BYTES, HALF_SCALES, 32, 544, 32, 16, 4, 22},
    [Q5_1] = {BYTES, HALF_SCALES_MINIMA, 32, 576, 32, 0, 4, 24},
    [Q8_0] = {BYTES, HALF_SCALES, 32, 544, 32, 0, 0, 34},
    [Q2_K] = {BYTES, SMALL_SCALES_MINIMA, 256, 4672, 16, 0, 2, 84},
    [Q3_K] = {BYTES, SMALL_SCALES, 256, 4384, 16, 4, 2, 110},
    [Q4_K] = {NIBBLES, SMALL_SCALES_MINIMA, 256, 2368, 32, 0, 8, 144},
    [Q5_K] = {BYTES, SMALL_SCALES_MINIMA, 256, 4416, 32, 0, 4, 176},
    [Q6_K] = {BYTES, SMALL_SCALES, 256, 4384, 16, 32, 2, 210},
    [IQ4_NL] = {TABLE_NIBBLES, HALF_SCALES, 32, 288, 32, 0, 0, 18},
    [IQ4_XS] = {TABLE_NIBBLES, SMALL_SCALES, 256, 2208, 32, 0, 0, 136},
    [MXFP4] = {TABLE_NIBBLES, BRAIN_SCALES, 32, 288, 32, 12, 4, 17},
};

/* What codes of TABLE_NIBBLES stand for, plus `zero`: non-linear 4-bit values of ggml's `ggml-common.h`, and twice the
   e2m1 numbers of OCP's Microscaling Formats specification 1.0. */
static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t MXFP4_VALUES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

static inline const int8_t *code_values(const Format *format) { return format->zero ? MXFP4_VALUES : IQ4_VALUES; }

static inline int32_t code_bytes(const Format *format) { return format->codes == BYTES ? 512 : 256; } /* of a group of 32 */

/* Bytes before the codes of a record. */
static inline int32_t head_bytes(const Format *format) {
    return format->block == LARGE_BLOCK ? format->panel_bytes - LARGE_BLOCK / GROUP * code_bytes(format) : 0;
}

static inline int64_t panel_size(const Format *format, int32_t num_inputs) {
    return (int64_t)divide_up(num_inputs, format->block) * format->panel_bytes;
}

#endif

/* One panel times many rows: which tile of `linear_tile.h` multiplies how many rows, for each format. */
#ifndef LIMELIGHT_LINEAR_PANEL_H
#define LIMELIGHT_LINEAR_PANEL_H

#include "linear_tile.h"

#define TILE_ARGUMENTS                                                                                              \
    const uint8_t *weights, const uint8_t *rows, int64_t row_bytes, int32_t steps, float *out, int64_t out_stride,  \
        int continues, const uint8_t *ahead
#define PASS_ARGUMENTS weights, rows, row_bytes, steps, out, out_stride, continues, ahead
#define NAMED(prefix, name, rows) prefix##_##name##_##rows
#define DEFINE_TILE(tile, prefix, format, name, num_rows)                                                           \
    static __attribute__((noinline)) void NAMED(prefix, name, num_rows)(TILE_ARGUMENTS) {                           \
        tile(format, num_rows, PASS_ARGUMENTS);                                                                     \
    }
#define DEFINE_FEW(tile, format, name)                                                                              \
    DEFINE_TILE(tile, few, format, name, 1)                                                                         \
    DEFINE_TILE(tile, few, format, name, 2)                                                                         \
    DEFINE_TILE(tile, few, format, name, 3)                                                                         \
    DEFINE_TILE(tile, few, format, name, 4)
#define DEFINE_CODES(name)                                                                                          \
    DEFINE_FEW(code_tile, &FORMATS[name], name)                                                                     \
    static __attribute__((noinline)) void unpack_##name(const uint8_t *panel, int32_t steps, uint8_t *unpacked) {   \
        unpack_codes(&FORMATS[name], panel, steps, unpacked);                                                       \
    }
#define DEFINE_FLOATS(name)                                                                                         \
    DEFINE_FEW(float_tile, name, name)                                                                              \
    static __attribute__((noinline)) void unpack_##name(const uint8_t *panel, int32_t steps, uint8_t *unpacked) {   \
        unpack_floats(name, panel, steps, unpacked);                                                                \
    }
#if MOST_ROWS == 8
#define DEFINE_LARGEST(tile, format, name)                                                                          \
    DEFINE_TILE(tile, many, format, name, 7) DEFINE_TILE(tile, many, format, name, 8)
#define LARGEST(name) , many_##name##_7, many_##name##_8
#else
#define DEFINE_LARGEST(tile, format, name)
#define LARGEST(name)
#endif
#define DEFINE_MANY(tile, format, name)                                                                             \
    DEFINE_TILE(tile, many, format, name, 1)                                                                        \
    DEFINE_TILE(tile, many, format, name, 2)                                                                        \
    DEFINE_TILE(tile, many, format, name, 3)                                                                        \
    DEFINE_TILE(tile, many, format, name, 4)                                                                        \
    DEFINE_TILE(tile, many, format, name, 5)                                                                        \
    DEFINE_TILE(tile, many, format, name, 6)                                                                        \
    DEFINE_LARGEST(tile, format, name)                                                                              \
    static Tile *const MANY_##name[MOST_ROWS + 1] = {                                                               \
        NULL, many_##name##_1, many_##name##_2, many_##name##_3, many_##name##_4, many_##name##_5,                  \
        many_##name##_6 LARGEST(name)};

DEFINE_FLOATS(F16)
DEFINE_FLOATS(BF16)
DEFINE_CODES(Q4_0)
DEFINE_CODES(Q4_1)
DEFINE_CODES(Q5_0)
DEFINE_CODES(Q5_1)
DEFINE_CODES(Q8_0)
DEFINE_CODES(Q2_K)
DEFINE_CODES(Q3_K)
DEFINE_CODES(Q4_K)
DEFINE_CODES(Q5_K)
DEFINE_CODES(Q6_K)
DEFINE_CODES(IQ4_NL)
DEFINE_CODES(IQ4_XS)
DEFINE_CODES(MXFP4)
DEFINE_MANY(float_tile, F32, F32)
DEFINE_MANY(code_tile, &WIDE_FORMATS[WIDE_4_BITS], WIDE_4_BITS)
DEFINE_MANY(code_tile, &WIDE_FORMATS[WIDE_5_BITS], WIDE_5_BITS)
DEFINE_MANY(code_tile, &WIDE_FORMATS[WIDE_6_BITS], WIDE_6_BITS)
DEFINE_MANY(code_tile, &WIDE_FORMATS[WIDE_SIGNED], WIDE_SIGNED)

typedef struct {
    Tile *few[FEW_ROWS + 1];
    Unpack *unpack;          /* NULL: a panel is as `many` takes it */
    Tile *const *many;
    int32_t unpacked_bytes;  /* of a step */
} Multiplier;

#define MULTIPLIER(name, wide, bytes)                                                                               \
    [name] = {{NULL, few_##name##_1, few_##name##_2, few_##name##_3, few_##name##_4}, unpack_##name, MANY_##wide, bytes}

static const Multiplier MULTIPLIERS[NUM_FORMATS] = {
    [F32] = {{NULL, many_F32_1, many_F32_2, many_F32_3, many_F32_4}, NULL, MANY_F32, 64},
    MULTIPLIER(F16, F32, 64),
    MULTIPLIER(BF16, F32, 64),
    MULTIPLIER(Q4_0, WIDE_4_BITS, 640),
    MULTIPLIER(Q4_1, WIDE_4_BITS, 640),
    MULTIPLIER(Q5_0, WIDE_5_BITS, 640),
    MULTIPLIER(Q5_1, WIDE_5_BITS, 640),
    MULTIPLIER(Q8_0, WIDE_SIGNED, 640),
    MULTIPLIER(Q2_K, WIDE_6_BITS, 768),
    MULTIPLIER(Q3_K, WIDE_6_BITS, 768),
    MULTIPLIER(Q4_K, WIDE_4_BITS, 640),
    MULTIPLIER(Q5_K, WIDE_5_BITS, 640),
    MULTIPLIER(Q6_K, WIDE_6_BITS, 768),
    MULTIPLIER(IQ4_NL, WIDE_SIGNED, 640),
    MULTIPLIER(IQ4_XS, WIDE_SIGNED, 640),
    MULTIPLIER(MXFP4, WIDE_5_BITS, 640),
};

#define FEW_ROWS_LIMIT 8   /* with more rows, unpacking pays */
#define CODES_AT_ONCE 24   /* groups, and */
#define FLOATS_AT_ONCE 256 /* inputs, that are unpacked at once: they fit into the first cache */

static void multiply_panel(int32_t format, const uint8_t *panel, const uint8_t *rows, int64_t row_bytes,
                           int32_t num_rows, int32_t num_inputs, float *out, int64_t out_stride, uint8_t *scratch) {
    const Multiplier *multiplier = &MULTIPLIERS[format];
    const int is_float = FORMATS[format].codes == FLOATS;
    const int32_t steps = is_float ? num_inputs : divide_up(num_inputs, GROUP);
    if (num_rows <= FEW_ROWS_LIMIT) {
        const uint8_t *ahead = panel + AHEAD_BYTES;
        for (int32_t row = 0, count; row < num_rows; row += count) {
            const int32_t left = num_rows - row;
            count = divide_up(left, divide_up(left, FEW_ROWS));
            multiplier->few[count](panel, rows + row * row_bytes, row_bytes, steps, out + row * out_stride, out_stride,
                                   0, ahead);
            ahead = NULL;
        }
        return;
    }
    const int32_t at_once = is_float ? FLOATS_AT_ONCE : CODES_AT_ONCE;
    const int64_t input_bytes = is_float ? (int64_t)sizeof(float) : (int64_t)sizeof(QuantizedGroup);
    const int32_t steps_of_block = FORMATS[format].block == LARGE_BLOCK ? LARGE_BLOCK / GROUP : 1;
    for (int32_t step = 0; step < steps; step += at_once) {
        const int32_t some = minimum(at_once, steps - step);
        const uint8_t *part = panel + (int64_t)step / steps_of_block * FORMATS[format].panel_bytes;
        const uint8_t *weights = part, *ahead = part + (int64_t)some / steps_of_block * FORMATS[format].panel_bytes;
        if (multiplier->unpack) {
            multiplier->unpack(part, some, scratch);
            weights = scratch;
        }
        for (int32_t row = 0, count; row < num_rows; row += count) {
            const int32_t left = num_rows - row;
            count = divide_up(left, divide_up(left, MOST_ROWS));
            multiplier->many[count](weights, rows + row * row_bytes + step * input_bytes, row_bytes, some,
                                    out + row * out_stride, out_stride, step > 0, ahead);
            ahead = NULL;
        }
    }
}

#endif

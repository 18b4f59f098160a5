/* The tiles of `linear_tile.h` for given formats, and their multipliers. A file names the formats that share the tiles of
   their unpacked panels. */
#ifndef LIMELIGHT_LINEAR_INSTANCES_H
#define LIMELIGHT_LINEAR_INSTANCES_H

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
    DEFINE_TILE(tile, many, format, name, 5)                                                                        \
    DEFINE_TILE(tile, many, format, name, 6)                                                                        \
    DEFINE_TILE(tile, many, format, name, 7)                                                                        \
    DEFINE_TILE(tile, many, format, name, 8)
#define LARGEST(name) , many_##name##_5, many_##name##_6, many_##name##_7, many_##name##_8
#else
#define DEFINE_LARGEST(tile, format, name)
#define LARGEST(name)
#endif
#define DEFINE_MANY(tile, format, name)                                                                             \
    DEFINE_TILE(tile, many, format, name, 1)                                                                        \
    DEFINE_TILE(tile, many, format, name, 2)                                                                        \
    DEFINE_TILE(tile, many, format, name, 3)                                                                        \
    DEFINE_TILE(tile, many, format, name, 4)                                                                        \
    DEFINE_LARGEST(tile, format, name)

#define FEW(prefix, name) {NULL, prefix##_##name##_1, prefix##_##name##_2, prefix##_##name##_3, prefix##_##name##_4}
#define MANY(name) {NULL, many_##name##_1, many_##name##_2, many_##name##_3, many_##name##_4 LARGEST(name)}
#define DEFINE_MULTIPLIER(name, wide) const Multiplier MULTIPLIER_##name = {FEW(few, name), unpack_##name, MANY(wide)};

#endif

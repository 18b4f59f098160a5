/* Tiles of a product: a few rows times the 16 outputs of a panel, with all sums in registers.

   Few rows multiply with a panel as it is packed, which takes as long as reading it. For many rows a part of a panel that
   fits into the first cache is unpacked to bytes and float32 scales (or floats to float32) once. Both do the same
   operations in the same order. */
#ifndef LIMELIGHT_LINEAR_TILE_H
#define LIMELIGHT_LINEAR_TILE_H

#include "linear_multiplier.h"

#if defined(LIMELIGHT_AVX512)
#include "linear_avx512.h"
#else
#include "linear_avx2.h"
#endif

#ifdef LIMELIGHT_EMULATE /* would take minutes to compile */
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Scales and minima of outputs number LANES * vector on, of part `part` of the group of 32 inputs number `step`. `head` is
   what the block has before its codes, `tail` what follows the codes. */
ALWAYS_INLINE void load_scales(const Format *format, const uint8_t *head, const uint8_t *tail, int32_t step,
                               const int part, const int vector, vfloat *scale, vfloat *minimum) {
    const int first = vector * LANES, parts = GROUP / format->group;
    if (format->scales == WIDE_SCALES_MINIMA) {
        *scale = vload((const float *)(tail + part * 128) + first);
        *minimum = vload((const float *)(tail + part * 128 + 64) + first);
        return;
    }
    if (format->scales == BRAIN_SCALES) *scale = vload_bfloat16((const uint16_t *)tail + first);
    if (format->scales == HALF_SCALES || format->scales == HALF_SCALES_MINIMA) *scale = load_halves(tail + 2 * first);
    if (format->scales == HALF_SCALES_MINIMA) *minimum = load_halves(tail + 32 + 2 * first);
    if (format->scales == SMALL_SCALES)
        *scale = load_halves(head + 2 * first) *
                 load_small(head + 32 + (step % 8 * parts + part) * 16 + first);
    if (format->scales == SMALL_SCALES_MINIMA) {
        const uint8_t *small = head + 64 + (step % 8 * parts + part) * 32 + first;
        *scale = load_halves(head + 2 * first) * load_small(small);
        *minimum = load_halves(head + 32 + 2 * first) * load_small(small + 16) * -1.0f;
    }
    if (format->scales == HALF_SCALES || format->scales == BRAIN_SCALES || format->scales == SMALL_SCALES)
        *minimum = *scale * (float)-format->zero;
}

/* What is read of a packed panel in a step, nearly. */
ALWAYS_INLINE int ahead_bytes(const Format *format) {
    return format->scales == WIDE_SCALES_MINIMA ? (format->quads == 8 ? 320 : 576) : code_bytes(format) + 64;
}

ALWAYS_INLINE int has_minima(const Format *format) { return format->quads != 0; }

/* The sums so far, or zeros: what follows is long enough to fetch the lines meanwhile that they will be written to. */
ALWAYS_INLINE void start_totals(const int num_rows, const float *out, int64_t out_stride, int continues,
                                vfloat totals[MOST_ROWS][VECTORS]) {
    UNROLL for (int r = 0; r < num_rows; r++) {
        if (!continues) __builtin_prefetch(out + r * out_stride, 1);
        UNROLL for (int v = 0; v < VECTORS; v++)
            totals[r][v] = continues ? vload(out + r * out_stride + v * LANES) : vset(0.0f);
    }
}

ALWAYS_INLINE void code_tile(const Format *format, const int num_rows, const uint8_t *weights, const uint8_t *rows,
                             int64_t row_bytes, int32_t steps, float *out, int64_t out_stride, int continues,
                             const uint8_t *ahead) {
    const int is_packed = format->codes != BYTES, parts = GROUP / format->group, quads = format->group / 4;
    const int tail_bytes = format->block == GROUP ? format->panel_bytes - code_bytes(format) : 0;
    const int step_bytes = code_bytes(format) + tail_bytes;
    const uint8_t *head = NULL;
    vfloat totals[MOST_ROWS][VECTORS];
    start_totals(num_rows, out, out_stride, continues, totals);
    for (int32_t step = 0; step < steps; step++) {
        if (format->block == LARGE_BLOCK && step % 8 == 0) {
            head = weights;
            weights += head_bytes(format);
        }
        if (ahead) {
            UNROLL for (int line = 0; line < ahead_bytes(format); line += CACHE_LINE) __builtin_prefetch(ahead + line);
            ahead += ahead_bytes(format);
        }
        UNROLL for (int part = 0; part < parts; part++) {
            vcodes sums16[MOST_ROWS][VECTORS], sums[MOST_ROWS][VECTORS];
            if (is_packed) {
                UNROLL for (int i = 0; i < quads / 2; i++)
                    UNROLL for (int v = 0; v < VECTORS; v++) {
                        const vcodes both = load_codes(weights + i * 64 + v * (int)sizeof(vcodes));
                        vcodes low = low_nibbles(both), high = high_nibbles(both);
                        if (format->codes == TABLE_NIBBLES) {
                            low = look_up(code_values(format), low);
                            high = look_up(code_values(format), high);
                        }
                        UNROLL for (int r = 0; r < num_rows; r++) {
                            const QuantizedGroup *row = (const QuantizedGroup *)(rows + r * row_bytes);
                            add_quad(format, 2 * i, quads, low, row, four_inputs(row->codes + 8 * i), &sums16[r][v],
                                     &sums[r][v]);
                            add_quad(format, 2 * i + 1, quads, high, row, four_inputs(row->codes + 8 * i + 4),
                                     &sums16[r][v], &sums[r][v]);
                        }
                    }
            } else {
                UNROLL for (int quad = 0; quad < quads; quad++) {
                    const int at = part * quads + quad;
                    vcodes codes[VECTORS];
                    UNROLL for (int v = 0; v < VECTORS; v++)
                        codes[v] = load_codes(weights + at * 64 + v * (int)sizeof(vcodes));
                    UNROLL for (int r = 0; r < num_rows; r++) {
                        const QuantizedGroup *row = (const QuantizedGroup *)(rows + r * row_bytes);
                        const vcodes inputs = four_inputs(row->codes + at * 4);
                        UNROLL for (int v = 0; v < VECTORS; v++)
                            add_quad(format, quad, quads, codes[v], row, inputs, &sums16[r][v], &sums[r][v]);
                    }
                }
            }
            UNROLL for (int v = 0; v < VECTORS; v++) {
                vfloat scale, minimum;
                load_scales(format, head, weights + code_bytes(format), step, part, v, &scale, &minimum);
                UNROLL for (int r = 0; r < num_rows; r++) {
                    const QuantizedGroup *row = (const QuantizedGroup *)(rows + r * row_bytes);
                    totals[r][v] = vfma(from_integers(sums[r][v]), scale * vset(row->scale), totals[r][v]);
                    if (!has_minima(format)) continue;
                    vfloat sum = vset(parts == 2 && part ? row->scaled_high_sum : row->scaled_sum);
                    if (parts == 2 && !part) sum -= vset(row->scaled_high_sum);
                    totals[r][v] = vfma(minimum, sum, totals[r][v]);
                }
            }
        }
        weights += step_bytes;
        rows += sizeof(QuantizedGroup);
    }
    UNROLL for (int r = 0; r < num_rows; r++)
        UNROLL for (int v = 0; v < VECTORS; v++) vstore(out + r * out_stride + v * LANES, totals[r][v]);
}

ALWAYS_INLINE vfloat load_weights(const int format, const uint8_t *from, const int vector) {
    if (format == F32) return vload((const float *)from + vector * LANES);
    return format == F16 ? load_halves(from + 2 * LANES * vector) : vload_bfloat16((const uint16_t *)from + LANES * vector);
}

ALWAYS_INLINE void float_tile(const int format, const int num_rows, const uint8_t *weights, const uint8_t *rows,
                              int64_t row_bytes, int32_t steps, float *out, int64_t out_stride, int continues,
                              const uint8_t *ahead) {
    const int step_bytes = format == F32 ? 64 : 32;
    vfloat totals[MOST_ROWS][VECTORS];
    start_totals(num_rows, out, out_stride, continues, totals);
    for (int32_t step = 0; step < steps; step++) {
        vfloat weight[VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) weight[v] = load_weights(format, weights, v);
        UNROLL for (int r = 0; r < num_rows; r++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                totals[r][v] = vfma(weight[v], vset(*(const float *)(rows + r * row_bytes)), totals[r][v]);
        if (ahead) {
            __builtin_prefetch(ahead);
            ahead += step_bytes;
        }
        weights += step_bytes;
        rows += sizeof(float);
    }
    UNROLL for (int r = 0; r < num_rows; r++)
        UNROLL for (int v = 0; v < VECTORS; v++) vstore(out + r * out_stride + v * LANES, totals[r][v]);
}

/* Unpacked panels of codes, by what their products need. */
enum { WIDE_4_BITS, WIDE_5_BITS, WIDE_6_BITS, WIDE_SIGNED };

static const Format WIDE_FORMATS[] = {
    [WIDE_4_BITS] = {BYTES, WIDE_SCALES_MINIMA, GROUP, 640, 32, 0, 8, 0},
    [WIDE_5_BITS] = {BYTES, WIDE_SCALES_MINIMA, GROUP, 640, 32, 0, 4, 0},
    [WIDE_6_BITS] = {BYTES, WIDE_SCALES_MINIMA, GROUP, 768, 16, 0, 2, 0},
    [WIDE_SIGNED] = {BYTES, WIDE_SCALES_MINIMA, GROUP, 640, 32, 0, 0, 0},
};

ALWAYS_INLINE void unpack_codes(const Format *format, const uint8_t *panel, int32_t steps, uint8_t *unpacked) {
    const int parts = GROUP / format->group;
    const int tail_bytes = format->block == GROUP ? format->panel_bytes - code_bytes(format) : 0;
    const uint8_t *head = NULL;
    for (int32_t step = 0; step < steps; step++) {
        if (format->block == LARGE_BLOCK && step % 8 == 0) {
            head = panel;
            panel += head_bytes(format);
        }
        UNROLL for (int i = 0; i < code_bytes(format); i += (int)sizeof(vcodes)) {
            const vcodes codes = load_codes(panel + i);
            if (format->codes == BYTES) {
                memcpy(unpacked + i, &codes, sizeof codes);
                continue;
            }
            vcodes low = low_nibbles(codes), high = high_nibbles(codes);
            if (format->codes == TABLE_NIBBLES) {
                low = look_up(code_values(format), low);
                high = look_up(code_values(format), high);
            }
            memcpy(unpacked + i / 64 * 128 + i % 64, &low, sizeof low);
            memcpy(unpacked + i / 64 * 128 + i % 64 + 64, &high, sizeof high);
        }
        UNROLL for (int part = 0; part < parts; part++)
            UNROLL for (int v = 0; v < VECTORS; v++) {
                vfloat scale, minimum;
                load_scales(format, head, panel + code_bytes(format), step, part, v, &scale, &minimum);
                vstore((float *)(unpacked + 512 + part * 128) + v * LANES, scale);
                vstore((float *)(unpacked + 512 + part * 128 + 64) + v * LANES, minimum);
            }
        panel += code_bytes(format) + tail_bytes;
        unpacked += 512 + parts * 128;
    }
}

ALWAYS_INLINE void unpack_floats(const int format, const uint8_t *panel, int32_t steps, uint8_t *unpacked) {
    for (int32_t step = 0; step < steps; step++, panel += 32, unpacked += 64)
        UNROLL for (int v = 0; v < VECTORS; v++)
            vstore((float *)unpacked + v * LANES, load_weights(format, panel, v));
}

#endif

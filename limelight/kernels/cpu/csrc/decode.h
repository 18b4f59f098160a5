/* Reading packed panels (`formats.h`) back, in plain C. */
#ifndef LIMELIGHT_DECODE_H
#define LIMELIGHT_DECODE_H

#include "formats.h"

/* 32 inputs of 16 outputs: values are scales * codes + minima, and minima are -zero * scales where there are none. */
typedef struct {
    int16_t codes[GROUP][PANEL];
    float scales[2][PANEL], minima[2][PANEL]; /* of the first and the second 16 inputs if there are two groups */
} DecodedGroup;

static inline float decode_half(const uint8_t *panel, int i) {
    uint16_t bits;
    memcpy(&bits, panel + 2 * i, 2);
    return from_float16(bits);
}

static inline void decode_group(const Format *format, const uint8_t *panel, int32_t group, DecodedGroup *decoded) {
    const int32_t groups_of_block = format->block / GROUP, in_block = group % groups_of_block;
    const int32_t parts = GROUP / format->group;
    const uint8_t *block = panel + (int64_t)(group / groups_of_block) * format->panel_bytes;
    const uint8_t *codes = block + head_bytes(format) + in_block * code_bytes(format);
    const uint8_t *scales = format->block == LARGE_BLOCK ? block : codes + code_bytes(format);
    for (int quad = 0; quad < GROUP / 4; quad++)
        for (int output = 0; output < PANEL; output++)
            for (int i = 0; i < 4; i++) {
                const int at = output * 4 + i;
                int16_t code;
                if (format->codes == BYTES) {
                    const uint8_t byte = codes[quad * 64 + at];
                    code = format->quads ? byte : (int8_t)byte;
                } else {
                    code = codes[quad / 2 * 64 + at] >> (quad % 2 * 4) & 15;
                    if (format->codes == TABLE_NIBBLES) code = code_values(format)[code];
                }
                decoded->codes[quad * 4 + i][output] = code;
            }
    for (int part = 0; part < parts; part++)
        for (int output = 0; output < PANEL; output++) {
            float scale, minimum = 0.0f;
            if (format->block == LARGE_BLOCK) {
                const int has_minima = format->scales == SMALL_SCALES_MINIMA;
                const int8_t *small = (const int8_t *)scales + (has_minima ? 64 : 32) +
                                      (in_block * parts + part) * (has_minima ? 32 : 16) + output;
                scale = decode_half(scales, output) * (float)small[0];
                if (has_minima) minimum = -(decode_half(scales + 32, output) * (float)small[16]);
            } else if (format->scales == BRAIN_SCALES) {
                uint16_t bits;
                memcpy(&bits, scales + 2 * output, 2);
                scale = from_bfloat16(bits);
            } else {
                scale = decode_half(scales, output);
                if (format->scales == HALF_SCALES_MINIMA) minimum = decode_half(scales + 32, output);
            }
            if (format->zero) minimum = scale * (float)-format->zero;
            decoded->scales[part][output] = scale;
            decoded->minima[part][output] = minimum;
        }
}

static inline void decode_floats(int32_t format, const uint8_t *from, float *values) { /* 16 values of one input */
    for (int output = 0; output < PANEL; output++) {
        uint16_t bits;
        if (format == F32) {
            memcpy(values + output, from + 4 * output, 4);
            continue;
        }
        memcpy(&bits, from + 2 * output, 2);
        values[output] = format == F16 ? from_float16(bits) : from_bfloat16(bits);
    }
}

#endif

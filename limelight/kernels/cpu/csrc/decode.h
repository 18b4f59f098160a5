/* Reading packed panels (`formats.h`) back, in plain C. */
#ifndef LIMELIGHT_DECODE_H
#define LIMELIGHT_DECODE_H

#include "formats.h"

/* 32 inputs of a panel of codes. */
typedef struct {
    const uint8_t *codes, *scales; /* `scales` begin the block where a block has several groups */
    int32_t first_part;            /* of the block: a part is what has one scale */
} PanelGroup;

static inline PanelGroup panel_group(const Format *format, const uint8_t *panel, int32_t group) {
    const int32_t groups = format->block / GROUP;
    const uint8_t *block = panel + (int64_t)(group / groups) * format->panel_bytes;
    const uint8_t *codes = block + head_bytes(format) + group % groups * code_bytes(format);
    return (PanelGroup){codes, format->block == LARGE_BLOCK ? block : codes + code_bytes(format),
                        group % groups * (GROUP / format->group)};
}

/* The code of input 4 * quad + i, shifted by `zero`. */
static inline int32_t code_at(const Format *format, PanelGroup group, int quad, int output, int i) {
    const int at = output * 4 + i;
    if (format->codes == BYTES) {
        const uint8_t byte = group.codes[quad * 64 + at];
        return format->quads ? byte : (int8_t)byte;
    }
    const int nibble = group.codes[quad / 2 * 64 + at] >> (quad % 2 * 4) & 15;
    return format->codes == TABLE_NIBBLES ? code_values(format)[nibble] : nibble;
}

static inline float half_at(const uint8_t *from, int i) {
    uint16_t bits;
    memcpy(&bits, from + 2 * i, 2);
    return from_float16(bits);
}

static inline float scale_at(const Format *format, PanelGroup group, int part, int output) {
    if (format->scales == SMALL_SCALES)
        return half_at(group.scales, output) *
               (float)(int8_t)group.scales[32 + (group.first_part + part) * 16 + output];
    if (format->scales == SMALL_SCALES_MINIMA)
        return half_at(group.scales, output) * (float)group.scales[64 + (group.first_part + part) * 32 + output];
    if (format->scales != BRAIN_SCALES) return half_at(group.scales, output);
    uint16_t bits;
    memcpy(&bits, group.scales + 2 * output, 2);
    return from_bfloat16(bits);
}

/* For formats that have minima. */
static inline float minimum_at(const Format *format, PanelGroup group, int part, int output) {
    if (format->scales == HALF_SCALES_MINIMA) return half_at(group.scales + 32, output);
    return -(half_at(group.scales + 32, output) *
             (float)group.scales[80 + (group.first_part + part) * 32 + output]);
}

static inline int stores_minima(const Format *format) {
    return format->scales == HALF_SCALES_MINIMA || format->scales == SMALL_SCALES_MINIMA;
}

static inline float float_at(int32_t format, const uint8_t *from, int i) {
    uint16_t bits;
    float value;
    if (format == F32) {
        memcpy(&value, from + 4 * i, 4);
        return value;
    }
    memcpy(&bits, from + 2 * i, 2);
    return format == F16 ? from_float16(bits) : from_bfloat16(bits);
}

#endif

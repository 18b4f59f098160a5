/* Packing matrices, as files store them, into panels (`formats.h`). Layouts of stored blocks: ggml's `ggml-common.h`. */
#include "formats.h"

/* Puts the block of one output into a record: `output` is its number in the panel. */
typedef void PackBlock(const uint8_t *block, uint8_t *record, int output);

/* The bytes of `codes` [32] into the `group` of 32 inputs of a record. */
static inline void put_bytes(const uint8_t *codes, uint8_t *group, int output) {
    for (int quad = 0; quad < 8; quad++) memcpy(group + quad * 64 + output * 4, codes + quad * 4, 4);
}

static inline void put_nibbles(const uint8_t *codes, uint8_t *group, int output) {
    for (int i = 0; i < 4; i++) {
        uint32_t low, high;
        memcpy(&low, codes + i * 8, 4);
        memcpy(&high, codes + i * 8 + 4, 4);
        low |= high << 4;
        memcpy(group + i * 64 + output * 4, &low, 4);
    }
}

static inline void put_half(const uint8_t *half, uint8_t *scales, int output) { memcpy(scales + 2 * output, half, 2); }

/* 16 bytes, of which the low halves come first -> 32 codes. */
static inline void split_nibbles(const uint8_t *bytes, uint8_t *codes) {
    for (int i = 0; i < 16; i += 8) {
        uint64_t eight, low, high;
        memcpy(&eight, bytes + i, 8);
        low = eight & UINT64_C(0x0f0f0f0f0f0f0f0f);
        high = eight >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f);
        memcpy(codes + i, &low, 8);
        memcpy(codes + 16 + i, &high, 8);
    }
}

/* Bit i of `bits` becomes the fifth of code i; the bits of a byte are spread over eight bytes by one product. */
static inline void add_fifth_bits(const uint8_t *bits, uint8_t *codes) {
    for (int i = 0; i < 4; i++) {
        uint64_t eight, spread = (bits[i] & 0x7f) * UINT64_C(0x0002040810204081) & UINT64_C(0x0101010101010101);
        spread |= (uint64_t)(bits[i] >> 7) << 56;
        memcpy(&eight, codes + 8 * i, 8);
        eight |= spread << 4;
        memcpy(codes + 8 * i, &eight, 8);
    }
}

static void pack_q4_0(const uint8_t *block, uint8_t *record, int output) { /* and IQ4_NL */
    uint8_t codes[32];
    split_nibbles(block + 2, codes);
    put_nibbles(codes, record, output);
    put_half(block, record + 256, output);
}

static void pack_q4_1(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    split_nibbles(block + 4, codes);
    put_nibbles(codes, record, output);
    put_half(block, record + 256, output);
    put_half(block + 2, record + 288, output);
}

static void pack_q5_0(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    split_nibbles(block + 6, codes);
    add_fifth_bits(block + 2, codes);
    put_bytes(codes, record, output);
    put_half(block, record + 512, output);
}

static void pack_q5_1(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    split_nibbles(block + 8, codes);
    add_fifth_bits(block + 4, codes);
    put_bytes(codes, record, output);
    put_half(block, record + 512, output);
    put_half(block + 2, record + 544, output);
}

static void pack_q8_0(const uint8_t *block, uint8_t *record, int output) {
    put_bytes(block + 2, record, output);
    put_half(block, record + 512, output);
}

/* The scale is 2**(exponent - 128), of which the two smallest are subnormal. */
static void pack_mxfp4(const uint8_t *block, uint8_t *record, int output) {
    const uint16_t scale = block[0] > 1 ? (uint16_t)((block[0] - 1) << 7) : (uint16_t)(0x20 << block[0]);
    uint8_t codes[32];
    split_nibbles(block + 1, codes);
    put_nibbles(codes, record, output);
    memcpy(record + 256 + 2 * output, &scale, 2);
}

static void pack_q2_k(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    put_half(block + 80, record, output);
    put_half(block + 82, record + 32, output);
    for (int group = 0; group < 16; group++) {
        record[64 + group * 32 + output] = block[group] & 15;
        record[80 + group * 32 + output] = block[group] >> 4;
    }
    for (int group = 0; group < 8; group++) {
        for (int i = 0; i < 32; i++) codes[i] = block[16 + group / 4 * 32 + i] >> group % 4 * 2 & 3;
        put_bytes(codes, record + 576 + group * 512, output);
    }
}

static void pack_q3_k(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    put_half(block + 108, record, output);
    for (int group = 0; group < 16; group++) {
        const int low = block[96 + group % 8] >> group / 8 * 4 & 15;
        const int high = block[104 + group % 4] >> group / 4 * 2 & 3;
        record[32 + group * 16 + output] = (uint8_t)((low | high << 4) - 32);
    }
    for (int group = 0; group < 8; group++) {
        for (int i = 0; i < 32; i++)
            codes[i] = (uint8_t)((block[32 + group / 4 * 32 + i] >> group % 4 * 2 & 3) | (block[i] >> group & 1) << 2);
        put_bytes(codes, record + 288 + group * 512, output);
    }
}

/* Scales and minima of Q4_K and Q5_K: bytes 4 to 7 and 8 to 11 have those of groups 0 to 3 in their low six bits, and
   above them the high pairs of groups 4 to 7, whose low halves are in bytes 12 to 15. */
static inline void put_small_scales(const uint8_t *block, uint8_t *record, int output) {
    put_half(block, record, output);
    put_half(block + 2, record + 32, output);
    for (int i = 0; i < 4; i++) {
        const uint8_t scale = block[4 + i], minimum = block[8 + i], low = block[12 + i];
        uint8_t *first = record + 64 + i * 32 + output, *second = first + 4 * 32;
        first[0] = scale & 63;
        first[16] = minimum & 63;
        second[0] = (uint8_t)((low & 15) | (scale >> 2 & 48));
        second[16] = (uint8_t)(low >> 4 | (minimum >> 2 & 48));
    }
}

static void pack_q4_k(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    put_small_scales(block, record, output);
    for (int group = 0; group < 8; group++) {
        for (int i = 0; i < 32; i++) codes[i] = block[16 + group / 2 * 32 + i] >> group % 2 * 4 & 15;
        put_nibbles(codes, record + 320 + group * 256, output);
    }
}

static void pack_q5_k(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    put_small_scales(block, record, output);
    for (int group = 0; group < 8; group++) {
        for (int i = 0; i < 32; i++)
            codes[i] = (uint8_t)((block[48 + group / 2 * 32 + i] >> group % 2 * 4 & 15) |
                                 (block[16 + i] >> group & 1) << 4);
        put_bytes(codes, record + 320 + group * 512, output);
    }
}

static void pack_q6_k(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    put_half(block + 208, record, output);
    for (int group = 0; group < 16; group++) record[32 + group * 16 + output] = block[192 + group];
    for (int group = 0; group < 8; group++) {
        const uint8_t *low = block + group / 4 * 64 + group % 2 * 32, *high = block + 128 + group / 4 * 32;
        for (int i = 0; i < 32; i++)
            codes[i] = (uint8_t)((low[i] >> group % 4 / 2 * 4 & 15) | (high[i] >> group % 4 * 2 & 3) << 4);
        put_bytes(codes, record + 288 + group * 512, output);
    }
}

static void pack_iq4_xs(const uint8_t *block, uint8_t *record, int output) {
    uint8_t codes[32];
    put_half(block, record, output);
    for (int group = 0; group < 8; group++) {
        const int low = block[4 + group / 2] >> group % 2 * 4 & 15, high = block[2 + group / 4] >> group % 4 * 2 & 3;
        record[32 + group * 16 + output] = (uint8_t)((low | high << 4) - 32);
        split_nibbles(block + 8 + group * 16, codes);
        put_nibbles(codes, record + 160 + group * 256, output);
    }
}

static PackBlock *const PACK[NUM_FORMATS] = {
    [Q4_0] = pack_q4_0, [Q4_1] = pack_q4_1,     [Q5_0] = pack_q5_0,     [Q5_1] = pack_q5_1, [Q8_0] = pack_q8_0,
    [Q2_K] = pack_q2_k, [Q3_K] = pack_q3_k,     [Q4_K] = pack_q4_k,     [Q5_K] = pack_q5_k, [Q6_K] = pack_q6_k,
    [IQ4_NL] = pack_q4_0, [IQ4_XS] = pack_iq4_xs, [MXFP4] = pack_mxfp4,
};

static void pack_2_bytes(const uint16_t *values, int32_t num_inputs, uint16_t *panel) {
    for (int32_t i = 0; i < num_inputs; i++) panel[(int64_t)i * PANEL] = values[i];
}

static void pack_4_bytes(const uint32_t *values, int32_t num_inputs, uint32_t *panel) {
    for (int32_t i = 0; i < num_inputs; i++) panel[(int64_t)i * PANEL] = values[i];
}

/* Packs `rows`, of `num_inputs` values and each filled up to whole blocks, as outputs [first, first + num_rows) of
   `panels`. Outputs that nothing is packed for are to be zero. */
EXPORT int limelight_pack(int32_t format, const uint8_t *rows, int32_t num_rows, int32_t num_inputs, int32_t first,
                          uint8_t *panels) {
    const int32_t stored_bytes = FORMATS[format].stored_bytes, panel_bytes = FORMATS[format].panel_bytes;
    const int32_t num_blocks = divide_up(num_inputs, FORMATS[format].block);
    const int64_t row_bytes = (int64_t)num_blocks * stored_bytes;
    PackBlock *pack_block = PACK[format];
    for (int32_t row = 0, count; row < num_rows; row += count) {
        const int32_t output = (first + row) % PANEL;
        uint8_t *record = panels + (int64_t)((first + row) / PANEL) * num_blocks * panel_bytes;
        const uint8_t *stored = rows + row * row_bytes;
        count = minimum(PANEL - output, num_rows - row);
        if (FORMATS[format].codes == FLOATS) {
            for (int32_t i = 0; i < count; i++, stored += row_bytes)
                if (stored_bytes == 2)
                    pack_2_bytes((const uint16_t *)stored, num_inputs, (uint16_t *)record + output + i);
                else
                    pack_4_bytes((const uint32_t *)stored, num_inputs, (uint32_t *)record + output + i);
            continue;
        }
        for (int32_t block = 0; block < num_blocks; block++, record += panel_bytes, stored += stored_bytes)
            for (int32_t i = 0; i < count; i++) pack_block(stored + i * row_bytes, record, output + i);
    }
    return 0;
}

EXPORT int64_t limelight_packed_bytes(int32_t format, int32_t num_outputs, int32_t num_inputs) {
    return divide_up(num_outputs, PANEL) * panel_size(&FORMATS[format], num_inputs);
}

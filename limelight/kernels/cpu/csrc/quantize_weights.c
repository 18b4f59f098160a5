/* Quantising weights as they are loaded, into the blocks that GGUF files store (ggml's `ggml-common.h`): Q8_0, an int8 for
   each weight and a float16 scale for each 32; and Q4_1, 4 bits for each and a float16 scale and minimum for each 32.

   Vectors hold weights of several groups, one of each. */
#include "decode.h"

#define NUM_RANGES 10
#define RANGE_STEP 0.03f /* of a group's range, by which each range that is tried is narrower than the one before */
#define LARGEST_WEIGHT 65504.0f
#define BYTES_OF_8_BITS 34 /* of a group: `stored_bytes` of Q8_0 */
#define BYTES_OF_4_BITS 20 /* of Q4_1 */

typedef struct {
    vfloat weights[GROUP];
} Groups;

static inline vfloat vround(vfloat x) { return (x + ROUNDING) - ROUNDING; }

static inline vfloat vrounded_to_float16(vfloat x) {
    float lanes[LANES];
    vstore(lanes, x);
    for (int i = 0; i < LANES; i++) lanes[i] = from_float16(to_float16(lanes[i]));
    return vload(lanes);
}

/* 1 / scale, or 0 where that is infinite. */
static inline vfloat inverse_of(vfloat scale) {
    const vfloat inverse = 1.0f / scale;
    return vchoose(inverse < INFINITY, inverse, vset(0.0f));
}

static void put_float16(uint8_t *to, float value) {
    const uint16_t half = to_float16(value);
    memcpy(to, &half, 2);
}

static void quantize_8_bits(const Groups *groups, int count, uint8_t *blocks) {
    vfloat magnitude = vset(0.0f);
    for (int i = 0; i < GROUP; i++) magnitude = vmax(magnitude, vmax(groups->weights[i], -groups->weights[i]));
    const vfloat scale = vrounded_to_float16(magnitude / 127.0f), inverse = inverse_of(scale), most = vset(127.0f);
    for (int lane = 0; lane < count; lane++) put_float16(blocks + lane * BYTES_OF_8_BITS, scale[lane]);
    for (int i = 0; i < GROUP; i++) {
        const vfloat code = vround(vmax(vmin(groups->weights[i] * inverse, most), -most));
        for (int lane = 0; lane < count; lane++) blocks[lane * BYTES_OF_8_BITS + 2 + i] = (uint8_t)(int8_t)code[lane];
    }
}

typedef struct {
    vfloat scale, minimum, error;
} Fit;

static inline vfloat nearest_code(vfloat weight, vfloat inverse, vfloat minimum) {
    return vround(vmax(vmin((weight - minimum) * inverse, vset(15.0f)), vset(0.0f)));
}

/* The least squares fit for those codes that are nearest with another scale and minimum. */
static Fit fit_again(const Groups *groups, vfloat scale, vfloat minimum) {
    const vfloat inverse = inverse_of(scale);
    vfloat sum = vset(0.0f), squares = sum, codes = sum, code_squares = sum, products = sum;
    for (int i = 0; i < GROUP; i++) {
        const vfloat weight = groups->weights[i], code = nearest_code(weight, inverse, minimum);
        sum += weight;
        squares = vfma(weight, weight, squares);
        codes += code;
        code_squares = vfma(code, code, code_squares);
        products = vfma(code, weight, products);
    }
    Fit fit; /* where all codes are equal the quotient is 0 / 1 */
    fit.scale = (GROUP * products - codes * sum) / vmax(GROUP * code_squares - codes * codes, vset(1.0f));
    fit.minimum = (sum - fit.scale * codes) / (float)GROUP;
    fit.error = squares - fit.scale * products - fit.minimum * sum;
    return fit;
}

/* Ranges that leave out a little at both ends are tried too: a few large weights would make all codes coarse. */
static void quantize_4_bits(Groups *groups, int count, uint8_t *blocks) {
    vfloat low = groups->weights[0], high = low;
    for (int i = 1; i < GROUP; i++) {
        low = vmin(low, groups->weights[i]);
        high = vmax(high, groups->weights[i]);
    }
    for (int i = 0; i < GROUP; i++) groups->weights[i] -= low; /* sums are then more exact */
    const vfloat range = high - low;
    Fit best = {vset(0.0f), vset(0.0f), vset(INFINITY)};
    for (int i = 0; i <= NUM_RANGES; i++) {
        const vfloat left_out = range * (RANGE_STEP / 2.0f * (float)i);
        const Fit fit = i < NUM_RANGES ? fit_again(groups, (range - 2.0f * left_out) / 15.0f, left_out)
                                       : fit_again(groups, best.scale, best.minimum);
        const vint is_better = fit.error < best.error;
        best.scale = vchoose(is_better, fit.scale, best.scale);
        best.minimum = vchoose(is_better, fit.minimum, best.minimum);
        best.error = vchoose(is_better, fit.error, best.error);
    }
    const vfloat scale = vrounded_to_float16(best.scale), minimum = vrounded_to_float16(best.minimum + low);
    const vfloat inverse = inverse_of(scale);
    for (int lane = 0; lane < count; lane++) {
        put_float16(blocks + lane * BYTES_OF_4_BITS, scale[lane]);
        put_float16(blocks + lane * BYTES_OF_4_BITS + 2, minimum[lane]);
    }
    for (int i = 0; i < GROUP / 2; i++) {
        const vfloat first = nearest_code(groups->weights[i], inverse, minimum - low);
        const vfloat second = nearest_code(groups->weights[i + GROUP / 2], inverse, minimum - low);
        for (int lane = 0; lane < count; lane++)
            blocks[lane * BYTES_OF_4_BITS + 4 + i] = (uint8_t)((int)first[lane] | (int)second[lane] << 4);
    }
}

/* `weights` [num_rows, width] in a format of floats -> `rows`, each of whole blocks; the last group of a row is filled up
   with its own weights again. Returns -1 if a weight is not finite or larger than float16 holds. */
EXPORT int limelight_quantize_weights(int32_t format, int32_t weights_format, const uint8_t *weights, int64_t num_rows,
                                      int32_t width, uint8_t *rows) {
    const int32_t weight_bytes = FORMATS[weights_format].stored_bytes, num_groups = divide_up(width, GROUP);
    for (int64_t row = 0; row < num_rows; row++, weights += (int64_t)width * weight_bytes)
        for (int32_t group = 0, count; group < num_groups; group += count) {
            float lanes[GROUP][LANES] = {{0.0f}};
            int32_t num_large = 0;
            count = minimum(LANES, num_groups - group);
            for (int32_t lane = 0; lane < count; lane++) {
                const int32_t at = (group + lane) * GROUP, in_row = minimum(GROUP, width - at);
                for (int32_t i = 0; i < GROUP; i++) {
                    const float weight = float_at(weights_format, weights, at + (i < in_row ? i : i % in_row));
                    lanes[i][lane] = weight;
                    num_large += !(fabsf(weight) <= LARGEST_WEIGHT);
                }
            }
            if (num_large) return -1;
            Groups groups;
            memcpy(groups.weights, lanes, sizeof lanes);
            if (format == Q8_0) quantize_8_bits(&groups, count, rows);
            else quantize_4_bits(&groups, count, rows);
            rows += count * FORMATS[format].stored_bytes;
        }
    return 0;
}

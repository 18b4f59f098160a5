/* The products of attention, queries times keys and weights times values, straight from the tiles of the KV pool.

   Each element is one chain of fused multiply-adds over the rows of the pool's matrix in order, however many rows are
   computed at once: one row alone and the same row among others give equal bits. */
#ifndef LIMELIGHT_PRODUCT_H
#define LIMELIGHT_PRODUCT_H

#include "kv.h"

#define COLUMNS 32 /* of the pool's matrix, computed at once: two tiles of keys, or 32 dimensions of values */
#define VECTORS (COLUMNS / LANES)
#if LANES == 16
#define MOST_ROWS 6 /* computed at once: their sums stay in registers */
#elif LANES == 8
#define MOST_ROWS 3
#else
#define MOST_ROWS 1
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* COLUMNS columns of a matrix in the pool, rows in pairs (kv.h). */
typedef struct {
    const char *left, *right; /* the first 16 columns, the others; of the first pair of rows */
    size_t pair_bytes;        /* from one pair of rows to the next */
    size_t odd_bytes;         /* from the first row of a pair to the second; not with bfloat16 */
} Columns;

ALWAYS_INLINE vfloat load_even(const int type, const char *at) {
    if (type == FLOAT32) return vload((const float *)at);
    if (type == FLOAT16) return vload_float16((const uint16_t *)at);
    vint pairs;
    memcpy(&pairs, at, sizeof pairs);
    return (vfloat)(pairs << 16);
}

ALWAYS_INLINE vfloat load_odd(const int type, const char *at, size_t odd_bytes) {
    if (type != BFLOAT16) return load_even(type, at + odd_bytes);
    vint pairs;
    memcpy(&pairs, at, sizeof pairs);
    return (vfloat)(pairs & (int32_t)0xffff0000);
}

/* sums [rows][VECTORS] += a [rows] times one row of the columns: the first or the second of pair number `pair`. */
ALWAYS_INLINE void add_product(const int type, const int rows, const int odd, vfloat (*sums)[VECTORS], const float *a,
                               size_t stride, const Columns *columns, size_t pair) {
    vfloat x[MOST_ROWS];
    for (int row = 0; row < rows; row++) x[row] = vset(a[row * stride]);
    for (int vector = 0; vector < VECTORS; vector++) {
        const size_t column = (size_t)(vector % (VECTORS / 2) * LANES) * (type == FLOAT16 ? 2 : 4);
        const char *at = (vector < VECTORS / 2 ? columns->left : columns->right) + pair * columns->pair_bytes + column;
        const vfloat b = odd ? load_odd(type, at, columns->odd_bytes) : load_even(type, at);
        for (int row = 0; row < rows; row++) sums[row][vector] = vfma(x[row], b, sums[row][vector]);
    }
}

/* The same for rows `begin` to `end - 1`, multiplied with a [rows][begin] and so on. */
ALWAYS_INLINE void add_products(const int type, const int rows, vfloat (*sums)[VECTORS], const float *a, size_t stride,
                                const Columns *columns, int32_t begin, int32_t end) {
    int32_t i = begin;
    if (i % 2 && i < end) {
        add_product(type, rows, 1, sums, a + i, stride, columns, (size_t)i / 2);
        i++;
    }
    for (; i + 1 < end; i += 2) {
        add_product(type, rows, 0, sums, a + i, stride, columns, (size_t)i / 2);
        add_product(type, rows, 1, sums, a + i + 1, stride, columns, (size_t)i / 2);
    }
    if (i < end) add_product(type, rows, 0, sums, a + i, stride, columns, (size_t)i / 2);
}

/* scores [rows][stride BLOCK] of COLUMNS tokens: queries [rows][depth] times two tiles of keys. */
ALWAYS_INLINE void score(const int type, const int rows, float *scores, size_t scores_stride, const float *queries,
                         const KVLayer *kv, const char *left, const char *right) {
    const size_t row_bytes = TILE * (type == FLOAT32 ? 4 : 2);
    const Columns columns = {left, right, 2 * row_bytes, row_bytes};
    vfloat sums[MOST_ROWS][VECTORS];
    for (int row = 0; row < rows; row++)
        for (int vector = 0; vector < VECTORS; vector++) sums[row][vector] = vset(0.0f);
    add_products(type, rows, sums, queries, (size_t)kv->depth, &columns, 0, kv->depth);
    for (int row = 0; row < rows; row++)
        for (int vector = 0; vector < VECTORS; vector++)
            vstore(scores + row * scores_stride + vector * LANES, sums[row][vector]);
}

/* results [rows][width] += weights [rows][...] times the values of tokens `begin` to `end - 1` of a block, whose tiles
   are `tiles`, for COLUMNS dimensions from `column`. */
ALWAYS_INLINE void accumulate(const int type, const int rows, float *results, size_t width, const float *weights,
                              size_t weights_stride, const KVLayer *kv, const char *const *tiles, int32_t begin,
                              int32_t end, int32_t column) {
    const size_t row_bytes = (size_t)kv->head_dim * (type == FLOAT32 ? 4 : 2);
    const size_t column_bytes = type == FLOAT16 ? 2 : 4;
    vfloat sums[MOST_ROWS][VECTORS];
    for (int row = 0; row < rows; row++)
        for (int vector = 0; vector < VECTORS; vector++)
            sums[row][vector] = vload(results + row * width + column + vector * LANES);
    for (int32_t tile = begin / TILE; tile * TILE < end; tile++) {
        const char *left = tiles[tile] + (size_t)kv->depth * TILE * (type == FLOAT32 ? 4 : 2) + (size_t)column * column_bytes;
        const Columns columns = {left, left + 16 * column_bytes, 2 * row_bytes, row_bytes};
        add_products(type, rows, sums, weights + tile * TILE, weights_stride, &columns,
                     maximum(begin - tile * TILE, 0), minimum(end - tile * TILE, TILE));
    }
    for (int row = 0; row < rows; row++)
        for (int vector = 0; vector < VECTORS; vector++)
            vstore(results + row * width + column + vector * LANES, sums[row][vector]);
}

#endif

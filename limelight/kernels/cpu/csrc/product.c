/* See product.h. */
#include "product.h"

#define MOST_ROWS 5    /* computed at once */
#define MOST_VECTORS 8 /* of columns, computed at once */
/* With 8 to 10 sums the processor never waits for one, and all of them stay in registers. */
#if LANES == 16
#define WIDEST(ROWS) ((void)(ROWS), 4)
#else
#define WIDEST(ROWS) ((ROWS) == 1 ? 8 : (ROWS) == 2 ? 4 : (ROWS) == 3 ? 3 : 2)
#endif
#define NARROWEST 2

ALWAYS_INLINE size_t item_bytes(const int type) { return type == FLOAT32 ? 4 : 2; }

/* Bytes from one column to the next; in bfloat16 two rows are interleaved. */
ALWAYS_INLINE size_t column_bytes(const int type) { return type == FLOAT16 ? 2 : 4; }

ALWAYS_INLINE vint load_pairs(const char *at) {
    vint pairs;
    memcpy(&pairs, at, sizeof pairs);
    return pairs;
}

/* The first row of the pair of rows at `at`. */
ALWAYS_INLINE vfloat load_even(const int type, const char *at) {
    if (type == FLOAT32) return vload((const float *)at);
    if (type == FLOAT16) return vload_float16((const uint16_t *)at);
    return (vfloat)(load_pairs(at) << 16);
}

/* The second row. */
ALWAYS_INLINE vfloat load_odd(const int type, const char *at, size_t row_bytes) {
    if (type != BFLOAT16) return load_even(type, at + row_bytes);
    /* The compiler is not to see that `load_even` read the same: it would keep all of it, and run out of registers. */
    __asm__("" : "+r"(at));
    return (vfloat)(load_pairs(at) & (int32_t)0xffff0000);
}

/* sums [rows][vectors] += a [rows][2 * pairs] times the first `pairs` pairs of rows of a matrix (kv.h) that has
   `row_bytes` from row to row, for the vectors of columns that begin at `columns`. */
ALWAYS_INLINE void multiply(const int type, const int rows, const int vectors, vfloat (*sums)[MOST_VECTORS],
                            const float *a, size_t stride, const char *const *columns, size_t row_bytes, int32_t pairs,
                            Ahead *ahead) {
    const int lines = rows > 2 ? 1 : 2; /* as few rows take less time */
    const char *next = next_lines(ahead, (size_t)(lines * pairs), columns[0]);
    size_t offset = 0;
    for (int32_t pair = 0; pair < pairs; pair++, offset += 2 * row_bytes) {
        for (int i = 0; i < lines; i++, next += CACHE_LINE) __builtin_prefetch(next, 0, 2);
        for (int odd = 0; odd < 2; odd++) {
            vfloat b[MOST_VECTORS];
            for (int i = 0; i < vectors; i++)
                b[i] = odd ? load_odd(type, columns[i] + offset, row_bytes) : load_even(type, columns[i] + offset);
            for (int row = 0; row < rows; row++) {
                const vfloat x = vset(a[row * stride + 2 * (size_t)pair + (size_t)odd]);
                for (int i = 0; i < vectors; i++) sums[row][i] = vfma(x, b[i], sums[row][i]);
            }
        }
    }
}

/* Scores of the tokens whose keys are the vectors of columns at `columns`. */
ALWAYS_INLINE void score(const int type, const int rows, const int vectors, const KVLayer *kv,
                         const char *const *columns, const float *queries, float *scores, Ahead *ahead) {
    vfloat sums[MOST_ROWS][MOST_VECTORS];
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < vectors; i++) sums[row][i] = vset(0.0f);
    multiply(type, rows, vectors, sums, queries, (size_t)kv->depth, columns, TILE * item_bytes(type), kv->depth / 2,
             ahead);
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < vectors; i++) vstore(scores + row * BLOCK + i * LANES, sums[row][i]);
}

/* `add_values` for `vectors` vectors of dimensions from `column` on; `begin` and `end` are even. */
ALWAYS_INLINE void accumulate(const int type, const int rows, const int vectors, const KVLayer *kv,
                              const char *const *tiles, int32_t begin, int32_t end, int32_t column,
                              const float *weights, float *results, Ahead *ahead) {
    const size_t row_bytes = (size_t)kv->head_dim * item_bytes(type), width = (size_t)result_width(kv->head_dim);
    vfloat sums[MOST_ROWS][MOST_VECTORS];
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < vectors; i++) sums[row][i] = vload(results + row * width + column + i * LANES);
    while (begin < end) {
        const int32_t tile = begin / TILE, next = minimum((tile + 1) * TILE, end);
        const char *columns[MOST_VECTORS];
        for (int i = 0; i < vectors; i++)
            columns[i] = tiles[tile] + (size_t)kv->depth * TILE * item_bytes(type) +
                         (size_t)(begin - tile * TILE) * row_bytes + (size_t)(column + i * LANES) * column_bytes(type);
        multiply(type, rows, vectors, sums, weights + begin, BLOCK, columns, row_bytes, (next - begin) / 2, ahead);
        begin = next;
    }
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < vectors; i++) vstore(results + row * width + column + i * LANES, sums[row][i]);
}

typedef void (*Score)(const KVLayer *, const char *const *, const float *, float *, Ahead *);
typedef void (*Accumulate)(const KVLayer *, const char *const *, int32_t, int32_t, int32_t, const float *, float *,
                           Ahead *);

/* The functions for each type and number of rows: with few vectors, and with many. */
#define PRODUCTS(TYPE, ROWS, VECTORS, NAME)                                                                          \
    static void score_##TYPE##_##ROWS##_##NAME(const KVLayer *kv, const char *const *columns, const float *queries,  \
                                               float *scores, Ahead *ahead) {                                        \
        score(TYPE, ROWS, VECTORS, kv, columns, queries, scores, ahead);                                             \
    }                                                                                                                \
    static void accumulate_##TYPE##_##ROWS##_##NAME(const KVLayer *kv, const char *const *tiles, int32_t begin,      \
                                                    int32_t end, int32_t column, const float *weights,               \
                                                    float *results, Ahead *ahead) {                                  \
        accumulate(TYPE, ROWS, VECTORS, kv, tiles, begin, end, column, weights, results, ahead);                     \
    }
#define FEW_AND_MANY(TYPE, ROWS) PRODUCTS(TYPE, ROWS, NARROWEST, few) PRODUCTS(TYPE, ROWS, WIDEST(ROWS), many)
#define FOR_ALL_ROWS(MACRO, TYPE) MACRO(TYPE, 1) MACRO(TYPE, 2) MACRO(TYPE, 3) MACRO(TYPE, 4) MACRO(TYPE, 5)
FOR_ALL_ROWS(FEW_AND_MANY, BFLOAT16)
FOR_ALL_ROWS(FEW_AND_MANY, FLOAT16)
FOR_ALL_ROWS(FEW_AND_MANY, FLOAT32)

#define SCORES(TYPE, ROWS) {score_##TYPE##_##ROWS##_few, score_##TYPE##_##ROWS##_many},
#define ACCUMULATES(TYPE, ROWS) {accumulate_##TYPE##_##ROWS##_few, accumulate_##TYPE##_##ROWS##_many},
static const Score SCORE[3][MOST_ROWS][2] = {
    {FOR_ALL_ROWS(SCORES, BFLOAT16)}, {FOR_ALL_ROWS(SCORES, FLOAT16)}, {FOR_ALL_ROWS(SCORES, FLOAT32)}};
static const Accumulate ACCUMULATE[3][MOST_ROWS][2] = {
    {FOR_ALL_ROWS(ACCUMULATES, BFLOAT16)}, {FOR_ALL_ROWS(ACCUMULATES, FLOAT16)}, {FOR_ALL_ROWS(ACCUMULATES, FLOAT32)}};

/* How many of `left` rows are computed at once: no single one comes last. */
static int32_t rows_at_once(int32_t left) {
    return left <= MOST_ROWS ? left : left <= MOST_ROWS + 3 ? (left + 1) / 2 : MOST_ROWS;
}

/* Whether of `left` vectors, an even number at first, many are computed at once: no single one is left. */
static int32_t takes_many(int32_t left, int32_t rows) { return left >= WIDEST(rows) && left - WIDEST(rows) != 1; }

void score_tokens(const KVLayer *kv, const char *const *tiles, int32_t begin, int32_t end, const float *queries,
                  int32_t num_rows, float *scores, Ahead *ahead) {
    const int32_t first = begin / (NARROWEST * LANES) * NARROWEST, past = divide_up(end, NARROWEST * LANES) * NARROWEST;
    const int32_t first_tile = begin / TILE, last_tile = (end - 1) / TILE;
    const char *columns[BLOCK / LANES];
    for (int32_t i = first; i < past; i++)
        columns[i] = tiles[minimum(maximum(i * LANES / TILE, first_tile), last_tile)] +
                     (size_t)(i * LANES % TILE) * column_bytes(kv->type);
    for (int32_t rows; num_rows > 0; num_rows -= rows, queries += rows * kv->depth, scores += rows * BLOCK) {
        rows = rows_at_once(num_rows);
        for (int32_t i = first; i < past;) {
            const int32_t many = takes_many(past - i, rows);
            SCORE[kv->type][rows - 1][many](kv, columns + i, queries, scores + i * LANES, ahead);
            i += many ? WIDEST(rows) : NARROWEST;
        }
    }
}

static void add_value(const KVLayer *kv, const char *const *tiles, int32_t token, const float *weights,
                      int32_t num_rows, float *results) {
    const size_t row_bytes = (size_t)kv->head_dim * item_bytes(kv->type);
    const int32_t width = result_width(kv->head_dim);
    const char *pair = tiles[token / TILE] + (size_t)kv->depth * TILE * item_bytes(kv->type) +
                       (size_t)(token % TILE / 2 * 2) * row_bytes;
    for (int32_t column = 0; column < width; column += LANES) {
        const char *at = pair + (size_t)column * column_bytes(kv->type);
        const vfloat value = token % 2 ? load_odd(kv->type, at, row_bytes) : load_even(kv->type, at);
        for (int32_t row = 0; row < num_rows; row++) {
            float *to = results + row * width + column;
            vstore(to, vfma(vset(weights[row * BLOCK + token]), value, vload(to)));
        }
    }
}

void add_values(const KVLayer *kv, const char *const *tiles, int32_t begin, int32_t end, const float *weights,
                int32_t num_rows, float *results, Ahead *ahead) {
    const int32_t width = result_width(kv->head_dim), even_end = end / 2 * 2;
    if (begin >= end) return;
    if (begin % 2) add_value(kv, tiles, begin++, weights, num_rows, results);
    for (int32_t first = 0, rows; begin < even_end && first < num_rows; first += rows) {
        rows = rows_at_once(num_rows - first);
        for (int32_t column = 0; column < width;) {
            const int32_t many = takes_many((width - column) / LANES, rows);
            ACCUMULATE[kv->type][rows - 1][many](kv, tiles, begin, even_end, column, weights + first * BLOCK,
                                                 results + first * width, ahead);
            column += (many ? WIDEST(rows) : NARROWEST) * LANES;
        }
    }
    if (begin < end && end % 2) add_value(kv, tiles, end - 1, weights, num_rows, results);
}

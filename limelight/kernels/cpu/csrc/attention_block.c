/* See attention_block.h. */
#include "attention_block.h"

#include "product.h"

#define TILES (BLOCK / TILE)

typedef void (*Score)(float *, const float *, const KVLayer *, const char *, const char *);
typedef void (*Accumulate)(float *, const float *, const KVLayer *, const char *const *, int32_t, int32_t);

/* The products for each type and number of rows. */
#define PRODUCTS(TYPE, ROWS)                                                                                       \
    static void score_##TYPE##_##ROWS(float *scores, const float *queries, const KVLayer *kv, const char *left,    \
                                      const char *right) {                                                         \
        score(TYPE, ROWS, scores, BLOCK, queries, kv, left, right);                                                \
    }                                                                                                              \
    static void accumulate_##TYPE##_##ROWS(float *values, const float *weights, const KVLayer *kv,                 \
                                           const char *const *tiles, int32_t begin, int32_t end) {                 \
        for (int32_t column = 0; column < kv->head_dim; column += COLUMNS)                                         \
            accumulate(TYPE, ROWS, values, (size_t)result_width(kv->head_dim), weights, BLOCK, kv, tiles, begin,   \
                       end, column);                                                                               \
    }
#define FOR_EACH_TYPE(MACRO, ROWS) MACRO(BFLOAT16, ROWS) MACRO(FLOAT16, ROWS) MACRO(FLOAT32, ROWS)
FOR_EACH_TYPE(PRODUCTS, 1)
#if MOST_ROWS >= 3
FOR_EACH_TYPE(PRODUCTS, 2)
FOR_EACH_TYPE(PRODUCTS, 3)
#endif
#if MOST_ROWS >= 6
FOR_EACH_TYPE(PRODUCTS, 4)
FOR_EACH_TYPE(PRODUCTS, 5)
FOR_EACH_TYPE(PRODUCTS, 6)
#endif

#if MOST_ROWS >= 6
#define TABLE(NAME, TYPE) \
    {NAME##_##TYPE##_1, NAME##_##TYPE##_2, NAME##_##TYPE##_3, NAME##_##TYPE##_4, NAME##_##TYPE##_5, NAME##_##TYPE##_6}
#elif MOST_ROWS >= 3
#define TABLE(NAME, TYPE) {NAME##_##TYPE##_1, NAME##_##TYPE##_2, NAME##_##TYPE##_3}
#else
#define TABLE(NAME, TYPE) {NAME##_##TYPE##_1}
#endif
static const Score SCORE[3][MOST_ROWS] = {TABLE(score, BFLOAT16), TABLE(score, FLOAT16), TABLE(score, FLOAT32)};
static const Accumulate ACCUMULATE[3][MOST_ROWS] = {
    TABLE(accumulate, BFLOAT16), TABLE(accumulate, FLOAT16), TABLE(accumulate, FLOAT32)};

/* Makes one tile of the 8 tokens at `from` and the 8 at `next`. */
static const char *copied_tile(const KVLayer *kv, char *to, const char *from, const char *next) {
    const size_t pair = kv->type == BFLOAT16 ? 2 : 1, item_bytes = kv->type == FLOAT32 ? 4 : 2;
    const size_t row_bytes = 8 * pair * item_bytes, value_bytes = kv->tile_bytes - kv->key_bytes;
    char *keys = to;
    for (size_t row = 0; row < (size_t)kv->depth / pair; row++, keys += 2 * row_bytes) {
        memcpy(keys, from + row * row_bytes, row_bytes);
        memcpy(keys + row_bytes, next + row * row_bytes, row_bytes);
    }
    memcpy(keys, from + kv->key_bytes, value_bytes);
    memcpy(keys + value_bytes, next + kv->key_bytes, value_bytes);
    return to;
}

/* The tiles of the block at token `base` that hold its tokens `begin` to `end - 1`. */
static void find_tiles(const TileRows *rows, int32_t base, int32_t begin, int32_t end, const char **tiles) {
    const KVLayer *kv = rows->kv;
    for (int32_t i = begin / TILE; i * TILE < end; i++) {
        const int32_t token = base + i * TILE;
        tiles[i] = kv_tile(kv, rows->pages[token / kv->page_size], rows->head, token % kv->page_size);
        if (kv->tile_tokens < TILE) {
            const int32_t next = minimum(token + kv->tile_tokens, base + end - 1);
            tiles[i] = copied_tile(kv, rows->copies + (size_t)i * 2 * kv->tile_bytes, tiles[i],
                                   kv_tile(kv, rows->pages[next / kv->page_size], rows->head, 0));
        }
    }
}

static void score_block(const TileRows *rows, const char *const *tiles, int32_t begin, int32_t end) {
    const KVLayer *kv = rows->kv;
    const int32_t last_tile = (end - 1) / TILE;
    for (int32_t column = begin / COLUMNS * COLUMNS; column < end; column += COLUMNS) {
        const char *left = tiles[maximum(column / TILE, begin / TILE)];
        const char *right = tiles[minimum(column / TILE + 1, last_tile)];
        for (int32_t pair = 0; pair < num_pairs(rows); pair += MOST_ROWS)
            SCORE[kv->type][minimum(num_pairs(rows) - pair, MOST_ROWS) - 1](
                rows->weights + pair * BLOCK + column, rows->queries + pair * kv->depth, kv, left, right);
    }
}

static inline vfloat capped(vfloat score, float cap) { /* cap * tanh(score / cap), tanh x = 1 - 2 / (exp(2 x) + 1) */
    return cap - 2.0f * cap / (vexp(score * (2.0f / cap)) + 1.0f);
}

/* Turns scores of the tokens `begin` to `end - 1` into weights. */
static void weigh(const TileRows *rows, int32_t pair, int32_t begin, int32_t end, Running running) {
    const int32_t width = result_width(rows->kv->head_dim);
    const int32_t first = begin / LANES * LANES;
    float *weights = rows->weights + pair * BLOCK;
    vfloat greatest = vset(-INFINITY);
    for (int32_t i = first; i < end; i += LANES) {
        vfloat score = vload(weights + i);
        if (rows->soft_cap > 0.0f) score = capped(score, rows->soft_cap);
        if (i < begin || i + LANES > end) score = vkeep(score, begin - i, end - i, -INFINITY);
        vstore(weights + i, score);
        greatest = vmax(greatest, score);
    }
    const float greatest_here = vgreatest(greatest);
    if (greatest_here > running.greatest[pair]) {
        const vfloat factor = vexp(vset(running.greatest[pair] - greatest_here));
        float *values = running.values + pair * width;
        for (int32_t i = 0; i < width; i += LANES) vstore(values + i, vload(values + i) * factor);
        running.sum[pair] *= factor[0];
        running.greatest[pair] = greatest_here;
    }
    vfloat sum = vset(0.0f);
    for (int32_t i = first; i < end; i += LANES) {
        const vfloat weight = vexp(vload(weights + i) - running.greatest[pair]);
        vstore(weights + i, weight);
        sum += weight;
    }
    running.sum[pair] += vsum(sum);
}

static void add_values(const TileRows *rows, const char *const *tiles, int32_t first_pair, int32_t end_pair,
                       int32_t begin, int32_t end, Running running) {
    const KVLayer *kv = rows->kv;
    if (begin >= end) return;
    for (int32_t pair = first_pair; pair < end_pair; pair += MOST_ROWS)
        ACCUMULATE[kv->type][minimum(end_pair - pair, MOST_ROWS) - 1](
            running.values + pair * result_width(kv->head_dim), rows->weights + pair * BLOCK, kv, tiles, begin, end);
}

/* The tokens of the block at `base` before `end` that row number `row` sees, relative to `base`. */
static void visible(const TileRows *rows, int32_t row, int32_t base, int32_t limit, int32_t *begin, int32_t *end) {
    const int32_t position = rows->first_position + row;
    *begin = maximum(first_visible(position, rows->window) - base, 0);
    *end = minimum(position + 1 - base, limit);
}

/* The tokens of the block at `base`, its first `limit` at most. */
static void attend_block(const TileRows *rows, int32_t base, int32_t limit, Running running) {
    const char *tiles[TILES];
    const int32_t last = rows->num_rows - 1;
    int32_t begin, end, common_begin, common_end;
    visible(rows, 0, base, limit, &begin, &common_end);
    visible(rows, last, base, limit, &common_begin, &end);
    if (begin >= end) return;
    find_tiles(rows, base, begin, end, tiles);
    score_block(rows, tiles, begin, end);
    if (common_begin >= common_end) common_begin = common_end = end;
    for (int32_t row = 0; row <= last; row++) {
        int32_t row_begin, row_end;
        visible(rows, row, base, limit, &row_begin, &row_end);
        if (row_begin >= row_end) continue;
        const int32_t pair = row * rows->group, next_pair = pair + rows->group;
        for (int32_t i = pair; i < next_pair; i++) weigh(rows, i, row_begin, row_end, running);
        add_values(rows, tiles, pair, next_pair, row_begin, minimum(common_begin, row_end), running);
    }
    /* What all rows see is computed for many pairs at once, the rest for those of each row. A row that sees a token
       never multiplies the values of one that it does not see: 0 times infinity would not be 0. */
    add_values(rows, tiles, 0, num_pairs(rows), common_begin, common_end, running);
    for (int32_t row = 0; row <= last; row++) {
        int32_t row_begin, row_end;
        visible(rows, row, base, limit, &row_begin, &row_end);
        add_values(rows, tiles, row * rows->group, (row + 1) * rows->group, maximum(common_end, row_begin), row_end,
                   running);
    }
}

void attend_tokens(const TileRows *rows, int32_t begin, int32_t end, Running running) {
    for (int32_t pair = 0; pair < num_pairs(rows); pair++) {
        running.greatest[pair] = -INFINITY;
        running.sum[pair] = 0.0f;
    }
    memset(running.values, 0, (size_t)num_pairs(rows) * (size_t)result_width(rows->kv->head_dim) * 4);
    for (int32_t base = begin / BLOCK * BLOCK; base < end; base += BLOCK)
        attend_block(rows, base, minimum(BLOCK, end - base), running);
}

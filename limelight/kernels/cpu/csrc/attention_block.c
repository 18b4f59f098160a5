/* See attention_block.h. */
#include "attention_block.h"

#include "product.h"
#include "vector_math.h"

#define TILES (BLOCK / TILE)
#define LINES_OF_PAIR 12 /* fetched ahead with its softmax: memory is to have as much to do as with the products */
#define MOST_RISE 8.0f /* log2 of what a weight may be without that the softmax is made relative to its score */

/* Makes one tile of TILE tokens of the 8 at `from` and the 8 at `next`. */
static const char *joined_tile(const KVLayer *kv, char *to, const char *from, const char *next) {
    const size_t rows = (size_t)(kv->type == BFLOAT16 ? kv->depth / 2 : kv->depth), row_bytes = kv->key_bytes / rows;
    const size_t value_bytes = kv->tile_bytes - kv->key_bytes;
    char *at = to;
    for (size_t row = 0; row < rows; row++, at += 2 * row_bytes) {
        memcpy(at, from + row * row_bytes, row_bytes);
        memcpy(at + row_bytes, next + row * row_bytes, row_bytes);
    }
    memcpy(at, from + kv->key_bytes, value_bytes);
    memcpy(at + value_bytes, next + kv->key_bytes, value_bytes);
    return to;
}

/* The tiles of the block at token `base` that hold its tokens `begin` to `end - 1`. */
static void find_tiles(const TileRows *rows, int32_t base, int32_t begin, int32_t end, const char **tiles) {
    const KVLayer *kv = rows->kv;
    for (int32_t i = begin / TILE; i * TILE < end; i++) {
        const int32_t token = base + i * TILE;
        tiles[i] = kv_tile(kv, rows->pages, rows->head, token);
        if (kv->tile_tokens == TILE) continue;
        const char *next = kv_tile(kv, rows->pages, rows->head, minimum(token + kv->tile_tokens, base + end - 1));
        tiles[i] = joined_tile(kv, rows->copies + (size_t)i * 2 * kv->tile_bytes, tiles[i], next);
    }
}

/* Makes `running` relative to the greatest of `scores`. */
static void raise(const TileRows *rows, int32_t pair, vfloat scores, Running running) {
    const int32_t width = result_width(rows->kv->head_dim);
    const float greatest = vgreatest(scores) * LOG2_E;
    const vfloat factor = vexp2(vset(running.greatest[pair] - greatest));
    float *values = running.values + pair * width;
    for (int32_t i = 0; i < width; i += LANES) vstore(values + i, vload(values + i) * factor);
    running.sum[pair] *= factor[0];
    running.greatest[pair] = greatest;
}

static void cap(const TileRows *rows, int32_t pair) {
    float *scores = rows->weights + pair * BLOCK;
    for (int32_t i = 0; i < BLOCK; i += LANES)
        vstore(scores + i, rows->soft_cap * vtanh(vload(scores + i) / rows->soft_cap));
}

/* Turns the scores of the tokens `begin` to `end - 1` into weights. */
ALWAYS_INLINE void weigh(const TileRows *rows, int32_t pair, const int32_t begin, const int32_t end, Running running) {
    float *weights = rows->weights + pair * BLOCK;
    vfloat most = vset(-INFINITY), sum = vset(0.0f);
    if (rows->soft_cap > 0.0f) cap(rows, pair);
    for (int32_t i = begin / LANES * LANES; i < end; i += LANES) {
        vfloat score = vload(weights + i);
        if (i < begin || i + LANES > end) score = vkeep(score, begin - i, end - i, -INFINITY);
        vstore(weights + i, score);
        most = vmax(most, score);
    }
    if (vbits(most * LOG2_E > running.greatest[pair] + MOST_RISE)) raise(rows, pair, most, running);
    const vfloat greatest = vset(running.greatest[pair]);
    for (int32_t i = begin / LANES * LANES; i < end; i += LANES) {
        const vfloat weight = vexp2(vfma(vload(weights + i), vset(LOG2_E), -greatest));
        vstore(weights + i, weight);
        sum += weight;
    }
    running.sum[pair] += vsum(sum);
}

static void weigh_some(const TileRows *rows, int32_t pair, int32_t begin, int32_t end, Running running) {
    weigh(rows, pair, begin, end, running);
}

static void weigh_all(const TileRows *rows, int32_t pair, Running running) { weigh(rows, pair, 0, BLOCK, running); }

/* The first `limit` tokens of the block at token `base`, at most. */
typedef struct {
    int32_t base, limit;
    const char *tiles[TILES];
    Ahead ahead;
} Block;

/* The tokens of the block that a row sees: `begin` to `end - 1`, counted from its first. */
typedef struct {
    int32_t begin, end;
} Range;

static Range visible(const TileRows *rows, int32_t row, const Block *block) {
    const int32_t position = rows->first_position + row;
    return (Range){maximum(first_visible(position, rows->window) - block->base, 0),
                   minimum(position + 1 - block->base, block->limit)};
}

static void add_values_of(const TileRows *rows, int32_t first_row, int32_t num_rows, Block *block, int32_t begin,
                          int32_t end, Running running) {
    const int32_t pair = first_row * rows->group;
    add_values(rows->kv, block->tiles, begin, end, rows->weights + pair * BLOCK, num_rows * rows->group,
               running.values + pair * result_width(rows->kv->head_dim), &block->ahead);
}

static void attend_block(const TileRows *rows, Block *block, Running running) {
    const Range first = visible(rows, 0, block), last = visible(rows, rows->num_rows - 1, block);
    if (first.begin >= last.end) return;
    find_tiles(rows, block->base, first.begin, last.end, block->tiles);
    score_tokens(rows->kv, block->tiles, first.begin, last.end, rows->queries, num_pairs(rows), rows->weights,
                 &block->ahead);
    /* What all rows see is computed for all at once, what lies before and behind for each alone: no row multiplies
       values that it does not see, for 0 times infinity would not be 0. */
    Range common = {last.begin, first.end};
    if (common.begin >= common.end) common = (Range){last.end, last.end};
    for (int32_t row = 0; row < rows->num_rows; row++) {
        const Range own = visible(rows, row, block);
        const int32_t pair = row * rows->group, next_pair = pair + rows->group;
        if (own.begin >= own.end) continue;
        for (int32_t i = pair; i < next_pair; i++) {
            fetch_lines(&block->ahead, LINES_OF_PAIR);
            if (own.begin == 0 && own.end == BLOCK) weigh_all(rows, i, running);
            else weigh_some(rows, i, own.begin, own.end, running);
        }
        add_values_of(rows, row, 1, block, own.begin, minimum(common.begin, own.end), running);
    }
    add_values_of(rows, 0, rows->num_rows, block, common.begin, common.end, running);
    for (int32_t row = 0; row < rows->num_rows; row++)
        add_values_of(rows, row, 1, block, common.end, visible(rows, row, block).end, running);
}

int32_t list_tiles(const KVLayer *kv, const int32_t *pages, int32_t head, int32_t begin, int32_t end,
                   const char **tiles) {
    int32_t num_tiles = 0;
    for (int32_t token = begin; token < end; token += kv->tile_tokens)
        tiles[num_tiles++] = kv_tile(kv, pages, head, token);
    return num_tiles;
}

void attend_tokens(const TileRows *rows, int32_t begin, int32_t end, Running running) {
    const KVLayer *kv = rows->kv;
    const int32_t context = rows->first_position + rows->num_rows;
    for (int32_t pair = 0; pair < num_pairs(rows); pair++) {
        running.greatest[pair] = -INFINITY;
        running.sum[pair] = 0.0f;
    }
    memset(running.values, 0, (size_t)num_pairs(rows) * (size_t)result_width(kv->head_dim) * 4);
    for (int32_t base = begin / BLOCK * BLOCK; base < end; base += BLOCK) {
        const char *next[MOST_TILES];
        const int32_t num_next =
            list_tiles(kv, rows->pages, rows->head, base + BLOCK, minimum(base + 2 * BLOCK, context), next);
        Block block = {.base = base, .limit = minimum(BLOCK, end - base),
                       .ahead = {.pieces = num_next ? next : rows->following,
                                 .num_pieces = num_next ? num_next : rows->num_following,
                                 .piece_bytes = kv->tile_bytes}};
        attend_block(rows, &block, running);
    }
}

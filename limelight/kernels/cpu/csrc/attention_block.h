/* Attention of a row tile over a stretch of its context, as a running softmax (Milakov & Gimelshein 2018, arXiv
   1805.02867; in blocks as FlashAttention, Dao et al. 2022, arXiv 2205.14135). */
#ifndef LIMELIGHT_ATTENTION_BLOCK_H
#define LIMELIGHT_ATTENTION_BLOCK_H

#include "attention.h"
#include "kv.h"

#define MOST_TILES (BLOCK / 8) /* of a block */

/* What the softmax of each pair has so far: the weighted sum of values is values / sum. A sum of 0: no token yet. */
typedef struct {
    float *greatest; /* [pairs] about the greatest scores, times LOG2_E */
    float *sum;      /* [pairs] of weights, 2**(score * LOG2_E - greatest) */
    float *values;   /* [pairs][result_width], columns from head_dim on are anything */
} Running;

/* The rows of a tile with the heads that share one kv head; pairs are [rows][group]. */
typedef struct {
    const KVLayer *kv;
    const int32_t *pages; /* of the sequence */
    int32_t head;         /* of keys and values */
    int32_t num_rows, group;
    int32_t first_position; /* of the first row */
    int32_t window;         /* tokens, or 0 for all */
    float soft_cap;         /* or 0 */
    const float *queries;   /* [pairs][depth], scaled */
    float *weights;         /* [pairs][BLOCK], scratch */
    char *copies;           /* scratch for a block's keys and values, if the pages are smaller than TILE */
    const char *const *following; /* tiles that will be read when this context is done */
    int32_t num_following;
} TileRows;

static inline int32_t num_pairs(const TileRows *rows) { return rows->num_rows * rows->group; }

/* First token that the row at `position` sees. */
static inline int32_t first_visible(int32_t position, int32_t window) {
    return window ? maximum(0, position - window + 1) : 0;
}

/* Lists the tiles of the tokens from `begin`, the first of a tile, to `end - 1`, MOST_TILES at most, in `tiles` and
   gives their number. */
int32_t list_tiles(const KVLayer *kv, const int32_t *pages, int32_t head, int32_t begin, int32_t end,
                   const char **tiles);

/* Sets `running` to the softmax over the tokens from `begin` to `end - 1`, of which each row takes those it sees. */
void attend_tokens(const TileRows *rows, int32_t begin, int32_t end, Running running);

#endif

/* The work of attention in a step: made by the operation `attention_plan`, read by the layers' operations `attend`.

   The rows of a chunk are cut into row tiles; a piece of work is a row tile, a kv head, and the whole context, or where
   few row tiles have much to do, one split of it. Splits lie at multiples of SPLIT tokens of the sequence, as in
   flash-decoding (Dao et al. 2023, crfm.stanford.edu/2023/10/12/flashdecoding.html), and are merged in their order,
   whoever computed them: what a row gives depends on its query and its context alone. A unit is a number of pieces. */
#ifndef LIMELIGHT_ATTENTION_H
#define LIMELIGHT_ATTENTION_H

#include "program.h"

#define BLOCK 64   /* tokens of the context whose scores are computed at once, at multiples of BLOCK */
#define SPLIT 512  /* tokens, a multiple of BLOCK */
#define PAIRS 48   /* (row, head) pairs in a row tile; fewer if a row's heads do not divide it, more if they are more */

typedef struct {
    int32_t chunk, first_row, num_rows;
    int32_t first_position;          /* of the first row, in its sequence */
    int32_t first_split, num_splits;
    int32_t is_split;                /* a piece is one split: its result goes into the buffer of partial results */
    int32_t first_partial;           /* where there, in pairs */
    int32_t first_piece, num_pieces; /* [kv heads][splits or 1] */
    int32_t num_open;                /* pieces that are not finished; num_pieces again after each operation */
} RowTile;

typedef struct {
    int32_t first_tile, first_piece, end_piece;
} Unit;

/* The largest step, and the shape of a layer. */
typedef struct {
    int32_t num_tokens, num_seats, max_context, num_kv_heads, group, head_dim;
} PlanLimits;

typedef struct {
    int32_t *num_units;
    RowTile *tiles;
    Unit *units;
} Plan;

static inline int32_t rows_of_tile(int32_t group) { return maximum(1, minimum(PAIRS / group, 32)); }

/* Floats of a result of one pair: whole vectors, and as many columns as a product makes at once. */
static inline int32_t result_width(int32_t head_dim) { return divide_up(head_dim, 32) * 32; }

/* Where the parts of a plan lie in its memory. */
Plan plan_at(void *memory, const PlanLimits *limits);

#endif

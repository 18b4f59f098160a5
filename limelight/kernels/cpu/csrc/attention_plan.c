/* See attention.h. */
#include "attention.h"

#include "attention_block.h"

#define MOST_SPLIT 128            /* a tile and head is split if it is more than this part of the whole work */
#define UNIT_COST 200000          /* tokens * pairs * head_dim: some 10 us */
#define PARTIAL_BYTES (16 << 20)  /* for partial results; what does not fit is not split */

static int32_t most_tiles(const PlanLimits *limits) {
    return minimum(limits->num_seats, limits->num_tokens) + limits->num_tokens / rows_of_tile(limits->group);
}

static int32_t most_splits(const PlanLimits *limits) { return divide_up(limits->max_context, SPLIT); }

/* What is split costs more than 1 / MOST_SPLIT of the whole: there are fewer such tiles and heads than MOST_SPLIT. */
static int32_t most_units(const PlanLimits *limits) {
    return most_tiles(limits) * limits->num_kv_heads + MOST_SPLIT * most_splits(limits);
}

/* Pairs of which partial results are kept. */
static int32_t most_partials(const PlanLimits *limits) {
    if (most_splits(limits) < 2) return 0;
    const int64_t pairs = (int64_t)rows_of_tile(limits->group) * limits->group * most_splits(limits) * MOST_SPLIT;
    const int64_t affordable = PARTIAL_BYTES / (4 * (result_width(limits->head_dim) + 2));
    return (int32_t)(pairs < affordable ? pairs : affordable);
}

static size_t units_offset(const PlanLimits *limits) {
    return CACHE_LINE + whole_lines((size_t)most_tiles(limits) * sizeof(RowTile));
}

Plan plan_at(void *memory, const PlanLimits *limits) {
    char *bytes = memory;
    return (Plan){memory, (RowTile *)(bytes + CACHE_LINE), (Unit *)(bytes + units_offset(limits))};
}

typedef struct {
    Operation operation;
    PlanLimits limits;
    Plan plan;
    const int32_t *num_chunks;
    const int32_t *query_starts; /* [chunks + 1] */
    const int32_t *context_lens; /* [chunks] */
    int32_t window;              /* tokens, or 0 for all */
} MakePlan;

static int64_t cost_of(const PlanLimits *limits, int32_t num_rows, int32_t num_tokens) {
    /* Reading keys and values costs about as much as one more pair. */
    return (int64_t)num_tokens * (num_rows * limits->group + 1) * limits->head_dim;
}

static int32_t visible_tokens(const RowTile *tile, int32_t window) {
    return tile->first_position + tile->num_rows - first_visible(tile->first_position, window);
}

static int32_t make_tiles(const MakePlan *this, int64_t *total_cost) {
    const int32_t most_rows = rows_of_tile(this->limits.group);
    RowTile *tile = this->plan.tiles;
    *total_cost = 0;
    for (int32_t chunk = 0; chunk < *this->num_chunks; chunk++) {
        const int32_t end = this->query_starts[chunk + 1];
        for (int32_t row = this->query_starts[chunk]; row < end; row += most_rows, tile++) {
            const int32_t position = this->context_lens[chunk] - (end - row);
            const int32_t num_rows = minimum(most_rows, end - row);
            const int32_t first_split = first_visible(position, this->window) / SPLIT;
            *tile = (RowTile){.chunk = chunk, .first_row = row, .num_rows = num_rows, .first_position = position,
                              .first_split = first_split,
                              .num_splits = (position + num_rows - 1) / SPLIT + 1 - first_split};
            const int64_t cost = cost_of(&this->limits, num_rows, visible_tokens(tile, this->window));
            *total_cost += this->limits.num_kv_heads * cost;
        }
    }
    return (int32_t)(tile - this->plan.tiles);
}

static void run_make_plan(const Operation *operation, int32_t unit, Worker *worker) {
    const MakePlan *this = (const MakePlan *)operation;
    const PlanLimits *limits = &this->limits;
    int64_t total_cost, open_cost = 0;
    int32_t num_units = 0, num_partials = 0, num_pieces = 0;
    (void)unit, (void)worker;
    const int32_t num_tiles = make_tiles(this, &total_cost);
    for (int32_t index = 0; index < num_tiles; index++) {
        RowTile *tile = this->plan.tiles + index;
        int64_t cost = cost_of(limits, tile->num_rows, visible_tokens(tile, this->window));
        const int32_t partials = limits->num_kv_heads * tile->num_splits * tile->num_rows * limits->group;
        tile->is_split = tile->num_splits > 1 && cost > UNIT_COST && cost > total_cost / MOST_SPLIT &&
                         num_partials + partials <= most_partials(limits);
        if (tile->is_split) {
            tile->first_partial = num_partials;
            num_partials += partials;
            cost /= tile->num_splits;
        }
        tile->first_piece = num_pieces;
        tile->num_pieces = tile->num_open = limits->num_kv_heads * (tile->is_split ? tile->num_splits : 1);
        num_pieces += tile->num_pieces;
        for (int32_t piece = tile->first_piece; piece < num_pieces; piece++, open_cost += cost) {
            if (!num_units || open_cost >= UNIT_COST) {
                this->plan.units[num_units++] = (Unit){.first_tile = index, .first_piece = piece};
                open_cost = 0;
            }
            this->plan.units[num_units - 1].end_piece = piece + 1;
        }
    }
    *this->plan.num_units = num_units;
}

static int32_t count_make_plan(const Operation *operation) {
    (void)operation;
    return 1;
}

EXPORT int64_t limelight_attention_plan_bytes(int32_t num_tokens, int32_t num_seats, int32_t max_context,
                                              int32_t num_kv_heads, int32_t group, int32_t head_dim) {
    const PlanLimits limits = {num_tokens, num_seats, max_context, num_kv_heads, group, head_dim};
    return (int64_t)(units_offset(&limits) + (size_t)most_units(&limits) * sizeof(Unit));
}

/* Floats of the buffer of partial results. */
EXPORT int64_t limelight_attention_partial_floats(int32_t num_tokens, int32_t num_seats, int32_t max_context,
                                                  int32_t num_kv_heads, int32_t group, int32_t head_dim) {
    const PlanLimits limits = {num_tokens, num_seats, max_context, num_kv_heads, group, head_dim};
    return (int64_t)most_partials(&limits) * (result_width(head_dim) + 2);
}

EXPORT int limelight_record_attention_plan(Program *program, const int32_t *num_chunks, const int32_t *query_starts,
                                           const int32_t *context_lens, int32_t window, void *memory,
                                           int32_t num_tokens, int32_t num_seats, int32_t max_context,
                                           int32_t num_kv_heads, int32_t group, int32_t head_dim) {
    const PlanLimits limits = {num_tokens, num_seats, max_context, num_kv_heads, group, head_dim};
    MakePlan this = {{"attention_plan", count_make_plan, run_make_plan}, limits, plan_at(memory, &limits),
                     num_chunks, query_starts, context_lens, window};
    return program_append(program, &this.operation, sizeof this, 0);
}

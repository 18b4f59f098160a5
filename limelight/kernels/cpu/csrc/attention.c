/* Attention over pages, decode rows and chunks of prompts alike: grouped queries, sliding windows, soft caps, sinks. */
#include "attention_block.h"
#include "quantize.h"
#include "vector_math.h"

typedef struct {
    Operation operation;
    KVLayer kv;
    Plan plan;
    float *partials;             /* see `Running`: for each split of a row tile and kv head, one after the other */
    const int32_t *page_table;   /* [seats, max_pages] */
    const int32_t *chunk_seats;  /* [chunks] */
    const float *queries;        /* [rows, num_heads * head_dim] */
    const float *sinks;          /* [num_heads] or NULL */
    float *outputs;              /* [rows, num_heads * head_dim] */
    uint8_t *quantized;          /* rows of quantize.h, or NULL */
    int32_t max_pages, num_heads, group, window;
    float scale, soft_cap;
} Attend;

static int32_t count_attend(const Operation *operation) { return *((const Attend *)operation)->plan.num_units; }

/* A `Running` of so many pairs, at `floats`. */
static Running running_at(float *floats, int32_t pairs) {
    return (Running){floats, floats + pairs, floats + 2 * pairs};
}

static size_t running_floats(int32_t pairs, int32_t head_dim) {
    return (size_t)pairs * (size_t)(result_width(head_dim) + 2);
}

static int32_t pairs_at_most(const Attend *this) { return rows_of_tile(this->group) * this->group; }

/* Scratch: queries, weights, two of `Running`, copies. */
static size_t scratch_floats(const Attend *this) {
    const size_t pairs = (size_t)pairs_at_most(this);
    return pairs * (size_t)this->kv.depth + pairs * BLOCK + 2 * running_floats((int32_t)pairs, this->kv.head_dim);
}

static size_t copies_bytes(const Attend *this) {
    return this->kv.tile_tokens < TILE ? BLOCK / 8 * this->kv.tile_bytes + 128 : 0;
}

static float power_of_two(float x) { return vexp2(vset(x))[0]; }

/* Adds the result over later tokens to `running`, for `pairs`. */
static void merge(Running running, Running later, int32_t pairs, int32_t width) {
    for (int32_t pair = 0; pair < pairs; pair++) {
        float *values = running.values + pair * width;
        const float *added = later.values + pair * width;
        if (later.sum[pair] == 0.0f) continue;
        if (running.sum[pair] == 0.0f) {
            running.greatest[pair] = later.greatest[pair];
            running.sum[pair] = later.sum[pair];
            memcpy(values, added, (size_t)width * 4);
            continue;
        }
        const float greatest = fmaxf(running.greatest[pair], later.greatest[pair]);
        const float factor = power_of_two(running.greatest[pair] - greatest);
        const float later_factor = power_of_two(later.greatest[pair] - greatest);
        for (int32_t i = 0; i < width; i += LANES)
            vstore(values + i, vfma(vload(added + i), vset(later_factor), vload(values + i) * factor));
        running.sum[pair] = running.sum[pair] * factor + later.sum[pair] * later_factor;
        running.greatest[pair] = greatest;
    }
}

/* Writes the outputs of a kv head's pairs, whose results are complete but for the sinks. */
static void write_outputs(const Attend *this, const RowTile *tile, int32_t head, Running running) {
    const int32_t head_dim = this->kv.head_dim, width = result_width(head_dim);
    for (int32_t pair = 0; pair < tile->num_rows * this->group; pair++) {
        const int32_t row = tile->first_row + pair / this->group, query_head = head * this->group + pair % this->group;
        float *output = this->outputs + ((int64_t)row * this->num_heads + query_head) * head_dim;
        const float *values = running.values + pair * width;
        float sum = running.sum[pair], factor = 1.0f;
        if (this->sinks) {
            const float sink = this->sinks[query_head] * LOG2_E, greatest = fmaxf(running.greatest[pair], sink);
            factor = power_of_two(running.greatest[pair] - greatest);
            sum = sum * factor + power_of_two(sink - greatest);
        }
        const vfloat share = vset(factor / sum);
        const int32_t whole = head_dim / LANES * LANES;
        for (int32_t i = 0; i < whole; i += LANES) vstore(output + i, vload(values + i) * share);
        if (whole < head_dim) vstore_part(output + whole, vload(values + whole) * share, head_dim - whole);
    }
}

/* The result of a piece of a tile whose pieces are splits. */
static Running partial_of(const Attend *this, const RowTile *tile, int32_t piece) {
    const int32_t pairs = tile->num_rows * this->group;
    return running_at(this->partials + running_floats(tile->first_partial + piece * pairs, this->kv.head_dim), pairs);
}

/* Called when all pieces of the tile are done, by whoever did the last. */
static void finish_tile(const Attend *this, const RowTile *tile) {
    const int32_t pairs = tile->num_rows * this->group, width = result_width(this->kv.head_dim);
    if (tile->is_split) {
        for (int32_t head = 0; head < this->kv.num_heads; head++) {
            const Running running = partial_of(this, tile, head * tile->num_splits);
            for (int32_t split = 1; split < tile->num_splits; split++)
                merge(running, partial_of(this, tile, head * tile->num_splits + split), pairs, width);
            write_outputs(this, tile, head, running);
        }
    }
    if (!this->quantized) return;
    const int32_t row_width = this->num_heads * this->kv.head_dim;
    for (int64_t row = tile->first_row; row < tile->first_row + tile->num_rows; row++)
        quantize_row(this->quantized + row * (int64_t)quantized_row_bytes(row_width), this->outputs + row * row_width,
                     row_width);
}

static void attend_split(const TileRows *rows, int32_t split, Running running) {
    const int32_t begin = maximum(split * SPLIT, first_visible(rows->first_position, rows->window));
    attend_tokens(rows, begin, minimum((split + 1) * SPLIT, rows->first_position + rows->num_rows), running);
}

/* The tile's queries of a kv head, scaled: [pairs][depth]. */
static void load_queries(const Attend *this, const RowTile *tile, int32_t head, float *queries) {
    const int32_t head_dim = this->kv.head_dim;
    for (int32_t row = 0; row < tile->num_rows; row++) {
        const int64_t query = (int64_t)(tile->first_row + row) * this->num_heads + head * this->group;
        const float *from = this->queries + query * head_dim;
        for (int32_t i = 0; i < this->group; i++, queries += this->kv.depth, from += head_dim) {
            queries[this->kv.depth - 1] = 0.0f;
            for (int32_t d = 0; d < head_dim; d++) queries[d] = from[d] * this->scale;
        }
    }
}

static const int32_t *pages_of(const Attend *this, const RowTile *tile) {
    return this->page_table + (int64_t)this->chunk_seats[tile->chunk] * this->max_pages;
}

static int32_t pieces_per_head(const Attend *this, const RowTile *tile) {
    return tile->num_pieces / this->kv.num_heads;
}

/* The tiles that a piece reads first. */
static int32_t first_tiles(const Attend *this, const RowTile *tile, int32_t piece, const char **tiles) {
    const int32_t split = tile->first_split + piece % pieces_per_head(this, tile);
    const int32_t begin = maximum(split * SPLIT, first_visible(tile->first_position, this->window)) / BLOCK * BLOCK;
    return list_tiles(&this->kv, pages_of(this, tile), piece / pieces_per_head(this, tile), begin,
                      minimum(begin + BLOCK, tile->first_position + tile->num_rows), tiles);
}

/* `following` are the first tiles of the piece after this one. */
static void run_piece(const Attend *this, const RowTile *tile, int32_t piece, const char *const *following,
                      int32_t num_following, float *scratch) {
    const int32_t pairs = tile->num_rows * this->group, head = piece / pieces_per_head(this, tile);
    float *queries = scratch, *weights = queries + pairs_at_most(this) * this->kv.depth;
    float *results = weights + pairs_at_most(this) * BLOCK;
    const TileRows rows = {
        .kv = &this->kv, .pages = pages_of(this, tile), .head = head, .num_rows = tile->num_rows,
        .group = this->group, .first_position = tile->first_position, .window = this->window,
        .soft_cap = this->soft_cap, .queries = queries, .weights = weights,
        .copies = (char *)(scratch + scratch_floats(this)), .following = following, .num_following = num_following};
    load_queries(this, tile, head, queries);
    if (tile->is_split) {
        attend_split(&rows, tile->first_split + piece % pieces_per_head(this, tile), partial_of(this, tile, piece));
        return;
    }
    const Running running = running_at(results, pairs);
    const Running later = running_at(results + running_floats(pairs, this->kv.head_dim), pairs);
    attend_split(&rows, tile->first_split, running);
    for (int32_t split = 1; split < tile->num_splits; split++) {
        attend_split(&rows, tile->first_split + split, later);
        merge(running, later, pairs, result_width(this->kv.head_dim));
    }
    write_outputs(this, tile, head, running);
}

static void run_attend(const Operation *operation, int32_t unit, Worker *worker) {
    const Attend *this = (const Attend *)operation;
    /* The end of a prompt has the longest context: it goes first, short pieces fill up at the end. */
    const Unit *work = this->plan.units + (*this->plan.num_units - 1 - unit);
    RowTile *tile = this->plan.tiles + work->first_tile, *next_tile = tile;
    for (int32_t piece = work->first_piece; piece < work->end_piece; piece++, tile = next_tile) {
        const char *following[MOST_TILES];
        int32_t num_following = 0;
        if (piece + 1 == tile->first_piece + tile->num_pieces) next_tile++;
        if (piece + 1 < work->end_piece)
            num_following = first_tiles(this, next_tile, piece + 1 - next_tile->first_piece, following);
        run_piece(this, tile, piece - tile->first_piece, following, num_following, worker->scratch);
        if (__atomic_sub_fetch(&tile->num_open, 1, __ATOMIC_ACQ_REL) == 0) {
            finish_tile(this, tile);
            tile->num_open = tile->num_pieces;
        }
    }
}

EXPORT int limelight_record_attend(Program *program, void *pages, int32_t type, int32_t page_size, int32_t num_kv_heads,
                                   int32_t head_dim, void *plan, float *partials, int32_t num_tokens,
                                   int32_t num_seats, int32_t max_context, const int32_t *page_table,
                                   const int32_t *chunk_seats, const float *queries, int32_t num_heads,
                                   const float *sinks, int32_t window, float scale, float soft_cap, float *outputs,
                                   uint8_t *quantized) {
    const int32_t group = num_heads / num_kv_heads;
    const PlanLimits limits = {num_tokens, num_seats, max_context, num_kv_heads, group, head_dim};
    Attend this = {.operation = {"attend", count_attend, run_attend},
                   .kv = kv_layer(pages, type, page_size, num_kv_heads, head_dim), .plan = plan_at(plan, &limits),
                   .partials = partials, .page_table = page_table, .chunk_seats = chunk_seats, .queries = queries,
                   .sinks = sinks, .outputs = outputs, .quantized = quantized, .max_pages = max_context / page_size,
                   .num_heads = num_heads, .group = group, .window = window, .scale = scale, .soft_cap = soft_cap};
    return program_append(program, &this.operation, sizeof this, scratch_floats(&this) * 4 + copies_bytes(&this));
}

/* Low-rank additions to projections (LoRA, Hu et al. 2021, arXiv 2106.09685): outputs += up (down x) for the rows that
   have an adapter. Which adapters a step has, and which rows have them, is read at each run.

   Every sum is taken in one order whatever rows are computed together: over the inputs in vectors, over the ranks one
   after the other. */
#include "program.h"
#include "vector.h"

#define ROWS_AT_ONCE 16
#define RANKS_AT_ONCE 8
#define OUTPUTS_AT_ONCE 512

/* One adapted matrix of a projection. Its part of the ranks follows those of the parts before. */
typedef struct {
    const void *up; /* [rank, outputs] */
    int64_t first_output, num_outputs, rank;
} Part;

/* What an adapter adds to a projection; low_rank.py lays it out. */
typedef struct {
    const void *down;      /* [rank, inputs] */
    int64_t is_bfloat16;   /* all matrices are bfloat16, or all are float */
    int64_t rank;          /* sum of those of the parts */
    int64_t num_parts;
    Part parts[];
} Product;

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const int32_t *num_active;      /* adapters of the step */
    const int32_t *row_adapters;    /* [rows] numbers among the active ones, -1 for none */
    const Product *const *products; /* [active], NULL for an adapter that leaves the projection alone */
    const float *inputs;            /* [rows, num_inputs] */
    float *inner;                   /* [rows, inner_width]: down x */
    float *outputs;                 /* [rows, num_outputs] */
    int32_t num_inputs, inner_width, num_outputs;
} LowRank;

static int32_t largest_rank(const LowRank *this) {
    int64_t largest = 0;
    for (int32_t i = 0; i < *this->num_active; i++)
        if (this->products[i] && this->products[i]->rank > largest) largest = this->products[i]->rank;
    return (int32_t)largest;
}

static const Product *product_of(const LowRank *this, int32_t row) {
    return this->row_adapters[row] < 0 ? NULL : this->products[this->row_adapters[row]];
}

/* The end of the rows from `row` on, before `last`, that share its product. */
static int32_t same_product_end(const LowRank *this, int32_t row, int32_t last) {
    const Product *product = product_of(this, row);
    while (row < last && product_of(this, row) == product) row++;
    return row;
}

static inline vfloat load(const void *from, int64_t index, int32_t is_bfloat16) {
    return is_bfloat16 ? vload_bfloat16((const uint16_t *)from + index) : vload((const float *)from + index);
}

static inline vfloat load_part(const void *from, int64_t index, int32_t count, int32_t is_bfloat16) {
    return is_bfloat16 ? vload_bfloat16_part((const uint16_t *)from + index, count)
                       : vload_part((const float *)from + index, count, 0.0f);
}

/* `num_rows` (1 or 2) rows of the inputs times `num_ranks` (1 or 4) rows of `down`. */
ALWAYS_INLINE void multiply_down(const LowRank *this, const void *down, int64_t row, int64_t rank, int32_t num_rows,
                                 int32_t num_ranks, int32_t is_bfloat16) {
    const int32_t width = this->num_inputs, whole = width / LANES * LANES;
    const float *inputs = this->inputs + row * width;
    vfloat sums[2][4] = {{{0}}};
    for (int32_t i = 0; i < whole; i += LANES)
        for (int32_t b = 0; b < num_ranks; b++) {
            vfloat weight = load(down, (rank + b) * width + i, is_bfloat16);
            for (int32_t a = 0; a < num_rows; a++) sums[a][b] = vfma(vload(inputs + a * width + i), weight, sums[a][b]);
        }
    for (int32_t b = 0; b < num_ranks && whole < width; b++) {
        vfloat weight = load_part(down, (rank + b) * width + whole, width - whole, is_bfloat16);
        for (int32_t a = 0; a < num_rows; a++)
            sums[a][b] = vfma(vload_part(inputs + a * width + whole, width - whole, 0.0f), weight, sums[a][b]);
    }
    for (int32_t a = 0; a < num_rows; a++)
        for (int32_t b = 0; b < num_ranks; b++)
            this->inner[(row + a) * this->inner_width + rank + b] = vsum(sums[a][b]);
}

ALWAYS_INLINE void multiply_down_rows(const LowRank *this, const Product *product, int32_t first, int32_t last,
                                      int32_t first_rank, int32_t last_rank, int32_t is_bfloat16) {
    int32_t rank = first_rank;
    for (; rank + 4 <= last_rank; rank += 4) {
        int32_t row = first;
        for (; row + 2 <= last; row += 2) multiply_down(this, product->down, row, rank, 2, 4, is_bfloat16);
        if (row < last) multiply_down(this, product->down, row, rank, 1, 4, is_bfloat16);
    }
    for (; rank < last_rank; rank++)
        for (int32_t row = first; row < last; row++)
            multiply_down(this, product->down, row, rank, 1, 1, is_bfloat16);
}

static int32_t count_down(const Operation *operation) {
    const LowRank *this = (const LowRank *)operation;
    return divide_up(*this->num_rows, ROWS_AT_ONCE) * divide_up(largest_rank(this), RANKS_AT_ONCE);
}

static void run_down(const Operation *operation, int32_t unit, Worker *worker) {
    const LowRank *this = (const LowRank *)operation;
    const int32_t tiles = divide_up(largest_rank(this), RANKS_AT_ONCE);
    const int32_t first_rank = unit % tiles * RANKS_AT_ONCE, first = unit / tiles * ROWS_AT_ONCE;
    const int32_t last = minimum(first + ROWS_AT_ONCE, *this->num_rows);
    (void)worker;
    for (int32_t row = first, end; row < last; row = end) {
        const Product *product = product_of(this, row);
        end = same_product_end(this, row, last);
        if (!product) continue;
        int32_t last_rank = minimum(first_rank + RANKS_AT_ONCE, (int32_t)product->rank);
        if (product->is_bfloat16) multiply_down_rows(this, product, row, end, first_rank, last_rank, 1);
        else multiply_down_rows(this, product, row, end, first_rank, last_rank, 0);
    }
}

/* Adds to `num_rows` (1 or 4) rows of the outputs, at `count` columns from number `column` of the part on: LANES for
   each of `num_vectors` (1 or 4), or fewer with one vector. */
ALWAYS_INLINE void multiply_up(const LowRank *this, const Part *part, const float *inner, float *outputs,
                               int64_t column, int32_t count, int32_t num_rows, int32_t num_vectors,
                               int32_t is_bfloat16) {
    vfloat sums[4][4] = {{{0}}};
    for (int32_t rank = 0; rank < part->rank; rank++)
        for (int32_t b = 0; b < num_vectors; b++) {
            int64_t index = rank * part->num_outputs + column + b * LANES;
            vfloat weight = count < LANES ? load_part(part->up, index, count, is_bfloat16)
                                          : load(part->up, index, is_bfloat16);
            for (int32_t a = 0; a < num_rows; a++)
                sums[a][b] = vfma(vset(inner[a * this->inner_width + rank]), weight, sums[a][b]);
        }
    for (int32_t a = 0; a < num_rows; a++)
        for (int32_t b = 0; b < num_vectors; b++) {
            float *to = outputs + (int64_t)a * this->num_outputs + part->first_output + column + b * LANES;
            if (count < LANES) vstore_part(to, vload_part(to, count, 0.0f) + sums[a][b], count);
            else vstore(to, vload(to) + sums[a][b]);
        }
}

ALWAYS_INLINE void multiply_up_columns(const LowRank *this, const Part *part, const float *inner, float *outputs,
                                       int64_t column, int64_t last_column, int32_t num_rows, int32_t num_vectors,
                                       int32_t is_bfloat16) {
    const int32_t step = num_vectors * LANES;
    for (; column + step <= last_column; column += step)
        multiply_up(this, part, inner, outputs, column, LANES, num_rows, num_vectors, is_bfloat16);
    for (; column + LANES <= last_column; column += LANES)
        multiply_up(this, part, inner, outputs, column, LANES, num_rows, 1, is_bfloat16);
    if (column < last_column)
        multiply_up(this, part, inner, outputs, column, (int32_t)(last_column - column), num_rows, 1, is_bfloat16);
}

ALWAYS_INLINE void multiply_up_rows(const LowRank *this, const Product *product, int32_t first, int32_t last,
                                    int64_t first_output, int64_t last_output, int32_t is_bfloat16) {
    int64_t first_rank = 0;
    for (const Part *part = product->parts; part < product->parts + product->num_parts; part++) {
        int64_t column = first_output > part->first_output ? first_output - part->first_output : 0;
        int64_t end = last_output - part->first_output;
        if (end > part->num_outputs) end = part->num_outputs;
        int64_t row = first;
        const float *inner = this->inner + first_rank;
        for (; row + 4 <= last; row += 4)
            multiply_up_columns(this, part, inner + row * this->inner_width, this->outputs + row * this->num_outputs,
                                column, end, 4, 2, is_bfloat16);
        for (; row < last; row++)
            multiply_up_columns(this, part, inner + row * this->inner_width, this->outputs + row * this->num_outputs,
                                column, end, 1, 4, is_bfloat16);
        first_rank += part->rank;
    }
}

static int32_t count_up(const Operation *operation) {
    const LowRank *this = (const LowRank *)operation;
    if (!largest_rank(this)) return 0;
    return divide_up(*this->num_rows, ROWS_AT_ONCE) * divide_up(this->num_outputs, OUTPUTS_AT_ONCE);
}

static void run_up(const Operation *operation, int32_t unit, Worker *worker) {
    const LowRank *this = (const LowRank *)operation;
    const int32_t tiles = divide_up(this->num_outputs, OUTPUTS_AT_ONCE);
    const int32_t first_output = unit % tiles * OUTPUTS_AT_ONCE, first = unit / tiles * ROWS_AT_ONCE;
    const int32_t last_output = minimum(first_output + OUTPUTS_AT_ONCE, this->num_outputs);
    const int32_t last = minimum(first + ROWS_AT_ONCE, *this->num_rows);
    (void)worker;
    for (int32_t row = first, end; row < last; row = end) {
        const Product *product = product_of(this, row);
        end = same_product_end(this, row, last);
        if (!product) continue;
        if (product->is_bfloat16) multiply_up_rows(this, product, row, end, first_output, last_output, 1);
        else multiply_up_rows(this, product, row, end, first_output, last_output, 0);
    }
}

EXPORT int limelight_record_low_rank(Program *program, const int32_t *num_rows, const int32_t *num_active,
                                     const int32_t *row_adapters, const Product *const *products, const float *inputs,
                                     float *inner, float *outputs, int32_t num_inputs, int32_t inner_width,
                                     int32_t num_outputs) {
    LowRank this = {{"low_rank_down", count_down, run_down}, num_rows, num_active, row_adapters, products, inputs,
                    inner, outputs, num_inputs, inner_width, num_outputs};
    if (program_append(program, &this.operation, sizeof this, 0)) return -1;
    this.operation = (Operation){"low_rank_up", count_up, run_up};
    return program_append(program, &this.operation, sizeof this, 0);
}

/* Gated MLPs of which each row takes a few: rows are grouped by expert when the pass runs, and each expert multiplies
   its rows alone, so that the weights of experts which no row chose are never read.

   A *choice* is a row's taking of one expert, number row * num_chosen + i. Choices are put in order of their experts: a
   *place* is the position of one there. What a choice gives does not depend on which others have the same expert, and a
   row adds its own up in the order of its choice. */
#include "gate.h"
#include "program.h"

#define ROWS_AT_ONCE 32
#define OUTPUTS_AT_ONCE 64
#define COLUMNS_AT_ONCE 1024

/* Some places of one expert, that are multiplied together. */
typedef struct {
    int32_t expert, first_place, num_places;
} Tile;

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const int32_t *chosen; /* [rows, num_chosen] */
    int32_t *choices;      /* [places] */
    int32_t *places;       /* [choices] */
    Tile *tiles;
    int32_t *counts;       /* places, tiles */
    int32_t num_chosen, num_experts;
} GroupRows;

static int32_t count_group_rows(const Operation *operation) { return *((const GroupRows *)operation)->num_rows > 0; }

static void run_group_rows(const Operation *operation, int32_t unit, Worker *worker) {
    const GroupRows *this = (const GroupRows *)operation;
    const int32_t num_choices = *this->num_rows * this->num_chosen;
    int32_t *starts = worker->scratch, num_tiles = 0; /* of each expert's places, [experts + 1] */
    (void)unit;
    memset(starts, 0, ((size_t)this->num_experts + 1) * sizeof *starts);
    for (int32_t choice = 0; choice < num_choices; choice++) starts[this->chosen[choice] + 1]++;
    for (int32_t expert = 0; expert < this->num_experts; expert++) {
        for (int32_t done = 0; done < starts[expert + 1]; done += ROWS_AT_ONCE)
            this->tiles[num_tiles++] =
                (Tile){expert, starts[expert] + done, minimum(ROWS_AT_ONCE, starts[expert + 1] - done)};
        starts[expert + 1] += starts[expert];
    }
    for (int32_t choice = 0; choice < num_choices; choice++) {
        int32_t place = starts[this->chosen[choice]]++;
        this->choices[place] = choice;
        this->places[choice] = place;
    }
    this->counts[0] = num_choices;
    this->counts[1] = num_tiles;
}

EXPORT int limelight_record_group_rows(Program *program, const int32_t *num_rows, const int32_t *chosen,
                                       int32_t *choices, int32_t *places, int32_t *tiles, int32_t *counts,
                                       int32_t num_chosen, int32_t num_experts) {
    GroupRows this = {{"group_rows", count_group_rows, run_group_rows}, num_rows, chosen, choices, places,
                      (Tile *)tiles, counts, num_chosen, num_experts};
    return program_append(program, &this.operation, sizeof this, ((size_t)num_experts + 1) * sizeof(int32_t));
}

EXPORT int64_t limelight_experts_rows_at_once(void) { return ROWS_AT_ONCE; }

/* outputs[row, i] = bias[i] + weights[i] . rows[row] for i from 0 to num_outputs. */
static void multiply(const float *weights, const float *bias, const float *const *rows, int32_t num_rows,
                     int32_t num_inputs, int32_t num_outputs, float *outputs, int64_t stride) {
    for (int32_t output = 0; output < num_outputs; output++)
        for (int32_t row = 0; row < num_rows; row++) {
            const float *weight = weights + (int64_t)output * num_inputs;
            vfloat sum = vset(0.0f);
            for (int32_t i = 0; i < num_inputs; i += LANES) {
                int32_t part = minimum(LANES, num_inputs - i);
                sum = vfma(vload_part(rows[row] + i, part, 0.0f), vload_part(weight + i, part, 0.0f), sum);
            }
            outputs[row * stride + output] = vsum(sum) + (bias ? bias[output] : 0.0f);
        }
}

typedef struct {
    Operation operation;
    const int32_t *counts;
    const Tile *tiles;
    const int32_t *choices;
    const float *inputs;  /* [rows, num_inputs] */
    const float *weights; /* [experts, 2 * num_outputs, num_inputs], the gate's first */
    const float *bias;    /* [experts, 2 * num_outputs] or NULL */
    float *gated;         /* [places, num_outputs] */
    int32_t num_chosen, num_inputs, num_outputs, activation;
    float limit;
} GateUp;

static int32_t count_gate_up(const Operation *operation) {
    const GateUp *this = (const GateUp *)operation;
    return this->counts[1] * divide_up(this->num_outputs, OUTPUTS_AT_ONCE);
}

static void run_gate_up(const Operation *operation, int32_t unit, Worker *worker) {
    const GateUp *this = (const GateUp *)operation;
    const int32_t columns = divide_up(this->num_outputs, OUTPUTS_AT_ONCE);
    const Tile tile = this->tiles[unit / columns];
    const int32_t first = unit % columns * OUTPUTS_AT_ONCE;
    const int32_t num_outputs = minimum(OUTPUTS_AT_ONCE, this->num_outputs - first);
    const float *rows[ROWS_AT_ONCE];
    float *products = worker->scratch;
    for (int32_t i = 0; i < tile.num_places; i++)
        rows[i] = this->inputs + (int64_t)(this->choices[tile.first_place + i] / this->num_chosen) * this->num_inputs;
    for (int32_t half = 0; half < 2; half++) {
        int64_t output = ((int64_t)tile.expert * 2 + half) * this->num_outputs + first;
        multiply(this->weights + output * this->num_inputs, this->bias ? this->bias + output : NULL, rows,
                 tile.num_places, this->num_inputs, num_outputs, products + half * OUTPUTS_AT_ONCE,
                 2 * OUTPUTS_AT_ONCE);
    }
    for (int32_t i = 0; i < tile.num_places; i++) {
        const float *gate = products + i * 2 * OUTPUTS_AT_ONCE;
        gate_row(this->gated + (int64_t)(tile.first_place + i) * this->num_outputs + first, gate,
                 gate + OUTPUTS_AT_ONCE, num_outputs, this->activation, this->limit);
    }
}

EXPORT int limelight_record_experts_gate_up(Program *program, const int32_t *counts, const int32_t *tiles,
                                            const int32_t *choices, const float *inputs, const float *weights,
                                            const float *bias, float *gated, int32_t num_chosen, int32_t num_inputs,
                                            int32_t num_outputs, int32_t activation, float limit) {
    GateUp this = {{"experts_gate_up", count_gate_up, run_gate_up}, counts, (const Tile *)tiles, choices, inputs,
                   weights, bias, gated, num_chosen, num_inputs, num_outputs, activation, limit};
    return program_append(program, &this.operation, sizeof this,
                          (size_t)ROWS_AT_ONCE * 2 * OUTPUTS_AT_ONCE * sizeof(float));
}

typedef struct {
    Operation operation;
    const int32_t *counts;
    const Tile *tiles;
    const float *gated;   /* [places, num_inputs] */
    const float *weights; /* [experts, num_outputs, num_inputs] */
    const float *bias;    /* [experts, num_outputs] or NULL */
    float *outputs;       /* [places, num_outputs] */
    int32_t num_inputs, num_outputs;
} Down;

static int32_t count_down(const Operation *operation) {
    const Down *this = (const Down *)operation;
    return this->counts[1] * divide_up(this->num_outputs, OUTPUTS_AT_ONCE);
}

static void run_down(const Operation *operation, int32_t unit, Worker *worker) {
    const Down *this = (const Down *)operation;
    const int32_t columns = divide_up(this->num_outputs, OUTPUTS_AT_ONCE);
    const Tile tile = this->tiles[unit / columns];
    const int32_t first = unit % columns * OUTPUTS_AT_ONCE;
    const int64_t output = (int64_t)tile.expert * this->num_outputs + first;
    const float *rows[ROWS_AT_ONCE];
    (void)worker;
    for (int32_t i = 0; i < tile.num_places; i++)
        rows[i] = this->gated + (int64_t)(tile.first_place + i) * this->num_inputs;
    multiply(this->weights + output * this->num_inputs, this->bias ? this->bias + output : NULL, rows, tile.num_places,
             this->num_inputs, minimum(OUTPUTS_AT_ONCE, this->num_outputs - first),
             this->outputs + (int64_t)tile.first_place * this->num_outputs + first, this->num_outputs);
}

EXPORT int limelight_record_experts_down(Program *program, const int32_t *counts, const int32_t *tiles,
                                         const float *gated, const float *weights, const float *bias, float *outputs,
                                         int32_t num_inputs, int32_t num_outputs) {
    Down this = {{"experts_down", count_down, run_down}, counts, (const Tile *)tiles, gated, weights, bias, outputs,
                 num_inputs, num_outputs};
    return program_append(program, &this.operation, sizeof this, 0);
}

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const int32_t *places; /* [rows, num_chosen] */
    const float *shares;   /* [rows, num_chosen] */
    const float *values;   /* [places, width] */
    float *sums;           /* [rows, width] */
    int32_t num_chosen, width;
} AddShares;

static int32_t count_add_shares(const Operation *operation) {
    const AddShares *this = (const AddShares *)operation;
    return *this->num_rows * divide_up(this->width, COLUMNS_AT_ONCE);
}

static vfloat shared_sum(const AddShares *this, int64_t row, int32_t column, int32_t count) {
    const int32_t *places = this->places + row * this->num_chosen;
    const float *shares = this->shares + row * this->num_chosen;
    vfloat sum = vset(0.0f);
    for (int32_t i = 0; i < this->num_chosen; i++) {
        const float *values = this->values + (int64_t)places[i] * this->width + column;
        sum = vfma(vset(shares[i]), count < LANES ? vload_part(values, count, 0.0f) : vload(values), sum);
    }
    return sum;
}

static void run_add_shares(const Operation *operation, int32_t unit, Worker *worker) {
    const AddShares *this = (const AddShares *)operation;
    const int32_t columns = divide_up(this->width, COLUMNS_AT_ONCE);
    const int32_t first = unit % columns * COLUMNS_AT_ONCE, last = minimum(first + COLUMNS_AT_ONCE, this->width);
    const int64_t row = unit / columns;
    float *sums = this->sums + row * this->width;
    int32_t column = first;
    (void)worker;
    for (; column + LANES <= last; column += LANES) vstore(sums + column, shared_sum(this, row, column, LANES));
    if (column < last) vstore_part(sums + column, shared_sum(this, row, column, last - column), last - column);
}

EXPORT int limelight_record_add_shares(Program *program, const int32_t *num_rows, const int32_t *places,
                                       const float *shares, const float *values, float *sums, int32_t num_chosen,
                                       int32_t width) {
    AddShares this = {{"add_shares", count_add_shares, run_add_shares}, num_rows, places, shares, values, sums,
                      num_chosen, width};
    return program_append(program, &this.operation, sizeof this, 0);
}

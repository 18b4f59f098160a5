/* Gated MLPs of which each row takes a few: rows are grouped by expert when the pass runs, and each expert multiplies
   its rows alone, so that the weights of experts which no row chose are never read.

   A *choice* is a row's taking of one expert, number row * num_chosen + i. Choices are put in order of their experts: a
   *place* is the position of one there. What a choice gives does not depend on which others have the same expert, and a
   row adds its own up in the order of its choice. */
#include "gate.h"
#include "linear.h"

#define PLACES_AT_ONCE 64
#define GATE_UP_PANELS 4
#define DOWN_PANELS 8
#define COLUMNS_AT_ONCE 1024

/* A matrix of each expert, packed one after the other; experts.py lays it out. */
typedef struct {
    const uint8_t *panels; /* [experts, bytes] */
    const float *bias;     /* [experts, num_outputs] or NULL */
    int64_t bytes, format, num_inputs, num_outputs;
} Matrices;

static PackedMatrix matrix_of(const Matrices *matrices, int64_t expert) {
    return (PackedMatrix){matrices->panels + expert * matrices->bytes,
                          matrices->bias ? matrices->bias + expert * matrices->num_outputs : NULL,
                          (int32_t)matrices->format, (int32_t)matrices->num_inputs, (int32_t)matrices->num_outputs};
}

static int32_t count_panels(const Matrices *matrices) { return divide_up(matrices->num_outputs, PANEL); }

/* Places of one expert that are multiplied together. */
typedef struct {
    int32_t expert, first_place, num_places;
} Group;

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const int32_t *chosen; /* [rows, num_chosen] */
    int32_t *choices;      /* [places] */
    int32_t *places;       /* [choices] */
    Group *groups;
    int32_t *counts;       /* places, groups */
    int32_t num_chosen, num_experts;
} GroupRows;

static int32_t count_group_rows(const Operation *operation) {
    (void)operation;
    return 1; /* without rows, too: `counts` says so */
}

static void run_group_rows(const Operation *operation, int32_t unit, Worker *worker) {
    const GroupRows *this = (const GroupRows *)operation;
    const int32_t num_choices = *this->num_rows * this->num_chosen;
    int32_t *starts = worker->scratch, num_groups = 0; /* of each expert's places, [experts + 1] */
    (void)unit;
    memset(starts, 0, ((size_t)this->num_experts + 1) * sizeof *starts);
    for (int32_t choice = 0; choice < num_choices; choice++) starts[this->chosen[choice] + 1]++;
    for (int32_t expert = 0; expert < this->num_experts; expert++) {
        for (int32_t done = 0; done < starts[expert + 1]; done += PLACES_AT_ONCE)
            this->groups[num_groups++] =
                (Group){expert, starts[expert] + done, minimum(PLACES_AT_ONCE, starts[expert + 1] - done)};
        starts[expert + 1] += starts[expert];
    }
    for (int32_t choice = 0; choice < num_choices; choice++) {
        int32_t place = starts[this->chosen[choice]]++;
        this->choices[place] = choice;
        this->places[choice] = place;
    }
    this->counts[0] = num_choices;
    this->counts[1] = num_groups;
}

EXPORT int limelight_record_group_rows(Program *program, const int32_t *num_rows, const int32_t *chosen,
                                       int32_t *choices, int32_t *places, int32_t *groups, int32_t *counts,
                                       int32_t num_chosen, int32_t num_experts) {
    GroupRows this = {{"group_rows", count_group_rows, run_group_rows}, num_rows, chosen, choices, places,
                      (Group *)groups, counts, num_chosen, num_experts};
    return program_append(program, &this.operation, sizeof this, ((size_t)num_experts + 1) * sizeof(int32_t));
}

EXPORT int64_t limelight_experts_places_at_once(void) { return PLACES_AT_ONCE; }

typedef struct {
    Operation operation;
    const int32_t *counts;
    const Group *groups;
    const int32_t *choices;
    const uint8_t *rows; /* [rows, row_bytes] */
    uint8_t *gathered;   /* [places, row_bytes]; places that are a group of their own stay where they are in `rows` */
    int64_t row_bytes;
    int32_t num_chosen;
} Gather;

static const uint8_t *row_of_place(const uint8_t *rows, const int32_t *choices, int32_t num_chosen, int64_t row_bytes,
                                   int32_t place) {
    return rows + choices[place] / num_chosen * row_bytes;
}

static int32_t count_gather(const Operation *operation) {
    const Gather *this = (const Gather *)operation;
    return this->counts[0] > this->counts[1] ? this->counts[1] : 0;
}

static void run_gather(const Operation *operation, int32_t unit, Worker *worker) {
    const Gather *this = (const Gather *)operation;
    const Group group = this->groups[unit];
    (void)worker;
    for (int32_t place = group.first_place; group.num_places > 1 && place < group.first_place + group.num_places; place++)
        memcpy(this->gathered + place * this->row_bytes,
               row_of_place(this->rows, this->choices, this->num_chosen, this->row_bytes, place),
               (size_t)this->row_bytes);
}

typedef struct {
    Operation operation;
    const int32_t *counts;
    const Group *groups;
    const int32_t *choices;
    const uint8_t *rows, *gathered;   /* as `Gather` has them */
    Matrices gates, ups;
    float *gated;                     /* [places, outputs of the gate] */
    int64_t row_bytes;
    int32_t num_chosen, activation;
    float limit;
} GateUp;

static int32_t count_gate_up(const Operation *operation) {
    const GateUp *this = (const GateUp *)operation;
    return this->counts[1] * divide_up(count_panels(&this->gates), GATE_UP_PANELS);
}

static void run_gate_up(const Operation *operation, int32_t unit, Worker *worker) {
    const GateUp *this = (const GateUp *)operation;
    const int32_t panels = count_panels(&this->gates), parts = divide_up(panels, GATE_UP_PANELS);
    const int32_t width = GATE_UP_PANELS * PANEL, inner = (int32_t)this->gates.num_outputs;
    const Group group = this->groups[unit / parts];
    const PackedMatrix gate = matrix_of(&this->gates, group.expert), up = matrix_of(&this->ups, group.expert);
    const int32_t first = unit % parts * GATE_UP_PANELS, first_output = first * PANEL;
    const int32_t last = minimum(first + GATE_UP_PANELS, panels);
    const uint8_t *rows = this->gathered + group.first_place * this->row_bytes;
    float *gates = worker->scratch, *ups = gates + PLACES_AT_ONCE * width, *scratch = ups + PLACES_AT_ONCE * width;
    if (group.num_places == 1)
        rows = row_of_place(this->rows, this->choices, this->num_chosen, this->row_bytes, group.first_place);
    multiply(&gate, rows, this->row_bytes, group.num_places, first, last, gates - first_output, width, scratch);
    multiply(&up, rows, this->row_bytes, group.num_places, first, last, ups - first_output, width, scratch);
    for (int32_t i = 0; i < group.num_places; i++)
        gate_row(this->gated + (int64_t)(group.first_place + i) * inner + first_output, gates + i * width,
                 ups + i * width, minimum(width, inner - first_output), this->activation, this->limit);
}

EXPORT int limelight_record_experts_gate_up(Program *program, const int32_t *counts, const int32_t *groups,
                                            const int32_t *choices, const uint8_t *rows, uint8_t *gathered,
                                            const Matrices *gates, const Matrices *ups, float *gated,
                                            int64_t row_bytes, int32_t num_chosen, int32_t activation, float limit) {
    Gather gather = {{"experts_gather", count_gather, run_gather}, counts, (const Group *)groups, choices, rows,
                     gathered, row_bytes, num_chosen};
    GateUp this = {{"experts_gate_up", count_gate_up, run_gate_up}, counts, (const Group *)groups, choices, rows,
                   gathered, *gates, *ups, gated, row_bytes, num_chosen, activation, limit};
    if (program_append(program, &gather.operation, sizeof gather, 0)) return -1;
    return program_append(program, &this.operation, sizeof this,
                          (size_t)PLACES_AT_ONCE * 2 * GATE_UP_PANELS * PANEL * sizeof(float) + MULTIPLY_SCRATCH_BYTES);
}

typedef struct {
    Operation operation;
    const int32_t *counts;
    const Group *groups;
    const uint8_t *rows; /* [places, row_bytes] */
    Matrices matrices;
    float *outputs;      /* [places, outputs of the matrices] */
    int64_t row_bytes;
} Down;

static int32_t count_down(const Operation *operation) {
    const Down *this = (const Down *)operation;
    return this->counts[1] * divide_up(count_panels(&this->matrices), DOWN_PANELS);
}

static void run_down(const Operation *operation, int32_t unit, Worker *worker) {
    const Down *this = (const Down *)operation;
    const int32_t panels = count_panels(&this->matrices), parts = divide_up(panels, DOWN_PANELS);
    const int32_t first = unit % parts * DOWN_PANELS;
    const Group group = this->groups[unit / parts];
    const PackedMatrix matrix = matrix_of(&this->matrices, group.expert);
    multiply(&matrix, this->rows + group.first_place * this->row_bytes, this->row_bytes, group.num_places, first,
             minimum(first + DOWN_PANELS, panels), this->outputs + (int64_t)group.first_place * matrix.num_outputs,
             matrix.num_outputs, worker->scratch);
}

EXPORT int limelight_record_experts_down(Program *program, const int32_t *counts, const int32_t *groups,
                                         const uint8_t *rows, const Matrices *matrices, float *outputs,
                                         int64_t row_bytes) {
    Down this = {{"experts_down", count_down, run_down}, counts, (const Group *)groups, rows, *matrices, outputs,
                 row_bytes};
    return program_append(program, &this.operation, sizeof this, MULTIPLY_SCRATCH_BYTES);
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

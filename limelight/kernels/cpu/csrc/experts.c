/* Products of rows with their experts' matrices (experts.h). */
#include "experts.h"

#include "gate.h"
#include "linear.h"

#define GATE_UP_PANELS 4
#define DOWN_PANELS 8

/* A matrix of each expert, packed one after the other; experts.py lays it out. */
typedef struct {
    const uint8_t *panels; /* [experts, bytes] */
    const float *bias;     /* [experts, num_outputs] or NULL */
    int64_t bytes, format, num_inputs, num_outputs;
} Matrices;

static PackedMatrix matrix_of(const Matrices *matrices, int64_t expert) {
    return (PackedMatrix){matrices->panels + expert * matrices->bytes,
                          matrices->bias ? matrices->bias + expert * matrices->num_outputs : NULL,
                          (int32_t)matrices->format, (int32_t)matrices->num_inputs, (int32_t)matrices->num_outputs,
                          rows_as_packed((int32_t)matrices->format)};
}

/* Panels [first, last) of a matrix as one of its own. */
static PackedMatrix panels_of(PackedMatrix matrix, int32_t first, int32_t last) {
    matrix.panels += first * panel_size(&FORMATS[matrix.format], matrix.num_inputs);
    if (matrix.bias) matrix.bias += first * PANEL;
    matrix.num_outputs = minimum(last * PANEL, matrix.num_outputs) - first * PANEL;
    return matrix;
}

static int32_t count_panels(const Matrices *matrices) { return divide_up(matrices->num_outputs, PANEL); }

typedef struct {
    Operation operation;
    const int32_t *counts;
    const Group *groups;
    const int32_t *choices;
    ChosenRows gate_rows, up_rows; /* differ where one is quantised and the other is not */
    Matrices gates, ups;
    float *gated;                  /* [places, outputs of the gate] */
    int32_t num_chosen, activation;
    float limit;
} GateUp;

static int32_t count_gate_up(const Operation *operation) {
    const GateUp *this = (const GateUp *)operation;
    return this->counts[1] * divide_up(count_panels(&this->gates), GATE_UP_PANELS);
}

/* The group's rows times panels [first, last) of its expert: [places of the group, GATE_UP_PANELS * PANEL]. */
static void multiply_group(const GateUp *this, const Matrices *matrices, const ChosenRows *chosen, Group group,
                           int32_t first, int32_t last, float *out, void *scratch) {
    const PackedMatrix matrix = panels_of(matrix_of(matrices, group.expert), first, last);
    const uint8_t *rows = chosen->gathered + group.first_place * chosen->row_bytes;
    if (group.num_places == 1) rows = row_of_place(chosen, this->choices, this->num_chosen, group.first_place);
    multiply(&matrix, rows, chosen->row_bytes, group.num_places, 0, last - first, out, GATE_UP_PANELS * PANEL, scratch);
}

static void run_gate_up(const Operation *operation, int32_t unit, Worker *worker) {
    const GateUp *this = (const GateUp *)operation;
    const int32_t panels = count_panels(&this->gates), parts = divide_up(panels, GATE_UP_PANELS);
    const int32_t width = GATE_UP_PANELS * PANEL, inner = (int32_t)this->gates.num_outputs;
    const Group group = this->groups[unit / parts];
    const int32_t first = unit % parts * GATE_UP_PANELS, first_output = first * PANEL;
    const int32_t last = minimum(first + GATE_UP_PANELS, panels);
    float *gates = worker->scratch, *ups = gates + PLACES_AT_ONCE * width, *scratch = ups + PLACES_AT_ONCE * width;
    multiply_group(this, &this->gates, &this->gate_rows, group, first, last, gates, scratch);
    multiply_group(this, &this->ups, &this->up_rows, group, first, last, ups, scratch);
    for (int32_t i = 0; i < group.num_places; i++)
        gate_row(this->gated + (int64_t)(group.first_place + i) * inner + first_output, gates + i * width,
                 ups + i * width, minimum(width, inner - first_output), this->activation, this->limit);
}

EXPORT int limelight_record_experts_gate_up(Program *program, const int32_t *counts, const int32_t *groups,
                                            const int32_t *choices, const uint8_t *gate_rows, uint8_t *gate_gathered,
                                            int64_t gate_row_bytes, const uint8_t *up_rows, uint8_t *up_gathered,
                                            int64_t up_row_bytes, const Matrices *gates, const Matrices *ups,
                                            float *gated, int32_t num_chosen, int32_t activation, float limit) {
    GateUp this = {{"experts_gate_up", count_gate_up, run_gate_up}, counts, (const Group *)groups, choices,
                   {gate_rows, gate_gathered, gate_row_bytes}, {up_rows, up_gathered, up_row_bytes}, *gates, *ups,
                   gated, num_chosen, activation, limit};
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

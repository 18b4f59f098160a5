/* Rows on their way to the experts and back: put in order of experts, gathered, and what was chosen for a row added up. */
#include "experts.h"

#include "vector.h"

#define COLUMNS_AT_ONCE 1024

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
    const int32_t *counts; /* places, groups */
    const Group *groups;
    const int32_t *choices;
    ChosenRows rows;
    int32_t num_chosen;
} Gather;

static int32_t count_gather(const Operation *operation) {
    const Gather *this = (const Gather *)operation;
    return this->counts[0] > this->counts[1] ? this->counts[1] : 0;
}

static void run_gather(const Operation *operation, int32_t unit, Worker *worker) {
    const Gather *this = (const Gather *)operation;
    const Group group = this->groups[unit];
    (void)worker;
    for (int32_t place = group.first_place; group.num_places > 1 && place < group.first_place + group.num_places; place++)
        memcpy(this->rows.gathered + place * this->rows.row_bytes,
               row_of_place(&this->rows, this->choices, this->num_chosen, place), (size_t)this->rows.row_bytes);
}

EXPORT int limelight_record_experts_gather(Program *program, const int32_t *counts, const int32_t *groups,
                                           const int32_t *choices, const uint8_t *rows, uint8_t *gathered,
                                           int64_t row_bytes, int32_t num_chosen) {
    Gather this = {{"experts_gather", count_gather, run_gather}, counts, (const Group *)groups, choices,
                   {rows, gathered, row_bytes}, num_chosen};
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

/* A router's choice of experts for each row (Shazeer et al. 2017, arXiv 1701.06538). */
#include "vector.h"

#include "program.h"

#define ROWS_AT_ONCE 4

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const float *scores; /* [rows, experts] */
    int32_t *chosen;     /* [rows, num_chosen] */
    float *shares;       /* [rows, num_chosen] */
    int32_t num_experts, num_chosen;
    int32_t chosen_first; /* the softmax is over the chosen scores, not over all */
    int32_t normalize;    /* the shares of a row are divided by their sum */
} Route;

static int32_t count_route(const Operation *operation) {
    return divide_up(*((const Route *)operation)->num_rows, ROWS_AT_ONCE);
}

/* In place. */
static void softmax(float *values, int32_t count) {
    float largest = values[0], sum = 0.0f;
    for (int32_t i = 1; i < count; i++) largest = values[i] > largest ? values[i] : largest;
    for (int32_t i = 0; i < count; i += LANES) {
        int32_t part = minimum(LANES, count - i);
        vstore_part(values + i, vexp(vload_part(values + i, part, largest) - largest), part);
    }
    for (int32_t i = 0; i < count; i++) sum += values[i];
    for (int32_t i = 0; i < count; i++) values[i] /= sum;
}

/* The largest first, of equal ones the first; what is not a number is never larger. `taken` [experts] comes as zeros. */
static void choose(const float *values, int32_t count, uint8_t *taken, int32_t *chosen, int32_t num_chosen) {
    for (int32_t place = 0; place < num_chosen; place++) {
        int32_t best = 0;
        while (taken[best]) best++;
        for (int32_t i = best + 1; i < count; i++)
            if (!taken[i] && values[i] > values[best]) best = i;
        taken[best] = 1;
        chosen[place] = best;
    }
}

static void route_row(const Route *this, int64_t row, float *values, uint8_t *taken) {
    int32_t *chosen = this->chosen + row * this->num_chosen;
    float *shares = this->shares + row * this->num_chosen;
    memcpy(values, this->scores + row * this->num_experts, (size_t)this->num_experts * sizeof *values);
    memset(taken, 0, (size_t)this->num_experts);
    /* Otherwise the probabilities and not the scores are compared: they may be equal where scores are not. */
    if (!this->chosen_first) softmax(values, this->num_experts);
    choose(values, this->num_experts, taken, chosen, this->num_chosen);
    for (int32_t i = 0; i < this->num_chosen; i++) shares[i] = values[chosen[i]];
    if (this->chosen_first) softmax(shares, this->num_chosen);
    if (this->normalize) {
        float sum = 0.0f;
        for (int32_t i = 0; i < this->num_chosen; i++) sum += shares[i];
        for (int32_t i = 0; i < this->num_chosen; i++) shares[i] /= sum;
    }
}

static void run_route(const Operation *operation, int32_t unit, Worker *worker) {
    const Route *this = (const Route *)operation;
    const int32_t first = unit * ROWS_AT_ONCE;
    float *values = worker->scratch;
    uint8_t *taken = (uint8_t *)(values + this->num_experts);
    for (int32_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++)
        route_row(this, row, values, taken);
}

EXPORT int limelight_record_route(Program *program, const int32_t *num_rows, const float *scores, int32_t *chosen,
                                  float *shares, int32_t num_experts, int32_t num_chosen, int32_t chosen_first,
                                  int32_t normalize) {
    Route this = {{"route", count_route, run_route}, num_rows, scores, chosen, shares, num_experts, num_chosen,
                  chosen_first, normalize};
    return program_append(program, &this.operation, sizeof this, (size_t)num_experts * (sizeof(float) + 1));
}

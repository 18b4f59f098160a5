/* Cut: the floor under the scores of a row that top_k, top_p and min_p leave. Nothing is sorted: the floor is found by
   bisection over the floats in their order, each step counting or weighing the candidates above it. */
#include "sampling.h"

/* Scores, divided by the temperature, that may be above the floor, and their weights e**(score - best). */
typedef struct {
    float *scores, *weights;
    int32_t count;
} Candidates;

size_t sampling_cut_bytes(int32_t vocab) { return 2 * sizeof(float) * ((size_t)vocab + LANES); }

/* Numbers all floats in their order; -0.0 comes right before 0.0. */
static int64_t order_of(float value) {
    int32_t bits;
    memcpy(&bits, &value, 4);
    return bits >= 0 ? bits : bits ^ 0x7fffffff;
}

static float in_order(int64_t place) {
    const int32_t bits = (int32_t)(place >= 0 ? place : place ^ 0x7fffffff);
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* How many are `least` (above -infinity) or more. */
static int32_t count_from(const float *values, int32_t count, float least) {
    vint below = {0};
    int32_t lanes[LANES], total = 0;
    for (int32_t i = 0; i < count; i += LANES) below += vload_left(values + i, count - i) >= least;
    memcpy(lanes, &below, sizeof lanes);
    for (int i = 0; i < LANES; i++) total -= lanes[i];
    return total;
}

/* The k-th largest of `count` numbers from `least` to `most`; k is at most `count`. */
static float find_largest(const float *values, int32_t count, int32_t k, float least, float most) {
    int64_t low = order_of(least), high = order_of(most) + 1; /* k or more are from `low` on, fewer from `high` on */
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (count_from(values, count, in_order(middle)) >= k) low = middle;
        else high = middle;
    }
    return in_order(low);
}

/* The weights of the candidates above `score`. */
static double weigh_above(const Candidates *this, float score) {
    double total = 0.0;
    for (int32_t first = 0; first < this->count; first += CHUNK) {
        vfloat sum = vset(0.0f);
        for (int32_t i = first; i < minimum(first + CHUNK, this->count); i += LANES) {
            const vint above = vload_left(this->scores + i, this->count - i) > score;
            sum += (vfloat)(above & (vint)vload(this->weights + i));
        }
        total += vsum(sum);
    }
    return total;
}

/* The smallest score that less than `mass` lies above: that of the last token of the nucleus (Holtzman et al. 2020). */
static float find_nucleus(const Candidates *this, double mass, float least, float most) {
    int64_t low = order_of(least), high = order_of(most); /* `mass` or more is above `low`, less is above `high` */
    if (weigh_above(this, least) < mass) return least;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (weigh_above(this, in_order(middle)) < mass) high = middle;
        else low = middle;
    }
    return in_order(high);
}

/* Scores / temperature from `least` on. */
static void gather(Candidates *candidates, const Sampling *this, int64_t row, float least) {
    const float *scores = scores_of(this, row), *maxima = maxima_of(this, row);
    const float temperature = seat_of(this, row)->temperature;
    int32_t num = 0;
    for (int32_t block = 0; block < num_blocks(this); block++) {
        if (!(maxima[block] / temperature >= least)) continue;
        const int32_t end = minimum((block + 1) * BLOCK, this->vocab);
        for (int32_t i = block * BLOCK; i < end; i += LANES) {
            const vfloat x = vload_left(scores + i, end - i) / temperature;
            int32_t bits = vbits(x >= least);
            if (end - i < LANES) bits &= (1 << (end - i)) - 1;
            float lanes[LANES];
            vstore(lanes, x);
            for (; bits; bits &= bits - 1) candidates->scores[num++] = lanes[__builtin_ctz((unsigned)bits)];
        }
    }
    candidates->count = num;
}

/* Their weights; of those below `floor` it is 0. There is room for a whole vector behind the last. */
static void weigh(Candidates *this, float best, float floor) {
    for (int32_t i = 0; i < this->count; i += LANES) {
        const vfloat x = vload_left(this->scores + i, this->count - i);
        vstore(this->weights + i, (vfloat)((x >= floor) & (vint)vexp(x - best)));
    }
}

/* The mass of a row, in units of its best token's. */
static double find_mass(const Sampling *this, int64_t row, float best, float temperature) {
    const Slice *slices = slices_of(this, row);
    double mass = 0.0;
    for (int32_t i = 0; i < num_slices(this); i++)
        if (slices[i].best_score > -INFINITY)
            mass += slices[i].mass * exp((double)(slices[i].best_score / temperature) - best);
    return mass;
}

/* What lies below the result has less than 1 - top_p of the mass in any case, and is not in the nucleus. */
static float nucleus_bound(const Sampling *this, float best, float top_p, double mass) {
    const double depth = log(1.01 * this->vocab / (mass * (1.0 - (double)top_p)));
    return (float)(best - depth - 1e-6 * fabs(best));
}

void run_sampling_cut(const Operation *operation, int32_t row, Worker *worker) {
    const Sampling *this = (const Sampling *)operation;
    const Seat *seat = seat_of(this, row);
    if (!is_cut(seat)) return;
    const float best_score = best_slice(this, row)->best_score, best = best_score / seat->temperature;
    float floor = -INFINITY;
    if (!(fabsf(best) < INFINITY)) { /* nothing is finite: nothing to weigh */
        this->floors[row] = best > 0.0f ? best : -INFINITY;
        return;
    }
    Candidates candidates = {worker->scratch, (float *)worker->scratch + this->vocab + LANES, 0};
    if (seat->top_k > 0) {
        const int32_t k = minimum(seat->top_k, this->vocab), blocks = num_blocks(this);
        float least = -INFINITY; /* k blocks have a number from here on */
        if (k <= blocks)
            least = find_largest(maxima_of(this, row), blocks, k, -INFINITY, best_score) / seat->temperature;
        gather(&candidates, this, row, least);
        floor = find_largest(candidates.scores, candidates.count, k, least, best);
    }
    if (seat->top_p < 1.0f) {
        float least = floor;
        double mass;
        if (seat->top_k > 0) {
            weigh(&candidates, best, floor);
            mass = weigh_above(&candidates, -INFINITY);
        } else {
            mass = find_mass(this, row, best, seat->temperature);
            least = nucleus_bound(this, best, seat->top_p, mass);
            gather(&candidates, this, row, least);
            weigh(&candidates, best, least);
        }
        const float last = find_nucleus(&candidates, seat->top_p * mass, nextafterf(least, -INFINITY), best);
        floor = last > floor ? last : floor;
    }
    if (seat->min_p > 0.0f) {
        const float last = best + logf(seat->min_p);
        floor = last > floor ? last : floor;
    }
    this->floors[row] = floor;
}

/* Cut: the floor under the scores of a row that top_k, top_p and min_p leave. Nothing is sorted: the floor is found by
   bisection over the floats in their order, each step weighing the candidates above it. */
#include "sampling.h"

#define STEPS_BETWEEN 6 /* steps of a bisection after which candidates are forgotten: doing so costs as much as a few */

/* Scores, divided by the temperature, that may be above the floor. */
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

/* Forgets candidates that are not above `low`, or above `high`. */
static void keep_between(Candidates *this, float low, float high) {
    int32_t num = 0;
    for (int32_t i = 0; i < this->count; i++) {
        const float score = this->scores[i];
        this->scores[num] = score;
        this->weights[num] = this->weights[i];
        num += score > low && score <= high;
    }
    this->count = num;
}

/* The smallest score that less than `mass` lies above, of candidates from `least` to `most`. So the last score of a
   nucleus (Holtzman et al. 2020), and with equal weights of 1 the `mass`-th best one. Forgets candidates. */
static float find_floor(Candidates *this, double mass, float least, float most) {
    const float all = nextafterf(least, -INFINITY);
    double above = 0.0; /* the weights of those that were forgotten, above `high` */
    int64_t low = order_of(all), high = order_of(most); /* `mass` or more is above `low`, less is above `high` */
    if (weigh_above(this, all) < mass) return least;
    for (int32_t step = 1; high - low > 1; step++) {
        const int64_t middle = low + (high - low) / 2;
        const double weight = above + weigh_above(this, in_order(middle));
        if (weight < mass) high = middle;
        else low = middle;
        if (step % STEPS_BETWEEN || this->count <= CHUNK) continue;
        above += weigh_above(this, in_order(high));
        keep_between(this, in_order(low), in_order(high));
    }
    return in_order(high);
}

/* Scores / temperature from `least` on. */
static void gather(Candidates *this, const Sampling *sampling, int64_t row, float least) {
    const float *scores = scores_of(sampling, row), *maxima = maxima_of(sampling, row);
    const float temperature = seat_of(sampling, row)->temperature;
    int32_t num = 0;
    for (int32_t block = 0; block < num_blocks(sampling); block++) {
        if (!(maxima[block] / temperature >= least)) continue;
        const int32_t end = minimum((block + 1) * BLOCK, sampling->vocab);
        for (int32_t i = block * BLOCK; i < end; i += LANES) {
            const vfloat x = vload_left(scores + i, end - i) / temperature;
            const int32_t there = (1 << minimum(LANES, end - i)) - 1;
            int32_t bits = vbits(x >= least) & there;
            float lanes[LANES];
            if (bits == there) {
                vstore(this->scores + num, x);
                num += minimum(LANES, end - i);
                continue;
            }
            vstore(lanes, x);
            for (; bits; bits &= bits - 1) this->scores[num++] = lanes[__builtin_ctz((unsigned)bits)];
        }
    }
    this->count = num;
}

static void weigh_equally(Candidates *this) {
    for (int32_t i = 0; i < this->count; i++) this->weights[i] = 1.0f;
}

/* Weights of e**(score - best). There is room for a whole vector behind the last. */
static void weigh_by_power(Candidates *this, float best) {
    for (int32_t i = 0; i < this->count; i += LANES)
        vstore(this->weights + i, vexp(vload_left(this->scores + i, this->count - i) - best));
}

/* The score of the k-th best token. */
static float find_top_k(Candidates *this, const Sampling *sampling, int64_t row, int32_t k, float best) {
    const float *maxima = maxima_of(sampling, row);
    float least = -INFINITY;
    if (k <= num_blocks(sampling)) { /* k blocks have a token that is as good as the best one of the k-th best block */
        this->count = num_blocks(sampling);
        for (int32_t i = 0; i < this->count; i++) this->scores[i] = maxima[i] / seat_of(sampling, row)->temperature;
        weigh_equally(this);
        least = find_floor(this, k, -INFINITY, best);
    }
    gather(this, sampling, row, least);
    weigh_equally(this);
    return find_floor(this, k, least, best);
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

/* The score of the last token of the nucleus within what is `floor` or more. */
static float find_top_p(Candidates *this, const Sampling *sampling, int64_t row, float floor, float best) {
    const Seat *seat = seat_of(sampling, row);
    const int is_whole = seat->top_k <= 0;
    double mass = 0.0;
    if (is_whole) {
        mass = find_mass(sampling, row, best, seat->temperature);
        floor = nucleus_bound(sampling, best, seat->top_p, mass);
    }
    gather(this, sampling, row, floor);
    weigh_by_power(this, best);
    if (!is_whole) mass = weigh_above(this, -INFINITY);
    return find_floor(this, seat->top_p * mass, floor, best);
}

void run_sampling_cut(const Operation *operation, int32_t row, Worker *worker) {
    const Sampling *this = (const Sampling *)operation;
    const Seat *seat = seat_of(this, row);
    if (!is_cut(seat)) return;
    const float best = best_slice(this, row)->best_score / seat->temperature;
    float *floor = &this->floors[row];
    *floor = best == INFINITY ? best : -INFINITY;
    if (!(fabsf(best) < INFINITY)) return; /* nothing to weigh with */
    Candidates candidates = {worker->scratch, (float *)worker->scratch + this->vocab + LANES, 0};
    if (seat->top_k > 0) *floor = find_top_k(&candidates, this, row, minimum(seat->top_k, this->vocab), best);
    if (seat->top_p < 1.0f) *floor = fmaxf(*floor, find_top_p(&candidates, this, row, *floor, best));
    if (seat->min_p > 0.0f) *floor = fmaxf(*floor, best + logf(seat->min_p));
}

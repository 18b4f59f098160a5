/* Draw and finish, and the operations as they are recorded (the order of things: `Kernels.sample`). */
#include "sampling.h"
#include "gumbel.h"

#define ROWS_AT_ONCE 8

static vint counting_up(int32_t first) {
    vint ids;
    for (int i = 0; i < LANES; i++) ids[i] = first + i;
    return ids;
}

/* A value that some token of the row is sure to reach: that of its best one. */
static float reached(const Sampling *this, int64_t row, NoiseKey key) {
    const Slice *best = best_slice(this, row);
    const vfloat noise = gumbel_of(noise_uniform(key, counting_up(best->best_id)));
    return best->best_score / seat_of(this, row)->temperature + noise[0];
}

/* The largest of score / temperature + noise in a slice (Gumbel 1954). Noise is computed where it can matter: for what
   is not cut, and for as much of that as a bound on the noise does not rule out. */
static void run_draw(const Operation *operation, int32_t unit, Worker *worker) {
    const Sampling *this = (const Sampling *)operation;
    const int64_t row = unit / num_slices(this);
    const int32_t number = unit % num_slices(this), end = minimum((number + 1) * SLICE, this->vocab);
    const Seat *seat = seat_of(this, row);
    if (!is_random(seat)) return;
    const float *scores = scores_of(this, row), *maxima = maxima_of(this, row);
    const NoiseKey key = noise_key(seat->seed, this->row_positions[row]);
    const float temperature = seat->temperature, floor = is_cut(seat) ? this->floors[row] : -INFINITY;
    float to_beat = reached(this, row, key), drawn = -INFINITY;
    int32_t drawn_id = -1;
    (void)worker;
    for (int32_t start = number * SLICE; start < end; start += BLOCK) {
        const float most = maxima[start / BLOCK] / temperature;
        if (most < floor || most + LARGEST_GUMBEL < to_beat) continue;
        for (int32_t i = start; i < minimum(start + BLOCK, end); i += LANES) {
            const vfloat score = vload_left(scores + i, end - i) / temperature;
            const vfloat uniform = noise_uniform(key, counting_up(i));
            int32_t bits = vbits((score >= floor) & (score + gumbel_bound(uniform) >= to_beat));
            if (!bits) continue;
            const vfloat values = score + gumbel_of(uniform);
            for (; bits; bits &= bits - 1) {
                const int lane = __builtin_ctz((unsigned)bits);
                if (!(values[lane] > drawn)) continue;
                drawn = values[lane];
                drawn_id = i + lane;
            }
            to_beat = drawn > to_beat ? drawn : to_beat;
        }
    }
    Slice *slice = slices_of(this, row) + number;
    slice->drawn_value = drawn;
    slice->drawn_id = drawn_id;
}

static int32_t choose(const Sampling *this, int64_t row, const Slice *best) {
    const Slice *slices = slices_of(this, row);
    if (!is_random(seat_of(this, row)) || !(best->best_score > -INFINITY)) return best->best_id;
    float drawn = -INFINITY;
    int32_t token = best->best_id;
    for (int32_t i = 0; i < num_slices(this); i++) {
        if (!(slices[i].drawn_value > drawn)) continue;
        drawn = slices[i].drawn_value;
        token = slices[i].drawn_id;
    }
    return token;
}

static void find_logprobs(const Sampling *this, int64_t row, int32_t token, float best) {
    const Slice *slices = slices_of(this, row);
    const int32_t wanted = seat_of(this, row)->num_logprobs;
    float *logprobs = this->top_logprobs + row * MOST_LOGPROBS;
    int32_t *ids = this->top_ids + row * MOST_LOGPROBS, num = 0;
    double sum = 0.0;
    for (int32_t i = 0; i < num_slices(this); i++) {
        if (slices[i].sum != 0.0) sum += slices[i].sum * exp((double)slices[i].best_logit - best);
        for (int32_t j = 0; j < slices[i].num_top; j++)
            num = insert_best(logprobs, ids, num, wanted, slices[i].top_logits[j], slices[i].top_ids[j]);
    }
    const double total = best + log(sum);
    for (int32_t i = 0; i < num; i++) logprobs[i] = (float)(logprobs[i] - total);
    this->logprobs[row] = (float)(this->logits[row * this->vocab + token] - total);
    const Seat *seat = seat_of(this, row);
    for (int32_t i = 0; i < seat->num_asked; i++)
        this->asked_logprobs[row * MOST_ASKED + i] =
            (float)(this->logits[row * this->vocab + seat->asked_ids[i]] - total);
}

static void run_finish(const Operation *operation, int32_t unit, Worker *worker) {
    const Sampling *this = (const Sampling *)operation;
    const int32_t first = unit * ROWS_AT_ONCE;
    (void)worker;
    for (int32_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++) {
        const Seat *seat = seat_of(this, row);
        const Slice *slices = slices_of(this, row);
        const Slice *best_scored = best_slice(this, row);
        const int32_t token = choose(this, row, best_scored);
        float best = slices[0].best_logit;
        for (int32_t i = 1; i < num_slices(this) && best == best; i++)
            if (!(slices[i].best_logit <= best)) best = slices[i].best_logit;
        this->token_ids[row] = token;
        this->best_logits[row] = best;
        this->best_scores[row] = best_scored->best_score;
        if (seat->num_logprobs >= 0) find_logprobs(this, row, token, best);
        if (seat->output_counts) __atomic_fetch_add(&seat->output_counts[token], 1, __ATOMIC_RELAXED);
    }
}

static int32_t count_scan(const Operation *operation) {
    const Sampling *this = (const Sampling *)operation;
    return *this->num_rows * num_slices(this);
}

static int32_t count_cut(const Operation *operation) {
    const Sampling *this = (const Sampling *)operation;
    for (int32_t row = 0; row < *this->num_rows; row++)
        if (is_cut(seat_of(this, row))) return *this->num_rows;
    return 0;
}

static int32_t count_draw(const Operation *operation) {
    const Sampling *this = (const Sampling *)operation;
    for (int32_t row = 0; row < *this->num_rows; row++)
        if (is_random(seat_of(this, row))) return *this->num_rows * num_slices(this);
    return 0;
}

static int32_t count_finish(const Operation *operation) {
    return divide_up(*((const Sampling *)operation)->num_rows, ROWS_AT_ONCE);
}

EXPORT int limelight_record_sample(Program *program, const int32_t *num_rows, const int32_t *row_seats,
                                   const int64_t *row_positions, const uint8_t *const *row_masks, Seat *seats,
                                   const float *logits, float *scores, float *maxima, Slice *slices, float *floors,
                                   int32_t *token_ids, float *best_logits, float *best_scores, float *logprobs,
                                   int32_t *top_ids, float *top_logprobs, float *asked_logprobs, int32_t vocab) {
    Sampling this = {{"sample_scan", count_scan, run_sampling_scan},
                     num_rows, row_seats, row_positions, row_masks, seats, logits, scores, maxima, slices, floors,
                     token_ids, best_logits, best_scores, logprobs, top_ids, top_logprobs, asked_logprobs, vocab};
    if (program_append(program, &this.operation, sizeof this, 0)) return -1;
    this.operation = (Operation){"sample_cut", count_cut, run_sampling_cut};
    if (program_append(program, &this.operation, sizeof this, sampling_cut_bytes(vocab))) return -1;
    this.operation = (Operation){"sample_draw", count_draw, run_draw};
    if (program_append(program, &this.operation, sizeof this, 0)) return -1;
    this.operation = (Operation){"sample_finish", count_finish, run_finish};
    return program_append(program, &this.operation, sizeof this, 0);
}

/* Bytes that the slices of a row take. */
EXPORT int64_t limelight_sampling_row_bytes(int32_t vocab) { return (int64_t)sizeof(Slice) * divide_up(vocab, SLICE); }
EXPORT int64_t limelight_sampling_num_blocks(int32_t vocab) { return divide_up(vocab, BLOCK); }

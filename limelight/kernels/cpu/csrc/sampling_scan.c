/* Scan: the scores of a slice, and what all that follows needs to know of it. */
#include "sampling.h"

#define WORD 32 /* tokens of a word of a mask */

/* The largest number of each block; returns the largest of all, not a number if one is not. */
static float find_maxima(float *maxima, const float *values, int32_t count) {
    float best = -INFINITY;
    vint odd = {0};
    for (int32_t first = 0; first < count; first += BLOCK) {
        vfloat most = vset(-INFINITY);
        if (count - first >= BLOCK) {
            for (int32_t i = first; i < first + BLOCK; i += LANES) {
                const vfloat x = vload(values + i);
                odd |= x != x;
                most = vmax(x, most);
            }
        } else {
            for (int32_t i = first; i < count; i += LANES) {
                const vfloat x = vload_left(values + i, count - i);
                odd |= x != x;
                most = vmax(x, most);
            }
        }
        const float greatest = vgreatest(most);
        maxima[first / BLOCK] = greatest;
        best = greatest > best ? greatest : best;
    }
    return vbits(odd) ? NAN : best;
}

/* Where the first number equal to `best` lies, or the first that is none. */
static int32_t find_first(float best, const float *values, const float *maxima) {
    int32_t i = 0;
    if (best != best) {
        while (values[i] == values[i]) i++;
        return i;
    }
    while (maxima[i] != best) i++;
    i *= BLOCK;
    while (values[i] != best) i++;
    return i;
}

/* The sum of e**((value - best) / temperature). */
static double sum_of_powers(const float *values, int32_t count, float best, float temperature) {
    const vfloat divisor = vset(temperature), top = vset(best) / divisor;
    double total = 0.0;
    if (best == -INFINITY) return 0.0;
    for (int32_t first = 0; first < count; first += CHUNK) {
        vfloat sum = vset(0.0f);
        for (int32_t i = first; i < minimum(first + CHUNK, count); i += LANES)
            sum += vexp(vload_left(values + i, count - i) / divisor - top);
        total += vsum(sum);
    }
    return total;
}

static void find_top(Slice *slice, const float *logits, const float *maxima, int32_t first, int32_t count,
                     int32_t wanted) {
    int32_t num = 0;
    for (int32_t start = 0; wanted && start < count; start += BLOCK) {
        if (num == wanted && !(maxima[start / BLOCK] > slice->top_logits[wanted - 1])) continue;
        for (int32_t i = start; i < minimum(start + BLOCK, count); i++)
            num = insert_best(slice->top_logits, slice->top_ids, num, wanted, logits[i], first + i);
    }
    slice->num_top = num;
}

/* Repetition penalty over prompt and output (Keskar et al. 2019), then frequency and presence over the output. */
static void penalise(float *restrict scores, const float *restrict logits, const Seat *seat, int32_t first,
                     int32_t count) {
    const uint8_t *restrict in_prompt = seat->prompt_mask + first;
    const int32_t *restrict counts = seat->output_counts + first;
    const float repetition = seat->repetition_penalty, presence = seat->presence_penalty;
    const float frequency = seat->frequency_penalty;
    for (int32_t i = 0; i < count; i++) {
        const int32_t in_output = counts[i] > 0;
        const float divided = logits[i] / repetition, multiplied = logits[i] * repetition;
        const float repeated = logits[i] > 0.0f ? divided : multiplied;
        const float x = in_prompt[i] | in_output ? repeated : logits[i];
        scores[i] = x - frequency * (float)counts[i] - presence * (float)in_output;
    }
}

/* What a mask allows of numbers, which may lie where the scores do. */
static void choose_allowed(float *scores, const float *numbers, const uint8_t *mask, int32_t count) {
    vint lane_bits;
    for (int i = 0; i < LANES; i++) lane_bits[i] = 1 << i;
    for (int32_t first = 0; first < count; first += WORD, mask += WORD / 8) {
        const uint32_t word = mask[0] | (uint32_t)mask[1] << 8 | (uint32_t)mask[2] << 16 | (uint32_t)mask[3] << 24;
        const int32_t end = minimum(first + WORD, count);
        for (int32_t i = first; i < end; i += LANES) {
            const vint is_allowed = (((vint){0} + (int32_t)(word >> (i - first))) & lane_bits) != 0;
            const vfloat kept = vchoose(is_allowed, vload_left(numbers + i, end - i), vset(-INFINITY));
            if (end - i >= LANES) vstore(scores + i, kept);
            else vstore_part(scores + i, kept, end - i);
        }
    }
}

static void change(const Sampling *this, int64_t row, float *scores, const float *logits, int32_t first,
                   int32_t count) {
    const Seat *seat = seat_of(this, row);
    const uint8_t *mask = this->row_masks[row];
    if (seat->prompt_mask) penalise(scores, logits, seat, first, count);
    if (mask) choose_allowed(scores, seat->prompt_mask ? scores : logits, mask + first / 8, count);
    else if (!seat->prompt_mask) memcpy(scores, logits, (size_t)count * sizeof *scores);
    for (int32_t i = 0; i < seat->num_biases; i++) {
        const int32_t at = seat->bias_ids[i] - first;
        if (at >= 0 && at < count) scores[at] += seat->bias_values[i];
    }
    if (!blocks_tokens(this, row)) return;
    for (int32_t i = 0; i < seat->num_blocked; i++) {
        const int32_t at = seat->blocked_ids[i] - first;
        if (at >= 0 && at < count) scores[at] += -INFINITY;
    }
}

void run_sampling_scan(const Operation *operation, int32_t unit, Worker *worker) {
    const Sampling *this = (const Sampling *)operation;
    const int64_t row = unit / num_slices(this);
    const int32_t number = unit % num_slices(this), first = number * SLICE;
    const int32_t count = minimum(SLICE, this->vocab - first);
    const Seat *seat = seat_of(this, row);
    const float *logits = this->logits + row * this->vocab + first, *scores = scores_of(this, row) + first;
    float *maxima = maxima_of(this, row) + first / BLOCK;
    Slice *slice = slices_of(this, row) + number;
    (void)worker;

    slice->best_logit = slice->best_score = find_maxima(maxima, logits, count);
    if (seat->num_logprobs >= 0) {
        slice->sum = sum_of_powers(logits, count, slice->best_logit, 1.0f);
        find_top(slice, logits, maxima, first, count, seat->num_logprobs);
    }
    if (scores != logits) {
        change(this, row, this->scores + row * this->vocab + first, logits, first, count);
        slice->best_score = find_maxima(maxima, scores, count);
    }
    slice->best_id = first + find_first(slice->best_score, scores, maxima);
    if (is_random(seat) && seat->top_k <= 0 && seat->top_p < 1.0f)
        slice->mass = sum_of_powers(scores, count, slice->best_score, seat->temperature);
}

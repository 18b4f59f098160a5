/* Drawing a token for each row of logits, in four operations: scan, cut, draw, finish (sampling.c).

   A row is worked on in slices of the vocabulary, which lie where they lie whatever else the step holds, so that
   several threads can share a row. Within a slice, the largest number of each block tells which blocks matter. */
#ifndef LIMELIGHT_SAMPLING_H
#define LIMELIGHT_SAMPLING_H

#include "program.h"
#include "vector_math.h"

#define SLICE 16384
#define BLOCK 64
#define CHUNK 512 /* numbers that are added up in float; sums of longer pieces are in double */
#define MOST_LOGPROBS 20
#define MOST_ASKED 128

/* Settings of a seat, as SEAT in sampling.py. */
typedef struct {
    int64_t seed;
    int64_t blocked_below; /* position from which on the blocked tokens are free */
    const int32_t *bias_ids;
    const float *bias_values;
    const int32_t *blocked_ids;
    const uint8_t *prompt_mask; /* [vocab] of 0 or 1, or NULL: no penalties */
    int32_t *output_counts;     /* [vocab], or NULL */
    const int32_t *asked_ids;   /* [num_asked], whose log-probabilities are told, too, if any are */
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int32_t top_k, num_logprobs; /* 0 is no top_k, -1 no log-probabilities */
    int32_t num_biases, num_blocked, num_asked;
} Seat;

/* What is known of a slice of a row. The first five are about the logits as the model gave them; scores are logits
   with penalties, biases and masks. */
typedef struct {
    double sum;       /* of e**(logit - best_logit), for log-probabilities */
    float best_logit; /* not a number if one is not */
    int32_t num_top;
    float top_logits[MOST_LOGPROBS]; /* best first, of equal ones the first */
    int32_t top_ids[MOST_LOGPROBS];
    double mass;      /* sum of e**((score - best_score) / temperature), for top_p without top_k */
    float best_score; /* not a number if one is not */
    int32_t best_id;  /* the first with that score */
    float drawn_value; /* the greatest score / temperature + noise */
    int32_t drawn_id;  /* the first with that value; not set if it is -infinity */
} Slice;

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const int32_t *row_seats;     /* [rows] */
    const int64_t *row_positions; /* [rows], of the token that is drawn */
    const uint8_t *const *row_masks; /* [rows]: a bit for each token, set if it may be drawn, in whole words of 4 bytes;
                                        or NULL: all may be */
    Seat *seats;
    const float *logits; /* [rows, vocab] */
    float *scores;       /* [rows, vocab], filled for rows whose scores are not their logits */
    float *maxima;       /* [rows, blocks] of the scores */
    Slice *slices;       /* [rows, slices] */
    float *floors;       /* [rows]: scores / temperature below are cut; of rows that are cut at all */
    int32_t *token_ids;  /* [rows] */
    float *best_logits;  /* [rows] */
    float *best_scores;  /* [rows] */
    float *logprobs;     /* [rows] */
    int32_t *top_ids;    /* [rows, MOST_LOGPROBS] */
    float *top_logprobs; /* [rows, MOST_LOGPROBS] */
    float *asked_logprobs; /* [rows, MOST_ASKED] */
    int32_t vocab;
} Sampling;

static inline int32_t num_slices(const Sampling *this) { return divide_up(this->vocab, SLICE); }
static inline int32_t num_blocks(const Sampling *this) { return divide_up(this->vocab, BLOCK); }
static inline Seat *seat_of(const Sampling *this, int64_t row) { return &this->seats[this->row_seats[row]]; }
static inline Slice *slices_of(const Sampling *this, int64_t row) { return this->slices + row * num_slices(this); }
static inline float *maxima_of(const Sampling *this, int64_t row) { return this->maxima + row * num_blocks(this); }

static inline int blocks_tokens(const Sampling *this, int64_t row) {
    const Seat *seat = seat_of(this, row);
    return seat->num_blocked && this->row_positions[row] < seat->blocked_below;
}

static inline const float *scores_of(const Sampling *this, int64_t row) {
    const Seat *seat = seat_of(this, row);
    const int differ = seat->prompt_mask || seat->num_biases || blocks_tokens(this, row) || this->row_masks[row];
    return (differ ? this->scores : this->logits) + row * this->vocab;
}

static inline int is_random(const Seat *seat) { return seat->temperature > 0.0f; }

static inline int is_cut(const Seat *seat) {
    return is_random(seat) && (seat->top_k > 0 || seat->top_p < 1.0f || seat->min_p > 0.0f);
}

/* The slice with the best score of a row: the first of equal ones, or of those with a score that is not a number. */
static inline const Slice *best_slice(const Sampling *this, int64_t row) {
    const Slice *slices = slices_of(this, row), *best = slices;
    for (int32_t i = 1; i < num_slices(this) && best->best_score == best->best_score; i++)
        if (!(slices[i].best_score <= best->best_score)) best = &slices[i];
    return best;
}

/* Up to LANES numbers of which `left` are there; the others are -infinity. */
static inline vfloat vload_left(const float *from, int32_t left) {
    return left >= LANES ? vload(from) : vload_part(from, left, -INFINITY);
}

/* Puts a number into a list, best first, that keeps `most` of them; equal ones stay in the order in which they come.
   Returns how many there are now. */
static inline int32_t insert_best(float *values, int32_t *ids, int32_t num, int32_t most, float value, int32_t id) {
    if (num == most && (!most || !(value > values[most - 1]))) return num;
    int32_t at = num < most ? num++ : most - 1;
    for (; at > 0 && value > values[at - 1]; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
    return num;
}

void run_sampling_scan(const Operation *operation, int32_t unit, Worker *worker);
void run_sampling_cut(const Operation *operation, int32_t row, Worker *worker);

/* Memory that `run_sampling_cut` needs. */
size_t sampling_cut_bytes(int32_t vocab);

#endif

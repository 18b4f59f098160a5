/* From the chunks of a step to its rows: what the other operations of a recorded pass read (step_buffers.py). */
#include "program.h"

enum { SEAT, START, NUM_TOKENS, IS_GIVEN, NUM_SAMPLED, NUM_COLUMNS };

typedef struct {
    Operation operation;
    const int32_t *counts;       /* rows, chunks, rows that draw */
    const int32_t *chunks;       /* [chunks, NUM_COLUMNS] */
    const int32_t *given_tokens; /* [rows] */
    const int32_t *page_table;   /* [seats, max_pages] */
    const int32_t *last_tokens;  /* [seats] */
    int32_t *token_ids, *positions; /* [rows] */
    int64_t *slots;                 /* [rows] */
    int32_t *query_starts;          /* [chunks + 1] */
    int32_t *chunk_seats, *context_lens; /* [chunks] */
    int32_t *sample_rows, *sample_seats; /* [rows that draw] */
    int64_t *sample_positions;           /* [rows that draw] */
    int32_t max_pages, page_size;
} Expand;

static int32_t count_expand(const Operation *operation) { return ((const Expand *)operation)->counts[0] > 0; }

static void run_expand(const Operation *operation, int32_t unit, Worker *worker) {
    const Expand *this = (const Expand *)operation;
    int32_t row = 0, sampled = 0;
    (void)unit, (void)worker;
    for (int32_t index = 0; index < this->counts[1]; index++) {
        const int32_t *chunk = this->chunks + index * NUM_COLUMNS;
        const int32_t *pages = this->page_table + (int64_t)chunk[SEAT] * this->max_pages;
        this->query_starts[index] = row;
        this->chunk_seats[index] = chunk[SEAT];
        this->context_lens[index] = chunk[START] + chunk[NUM_TOKENS];
        for (int32_t i = 0; i < chunk[NUM_TOKENS]; i++, row++) {
            const int32_t position = chunk[START] + i, in_page = position % this->page_size;
            this->token_ids[row] = chunk[IS_GIVEN] ? this->given_tokens[row] : this->last_tokens[chunk[SEAT]];
            this->positions[row] = position;
            this->slots[row] = (int64_t)pages[position / this->page_size] * this->page_size + in_page;
        }
        for (int32_t behind = chunk[NUM_SAMPLED] - 1; behind >= 0; behind--, sampled++) {
            this->sample_rows[sampled] = row - 1 - behind;
            this->sample_seats[sampled] = chunk[SEAT];
            this->sample_positions[sampled] = chunk[START] + chunk[NUM_TOKENS] - behind;
        }
    }
    this->query_starts[this->counts[1]] = row;
}

EXPORT int limelight_record_expand(Program *program, const int32_t *counts, const int32_t *chunks,
                                   const int32_t *given_tokens, const int32_t *page_table, const int32_t *last_tokens,
                                   int32_t *token_ids, int32_t *positions, int64_t *slots, int32_t *query_starts,
                                   int32_t *chunk_seats, int32_t *context_lens, int32_t *sample_rows,
                                   int32_t *sample_seats, int64_t *sample_positions, int32_t max_pages,
                                   int32_t page_size) {
    Expand this = {{"expand", count_expand, run_expand},
                   counts, chunks, given_tokens, page_table, last_tokens, token_ids, positions, slots, query_starts,
                   chunk_seats, context_lens, sample_rows, sample_seats, sample_positions, max_pages, page_size};
    return program_append(program, &this.operation, sizeof this, 0);
}

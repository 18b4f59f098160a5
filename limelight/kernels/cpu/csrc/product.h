/* The products of attention, queries times keys and weights times values, straight from the tiles of the KV pool.

   Each element is one chain of fused multiply-adds over the rows of the pool's matrix in order, however many rows and
   columns are computed at once: a row alone and the same row among others give equal bits. */
#ifndef LIMELIGHT_PRODUCT_H
#define LIMELIGHT_PRODUCT_H

#include "attention.h"
#include "kv.h"

/* Pieces of memory that are asked for, line by line, a while before they are read. */
typedef struct {
    const char *at, *end;      /* within a piece */
    const char *const *pieces; /* the next ones */
    int32_t num_pieces;
    size_t piece_bytes;
} Ahead;

/* Where the next `num_lines` lines are that will be read; what lies at `other` if there are none. */
static inline const char *next_lines(Ahead *ahead, size_t num_lines, const char *other) {
    if (ahead->at >= ahead->end) {
        if (ahead->num_pieces == 0) return other;
        ahead->num_pieces--;
        ahead->at = *ahead->pieces++;
        ahead->end = ahead->at + ahead->piece_bytes;
    }
    const char *lines = ahead->at;
    ahead->at += num_lines * CACHE_LINE;
    return lines;
}

static inline void fetch_lines(Ahead *ahead, int32_t num_lines) {
    const char *next = next_lines(ahead, (size_t)num_lines, NULL);
    for (int32_t i = 0; next && i < num_lines; i++) __builtin_prefetch(next + i * CACHE_LINE, 0, 2);
}

/* scores [rows][BLOCK], of the tokens `begin` to `end - 1` of a block at least: queries [rows][depth] times the keys in
   `tiles`, of which those that hold these tokens are read. */
void score_tokens(const KVLayer *kv, const char *const *tiles, int32_t begin, int32_t end, const float *queries,
                  int32_t num_rows, float *scores, Ahead *ahead);

/* results [rows][result_width] += weights [rows][BLOCK] times the values of the tokens `begin` to `end - 1`; no others
   are multiplied with. */
void add_values(const KVLayer *kv, const char *const *tiles, int32_t begin, int32_t end, const float *weights,
                int32_t num_rows, float *results, Ahead *ahead);

#endif

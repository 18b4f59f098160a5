/* The KV pool: where the keys and values of a layer lie, so that the products of attention read them in order.

   A page holds, for each head, tile after tile of TILE tokens (of 8 where the page has 8): first the tile's keys, then
   its values. Both are matrices whose rows come in pairs: keys [head_dim][tokens], values [tokens][head_dim]. In
   bfloat16 the rows of a pair are interleaved, [rows / 2][columns][2], so that a shift or a mask makes floats of a
   vector of pairs. An odd head_dim gives the keys one more row, of zeros.

   Pages lie in runs, [pages / RUN][heads][RUN]: sequences mostly have neighbouring pages, and a stream that goes on for
   some 64 KB is read faster than one that jumps. */
#ifndef LIMELIGHT_KV_H
#define LIMELIGHT_KV_H

#include "program.h"
#include "vector.h"

#define TILE 16
#define RUN 16 /* `PAGES_OF_A_RUN` of attention.py */

enum { BFLOAT16, FLOAT16, FLOAT32 }; /* `TYPES` of attention.py has the same order */

typedef struct {
    char *pages;
    int32_t type, page_size, num_heads, head_dim;
    int32_t tile_tokens, page_bits, tile_bits; /* page_size = 1 << page_bits, tile_tokens = 1 << tile_bits */
    int32_t depth;                                       /* rows of the keys: head_dim, made even */
    size_t key_bytes, tile_bytes, head_bytes; /* of a tile's keys; of a tile; of a head in a page */
} KVLayer;

static inline KVLayer kv_layer(void *pages, int32_t type, int32_t page_size, int32_t num_heads, int32_t head_dim) {
    KVLayer kv = {.pages = pages, .type = type, .page_size = page_size, .num_heads = num_heads, .head_dim = head_dim};
    const size_t item_bytes = type == FLOAT32 ? 4 : 2;
    kv.tile_tokens = minimum(TILE, page_size);
    kv.page_bits = __builtin_ctz((unsigned)page_size);
    kv.tile_bits = __builtin_ctz((unsigned)kv.tile_tokens);
    kv.depth = head_dim + head_dim % 2;
    kv.key_bytes = (size_t)kv.depth * (size_t)kv.tile_tokens * item_bytes;
    kv.tile_bytes = kv.key_bytes + (size_t)head_dim * (size_t)kv.tile_tokens * item_bytes;
    kv.head_bytes = (size_t)(page_size / kv.tile_tokens) * kv.tile_bytes;
    return kv;
}

/* The tile of `head` that holds `token` of a sequence with these pages. */
static inline char *kv_tile(const KVLayer *kv, const int32_t *pages, int32_t head, int32_t token) {
    const size_t page = (size_t)pages[token >> kv->page_bits];
    const size_t run = page / RUN * (size_t)kv->num_heads + (size_t)head;
    return kv->pages + (run * RUN + page % RUN) * kv->head_bytes +
           (size_t)((token & (kv->page_size - 1)) >> kv->tile_bits) * kv->tile_bytes;
}

#endif

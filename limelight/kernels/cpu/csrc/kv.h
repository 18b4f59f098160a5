/* The KV pool: where the keys and values of a layer lie, so that the products of attention read them in order.

   A page holds, for each head, tile after tile of TILE tokens (of 8 where the page has 8): first the tile's keys, then
   its values. Both are matrices whose rows come in pairs: keys [head_dim][tokens], values [tokens][head_dim]. In
   bfloat16 the rows of a pair are interleaved, [rows / 2][columns][2], so that a shift or a mask makes floats of a
   vector of pairs. An odd head_dim gives the keys one more row, of zeros. */
#ifndef LIMELIGHT_KV_H
#define LIMELIGHT_KV_H

#include "program.h"
#include "vector.h"

#define TILE 16

enum { BFLOAT16, FLOAT16, FLOAT32 }; /* `TYPES` of attention.py has the same order */

typedef struct {
    char *pages;
    int32_t type, page_size, num_heads, head_dim;
    int32_t tile_tokens;
    int32_t depth;                                       /* rows of the keys: head_dim, made even */
    size_t key_bytes, tile_bytes, head_bytes, page_bytes; /* of a tile's keys; of a tile; of a head in a page; of a page */
} KVLayer;

static inline KVLayer kv_layer(void *pages, int32_t type, int32_t page_size, int32_t num_heads, int32_t head_dim) {
    KVLayer kv = {.pages = pages, .type = type, .page_size = page_size, .num_heads = num_heads, .head_dim = head_dim};
    const size_t item_bytes = type == FLOAT32 ? 4 : 2;
    kv.tile_tokens = minimum(TILE, page_size);
    kv.depth = head_dim + head_dim % 2;
    kv.key_bytes = (size_t)kv.depth * (size_t)kv.tile_tokens * item_bytes;
    kv.tile_bytes = kv.key_bytes + (size_t)head_dim * (size_t)kv.tile_tokens * item_bytes;
    kv.head_bytes = (size_t)(page_size / kv.tile_tokens) * kv.tile_bytes;
    kv.page_bytes = (size_t)num_heads * kv.head_bytes;
    return kv;
}

/* The tile of `head` that holds the token at `offset` of a page. */
static inline char *kv_tile(const KVLayer *kv, int64_t page, int32_t head, int32_t offset) {
    return kv->pages + (size_t)page * kv->page_bytes + (size_t)head * kv->head_bytes +
           (size_t)(offset / kv->tile_tokens) * kv->tile_bytes;
}

#endif

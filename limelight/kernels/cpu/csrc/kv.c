/* Filling the KV pool: QK-norm (RMSNorm of each head), rotary embedding in half-split pairs (Su et al. 2021, arXiv
   2104.09864), and keys and values to their slots. */
#include "kv.h"

#define ROWS_AT_ONCE 4

static void narrow(uint16_t *to, const float *from, int32_t count, int32_t type) {
    if (type == BFLOAT16)
        for (int32_t i = 0; i < count; i++) to[i] = to_bfloat16(from[i]);
    else
        for (int32_t i = 0; i < count; i++) to[i] = to_float16(from[i]);
}

/* `key` [depth] is narrow already, unless the pool is not. */
static void write_key(const KVLayer *kv, char *tile, int32_t token, const void *key) {
    const int32_t tokens = kv->tile_tokens;
    if (kv->type == FLOAT16) {
        for (int32_t i = 0; i < kv->depth; i++)
            ((uint16_t *)tile)[i * tokens + token] = ((const uint16_t *)key)[i];
    } else { /* 32 bits are one float, or a pair of bfloat16 */
        const int32_t count = kv->type == FLOAT32 ? kv->depth : kv->depth / 2;
        for (int32_t i = 0; i < count; i++)
            memcpy(tile + (size_t)(i * tokens + token) * 4, (const char *)key + (size_t)i * 4, 4);
    }
}

static void write_value(const KVLayer *kv, char *values, int32_t token, const void *value) {
    const int32_t head_dim = kv->head_dim;
    if (kv->type != BFLOAT16) {
        const size_t bytes = (size_t)head_dim * (kv->type == FLOAT32 ? 4 : 2);
        memcpy(values + (size_t)token * bytes, value, bytes);
        return;
    }
    /* 16 bits at a time: another thread may be writing the other token of the pair. */
    uint16_t *to = (uint16_t *)values + token / 2 * 2 * head_dim + token % 2;
    for (int32_t i = 0; i < head_dim; i++) to[2 * i] = ((const uint16_t *)value)[i];
}

/* Keys and values [heads][head_dim] of one token. `scratch` has room for a head of each, [depth] floats. */
static void write_token(const KVLayer *kv, int64_t slot, const float *keys, const float *values, float *scratch) {
    const int32_t page = (int32_t)(slot >> kv->page_bits), offset = (int32_t)(slot & (kv->page_size - 1));
    const int32_t token = offset & (kv->tile_tokens - 1);
    float *key = scratch, *value = scratch + kv->depth;
    memset(scratch, 0, (size_t)kv->depth * 2 * 4); /* of which an odd head_dim leaves one element as it is */
    for (int32_t head = 0; head < kv->num_heads; head++, keys += kv->head_dim, values += kv->head_dim) {
        char *tile = kv_tile(kv, &page, head, offset);
        if (kv->type == FLOAT32) {
            memcpy(key, keys, (size_t)kv->head_dim * 4);
            memcpy(value, values, (size_t)kv->head_dim * 4);
        } else {
            narrow((uint16_t *)key, keys, kv->head_dim, kv->type);
            narrow((uint16_t *)value, values, kv->head_dim, kv->type);
        }
        write_key(kv, tile, token, key);
        write_value(kv, tile + kv->key_bytes, token, value);
    }
}

static size_t token_scratch_floats(const KVLayer *kv) { return 2 * (size_t)kv->depth; }

typedef struct {
    Operation operation;
    KVLayer kv;
    const int32_t *num_rows;
    const int64_t *slots;        /* [rows] */
    const float *keys, *values;  /* [rows, heads * head_dim] */
} Write;

static int32_t count_write(const Operation *operation) {
    return divide_up(*((const Write *)operation)->num_rows, ROWS_AT_ONCE);
}

static void run_write(const Operation *operation, int32_t unit, Worker *worker) {
    const Write *this = (const Write *)operation;
    const int64_t width = (int64_t)this->kv.num_heads * this->kv.head_dim;
    const int32_t first = unit * ROWS_AT_ONCE;
    for (int32_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++)
        write_token(&this->kv, this->slots[row], this->keys + row * width, this->values + row * width, worker->scratch);
}

EXPORT int limelight_record_write(Program *program, const int32_t *num_rows, const int64_t *slots, const float *keys,
                                  const float *values, void *pages, int32_t type, int32_t page_size, int32_t num_heads,
                                  int32_t head_dim) {
    Write this = {{"write", count_write, run_write}, kv_layer(pages, type, page_size, num_heads, head_dim),
                  num_rows, slots, keys, values};
    return program_append(program, &this.operation, sizeof this, token_scratch_floats(&this.kv) * 4);
}

typedef struct {
    Operation operation;
    KVLayer kv;
    const int32_t *num_rows;
    const int32_t *positions;      /* [rows] */
    const int64_t *slots;          /* [rows] */
    const float *cos, *sin;        /* [positions, half] */
    const float *q_norm, *k_norm;  /* [head_dim] or NULL */
    const float *qkv;              /* [rows, (num_queries + 2 * heads) * head_dim] */
    float *queries;                /* [rows, num_queries * head_dim] */
    int32_t num_queries, half;
    float epsilon;
} RotateAndWrite;

static void norm_head(float *normed, const float *head, const float *weight, int32_t width, float epsilon) {
    const int32_t whole = width / LANES * LANES, rest = width - whole;
    vfloat squares = vset(0.0f);
    for (int32_t i = 0; i < whole; i += LANES) squares = vfma(vload(head + i), vload(head + i), squares);
    if (rest) {
        vfloat x = vload_part(head + whole, rest, 0.0f);
        squares = vfma(x, x, squares);
    }
    const float factor = 1.0f / sqrtf(vsum(squares) / (float)width + epsilon);
    for (int32_t i = 0; i < whole; i += LANES) vstore(normed + i, vload(head + i) * factor * vload(weight + i));
    for (int32_t i = whole; i < width; i++) normed[i] = head[i] * factor * weight[i];
}

/* `rotated` and `head` may be the same. */
static void rotate_head(float *rotated, const float *head, const float *cos, const float *sin, int32_t half,
                        int32_t width) {
    int32_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const vfloat first = vload(head + i), second = vload(head + half + i), c = vload(cos + i), s = vload(sin + i);
        vstore(rotated + i, first * c - second * s);
        vstore(rotated + half + i, second * c + first * s);
    }
    for (; i < half; i++) {
        const float first = head[i], second = head[half + i];
        rotated[i] = first * cos[i] - second * sin[i];
        rotated[half + i] = second * cos[i] + first * sin[i];
    }
    if (rotated != head) memcpy(rotated + 2 * half, head + 2 * half, (size_t)(width - 2 * half) * 4);
}

static void normed_and_rotated(const RotateAndWrite *this, int32_t row, float *to, const float *from,
                               const float *weight, int32_t num_heads) {
    const int32_t width = this->kv.head_dim;
    const int64_t angles = (int64_t)this->positions[row] * this->half;
    for (int32_t i = 0; i < num_heads; i++, to += width, from += width) {
        if (weight) norm_head(to, from, weight, width, this->epsilon);
        rotate_head(to, weight ? to : from, this->cos + angles, this->sin + angles, this->half, width);
    }
}

static void run_rotate_and_write(const Operation *operation, int32_t unit, Worker *worker) {
    const RotateAndWrite *this = (const RotateAndWrite *)operation;
    const int64_t query_width = (int64_t)this->num_queries * this->kv.head_dim;
    const int64_t key_width = (int64_t)this->kv.num_heads * this->kv.head_dim;
    const int32_t first = unit * ROWS_AT_ONCE;
    float *keys = worker->scratch;
    for (int32_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++) {
        const float *qkv = this->qkv + row * (query_width + 2 * key_width);
        normed_and_rotated(this, row, this->queries + row * query_width, qkv, this->q_norm, this->num_queries);
        normed_and_rotated(this, row, keys, qkv + query_width, this->k_norm, this->kv.num_heads);
        write_token(&this->kv, this->slots[row], keys, qkv + query_width + key_width, keys + key_width);
    }
}

static int32_t count_rotate_and_write(const Operation *operation) {
    return divide_up(*((const RotateAndWrite *)operation)->num_rows, ROWS_AT_ONCE);
}

EXPORT int limelight_record_rotate_and_write(Program *program, const int32_t *num_rows, const int32_t *positions,
                                             const int64_t *slots, const float *cos, const float *sin, int32_t half,
                                             const float *q_norm, const float *k_norm, float epsilon, const float *qkv,
                                             float *queries, int32_t num_queries, void *pages, int32_t type,
                                             int32_t page_size, int32_t num_heads, int32_t head_dim) {
    RotateAndWrite this = {.operation = {"rotate_and_write", count_rotate_and_write, run_rotate_and_write},
                           .kv = kv_layer(pages, type, page_size, num_heads, head_dim),
                           .num_rows = num_rows, .positions = positions, .slots = slots, .cos = cos, .sin = sin,
                           .q_norm = q_norm, .k_norm = k_norm, .qkv = qkv, .queries = queries,
                           .num_queries = num_queries, .half = half, .epsilon = epsilon};
    const size_t scratch_floats = (size_t)num_heads * (size_t)head_dim + token_scratch_floats(&this.kv);
    return program_append(program, &this.operation, sizeof this, scratch_floats * 4);
}

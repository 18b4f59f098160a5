/* Filling the KV pool: QK-norm (RMSNorm of each head), rotary embedding in half-split pairs (Su et al. 2021, arXiv
   2104.09864), and keys and values to their slots. */
#include "kv.h"

#define ROWS_AT_ONCE 4

static void write_key(const KVLayer *kv, char *tile, int32_t token, const float *key) {
    const int32_t tokens = kv->tile_tokens;
    for (int32_t i = 0; i < kv->depth; i++) {
        const float value = i < kv->head_dim ? key[i] : 0.0f;
        if (kv->type == FLOAT32) ((float *)tile)[i * tokens + token] = value;
        else if (kv->type == FLOAT16) ((uint16_t *)tile)[i * tokens + token] = to_float16(value);
        else ((uint16_t *)tile)[i / 2 * 2 * tokens + 2 * token + i % 2] = to_bfloat16(value);
    }
}

static void write_value(const KVLayer *kv, char *values, int32_t token, const float *value) {
    const int32_t head_dim = kv->head_dim;
    if (kv->type == FLOAT32) {
        memcpy((float *)values + token * head_dim, value, (size_t)head_dim * 4);
    } else if (kv->type == FLOAT16) {
        for (int32_t i = 0; i < head_dim; i++) ((uint16_t *)values)[token * head_dim + i] = to_float16(value[i]);
    } else {
        /* 16 bits at a time: another thread may be writing the other token of the pair. */
        uint16_t *to = (uint16_t *)values + token / 2 * 2 * head_dim + token % 2;
        for (int32_t i = 0; i < head_dim; i++) to[2 * i] = to_bfloat16(value[i]);
    }
}

/* Keys and values [heads][head_dim] of one token. */
static void write_token(const KVLayer *kv, int64_t slot, const float *keys, const float *values) {
    const int32_t page = (int32_t)(slot >> kv->page_bits), offset = (int32_t)(slot & (kv->page_size - 1));
    for (int32_t head = 0; head < kv->num_heads; head++) {
        char *tile = kv_tile(kv, &page, head, offset);
        write_key(kv, tile, offset & (kv->tile_tokens - 1), keys + head * kv->head_dim);
        write_value(kv, tile + kv->key_bytes, offset & (kv->tile_tokens - 1), values + head * kv->head_dim);
    }
}

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
    (void)worker;
    for (int32_t row = first; row < minimum(first + ROWS_AT_ONCE, *this->num_rows); row++)
        write_token(&this->kv, this->slots[row], this->keys + row * width, this->values + row * width);
}

EXPORT int limelight_record_write(Program *program, const int32_t *num_rows, const int64_t *slots, const float *keys,
                                  const float *values, void *pages, int32_t type, int32_t page_size, int32_t num_heads,
                                  int32_t head_dim) {
    Write this = {{"write", count_write, run_write}, kv_layer(pages, type, page_size, num_heads, head_dim),
                  num_rows, slots, keys, values};
    return program_append(program, &this.operation, sizeof this, 0);
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
    for (int32_t i = 0; i < width; i++) normed[i] = head[i] * factor * weight[i];
}

/* `rotated` and `head` may be the same. */
static void rotate_head(float *rotated, const float *head, const float *cos, const float *sin, int32_t half,
                        int32_t width) {
    for (int32_t i = 0; i < half; i++) {
        const float first = head[i], second = head[i + half];
        rotated[i] = first * cos[i] - second * sin[i];
        rotated[i + half] = second * cos[i] + first * sin[i];
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
        write_token(&this->kv, this->slots[row], keys, qkv + query_width + key_width);
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
    return program_append(program, &this.operation, sizeof this, (size_t)num_heads * (size_t)head_dim * 4);
}

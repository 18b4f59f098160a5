/* The gate of a gated MLP: activation(gate) * up. */
#ifndef LIMELIGHT_GATE_H
#define LIMELIGHT_GATE_H

#include "program.h"
#include "vector_math.h"

/* Numbers as in elementwise.py. LIMITED is gpt-oss's: g = min(gate, limit), u = up within +-limit,
   g * sigmoid(1.702 g) * (u + 1). */
enum { SILU, GELU_TANH, GELU, LIMITED };

ALWAYS_INLINE vfloat gated(vfloat gate, vfloat up, int activation, vfloat limit) {
    switch (activation) {
    case SILU: return gate * vsigmoid(gate) * up;
    case GELU_TANH: { /* x (1 + tanh(y)) / 2 = x sigmoid(2 y) (Hendrycks & Gimpel 2016, arXiv 1606.08415) */
        const vfloat cubic = vfma(gate * gate * gate, vset(0.044715f), gate);
        return gate * vsigmoid(cubic * 1.59576912f) * up;
    }
    case GELU: return gate * vnormal(gate) * up;
    default:
        gate = vmin(limit, gate); /* in this order a NaN stays one */
        up = vmin(limit, vmax(-limit, up));
        return gate * vsigmoid(gate * 1.702f) * (up + 1.0f);
    }
}

ALWAYS_INLINE void gate_row_by(float *to, const float *gate, const float *up, int32_t width, int activation,
                               float limit) {
    const int32_t whole = width / LANES * LANES, rest = width - whole;
    for (int32_t i = 0; i < whole; i += LANES)
        vstore(to + i, gated(vload(gate + i), vload(up + i), activation, vset(limit)));
    if (rest) {
        vfloat x = vload_part(gate + whole, rest, 0.0f), y = vload_part(up + whole, rest, 0.0f);
        vstore_part(to + whole, gated(x, y, activation, vset(limit)), rest);
    }
}

/* `to`, which may be `gate` or `up`, becomes activation(gate) * up, each [width]. */
static inline void gate_row(float *to, const float *gate, const float *up, int32_t width, int activation, float limit) {
    switch (activation) {
    case SILU: gate_row_by(to, gate, up, width, SILU, limit); break;
    case GELU_TANH: gate_row_by(to, gate, up, width, GELU_TANH, limit); break;
    case GELU: gate_row_by(to, gate, up, width, GELU, limit); break;
    default: gate_row_by(to, gate, up, width, LIMITED, limit);
    }
}

#endif

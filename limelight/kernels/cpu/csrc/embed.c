/* Rows of a packed matrix as floats: an embedding table that may be the output head too. */
#include "decode.h"

typedef struct {
    Operation operation;
    const int32_t *num_rows;
    const int32_t *token_ids; /* [rows] */
    const uint8_t *panels;
    float *out;               /* [rows, width] */
    int32_t format, width;
    float scale;
} Embed;

static int32_t count_embed(const Operation *operation) { return *((const Embed *)operation)->num_rows; }

static void decode_row(int32_t number, const uint8_t *panel, int output, int32_t width, float *values) {
    const Format *format = &FORMATS[number];
    if (format->codes == FLOATS) {
        for (int32_t i = 0; i < width; i++)
            values[i] = float_at(number, panel + (int64_t)i * format->panel_bytes, output);
        return;
    }
    for (int32_t at = 0; at < width; at += format->group) {
        const PanelGroup group = panel_group(format, panel, at / GROUP);
        const int32_t part = at % GROUP / format->group, end = minimum(at + format->group, width);
        const float scale = scale_at(format, group, part, output);
        const float minimum = stores_minima(format) ? minimum_at(format, group, part, output) : 0.0f;
        for (int32_t i = at; i < end; i++) {
            const int32_t code = code_at(format, group, i % GROUP / 4, output, i % 4) - format->zero;
            values[i] = scale * (float)code + minimum;
        }
    }
}

static void run_embed(const Operation *operation, int32_t row, Worker *worker) {
    const Embed *this = (const Embed *)operation;
    const int32_t token_id = this->token_ids[row];
    const uint8_t *panel = this->panels + token_id / PANEL * panel_size(&FORMATS[this->format], this->width);
    float *out = this->out + (int64_t)row * this->width;
    (void)worker;
    decode_row(this->format, panel, token_id % PANEL, this->width, out);
    for (int32_t i = 0; i < this->width; i++) out[i] *= this->scale;
}

EXPORT int limelight_record_embed(Program *program, const int32_t *num_rows, const int32_t *token_ids,
                                  const uint8_t *panels, float *out, int32_t format, int32_t width, float scale) {
    Embed this = {{"embed", count_embed, run_embed}, num_rows, token_ids, panels, out, format, width, scale};
    return program_append(program, &this.operation, sizeof this, 0);
}

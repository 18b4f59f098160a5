/* Products of rows with packed matrices (`formats.h`). What a row gives depends on this row alone: for each output the
   terms are added up in one order, whatever the number of rows is and however the work is split.

   For codes the order is, by groups of inputs: t = the exact integer product of codes, sum = fma(t, scale * row's scale,
   sum), sum = fma(minimum, row's scaled sum, sum). For floats it is sum = fma(weight, input, sum), by inputs. */
#ifndef LIMELIGHT_LINEAR_H
#define LIMELIGHT_LINEAR_H

#include "formats.h"

/* A packed matrix of one format. */
typedef struct {
    const uint8_t *panels;
    const float *bias;      /* [num_outputs] or NULL */
    int32_t format;
    int32_t num_inputs, num_outputs;
    int32_t rows_as_packed; /* the most rows that are multiplied with panels as they are; more with unpacked ones */
} PackedMatrix;

/* What `multiply` needs as scratch. */
#define MULTIPLY_SCRATCH_BYTES (40 << 10)

/* Rows that are multiplied at once: their codes stay in the processor's second cache. */
#define ROWS_AT_ONCE 192

static inline int32_t num_panels(const PackedMatrix *matrix) { return divide_up(matrix->num_outputs, PANEL); }

/* Whether rows have to be `quantize_row`'s; otherwise they are floats. */
static inline int takes_quantized(const PackedMatrix *matrix) { return FORMATS[matrix->format].codes != FLOATS; }

/* The most rows that are multiplied with panels of a format as they are, as `limelight bench kernels` measures it; 0: all
   rows are multiplied in one way. */
int32_t rows_as_packed(int32_t format);

/* Rows, `row_bytes` apart, times the outputs of panels [first, last): `out` is where output 0 of row 0 is, and rows of it
   are `out_stride` floats apart. */
void multiply(const PackedMatrix *matrix, const void *rows, int64_t row_bytes, int32_t num_rows, int32_t first,
              int32_t last, float *out, int64_t out_stride, void *scratch);

#endif

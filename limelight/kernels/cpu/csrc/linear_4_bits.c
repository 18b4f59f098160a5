/* Products with unsigned codes of 4 bits: see linear_multiplier.h. */
#if defined(LIMELIGHT_AVX512) || defined(LIMELIGHT_AVX2)
#include "linear_instances.h"

DEFINE_MANY(code_tile, &WIDE_FORMATS[WIDE_4_BITS], WIDE_4_BITS)
DEFINE_CODES(Q4_0)
DEFINE_CODES(Q4_1)
DEFINE_CODES(Q4_K)

DEFINE_MULTIPLIER(Q4_0, WIDE_4_BITS)
DEFINE_MULTIPLIER(Q4_1, WIDE_4_BITS)
DEFINE_MULTIPLIER(Q4_K, WIDE_4_BITS)
#endif

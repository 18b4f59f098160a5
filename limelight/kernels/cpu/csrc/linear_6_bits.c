/* Products with unsigned codes of up to 6 bits, 16 of which have a scale: see linear_multiplier.h. */
#if defined(LIMELIGHT_AVX512) || defined(LIMELIGHT_AVX2)
#include "linear_instances.h"

DEFINE_MANY(code_tile, &WIDE_FORMATS[WIDE_6_BITS], WIDE_6_BITS)
DEFINE_CODES(Q2_K)
DEFINE_CODES(Q3_K)
DEFINE_CODES(Q6_K)

DEFINE_MULTIPLIER(Q2_K, WIDE_6_BITS)
DEFINE_MULTIPLIER(Q3_K, WIDE_6_BITS)
DEFINE_MULTIPLIER(Q6_K, WIDE_6_BITS)
#endif

/* Products with floats: see linear_multiplier.h. */
#if defined(LIMELIGHT_AVX512) || defined(LIMELIGHT_AVX2)
#include "linear_instances.h"

DEFINE_MANY(float_tile, F32, F32)
DEFINE_FLOATS(F16)
DEFINE_FLOATS(BF16)

const Multiplier MULTIPLIER_F32 = {FEW(many, F32), NULL, MANY(F32)};
DEFINE_MULTIPLIER(F16, F32)
DEFINE_MULTIPLIER(BF16, F32)
#endif

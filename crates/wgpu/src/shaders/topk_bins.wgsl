// Sort keys by their first bits: sign, exponent and two of the mantissa.
#include "sort_key.wgsl"
const BINS = 2048u;
const BIN_SHIFT = 21u;

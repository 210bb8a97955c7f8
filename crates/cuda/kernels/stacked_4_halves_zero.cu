// Codes of 4 bits, with a scale and a zero point for 32, 64 or 128 of them.
#include "stacked_products.cuh"

using Those = Form<4, ZEROED, HALVES_ZERO, 32>;
STACKED(Those)

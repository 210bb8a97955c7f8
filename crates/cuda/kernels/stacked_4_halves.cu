// Codes of 4 bits, with a scale for 32 of them.
#include "stacked_products.cuh"

using Those = Form<4, CENTRED, HALVES, 32>;
STACKED(Those)

// Codes of 5 bits, with a scale for 32 of them.
#include "stacked_products.cuh"

using Those = Form<5, CENTRED, HALVES, 32>;
STACKED(Those)

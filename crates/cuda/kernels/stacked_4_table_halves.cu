// Codes of 4 bits that are looked up, with a scale for 32 of them.
#include "stacked_products.cuh"

using Those = Form<4, OF_16, HALVES, 32>;
STACKED(Those)

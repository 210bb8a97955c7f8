// Codes of 1 bit, which stand for -1 and 1, with a scale for 128 of them.
#include "stacked_products.cuh"

using Those = Form<2, BIASED, HALVES, 32, 1>;
STACKED(Those)

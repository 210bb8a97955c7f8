// Signed bytes, with a scale for 32 of them.
#include "stacked_products.cuh"

using Those = Form<8, PLAIN, HALVES, 32>;
STACKED(Those)

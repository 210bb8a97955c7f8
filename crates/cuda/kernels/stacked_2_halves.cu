// Codes of 2 bits less a bias, with a scale for 64 of them.
#include "stacked_products.cuh"

using Those = Form<2, BIASED, HALVES, 32>;
STACKED(Those)

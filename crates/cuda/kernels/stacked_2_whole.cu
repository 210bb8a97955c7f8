// Codes of 2 bits less a bias, with a scale for 256 of them.
#include "stacked_products.cuh"

using Those = Form<2, BIASED, HALVES, 256>;
STACKED(Those)

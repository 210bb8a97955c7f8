// Codes of 5 bits, with a scale and a minimum for 32 of them.
#include "stacked_products.cuh"

using Those = Form<5, PLAIN, HALVES_MIN, 32>;
STACKED(Those)

// Codes of 4 bits, with a byte each for the scale and the minimum of 32 of them.
#include "stacked_products.cuh"

using Those = Form<4, PLAIN, BYTES_MIN, 32>;
STACKED(Those)

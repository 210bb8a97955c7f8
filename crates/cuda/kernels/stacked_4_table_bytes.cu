// Codes of 4 bits that are looked up, with a byte for the scale of 32 of them.
#include "stacked_products.cuh"

using Those = Form<4, OF_16, BYTES, 32>;
STACKED(Those)

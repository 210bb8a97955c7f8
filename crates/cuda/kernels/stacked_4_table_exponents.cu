// Codes of 4 bits that are looked up, with a power of two for 32 of them.
#include "stacked_products.cuh"

using Those = Form<4, OF_16, EXPONENTS, 32>;
STACKED(Those)

// Codes of 5 bits, with a byte each for the scale and the minimum of 32 of them.
#include "products.cuh"

using Those = Form<5, PLAIN, BYTES_MIN, 32>;
PRODUCTS(Those)

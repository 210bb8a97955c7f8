// Codes of 5 bits, with a scale for 32 of them.
#include "products.cuh"

using Those = Form<5, CENTRED, HALVES, 32>;
PRODUCTS(Those)

// Codes of 4 bits, with a scale and a zero point for 32, 64 or 128 of them.
#include "products.cuh"

using Those = Form<4, ZEROED, HALVES_ZERO, 32>;
PRODUCTS(Those)
PRODUCTS_IN_ORDER(Those)

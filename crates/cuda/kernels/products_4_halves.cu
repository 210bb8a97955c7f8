// Codes of 4 bits, with a scale for 32 of them.
#include "products.cuh"

using Those = Form<4, CENTRED, HALVES, 32>;
PRODUCTS(Those)
PRODUCTS_IN_ORDER(Those)

// Signed bytes, with a scale for 32 of them.
#include "products.cuh"

using Those = Form<8, PLAIN, HALVES, 32>;
PRODUCTS(Those)
PRODUCTS_IN_ORDER(Those)

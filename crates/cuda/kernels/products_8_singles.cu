// Signed bytes, with a scale for 256 of them.
#include "products.cuh"

using Those = Form<8, PLAIN, SINGLES, 256>;
PRODUCTS(Those)
PRODUCTS_IN_ORDER(Those)

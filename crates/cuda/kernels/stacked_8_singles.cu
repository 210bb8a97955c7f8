// Signed bytes, with a scale for 256 of them.
#include "stacked_products.cuh"

using Those = Form<8, PLAIN, SINGLES, 256>;
STACKED(Those)

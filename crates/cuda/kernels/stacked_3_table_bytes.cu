// Codes of 3 bits that are looked up, with a byte for the scale of 16 of them.
#include "stacked_products.cuh"

using Those = Form<3, OF_8, BYTES, 16>;
STACKED(Those)

// Codes of 3 bits, with a byte for the scale of 16 of them.
#include "stacked_products.cuh"

using Those = Form<3, CENTRED, BYTES, 16>;
STACKED(Those)

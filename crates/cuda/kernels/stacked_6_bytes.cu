// Codes of 6 bits, with a byte for the scale of 16 of them.
#include "stacked_products.cuh"

using Those = Form<6, CENTRED, BYTES, 16>;
STACKED(Those)

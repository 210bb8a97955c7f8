// Codes of 2 bits, with a nibble each for the scale and the minimum of 16 of them.
#include "stacked_products.cuh"

using Those = Form<2, PLAIN, NIBBLES_MIN, 16>;
STACKED(Those)

// Codes of 4 bits that are looked up, with an 8-bit float for 16 of them.
#include "stacked_products.cuh"

using Those = Form<4, OF_16, EIGHTHS, 16>;
STACKED(Those)

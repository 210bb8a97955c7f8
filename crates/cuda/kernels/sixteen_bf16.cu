// Weights in BF16.
#include "sixteen_products.cuh"

SIXTEEN(BF16S)

// Weights in F8.
#include "sixteen_products.cuh"

SIXTEEN(EIGHTHS_AS_BF16S)

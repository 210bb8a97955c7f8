// Weights in F16.
#include "sixteen_products.cuh"

SIXTEEN(F16S)

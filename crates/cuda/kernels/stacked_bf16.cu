// Weights in BF16.
#include "stacked_sixteen.cuh"

STACKED_SIXTEEN(BF16S)

// Weights in F8.
#include "stacked_sixteen.cuh"

STACKED_SIXTEEN(EIGHTHS_AS_BF16S)

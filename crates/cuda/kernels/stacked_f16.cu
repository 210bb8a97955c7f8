// Weights in F16.
#include "stacked_sixteen.cuh"

STACKED_SIXTEEN(F16S)

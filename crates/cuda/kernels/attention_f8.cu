// A cache of F8, with scales.
#include "attention_mma.cuh"

ATTENTION(2) attend(Operands op) { attend_by_mma<F8>(op); }

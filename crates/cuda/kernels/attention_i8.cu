// A cache of whole numbers of 8 bits, with scales.
#include "attention_mma.cuh"

ATTENTION(2) attend(Operands op) { attend_by_mma<I8>(op); }

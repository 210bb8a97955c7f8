// A cache of f16.
#include "attention_mma.cuh"

ATTENTION(2) attend(Operands op) { attend_by_mma<F16>(op); }

// A cache of bf16.
#include "attention_mma.cuh"

ATTENTION(2) attend(Operands op) { attend_by_mma<BF16>(op); }

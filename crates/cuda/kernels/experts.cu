// Mixtures of experts: lists of what is routed where, rounding of the experts' inputs, and sums of their outputs. The products in
// between are those of stacks.
//
// A *pair* is a row and one of its experts: pair `row * top_k + place` has the expert at that place among those of the row, in
// their order. A *slot* is a pair's place when pairs are ordered by expert, and by row within an expert. A *tile* is some slots
// of one expert that follow each other.
#include "stacked_products.cuh"

// As in `MAX_EXPERTS`.
static constexpr u32 MAX_EXPERTS = 1024;
// Pairs that are looked through at a time.
static constexpr u32 STAGED = 1024;
// Experts that a thread adds up.
static constexpr u32 EACH = MAX_EXPERTS / WIDTH;

// The expert, the weight and the slot of each pair, the pair of each slot, and tiles of up to `tile` slots. What there is not is
// NONE: rows may have less than `top_k` experts.
struct Lists {
  u32* experts;
  float* weights;
  u32* slots;
  u32* pairs;
  u32* tiles;
  u32 top_k, tile;
};

// The experts of a row, by a warp. Those after the first `top_k` have no place.
inline void list_experts(const Matrix<const float>& routing, const Lists& lists, u32 row) {
  u32 lane = threadIdx.x % 32, taken = 0;
  u64 first = (u64)row * lists.top_k;
  for (u32 begin = 0; begin < routing.cols; begin += 32) {
    u32 expert = begin + lane;
    float weight = expert < routing.cols ? routing.row(row)[expert] : 0.0f;
    // So is NaN.
    bool is_chosen = weight != 0.0f;
    u32 chosen = __ballot_sync(~0u, is_chosen), place = taken + __popc(chosen & ((1u << lane) - 1));
    if (is_chosen && place < lists.top_k) {
      lists.experts[first + place] = expert;
      lists.weights[first + place] = weight;
    }
    taken += __popc(chosen);
  }
  for (u32 place = lane; place < lists.top_k; place += 32) {
    if (place >= taken) lists.experts[first + place] = NONE;
    lists.slots[first + place] = NONE;
    lists.pairs[first + place] = NONE;
  }
}

KERNEL(WIDTH) experts_of_rows(Matrix<const float> routing, Lists lists) {
  u32 row = WARPS * blockIdx.x + threadIdx.x / 32;
  if (row < routing.rows) list_experts(routing, lists, row);
}

// The slots and the tiles of some experts, a CTA; one CTA alone lists the experts of the rows before that, if `is_few`. There is
// room for `tiles` tiles, of which those at the end may be empty.
KERNEL(WIDTH) rows_of_experts(Matrix<const float> routing, Lists lists, u32 tiles, u32 is_few) {
  __shared__ u32 counts[MAX_EXPERTS], next[MAX_EXPERTS], staged[STAGED], of_warps[WARPS][2];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = routing.rows * lists.top_k;
  u32 begin = routing.cols * blockIdx.x / gridDim.x, end = routing.cols * (blockIdx.x + 1) / gridDim.x;
  for (u32 row = warp; is_few && row < routing.rows; row += WARPS) list_experts(routing, lists, row);
  for (u32 e = threadIdx.x; e < MAX_EXPERTS; e += WIDTH) counts[e] = 0;
  __syncthreads();
  for (u32 p = threadIdx.x; p < pairs; p += WIDTH) {
    u32 expert = lists.experts[p];
    if (expert != NONE) atomicAdd(&counts[expert], 1u);
  }
  __syncthreads();

  // Slots and tiles of the experts up to those of this thread.
  u32 slot = 0, tile = 0;
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 count = counts[EACH * threadIdx.x + i];
    slot += count;
    tile += (count + lists.tile - 1) / lists.tile;
  }
  u32 own_slots = slot, own_tiles = tile;
  for (u32 d = 1; d < 32; d *= 2) {
    u32 slots_before = __shfl_up_sync(~0u, slot, d), tiles_before = __shfl_up_sync(~0u, tile, d);
    slot += lane >= d ? slots_before : 0;
    tile += lane >= d ? tiles_before : 0;
  }
  if (lane == 31) {
    of_warps[warp][0] = slot;
    of_warps[warp][1] = tile;
  }
  __syncthreads();
  slot -= own_slots;
  tile -= own_tiles;
  u32 used = 0;
  for (u32 i = 0; i < WARPS; i++) {
    if (i < warp) {
      slot += of_warps[i][0];
      tile += of_warps[i][1];
    }
    used += of_warps[i][1];
  }
  for (u32 i = 0; i < EACH; i++) {
    u32 expert = EACH * threadIdx.x + i, count = counts[expert];
    next[expert] = slot;
    for (u32 at = 0; at < count; at += lists.tile, tile++) {
      if (expert < begin || expert >= end) continue;
      u32* to = lists.tiles + 3 * tile;
      to[0] = expert;
      to[1] = slot + at;
      to[2] = count - at < lists.tile ? count - at : lists.tile;
    }
    slot += count;
  }
  for (u32 i = 3 * used + threadIdx.x; blockIdx.x == 0 && i < 3 * tiles; i += WIDTH) lists.tiles[i] = 0;

  for (u32 first = 0; first < pairs; first += STAGED) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < STAGED; i += WIDTH) staged[i] = first + i < pairs ? lists.experts[first + i] : NONE;
    __syncthreads();
    u32 some = pairs - first < STAGED ? pairs - first : STAGED;
    for (u32 expert = begin + warp; expert < end; expert += WARPS) {
      if (counts[expert] == 0) continue;
      u32 at = next[expert];
      for (u32 i = 0; i < some; i += 32) {
        bool is_own = staged[i + lane] == expert;
        u32 own = __ballot_sync(~0u, is_own);
        if (is_own) {
          u32 to = at + __popc(own & ((1u << lane) - 1)), pair = first + i + lane;
          lists.slots[pair] = to;
          lists.pairs[to] = pair;
        }
        at += __popc(own);
      }
      __syncwarp();
      if (lane == 0) next[expert] = at;
      __syncwarp();
    }
  }
}

// What experts take, slot by slot, for layers that take its columns in other orders (act-order): the first expert's, and how many
// bytes further those of the next are. A column past the end is zero.
KERNEL(WIDTH) order_slots(Matrix<const float> x, Routed routed, const u32* experts, const u32* order, u64 each,
                          Matrix<float> out) {
  u32 slot = blockIdx.x, c = WIDTH * blockIdx.y + threadIdx.x, pair = routed.pairs[slot];
  if (pair == NONE || c >= out.cols) return;
  u32 column = ((const u32*)((const u8*)order + each * experts[pair]))[c];
  float value = column < x.cols ? x.row(row_of(routed, slot))[column] : 0.0f;
  out.row(slot)[c] = __fmul_rn(value, factor_of(routed, slot));
}

// Rounds what experts take, slot by slot, for products with many rows: a chunk a warp.
KERNEL(WIDTH) round_slots(Matrix<const float> x, Routed routed, u8* codes, u8* sums, float* scales, u32 slots) {
  u32 slot = WARPS * blockIdx.y + threadIdx.x / 32, chunk = blockIdx.x;
  if (slot >= slots || routed.pairs[slot] == NONE) return;
  u64 at = (u64)slot * gridDim.x + chunk;
  float values[2][4];
  load_chunk(x.row(row_of(routed, slot)), chunk, x.cols, factor_of(routed, slot), values);
  round_chunk(values, codes + CHUNK * at, sums + SUMS * at, scales + at);
}

// The sum of a row's experts, each times its weight if there are weights, and what follows: scale * sum, capped, and with the
// residual added. Each step is rounded, as in the ops that this stands for.
KERNEL(WIDTH) sum_of_experts(Matrix<const float> y, const u32* slots, const float* weights, Matrix<const float> residual,
                             Matrix<float> out, u32 top_k, float scale, float cap) {
  u32 row = blockIdx.x, c = WIDTH * blockIdx.y + threadIdx.x;
  if (c >= out.cols) return;
  float sum = 0.0f;
#pragma unroll 4
  for (u32 place = 0; place < top_k; place++) {
    u64 pair = (u64)row * top_k + place;
    u32 slot = slots[pair];
    if (slot == NONE) continue;
    float term = y.row(slot)[c];
    if (weights) term *= weights[pair];
    sum += term;
  }
  sum *= scale;
  if (cap > 0.0f) sum = cap * tanh_of(sum / cap);
  out.row(row)[c] = residual.at ? sum + residual.row(row)[c] : sum;
}

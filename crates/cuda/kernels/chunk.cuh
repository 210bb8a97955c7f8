// Products of a chunk of a weight in planes with rows of x, rounded to 8 bits, by tensor cores: whole numbers, which add up
// exactly in any order, and the roundings of the CPU backend, one by one.
//
// A chunk is 256 inputs. Of each row of x it has
// - 256 codes: of each two steps (64 inputs) 4 words for each of the lanes l % 4, which `mma` takes: of either step those of inputs
//   4 * (l % 4) and of inputs 16 + 4 * (l % 4), four a word;
// - sums of each 16 codes, which are 128 * high + low: 16 bytes low, 16 bytes high; and of each 32, as 8 floats;
// - a scale.
//
// A chunk of a panel is summed as its format says:
// - runs with scales of their own: f = fma(sum, scale, f), run by run of at most 32 inputs; with minimums f = fma(min, sum of x, f)
//   after each;
// - runs that are whole multiples of one scale: all products of the chunk are one whole number, which is scaled once.
// Then y = fma(of the chunk, scale of x, y), chunk by chunk.
#pragma once
#include "weights.cuh"

constexpr u32 SUMS = 64;              // bytes of the sums of a chunk of a row
constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23: to which a number below 2^22 is added as an integer is to its bits
constexpr i32 ROUNDER_BITS = 0x4b400000;

// Transformation of the codes of a form before the product.
enum Codes8 {
  // As they are: signed bytes, or numbers below 128 with minimums.
  PLAIN,
  // The bias is in the middle: shifted to the upper end of a byte, which is signed, so that values are 2^(8 - bits) times as large.
  CENTRED,
  // Less the bias.
  BIASED,
  // Less the zero point of a row.
  ZEROED,
  // Looked up among 8 or 16 values.
  OF_8,
  OF_16
};

// Form of the weights of some formats. Codes have BITS bits, from bit LOW on (below it they are zeros); RUN is how many
// inputs are summed before a factor: 16, 32, or all 256.
template <u32 BITS_, Codes8 CODES_, Scales SCALES_, u32 RUN_, u32 LOW_ = 0> struct Form {
  // Enumerators, and not members, which would lie in memory.
  enum : u32 {
    BITS = BITS_,
    CODES = CODES_,
    SCALES = SCALES_,
    RUN = RUN_,
    LOW = LOW_,
    HAS_FACTORS = SCALES_ == BYTES || SCALES_ == BYTES_MIN || SCALES_ == NIBBLES_MIN,
    IS_WHOLE = HAS_FACTORS || RUN_ == CHUNK,
    HAS_MINS = SCALES_ == HALVES_MIN || SCALES_ == BYTES_MIN || SCALES_ == NIBBLES_MIN,
    // Places by which codes are shifted up.
    UP = CODES_ == CENTRED ? 8 - BITS_ : LOW_,
    // Widths of the planes: the wider one, and that of the rest.
    WIDE = BITS_ - LOW_ == 3 ? 2 : BITS_ - LOW_ == 5 || BITS_ - LOW_ == 6 ? 4 : BITS_ - LOW_,
    REST = BITS_ - LOW_ - WIDE
  };
  // Factor that undoes the shift.
  static inline float less() { return CODES_ == CENTRED ? 1.0f / (1u << UP) : 1.0f; }
};

struct alignas(16) Words {
  u32 at[4];
};
struct alignas(8) Two {
  float x, y;
};

inline u32 permuted(u32 a, u32 b, u32 by) {
  u32 y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(by));
  return y;
}

// c += a * b, of 16 rows of weights and 8 of x.
inline void mma(i32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// a - b, byte by byte, of bytes from -128 to 127 whose difference is such.
inline u32 bytes_less(u32 a, u32 b) { return ((a | 0x80808080) - b) ^ 0x80808080; }

// The values of four codes, a byte each.
template <bool OF_EIGHT> inline u32 looked_up(const Weights& w, u32 codes) {
  u32 pairs = codes | codes >> 4, four = permuted(pairs, 0, 0x4420);
  if (OF_EIGHT) return permuted(w.values[0], w.values[1], four);
  u32 place = four & 0x7777;
  u32 low = permuted(w.values[0], w.values[1], place), high = permuted(w.values[2], w.values[3], place);
  return permuted(low, high, (four >> 1 & 0x4444) | 0x3210);
}

// The groups of a plane that have two steps, of `steps` in the chunk, from step `first` on. What the chunk lacks is zeros.
template <u32 WIDTH_> struct Plane {
  enum : u32 { GROUPS = WIDTH_ == 8 ? 2 : 1 };
  Words words[GROUPS];

  inline void load(const u8* at, u32 first, u32 steps, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < GROUPS; i++) {
      u32 group = first * WIDTH_ / 8 + i;
      words[i] = {0, 0, 0, 0};
      if (8 * group < steps * WIDTH_) words[i] = ((const Words*)at)[32 * group + lane];
    }
  }

  // Those of the first step or the other, moved to bit `to` of each byte.
  inline u32 bits(u32 first, u32 odd, u32 j, u32 to) const {
    u32 word = words[odd * WIDTH_ / 8].at[j], mask = ((1u << WIDTH_) - 1) * 0x01010101 << to;
    if (WIDTH_ == 8) return word;
    if (WIDTH_ == 4) return (4 * odd > to ? word >> (4 * odd - to) : word << (to - 4 * odd)) & mask;
    // How far they are to be moved depends on the step.
    return (word >> first * WIDTH_ % 8 >> odd * WIDTH_) << to & mask;
  }
};
template <> struct Plane<0> {
  inline void load(const u8*, u32, u32, u32) {}
  inline u32 bits(u32, u32, u32, u32) const { return 0; }
};

// The codes of two steps.
template <class F> struct TwoSteps {
  Plane<F::WIDE> wide;
  Plane<F::REST> rest;

  // Bytes of the codes of a chunk.
  static inline u32 bytes(u32 steps) { return ((steps * F::WIDE + 7) / 8 + (steps * F::REST + 7) / 8) * 512; }

  inline void load(const u8* chunk, u32 first, u32 steps, u32 lane) {
    wide.load(chunk, first, steps, lane);
    rest.load(chunk + (steps * F::WIDE + 7) / 8 * 512, first, steps, lane);
  }

  // Word `j` of what `mma` takes. `less` has in each byte what is subtracted.
  inline u32 word(const Weights& w, u32 first, u32 odd, u32 j, u32 less) const {
    u32 codes = wide.bits(first, odd, j, F::UP) | rest.bits(first, odd, j, F::UP + F::WIDE);
    switch (F::CODES) {
      case CENTRED: return codes ^ 0x80808080;
      case BIASED:
      case ZEROED: return bytes_less(codes, less);
      case OF_8:
      case OF_16: return looked_up<F::CODES == OF_8>(w, codes);
      default: return codes;
    }
  }
};

// Scales of runs that have scales of their own; `at` is behind the codes.
template <class F> inline float run_scale(const Weights& w, const u8* at, u32 place, u32 run, u32 runs) {
  if (run >= runs) return 0.0f;
  u32 i = place * runs + run;
  switch (F::SCALES) {
    case EXPONENTS: return power_of(at[i]);
    case EIGHTHS: return eighth_to_float(at[i]) * w.unit;
    default: return half_at(at, i) * F::less();
  }
}

// Factors of the runs of a row, a byte each: they are 16 or, of runs of 32, 8.
template <class F> inline Words factors_of(const u8* at, u32 place) {
  Words words = {0, 0, 0, 0};
  const u8* row = at + PANEL * (F::SCALES == BYTES ? 2 : 4) + CHUNK / F::RUN * place;
  if (F::RUN == 16) {
    words = *(const Words*)row;
  } else {
    words.at[0] = ((const u32*)row)[0];
    words.at[1] = ((const u32*)row)[1];
  }
  return words;
}

// That of one of the runs of the next two steps.
template <class F> inline i32 factor(const Words& words, u32 run) {
  u32 byte = words.at[0] >> 8 * run;
  switch (F::SCALES) {
    case BYTES: return (i32)(i8)byte;
    case NIBBLES_MIN: return (i32)(byte & 15);
    default: return (i32)(byte & 255);
  }
}

// Those after the next two steps.
template <class F> inline Words factors_after(const Words& words) {
  const u32(&at)[4] = words.at;
  if (F::RUN == 16) return {at[1], at[2], at[3], 0};
  return {at[0] >> 16 | at[1] << 16, at[1] >> 16, 0, 0};
}

// Minimums of four sums of 16 inputs of a row, from sum 4 * q on.
template <class F> inline u32 mins_of(const u8* at, u32 place, u32 q) {
  if (F::SCALES == NIBBLES_MIN) return ((const u32*)(at + 4 * PANEL + 16 * place))[q] >> 4 & 0x0f0f0f0f;
  u32 two = ((const u16*)(at + (4 + 8) * PANEL + 8 * place))[q];
  return permuted(two, 0, 0x1100);
}

// Pointers of a lane into x: codes of the row that it has of the first tile, and sums of the two rows whose products it has; `tile` is
// the distance of the next tile, in chunks.
struct Place {
  const Words* codes;
  const u8* sums;
  const u8* products_of[2];
  u64 tile;
};

// Products of a chunk of a panel with 8 * TILES rows of x, whose scales are still to be multiplied. A lane has those of rows
// lane / 4 and lane / 4 + 8 of the weight with rows 2 * (lane % 4) and the next one of each 8 of x.
template <class F, u32 TILES>
inline void multiply_chunk(const Weights& w, const u8* chunk, u32 inputs, const Place& x, float (&f)[TILES][4]) {
  // Runs of 16 inputs are halves of what `mma` takes, of which the other is zeros.
  constexpr u32 HALVES_OF_STEP = F::RUN == 16 ? 2 : 1;
  u32 lane = threadIdx.x % 32, q = lane % 4, place = lane / 4 * 2;
  u32 steps = F::IS_WHOLE ? CHUNK / STEP : (inputs + STEP - 1) / STEP;
  u32 runs = F::IS_WHOLE ? CHUNK / F::RUN : (inputs + (1u << w.run) - 1) >> w.run;
  const u8* scales = chunk + TwoSteps<F>::bytes(steps);
  i32 all[TILES][4];
#pragma unroll
  for (u32 t = 0; t < TILES; t++) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      f[t][i] = 0.0f;
      all[t][i] = 0;
    }
  }
  Words factors[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  if (F::HAS_FACTORS) {
    factors[0] = factors_of<F>(scales, place);
    factors[1] = factors_of<F>(scales, place + 1);
  }
#pragma unroll(TILES <= 2 ? 4 : 1)
  for (u32 first = 0; first < CHUNK / STEP; first += 2) {
    TwoSteps<F> codes;
    codes.load(chunk, first, steps, lane);
    u32 a[2][4];
    float by[2][HALVES_OF_STEP][2], min[2][2];
#pragma unroll
    for (u32 odd = 0; odd < 2; odd++) {
      u32 less[2] = {w.bias * 0x01010101, w.bias * 0x01010101};
      if (!F::IS_WHOLE) {
        u32 run = STEP * (first + odd) >> w.run;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
          u32 i = (place + r) * runs + run, all_runs = PANEL * runs;
#pragma unroll
          for (u32 h = 0; h < HALVES_OF_STEP; h++) by[odd][h][r] = run_scale<F>(w, scales, place + r, run + h, runs);
          min[odd][r] = F::HAS_MINS && run < runs ? half_at(scales, all_runs + i) : 0.0f;
          if (F::CODES == ZEROED) less[r] = run < runs ? scales[2 * all_runs + i] * 0x01010101u : 0;
        }
      }
#pragma unroll
      for (u32 j = 0; j < 4; j++) a[odd][j] = codes.word(w, first, odd, j, less[j % 2]);
    }
#pragma unroll
    for (u32 t = 0; t < TILES; t++) {
      Words b = x.codes[CHUNK / 16 * t * x.tile + 2 * first + q];
      // Sums of x of both steps.
      Two of_x[2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
      if (F::HAS_MINS && !F::IS_WHOLE) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) of_x[i] = ((const Two*)(x.products_of[i] + SUMS * t * x.tile + CHUNK / 8))[first / 2];
      }
#pragma unroll
      for (u32 odd = 0; odd < 2; odd++) {
#pragma unroll
        for (u32 h = 0; h < HALVES_OF_STEP; h++) {
          bool lower = HALVES_OF_STEP == 1 || h == 0, upper = HALVES_OF_STEP == 1 || h == 1;
          u32 a0 = lower ? a[odd][0] : 0, a1 = lower ? a[odd][1] : 0;
          u32 a2 = upper ? a[odd][2] : 0, a3 = upper ? a[odd][3] : 0;
          u32 b0 = b.at[2 * odd], b1 = b.at[2 * odd + 1];
          if (F::RUN == CHUNK) {
            mma(all[t], a0, a1, a2, a3, b0, b1);
          } else if (F::HAS_FACTORS) {
            i32 c[4] = {0, 0, 0, 0};
            mma(c, a0, a1, a2, a3, b0, b1);
#pragma unroll
            for (u32 i = 0; i < 4; i++) all[t][i] += c[i] * factor<F>(factors[i / 2], HALVES_OF_STEP * odd + h);
          } else {
            // Sums are below 2^22: as bits of a float they are added to ROUNDER, which is subtracted exactly.
            i32 c[4] = {ROUNDER_BITS, ROUNDER_BITS, ROUNDER_BITS, ROUNDER_BITS};
            mma(c, a0, a1, a2, a3, b0, b1);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
              f[t][i] = fmaf(float_of((u32)c[i]) - ROUNDER, by[odd][h][i / 2], f[t][i]);
              if (F::HAS_MINS) f[t][i] = fmaf(min[odd][i / 2], odd ? of_x[i % 2].y : of_x[i % 2].x, f[t][i]);
            }
          }
        }
      }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) factors[r] = factors_after<F>(factors[r]);
  }
  if (!F::IS_WHOLE) return;
  float d[2], of_mins[2];
  u32 mins[2] = {0, 0};
#pragma unroll
  for (u32 r = 0; r < 2; r++) {
    d[r] = (F::SCALES == SINGLES ? ((const float*)scales)[place + r] : half_at(scales, place + r) * w.unit) * F::less();
    of_mins[r] = F::HAS_MINS ? -half_at(scales, PANEL + place + r) : 0.0f;
    if (F::HAS_MINS) mins[r] = mins_of<F>(scales, place + r, q);
  }
#pragma unroll
  for (u32 t = 0; t < TILES; t++) {
    i32 low[4] = {0, 0, 0, 0}, high[4] = {0, 0, 0, 0};
    if (F::HAS_MINS) {
      const u32* sums = (const u32*)(x.sums + SUMS * t * x.tile);
      mma(low, mins[0], mins[1], 0, 0, sums[q], 0);
      mma(high, mins[0], mins[1], 0, 0, sums[4 + q], 0);
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      float products = (float)all[t][i];
      if (F::HAS_MINS) {
        float of_min = __fmul_rn((float)(low[i] + 128 * high[i]), of_mins[i / 2]);
        f[t][i] = fmaf(products, d[i / 2], of_min);
      } else {
        f[t][i] = __fmul_rn(products, d[i / 2]);
      }
    }
  }
}

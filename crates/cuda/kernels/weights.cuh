// Packed weights: how a kernel reads eight of them. `src/weights.rs` says how they lie, and writes them.
#pragma once
#include "common.cuh"

// The numbers of these are those of the enums in `src/weights.rs`.
enum Stored { ROWS_OF_F32, ROWS_OF_F16, ROWS_OF_BF16, FRAGMENTS_OF_F16, FRAGMENTS_OF_BF16, PLANES };
enum Meaning { SIGNED, LESS_BIAS, TABLE, FLOATS };
enum Scales { HALVES, HALVES_MIN, HALVES_ZERO, BYTES, BYTES_MIN, NIBBLES_MIN, SINGLES, EXPONENTS, EIGHTHS };

constexpr u32 PANEL = 16;   // outputs
constexpr u32 CHUNK = 256;  // inputs
constexpr u32 STEP = 32;    // inputs of an mma with int8

// A weight: rows as they are, or panels of 16 of them.
struct Weights {
  const u8* at;
  u64 panel;  // bytes from one panel, or row, to the next
  u32 rows, cols;
  u32 stored;
  // Of planes only. The binary digits of `bits` are the planes' widths; a scale's inputs are 2 to the `run`.
  u32 bits, meaning, bias, scales, run;
  float unit;
  u32 chunk;  // bytes of a whole chunk
  u32 values[4];
};

inline float half_at(const u8* at, u32 i) { return f16_to_float(((const u16*)at)[i]); }

// A table's value for a code below 16. By selections: an index known only when the kernel runs would put the table in memory.
inline i32 value_of(const Weights& w, u32 code) {
  u32 low = code & 4 ? w.values[1] : w.values[0];
  u32 high = code & 4 ? w.values[3] : w.values[2];
  return (i8)((code & 8 ? high : low) >> 8 * (code & 3));
}

// An 8-bit float is an f16 with another exponent, all of whose exponents are those of finite values.
inline float eighth_to_float(u32 code) {
  return f16_to_float((u16)((code & 128) << 8 | (code & 127) << 7)) * 256.0f;
}

// A power of two, 128 less than its exponent says. The two smallest are subnormal.
inline float power_of(u32 e) { return float_of(e < 2 ? 1u << (21 + e) : (e - 1) << 23); }

// Eight codes, a byte each, and the scales behind all codes of the chunk.
struct Codes {
  u32 low, high;
  const u8* scales;
};

// The codes of a row of a panel's chunk, of `steps` steps: those of inputs 8 * e to 8 * e + 7. Of the fragments of a step, 4
// inputs of a row are in the word of one lane and the next 4 in that of the next lane.
inline Codes codes_of(const Weights& w, const u8* chunk, u32 r, u32 e, u32 steps) {
  u32 step = e / 4, lane = 4 * (r % 8) + 2 * (e % 2), word = 4 * lane + r / 8 + 2 * (e % 4 / 2);
  Codes codes = {0, 0, chunk};
  u32 below = 0;
#pragma unroll
  for (u32 width = 8; width > 0; width /= 2) {
    if (!(w.bits & width)) continue;
    const u32* plane = (const u32*)codes.scales + step * width / 8 * 128 + word;
    u32 shift = step * width % 8, mask = ((1u << width) - 1) * 0x01010101;
    codes.low |= (plane[0] >> shift & mask) << below;
    codes.high |= (plane[4] >> shift & mask) << below;
    codes.scales += (steps * width + 7) / 8 * 512;
    below += width;
  }
  return codes;
}

// A weight is `scale * (code - less) - min`, rounded once for each of the three as in the file's formula: so it has the bits
// that the host has for it.
struct Scale {
  float scale, min;
  i32 less;
};

// The scale of run `run` of row `r`, of `runs` in the chunk. Rows r and r + 8, which a lane of an mma has both, are neighbours.
inline Scale scale_of(const Weights& w, const u8* at, u32 r, u32 run, u32 runs) {
  u32 place = 2 * (r % 8) + r / 8, i = place * runs + run, all = PANEL * runs;
  Scale s = {0.0f, 0.0f, (i32)w.bias};
  switch (w.scales) {
    case HALVES: s.scale = half_at(at, i); break;
    case HALVES_MIN:
      s.scale = half_at(at, i);
      s.min = -half_at(at, all + i);
      break;
    case HALVES_ZERO:
      s.scale = half_at(at, i);
      s.less = at[2 * all + i];
      break;
    case BYTES: s.scale = half_at(at, place) * w.unit * (float)(i8)at[2 * PANEL + i]; break;
    case BYTES_MIN:
      s.scale = half_at(at, place) * (float)at[4 * PANEL + i];
      s.min = half_at(at, PANEL + place) * (float)at[4 * PANEL + all + i];
      break;
    case NIBBLES_MIN: {
      u32 both = at[4 * PANEL + i];
      s.scale = half_at(at, place) * (float)(both & 15);
      s.min = half_at(at, PANEL + place) * (float)(both >> 4);
      break;
    }
    case SINGLES: s.scale = ((const float*)at)[i]; break;
    case EXPONENTS: s.scale = power_of(at[i]); break;
    default: s.scale = eighth_to_float(at[i]) * w.unit; break;
  }
  return s;
}

// What a code stands for, but for its scale.
inline float meaning_of(const Weights& w, u32 code, i32 less) {
  switch (w.meaning) {
    case SIGNED: return (float)(i8)code;
    case LESS_BIAS: return (float)((i32)code - less);
    case TABLE: return (float)value_of(w, code);
    default: return eighth_to_float(code);
  }
}

inline void eight_of_planes(const Weights& w, u32 row, u32 k8, float (&out)[8]) {
  u32 at = k8 * 8 / CHUNK, rest = w.cols - at * CHUNK, inputs = rest < CHUNK ? rest : CHUNK;
  u32 r = row % PANEL, e = k8 % (CHUNK / 8), runs = (inputs + (1u << w.run) - 1) >> w.run;
  const u8* chunk = w.at + row / PANEL * w.panel + (u64)at * w.chunk;
  Codes codes = codes_of(w, chunk, r, e, (inputs + STEP - 1) / STEP);
  Scale s = scale_of(w, codes.scales, r, 8 * e >> w.run, runs);
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    u32 code = (i < 4 ? codes.low : codes.high) >> 8 * (i % 4) & 255;
    out[i] = __fsub_rn(__fmul_rn(s.scale, meaning_of(w, code, s.less)), s.min);
  }
}

inline float widened(u32 bits, bool is_f16) { return is_f16 ? f16_to_float((u16)bits) : bf16_to_float((u16)bits); }

// Of the fragments of 16 inputs, 2 of a row are in the word of a lane.
inline void eight_of_fragments(const Weights& w, u32 row, u32 k8, float (&out)[8]) {
  u32 r = row % PANEL;
  const u32* words = (const u32*)(w.at + row / PANEL * w.panel) + (u64)(k8 / 2) * 128 + 16 * (r % 8) + r / 8 + 2 * (k8 % 2);
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    u32 two = words[4 * i];
    out[2 * i] = widened(two & 0xffff, w.stored == FRAGMENTS_OF_F16);
    out[2 * i + 1] = widened(two >> 16, w.stored == FRAGMENTS_OF_F16);
  }
}

// Rows as they are begin and end anywhere.
inline void eight_of_rows(const Weights& w, u32 row, u32 k8, float (&out)[8]) {
  const u8* at = w.at + row * w.panel;
#pragma unroll
  for (u32 i = 0; i < 8; i++) {
    u32 k = 8 * k8 + i;
    out[i] = 0.0f;
    if (k >= w.cols) continue;
    out[i] = w.stored == ROWS_OF_F32 ? ((const float*)at)[k] : widened(((const u16*)at)[k], w.stored == ROWS_OF_F16);
  }
}

// Weights 8 * k8 to 8 * k8 + 7 of a row, exactly as in the file; zeros past the last row or column.
inline void eight(const Weights& w, u32 row, u32 k8, float (&out)[8]) {
  if (row >= w.rows || 8 * k8 >= w.cols) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) out[i] = 0.0f;
    return;
  }
  switch (w.stored) {
    case PLANES: return eight_of_planes(w, row, k8, out);
    case FRAGMENTS_OF_F16:
    case FRAGMENTS_OF_BF16: return eight_of_fragments(w, row, k8, out);
    default: return eight_of_rows(w, row, k8, out);
  }
}

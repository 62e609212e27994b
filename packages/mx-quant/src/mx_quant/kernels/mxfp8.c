/* Quantization on the MX grids, equal to mx_quant.reference byte for byte.
 *
 * Two paths. The 16-bit path serves bf16 blocks that are ordinary: finite, no element but zero below
 * the smallest normal of the element format, and that one a normal bf16 number. There, dividing by the scale is a
 * subtraction from the exponent and everything stays in 16-bit lanes (lanes.h). The 32-bit path
 * serves every other block and input type; its loops are plain C for the compiler to vectorize.
 */
#if defined(__linux__)
#define _DEFAULT_SOURCE
#include <sys/mman.h>
#include <unistd.h>
#endif
#include "lanes.h"
#include <stdatomic.h>

typedef struct {
  int mantissa, bias, emax, code_max, nan;
  uint32_t max_bits, min_normal_bits;
  float reciprocal, magic; /* magic + y has the subnormal code of y in its low mantissa bits */
} format_t;

static const format_t FORMATS[2] = {
    {3, 7, 8, 0x7E, 0x7F, 0x43E00000, 0x3C800000, 1.0f / 448.0f, 0x1p14f},
    {2, 15, 15, 0x7B, 0x7F, 0x47600000, 0x38800000, 1.0f / 57344.0f, 0x1p7f},
};

/* ---- one value, one scale ------------------------------------------------------------------ */

INLINE int scale_byte(uint32_t amax, const format_t *f, int rule) {
  if (rule == MX_FLOOR) {
    int field = (int)(amax >> 23);
    int byte = (field > 254 ? 254 : field) - f->emax;
    return byte < 0 ? 0 : byte;
  }
  uint32_t v = mx_bits(mx_float(amax) * f->reciprocal), field = v >> 23, mantissa = v & 0x7FFFFF;
  uint32_t byte = field + (field ? mantissa > 0 : mantissa > 0x400000);
  return byte > 254 ? 254 : (int)byte;
}

INLINE float scale_factor(int byte, int rule) {
  if (rule == MX_ROUND_UP_PRE_2_13 && byte == 0) return 1.0f;
  return mx_float(byte == 254 ? 0x00400000u : (uint32_t)(254 - byte) << 23);
}

INLINE float scale_value(int byte) {
  return mx_float(byte == 255 ? 0x7FC00000u : byte ? (uint32_t)byte << 23 : 0x00400000u);
}

INLINE int stored_byte(int byte, int rule) {
  return rule == MX_ROUND_UP_ZERO_AS_ONE && byte == 0 ? 1 : byte;
}

INLINE uint32_t encode(float y, const format_t *f) {
  uint32_t bits = mx_bits(y), sign = bits >> 31 << 7, a = bits & 0x7FFFFFFF;
  uint32_t m = a < f->max_bits ? a : f->max_bits;
  int drop = 23 - f->mantissa;
  uint32_t normal = ((m + (1u << (drop - 1)) - 1 + ((m >> drop) & 1)) >> drop) -
                    ((uint32_t)(127 - f->bias) << f->mantissa);
  uint32_t subnormal = mx_bits(mx_float(m) + f->magic) - mx_bits(f->magic);
  uint32_t code = (m < f->min_normal_bits ? subnormal : normal) | sign;
  return a > 0x7F800000 ? (uint32_t)f->nan : code;
}

INLINE float decode(uint32_t code, const format_t *f) {
  uint32_t a = code & 0x7F, sign = (code & 0x80) << 24;
  uint32_t normal = (a << (23 - f->mantissa)) + ((uint32_t)(127 - f->bias) << 23);
  uint32_t subnormal = mx_bits((float)(int32_t)a * mx_float((uint32_t)(127 + 1 - f->bias - f->mantissa) << 23));
  uint32_t bits = a < (1u << f->mantissa) ? subnormal : normal;
  uint32_t top = (uint32_t)f->code_max;
  bits = a > top ? (f->mantissa == 2 && a == 0x7C ? 0x7F800000u : 0x7FC00000u) : bits;
  return mx_float(bits | sign);
}

/* ---- 32-bit path: blocks of 32 values that lie together ------------------------------------- */

INLINE void load32(const void *x, int kind, long offset, float v[MX_BLOCK]) {
  if (kind == MX_BF16) {
    const uint16_t *p = (const uint16_t *)x + offset;
    for (int i = 0; i < MX_BLOCK; i++) v[i] = mx_float((uint32_t)p[i] << 16);
  } else if (kind == MX_FP32) {
    memcpy(v, (const float *)x + offset, MX_BLOCK * sizeof(float));
  } else {
    const uint16_t *p = (const uint16_t *)x + offset;
    for (int i = 0; i < MX_BLOCK; i++) v[i] = mx_from_fp16(p[i]);
  }
}

INLINE void store32(void *out, int kind, long offset, const float v[MX_BLOCK]) {
  if (kind == MX_BF16) {
    uint16_t *p = (uint16_t *)out + offset;
    for (int i = 0; i < MX_BLOCK; i++) p[i] = mx_to_bf16(mx_bits(v[i]));
  } else if (kind == MX_FP32) {
    memcpy((float *)out + offset, v, MX_BLOCK * sizeof(float));
  } else {
    uint16_t *p = (uint16_t *)out + offset;
    for (int i = 0; i < MX_BLOCK; i++) p[i] = mx_to_fp16(v[i]);
  }
}

INLINE void store1(void *out, int kind, long offset, float v) {
  if (kind == MX_FP32) ((float *)out)[offset] = v;
  else ((uint16_t *)out)[offset] = kind == MX_BF16 ? mx_to_bf16(mx_bits(v)) : mx_to_fp16(v);
}

INLINE int block32(const float *restrict v, uint8_t *restrict code, const format_t *f, int rule) {
  uint32_t amax = 0;
  for (int i = 0; i < MX_BLOCK; i++) {
    uint32_t a = mx_bits(v[i]) & 0x7FFFFFFF;
    a = a > 0x7F800000 ? 0 : a;
    amax = a > amax ? a : amax;
  }
  int byte = scale_byte(amax, f, rule);
  float r = scale_factor(byte, rule);
  for (int i = 0; i < MX_BLOCK; i++) code[i] = (uint8_t)encode(v[i] * r, f);
  return stored_byte(byte, rule);
}

INLINE void values32(float v[MX_BLOCK], const format_t *f, int rule) {
  uint8_t code[MX_BLOCK];
  float s = scale_value(block32(v, code, f, rule));
  for (int i = 0; i < MX_BLOCK; i++) v[i] = decode(code[i], f) * s;
}

/* ---- 16-bit path ---------------------------------------------------------------------------- */

INLINE lanes magnitude(lanes x) { return l_and(x, l_set(0x7FFF)); }

INLINE lanes sign_bit(lanes x) { return l_and(l_shr(x, 8), l_set(0x80)); }

/* bf16 bits of the power of two that amax / max is rounded up to, times 2^emax: adding 0x1F carries
   into the exponent where the mantissa exceeds that of the largest element. */
INLINE lanes raised(lanes amax, int rule) {
  return l_and(l_add(amax, l_set(rule != MX_FLOOR ? 0x1F : 0)), l_set(0x7F80));
}

/* bf16 bits of the scale, less the exponent of the element's bias. Zero for a block of zeros, whose
   elements then stay zero. */
INLINE lanes base_of(lanes raised_amax, const format_t *f) {
  return l_max(l_sub(raised_amax, l_set((f->emax + f->bias) << 7)), l_set(0));
}

/* Zero where a lane is not zero and below the smallest normal element. */
INLINE lanes normal_room(lanes a, lanes base) { return l_less(l_sub(a, l_set(1)), l_add(base, l_set(0x7E))); }

INLINE lane_mask missing(lanes room) { return l_eq(room, l_set(0)); }

/* Codes under `base`. `room` takes the least normal_room. */
INLINE lanes quantize_lanes(lanes x, lanes base, const format_t *f, int rule, lanes *room) {
  const int d = 7 - f->mantissa;
  lanes a = magnitude(x), t = l_less(a, base);
  lanes tie = l_and(l_shr(t, d), l_set(1));
  lanes n = l_shr(l_add(l_add(t, l_set((1 << (d - 1)) - 1)), tie), d);
  if (rule == MX_FLOOR) n = l_min(n, l_set(f->code_max)); /* the other rules never saturate */
  *room = l_least(*room, normal_room(a, base));
  return l_or(n, sign_bit(x));
}

/* The values of the same codes: the mantissa rounded to the element's. */
INLINE lanes values_lanes(lanes x, lanes raised_amax, const format_t *f, int rule, lanes *room) {
  const int d = 7 - f->mantissa;
  lanes a = magnitude(x), tie = l_and(l_shr(a, d), l_set(1));
  lanes n = l_and(l_add(l_add(a, l_set((1 << (d - 1)) - 1)), tie), l_set(~((1 << d) - 1)));
  if (rule == MX_FLOOR) n = l_min(n, l_or(raised_amax, l_set(0x60)));
  *room = l_least(*room, normal_room(a, base_of(raised_amax, f)));
  return l_or(n, l_and(x, l_set(-0x8000)));
}

/* Scale bytes of 32 blocks with these amax, and their scales as `raised`; 0 where a block is not
   ordinary. Blocks of zeros count as ordinary, with byte 0. */
INLINE int ordinary_scales(lanes amax, const format_t *f, int rule, lanes *up, lanes *byte) {
  lane_mask zero = l_eq(amax, l_set(0));
  *up = raised(amax, rule);
  lane_mask low = l_lt(*up, l_set((f->emax + f->bias) << 7));
  lane_mask bad = m_or(l_lt(l_set(0x7F7F), amax), m_less(low, zero));
  *byte = l_clear(zero, l_sub(l_shr(*up, 7), l_set(f->emax)));
  if (rule == MX_ROUND_UP_ZERO_AS_ONE) *byte = l_max(*byte, l_set(1));
  return !m_any(bad);
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum { GROUP = 32, PART = 8 }; /* blocks whose scales are made together; that are encoded together */

/* 32 blocks that lie together; bit i of the result is set where blocks [8 i, 8 i + 8) are not all
   done. */
INLINE int quantize_group(const uint16_t *x, const format_t *f, int rule, uint8_t *code, uint8_t *scale) {
  uint16_t amax[GROUP], base[GROUP];
  for (int b = 0; b < GROUP; b++) amax[b] = (uint16_t)l_largest(magnitude(l_load(x + b * MX_BLOCK)));
  lanes up, byte;
  if (!ordinary_scales(l_load(amax), f, rule, &up, &byte)) return (1 << GROUP / PART) - 1;
  l_store(base, base_of(up, f));
  l_store_bytes(scale, byte);
  int left = 0;
  for (int i = 0; i < GROUP / PART; i++) {
    lanes room = l_set(-1);
    for (int b = i * PART; b < (i + 1) * PART; b++)
      l_store_bytes(code + b * MX_BLOCK,
                    quantize_lanes(l_load(x + b * MX_BLOCK), l_set(base[b]), f, rule, &room));
    left |= m_any(missing(room)) << i;
  }
  return left;
}

INLINE int quantize_block(const void *x, int kind, long offset, const format_t *f, int rule, uint8_t *code) {
  if (kind == MX_BF16) {
    lanes v = l_load((const uint16_t *)x + offset), room = l_set(-1), up, byte;
    int amax = l_largest(magnitude(v));
    if (ordinary_scales(l_set(amax), f, rule, &up, &byte)) {
      lanes codes = quantize_lanes(v, base_of(up, f), f, rule, &room);
      if (!m_any(missing(room))) {
        l_store_bytes(code, codes);
        return stored_byte(amax ? scale_byte((uint32_t)amax << 16, f, rule) : 0, rule);
      }
    }
  }
  float v[MX_BLOCK];
  load32(x, kind, offset, v);
  return block32(v, code, f, rule);
}

/* `blocks` blocks that lie together. */
INLINE void quantize_blocks(const void *x, int kind, long offset, long blocks, const format_t *f, int rule,
                            uint8_t *code, uint8_t *scale) {
  for (long g = 0; g < blocks; g += GROUP) {
    int left = -1;
    if (kind == MX_BF16 && blocks - g >= GROUP)
      left = quantize_group((const uint16_t *)x + offset + g * MX_BLOCK, f, rule, code + g * MX_BLOCK, scale + g);
    for (int i = 0; left && i < GROUP && g + i < blocks; i++)
      if (left >> i / PART & 1) {
        long b = g + i;
        scale[b] = (uint8_t)quantize_block(x, kind, offset + b * MX_BLOCK, f, rule, code + b * MX_BLOCK);
      }
  }
}

INLINE void store_values(void *out, int out_kind, long offset, lanes v) {
  if (out_kind == MX_FP32) l_store_fp32((float *)out + offset, v);
  else l_store((uint16_t *)out + offset, v);
}

/* As quantize_group, to `out` as bf16 or fp32; bit i is set where block i is not done. */
INLINE uint32_t values_group(const uint16_t *x, const format_t *f, int rule, void *out, int out_kind, long offset) {
  uint16_t amax[GROUP], scale[GROUP];
  for (int b = 0; b < GROUP; b++) amax[b] = (uint16_t)l_largest(magnitude(l_load(x + b * MX_BLOCK)));
  lanes up, byte;
  if (!ordinary_scales(l_load(amax), f, rule, &up, &byte)) return UINT32_MAX;
  l_store(scale, up);
  uint32_t left = 0;
  for (int b = 0; b < GROUP; b++) {
    lanes room = l_set(-1);
    store_values(out, out_kind, offset + b * MX_BLOCK,
                 values_lanes(l_load(x + b * MX_BLOCK), l_set(scale[b]), f, rule, &room));
    left |= (uint32_t)m_any(missing(room)) << b;
  }
  return left;
}

/* `blocks` blocks that lie together. */
INLINE void values_blocks(const void *x, int kind, long offset, long blocks, const format_t *f, int rule,
                          void *out, int out_kind, long out_offset) {
  for (long g = 0; g < blocks; g += GROUP) {
    uint32_t left = UINT32_MAX;
    if (kind == MX_BF16 && out_kind != MX_FP16 && blocks - g >= GROUP)
      left = values_group((const uint16_t *)x + offset + g * MX_BLOCK, f, rule, out, out_kind, out_offset + g * MX_BLOCK);
    for (int i = 0; left >> i && i < GROUP && g + i < blocks; i++) {
      if (!(left >> i & 1)) continue;
      float v[MX_BLOCK];
      load32(x, kind, offset + (g + i) * MX_BLOCK, v);
      values32(v, f, rule);
      store32(out, out_kind, out_offset + (g + i) * MX_BLOCK, v);
    }
  }
}

void mx_values_rowwise(const void *x, int kind, long rows, long cols, int format, int rule, float *out) {
  if (format != MX_NONE) {
    long blocks = rows * (cols / MX_BLOCK);
    if (format == MX_E4M3) values_blocks(x, kind, 0, blocks, &FORMATS[MX_E4M3], rule, out, MX_FP32, 0);
    else values_blocks(x, kind, 0, blocks, &FORMATS[MX_E5M2], rule, out, MX_FP32, 0);
    return;
  }
  long n = rows * cols;
  if (kind == MX_FP32) memcpy(out, x, (size_t)n * sizeof(float));
  else if (kind == MX_BF16)
    for (long i = 0; i < n; i++) out[i] = mx_float((uint32_t)((const uint16_t *)x)[i] << 16);
  else
    for (long i = 0; i < n; i++) out[i] = mx_from_fp16(((const uint16_t *)x)[i]);
}

/* ---- strips of 32 rows whose columns are the blocks ------------------------------------------ */

enum { TILE = 32 }; /* columns handled together */

/* A tile as bf16 bits, when the input is bf16. Missing rows and columns are zero. */
INLINE void load_tile16(const uint16_t *x, long rows, long cols, long c0, int width, uint16_t t[MX_BLOCK][TILE]) {
  for (int r = 0; r < MX_BLOCK; r++) {
    if (r < rows && width == TILE) memcpy(t[r], x + r * cols + c0, TILE * sizeof(uint16_t));
    else {
      memset(t[r], 0, TILE * sizeof(uint16_t));
      if (r < rows) memcpy(t[r], x + r * cols + c0, (size_t)width * sizeof(uint16_t));
    }
  }
}

INLINE void load_tile32(const void *x, int kind, long rows, long cols, long c0, int width, float t[MX_BLOCK][TILE]) {
  for (int r = 0; r < MX_BLOCK; r++) {
    memset(t[r], 0, TILE * sizeof(float));
    if (r >= rows) continue;
    long o = r * cols + c0;
    if (kind == MX_FP32) memcpy(t[r], (const float *)x + o, (size_t)width * sizeof(float));
    else if (kind == MX_BF16)
      for (int c = 0; c < width; c++) t[r][c] = mx_float((uint32_t)((const uint16_t *)x)[o + c] << 16);
    else
      for (int c = 0; c < width; c++) t[r][c] = mx_from_fp16(((const uint16_t *)x)[o + c]);
  }
}

INLINE int values_tile16(uint16_t t[MX_BLOCK][TILE], const format_t *f, int rule) {
  lanes amax = l_set(0), up, byte;
  for (int r = 0; r < MX_BLOCK; r++) amax = l_max(amax, magnitude(l_load(t[r])));
  if (!ordinary_scales(amax, f, rule, &up, &byte)) return 0;
  uint16_t out[MX_BLOCK][TILE];
  lanes room = l_set(-1);
  for (int r = 0; r < MX_BLOCK; r++) l_store(out[r], values_lanes(l_load(t[r]), up, f, rule, &room));
  if (m_any(missing(room))) return 0;
  memcpy(t, out, sizeof out);
  return 1;
}

INLINE void quantize_tile32(float (*restrict t)[TILE], const format_t *f, int rule,
                            uint8_t (*restrict code)[TILE], uint8_t *restrict scale) {
  uint32_t amax[TILE] = {0};
  float factor[TILE];
  for (int r = 0; r < MX_BLOCK; r++)
    for (int c = 0; c < TILE; c++) {
      uint32_t a = mx_bits(t[r][c]) & 0x7FFFFFFF;
      a = a > 0x7F800000 ? 0 : a;
      amax[c] = a > amax[c] ? a : amax[c];
    }
  for (int c = 0; c < TILE; c++) {
    int byte = scale_byte(amax[c], f, rule);
    factor[c] = scale_factor(byte, rule);
    scale[c] = (uint8_t)stored_byte(byte, rule);
  }
  for (int r = 0; r < MX_BLOCK; r++)
    for (int c = 0; c < TILE; c++) code[r][c] = (uint8_t)encode(t[r][c] * factor[c], f);
}

INLINE void decode_tile(uint8_t (*restrict code)[TILE], const uint8_t *restrict scale, const format_t *f,
                        float (*restrict t)[TILE]) {
  float s[TILE];
  for (int c = 0; c < TILE; c++) s[c] = scale_value(scale[c]);
  for (int r = 0; r < MX_BLOCK; r++)
    for (int c = 0; c < TILE; c++) t[r][c] = decode(code[r][c], f) * s[c];
}

INLINE void quantize_columns32(const void *x, int kind, long cols, long c, int width, const format_t *f, int rule,
                               uint8_t *code, uint8_t *scale) {
  float t[MX_BLOCK][TILE];
  uint8_t out[MX_BLOCK][TILE], bytes[TILE];
  load_tile32(x, kind, MX_BLOCK, cols, c, width, t);
  quantize_tile32(t, f, rule, out, bytes);
  for (int r = 0; r < MX_BLOCK; r++) memcpy(code + r * cols + c, out[r], (size_t)width);
  memcpy(scale + c, bytes, (size_t)width);
}

enum { STRIP = 2048 }; /* columns of a strip that are gone through twice: 128 KiB */

/* The amax of `width` columns of 32 rows: rows are read in their order, four together. */
INLINE void strip_amax(const uint16_t *x, long stride, long width, uint16_t *amax) {
  for (int r = 0; r < MX_BLOCK; r += 4) {
    const uint16_t *row = x + r * stride;
    for (long c = 0; c < width; c += TILE) {
      lanes m = magnitude(l_load(row + c));
      for (int i = 1; i < 4; i++) m = l_max(m, magnitude(l_load(row + i * stride + c)));
      l_store(amax + c, r ? l_max(m, l_load(amax + c)) : m);
    }
  }
}

/* What 32 columns of a strip are on the way: their scales as `base` or `raised`, and the least room.
   Ready for use are columns whose scale is ordinary; they are done if room is left. */
typedef struct { uint16_t scale[STRIP], room[STRIP]; uint8_t ready[STRIP / TILE]; } strip_t;

INLINE int tile_done(const strip_t *s, long c) {
  return s->ready[c / TILE] && !m_any(missing(l_load(s->room + c)));
}

/* One column that is not ordinary; `x`, `code` and `scale` begin at it. */
INLINE void quantize_column(const uint16_t *x, long cols, const format_t *f, int rule, uint8_t *code, uint8_t *scale) {
  float v[MX_BLOCK];
  uint8_t out[MX_BLOCK];
  for (int r = 0; r < MX_BLOCK; r++) v[r] = mx_float((uint32_t)x[r * cols] << 16);
  *scale = (uint8_t)block32(v, out, f, rule);
  for (int r = 0; r < MX_BLOCK; r++) code[r * cols] = out[r];
}

/* `width` columns, a multiple of 32 up to STRIP. Rows are gone through in their order, so that memory
   is read and written in runs. */
INLINE void quantize_strip16(const uint16_t *x, long cols, long width, const format_t *f, int rule,
                             uint8_t *code, uint8_t *scale) {
  strip_t s;
  uint16_t amax[STRIP];
  strip_amax(x, cols, width, amax);
  for (long c = 0; c < width; c += TILE) {
    lanes up, byte;
    s.ready[c / TILE] = (uint8_t)ordinary_scales(l_load(amax + c), f, rule, &up, &byte);
    l_store(s.scale + c, base_of(up, f));
    l_store(s.room + c, l_set(-1));
    l_store_bytes(scale + c, byte);
  }
  for (int r = 0; r < MX_BLOCK; r++)
    for (long c = 0; c < width; c += TILE) {
      lanes room = l_load(s.room + c);
      l_store_bytes(code + r * cols + c, quantize_lanes(l_load(x + r * cols + c), l_load(s.scale + c), f, rule, &room));
      l_store(s.room + c, room);
    }
  for (long c = 0; c < width; c += TILE)
    for (long k = c; !tile_done(&s, c) && k < c + TILE; k++)
      if (!s.ready[c / TILE] || !s.room[k]) quantize_column(x + k, cols, f, rule, code + k, scale + k);
}

INLINE void quantize_strip(const void *x, int kind, long cols, const format_t *f, int rule,
                           uint8_t *code, uint8_t *scale) {
  long whole = kind == MX_BF16 ? cols / TILE * TILE : 0;
  for (long c = 0; c < whole; c += STRIP)
    quantize_strip16((const uint16_t *)x + c, cols, whole - c < STRIP ? whole - c : STRIP, f, rule, code + c, scale + c);
  for (long c = whole; c < cols; c += TILE)
    quantize_columns32(x, kind, cols, c, cols - c < TILE ? (int)(cols - c) : TILE, f, rule, code, scale);
}

/* One tile's values: bf16 bits in t->h and 1 returned, or fp32 in t->w and 0. */
typedef union { uint16_t h[MX_BLOCK][TILE]; float w[MX_BLOCK][TILE]; } tile_t;

INLINE int values_tile(const void *x, int kind, long rows, long cols, long c, int width,
                       const format_t *f, int rule, tile_t *t) {
  if (kind == MX_BF16) {
    load_tile16((const uint16_t *)x, rows, cols, c, width, t->h);
    if (values_tile16(t->h, f, rule)) return 1;
  }
  uint8_t out[MX_BLOCK][TILE], bytes[TILE];
  load_tile32(x, kind, rows, cols, c, width, t->w);
  quantize_tile32(t->w, f, rule, out, bytes);
  decode_tile(out, bytes, f, t->w);
  return 0;
}

void mx_values_strip(const void *x, int kind, long rows, long cols, long c0, long c1, int format,
                     int rule, float *out) {
  long wide = c1 - c0;
  for (long c = c0; c < c1; c += TILE) {
    tile_t t;
    int width = c1 - c < TILE ? (int)(c1 - c) : TILE, half;
    if (format == MX_NONE) { load_tile32(x, kind, rows, cols, c, width, t.w); half = 0; }
    else if (format == MX_E4M3) half = values_tile(x, kind, rows, cols, c, width, &FORMATS[MX_E4M3], rule, &t);
    else half = values_tile(x, kind, rows, cols, c, width, &FORMATS[MX_E5M2], rule, &t);
    for (int r = 0; r < MX_BLOCK; r++) {
      float *p = out + r * wide + (c - c0);
      if (half) for (int i = 0; i < width; i++) p[i] = mx_float((uint32_t)t.h[r][i] << 16);
      else memcpy(p, t.w[r], (size_t)width * sizeof(float));
    }
  }
}

/* As quantize_strip16, to an `out` as wide as x. */
INLINE void values_strip16(const uint16_t *x, long cols, long width, const format_t *f, int rule, void *out,
                           int out_kind, long offset) {
  strip_t s;
  uint16_t amax[STRIP];
  strip_amax(x, cols, width, amax);
  for (long c = 0; c < width; c += TILE) {
    lanes up, byte;
    s.ready[c / TILE] = (uint8_t)ordinary_scales(l_load(amax + c), f, rule, &up, &byte);
    l_store(s.scale + c, up);
    l_store(s.room + c, l_set(-1));
  }
  for (int r = 0; r < MX_BLOCK; r++)
    for (long c = 0; c < width; c += TILE) {
      lanes room = l_load(s.room + c);
      lanes v = values_lanes(l_load(x + r * cols + c), l_load(s.scale + c), f, rule, &room);
      store_values(out, out_kind, offset + r * cols + c, v);
      l_store(s.room + c, room);
    }
  for (long c = 0; c < width; c += TILE) {
    for (long k = c; !tile_done(&s, c) && k < c + TILE; k++) {
      if (s.ready[c / TILE] && s.room[k]) continue;
      float v[MX_BLOCK];
      for (int r = 0; r < MX_BLOCK; r++) v[r] = mx_float((uint32_t)x[r * cols + k] << 16);
      values32(v, f, rule);
      for (int r = 0; r < MX_BLOCK; r++) store1(out, out_kind, offset + r * cols + k, v[r]);
    }
  }
}

INLINE void values_strip_store(const void *x, int kind, long rows, long cols, const format_t *f, int rule,
                               void *out, int out_kind) {
  long whole = kind == MX_BF16 && out_kind != MX_FP16 && rows == MX_BLOCK ? cols / TILE * TILE : 0;
  for (long c = 0; c < whole; c += STRIP)
    values_strip16((const uint16_t *)x + c, cols, whole - c < STRIP ? whole - c : STRIP, f, rule, out, out_kind, c);
  for (long c = whole; c < cols; c += TILE) {
    tile_t t;
    int width = cols - c < TILE ? (int)(cols - c) : TILE;
    int half = values_tile(x, kind, rows, cols, c, width, f, rule, &t);
    for (int r = 0; r < rows; r++) {
      long o = r * cols + c;
      if (half && out_kind == MX_BF16) { memcpy((uint16_t *)out + o, t.h[r], (size_t)width * 2); continue; }
      float v[TILE];
      if (half) for (int i = 0; i < TILE; i++) v[i] = mx_float((uint32_t)t.h[r][i] << 16);
      else memcpy(v, t.w[r], sizeof v);
      if (out_kind == MX_FP32) memcpy((float *)out + o, v, (size_t)width * 4);
      else if (out_kind == MX_BF16) for (int i = 0; i < width; i++) ((uint16_t *)out)[o + i] = mx_to_bf16(mx_bits(v[i]));
      else for (int i = 0; i < width; i++) ((uint16_t *)out)[o + i] = mx_to_fp16(v[i]);
    }
  }
}

/* ---- entry points ---------------------------------------------------------------------------- */

typedef struct {
  const void *x; void *out; const uint8_t *code_in, *scale_in;
  uint8_t *row_code, *row_scale, *col_code, *col_scale;
  long rows, cols, step; int kind, out_kind, rule, axis; const format_t *format;
  atomic_long *bad;
} call_t;

static size_t kind_size(int kind) { return kind == MX_FP32 ? 4 : 2; }

/* Rows a task handles: whole strips, about 64 Ki elements. */
static long step_rows(long cols) {
  long step = 65536 / (cols > 0 ? cols : 1) / MX_BLOCK * MX_BLOCK;
  return step < MX_BLOCK ? MX_BLOCK : step;
}

static void run(mx_task task, call_t *call, int threads) {
  call->step = step_rows(call->cols);
  long count = (call->rows + call->step - 1) / call->step;
  if (threads <= 1 || count <= 1) { mx_run(task, call, count, 1); return; }
  mx_begin();
  mx_run(task, call, count, threads);
  mx_end();
}

/* A task for each element format, whose constants the compiler then knows. */
#define SPECIALIZE(TASK, BODY)                                        \
  static void TASK(void *context, long index) {                       \
    const call_t *c = context;                                        \
    if (c->format == &FORMATS[MX_E4M3]) BODY(c, index, &FORMATS[MX_E4M3]); \
    else BODY(c, index, &FORMATS[MX_E5M2]);                           \
  }

static void range(const call_t *c, long index, long *r0, long *r1) {
  *r0 = index * c->step;
  *r1 = *r0 + c->step < c->rows ? *r0 + c->step : c->rows;
}

INLINE void quantize_range(const call_t *c, long index, const format_t *f) {
  long r0, r1;
  range(c, index, &r0, &r1);
  for (long s = r0; s < r1; s += MX_BLOCK) {
    long end = s + MX_BLOCK < r1 ? s + MX_BLOCK : r1;
    if (c->row_code)
      quantize_blocks(c->x, c->kind, s * c->cols, (end - s) * (c->cols / MX_BLOCK), f, c->rule,
                      c->row_code + s * c->cols, c->row_scale + s * (c->cols / MX_BLOCK));
    if (c->col_code)
      quantize_strip((const char *)c->x + (size_t)(s * c->cols) * kind_size(c->kind), c->kind, c->cols,
                     f, c->rule, c->col_code + s * c->cols, c->col_scale + s / MX_BLOCK * c->cols);
  }
}

SPECIALIZE(quantize_task, quantize_range)

/* Either pair of outputs may be NULL. rows % 32 == 0 for the columnwise pair, cols % 32 == 0 for
   the rowwise pair. */
MX_API void mx_quantize(const void *x, int kind, long rows, long cols, int format, int rule,
                        uint8_t *row_code, uint8_t *row_scale, uint8_t *col_code, uint8_t *col_scale,
                        int threads) {
  call_t c = {.x = x, .kind = kind, .rows = rows, .cols = cols, .format = &FORMATS[format], .rule = rule,
              .row_code = row_code, .row_scale = row_scale, .col_code = col_code, .col_scale = col_scale};
  run(quantize_task, &c, threads);
}

INLINE void fake_range(const call_t *c, long index, const format_t *f) {
  long r0, r1;
  range(c, index, &r0, &r1);
  if (c->axis == -1) {
    values_blocks(c->x, c->kind, r0 * c->cols, (r1 - r0) * (c->cols / MX_BLOCK), f, c->rule, c->out, c->out_kind,
                  r0 * c->cols);
    return;
  }
  for (long s = r0; s < r1; s += MX_BLOCK) {
    long rows = r1 - s < MX_BLOCK ? r1 - s : MX_BLOCK;
    size_t o = (size_t)(s * c->cols);
    values_strip_store((const char *)c->x + o * kind_size(c->kind), c->kind, rows, c->cols, f,
                       c->rule, (char *)c->out + o * kind_size(c->out_kind), c->out_kind);
  }
}

SPECIALIZE(fake_task, fake_range)

/* For axis -2 a last strip of fewer than 32 rows is quantized as if padded with zero rows. */
MX_API void mx_fake_quantize(const void *x, int kind, long rows, long cols, int format, int rule, int axis,
                             void *out, int out_kind, int threads) {
  call_t c = {.x = x, .kind = kind, .rows = rows, .cols = cols, .format = &FORMATS[format], .rule = rule,
              .axis = axis, .out = out, .out_kind = out_kind};
  run(fake_task, &c, threads);
}

/* bf16 bits of an E4M3 code under a scale that keeps every value a normal bf16 number: bytes 10 to
   246, with base = (byte - 7) << 7. */
INLINE uint16_t decode_bits16(uint8_t code, uint16_t base) {
  uint16_t a = code & 0x7F, one = (uint16_t)(base - 0x100);
  uint16_t normal = (uint16_t)((uint16_t)(a << 4) + base);
  uint16_t four = (uint16_t)(one + 0x100 + ((a & 3) << 5)), two = (uint16_t)(one + 0x80 + ((a & 1) << 6));
  uint16_t small = a < 2 ? one : (a < 4 ? two : four);
  small = a ? small : 0;
  uint16_t v = a < 8 ? small : normal;
  v = a == 0x7F ? 0x7FC0 : v;
  return v | (uint16_t)((code & 0x80) << 8);
}

/* bf16 bits of codes under base = (byte - bias) << 7. `room` becomes zero where a code is subnormal,
   `top` exceeds code_max where one is not finite. */
INLINE lanes decode_lanes(lanes code, lanes base, const format_t *f, lanes *room, lanes *top) {
  lanes a = l_and(code, l_set(0x7F));
  lanes n = l_clear(l_eq(a, l_set(0)), l_add(l_shl(a, 7 - f->mantissa), base));
  *room = l_least(*room, l_less(l_sub(a, l_set(1)), l_set((1 << f->mantissa) - 2)));
  *top = l_max(*top, a);
  return l_or(n, l_shl(l_and(code, l_set(0x80)), 8));
}

INLINE int decoded(lanes room, lanes top, const format_t *f) {
  return !m_any(m_or(missing(room), l_lt(l_set(f->code_max), top)));
}

/* Whether every normal element under this scale is a normal bf16 number. */
INLINE int ordinary_scale(int byte, const format_t *f) { return byte >= f->bias && byte <= 254 - f->emax; }

/* One block as bf16 bits; 0 where bf16 arithmetic does not do. */
INLINE int decode16(const uint8_t *code, int byte, const format_t *f, lanes *out) {
  if (!ordinary_scale(byte, f)) return 0;
  lanes room = l_set(-1), top = l_set(0);
  *out = decode_lanes(l_load_bytes(code), l_set((byte - f->bias) << 7), f, &room, &top);
  return decoded(room, top, f);
}

/* Bases of 32 scales; 0 where bf16 arithmetic does not do for all of them. */
INLINE int decode_bases(const uint8_t *scale, const format_t *f, lanes *base) {
  lanes bytes = l_load_bytes(scale);
  *base = l_shl(l_sub(bytes, l_set(f->bias)), 7);
  return !m_any(m_or(l_lt(bytes, l_set(f->bias)), l_lt(l_set(254 - f->emax), bytes)));
}

void mx_decode_block(const uint8_t *code, int byte, int format, uint16_t *out) {
  const format_t *f = &FORMATS[format];
  lanes bits;
  if (decode16(code, byte, f, &bits)) { l_store(out, bits); return; }
  float s = scale_value(byte);
  for (int i = 0; i < MX_BLOCK; i++) out[i] = mx_to_bf16(mx_bits(decode(code[i], f) * s));
}

/* `width` columns (16 or 32) of 32 rows, bf16 bits; see mx_decode_tile. */
INLINE void decode_columns(const uint8_t *code, long stride, const uint8_t *restrict scale, int width,
                           const format_t *f, uint16_t *restrict out) {
  uint16_t base[TILE];
  int ordinary = f->mantissa == 3;
  for (int c = 0; c < width; c++) {
    ordinary &= (scale[c] >= 10) & (scale[c] <= 246);
    base[c] = (uint16_t)((scale[c] - 7) << 7);
  }
  if (ordinary) {
    for (int r = 0; r < MX_BLOCK; r++) {
      const uint8_t *restrict row = code + r * stride;
      for (int c = 0; c < width; c++) out[r * width + c] = decode_bits16(row[c], base[c]);
    }
    return;
  }
  float s[TILE];
  for (int c = 0; c < width; c++) s[c] = scale_value(scale[c]);
  for (int r = 0; r < MX_BLOCK; r++)
    for (int c = 0; c < width; c++)
      out[r * width + c] = mx_to_bf16(mx_bits(decode(code[r * stride + c], f) * s[c]));
}

void mx_decode_tile(const uint8_t *code, long stride, const uint8_t *scale, int width, int format, uint16_t *out) {
  const format_t *f = &FORMATS[format];
  if (format == MX_E4M3 && width == 16) decode_columns(code, stride, scale, 16, &FORMATS[MX_E4M3], out);
  else if (format == MX_E4M3 && width == 32) decode_columns(code, stride, scale, 32, &FORMATS[MX_E4M3], out);
  else decode_columns(code, stride, scale, width, f, out);
}

/* 32 blocks that lie together; bit i of the result is set where blocks [8 i, 8 i + 8) are not all
   done. */
INLINE int decode_group(const uint8_t *code, const uint8_t *scale, const format_t *f, void *out, int out_kind, long offset) {
  lanes bases;
  uint16_t base[GROUP];
  if (!decode_bases(scale, f, &bases)) return (1 << GROUP / PART) - 1;
  l_store(base, bases);
  int left = 0;
  for (int i = 0; i < GROUP / PART; i++) {
    lanes room = l_set(-1), top = l_set(0);
    for (int b = i * PART; b < (i + 1) * PART; b++)
      store_values(out, out_kind, offset + b * MX_BLOCK,
                   decode_lanes(l_load_bytes(code + b * MX_BLOCK), l_set(base[b]), f, &room, &top));
    left |= !decoded(room, top, f) << i;
  }
  return left;
}

INLINE void decode_blocks(const uint8_t *code, const uint8_t *scale, long blocks, const format_t *f,
                          void *out, int out_kind, long offset) {
  for (long g = 0; g < blocks; g += GROUP) {
    int left = -1;
    if (out_kind != MX_FP16 && blocks - g >= GROUP)
      left = decode_group(code + g * MX_BLOCK, scale + g, f, out, out_kind, offset + g * MX_BLOCK);
    for (int i = 0; left && i < GROUP && g + i < blocks; i++) {
      if (!(left >> i / PART & 1)) continue;
      const uint8_t *block = code + (g + i) * MX_BLOCK;
      long o = offset + (g + i) * MX_BLOCK;
      lanes bits;
      if (out_kind != MX_FP16 && decode16(block, scale[g + i], f, &bits)) {
        store_values(out, out_kind, o, bits);
        continue;
      }
      float v[MX_BLOCK], s = scale_value(scale[g + i]);
      for (int k = 0; k < MX_BLOCK; k++) v[k] = decode(block[k], f) * s;
      store32(out, out_kind, o, v);
    }
  }
}

/* `rows` rows of up to STRIP columns, which share the scales. */
INLINE void decode_strip(const uint8_t *code, const uint8_t *scale, long rows, long cols, long width, const format_t *f,
                         void *out, int out_kind, long offset) {
  uint16_t base[STRIP];
  float factor[STRIP];
  uint8_t ready[STRIP / TILE] = {0};
  long whole = out_kind == MX_FP16 ? 0 : width / TILE * TILE;
  for (long c = 0; c < whole; c += TILE) {
    lanes bases;
    ready[c / TILE] = (uint8_t)decode_bases(scale + c, f, &bases);
    l_store(base + c, bases);
  }
  for (long c = 0; c < width; c++) factor[c] = scale_value(scale[c]);
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < width; c += TILE) {
      const uint8_t *tile = code + r * cols + c;
      long o = offset + r * cols + c;
      if (ready[c / TILE]) {
        lanes room = l_set(-1), top = l_set(0);
        lanes bits = decode_lanes(l_load_bytes(tile), l_load(base + c), f, &room, &top);
        if (decoded(room, top, f)) {
          store_values(out, out_kind, o, bits);
          continue;
        }
      }
      float v[TILE];
      long last = width - c < TILE ? width - c : TILE;
      for (long i = 0; i < last; i++) v[i] = decode(tile[i], f) * factor[c + i];
      if (last == TILE) store32(out, out_kind, o, v);
      else for (long i = 0; i < last; i++) store1(out, out_kind, o + i, v[i]);
    }
}

INLINE void dequantize_range(const call_t *c, long index, const format_t *f) {
  long r0, r1;
  range(c, index, &r0, &r1);
  if (c->axis == -1) {
    long blocks = c->cols / MX_BLOCK;
    decode_blocks(c->code_in + r0 * c->cols, c->scale_in + r0 * blocks, (r1 - r0) * blocks, f, c->out, c->out_kind,
                  r0 * c->cols);
    return;
  }
  for (long s = r0; s < r1; s += MX_BLOCK)
    for (long k = 0; k < c->cols; k += STRIP)
      decode_strip(c->code_in + s * c->cols + k, c->scale_in + s / MX_BLOCK * c->cols + k,
                   r1 - s < MX_BLOCK ? r1 - s : MX_BLOCK, c->cols, c->cols - k < STRIP ? c->cols - k : STRIP, f,
                   c->out, c->out_kind, s * c->cols + k);
}

SPECIALIZE(dequantize_task, dequantize_range)

MX_API void mx_dequantize(const uint8_t *code, const uint8_t *scale, long rows, long cols, int format,
                          int axis, void *out, int out_kind, int threads) {
  call_t c = {.code_in = code, .scale_in = scale, .rows = rows, .cols = cols, .format = &FORMATS[format],
              .axis = axis, .out = out, .out_kind = out_kind};
  run(dequantize_task, &c, threads);
}

/* Codes of 32 values on the grid with scale `byte`; returns how many are off it. */
INLINE long encode32(const float *restrict v, int byte, uint8_t *restrict code, const format_t *f) {
  float s = scale_value(byte), factor = byte == 255 ? s : scale_factor(byte, MX_ROUND_UP);
  int32_t off = 0;
  for (int i = 0; i < MX_BLOCK; i++) {
    uint32_t byte_i = encode(v[i] * factor, f), want = mx_bits(v[i]);
    uint32_t got = mx_bits(decode(byte_i, f) * s);
    int32_t nan = (want & 0x7FFFFFFF) > 0x7F800000 ? (got & 0x7FFFFFFF) > 0x7F800000 : 0;
    /* Several codes may overflow to Inf: it cannot be traced back to one. */
    off += (got == want) & ((got & 0x7FFFFFFF) != 0x7F800000) ? 0 : 1 - nan;
    code[i] = (uint8_t)byte_i;
  }
  return off;
}

/* The same for bf16 bits in 16-bit lanes; 0 where the block is not ordinary. */
INLINE int encode16(const uint16_t *x, int byte, uint8_t *code, const format_t *f) {
  const int d = 7 - f->mantissa;
  if (byte <= f->bias || byte > 254 - f->emax) return 0;
  lanes v = l_load(x), a = magnitude(v), base = l_set((byte - f->bias) * 128);
  lanes t = l_sub(a, base), n = l_sar(t, d);
  lane_mask zero = l_eq(a, l_set(0)), exact = l_eq(l_and(t, l_set((1 << d) - 1)), l_set(0));
  lane_mask wrong = m_or(l_lt(t, l_set(0x80)), l_lt(l_set(f->code_max), n));
  lane_mask inexact = m_less(l_eq(a, a), exact);
  if (m_any(m_less(m_or(wrong, inexact), zero))) return 0;
  l_store_bytes(code, l_or(l_clear(zero, n), sign_bit(v)));
  return 1;
}

long mx_encode_block(const uint16_t *x, int byte, int format, uint8_t *code) {
  const format_t *f = &FORMATS[format];
  if (format == MX_E4M3 ? encode16(x, byte, code, &FORMATS[MX_E4M3]) : encode16(x, byte, code, f)) return 0;
  float v[MX_BLOCK];
  load32(x, MX_BF16, 0, v);
  return encode32(v, byte, code, f);
}

INLINE void encode_range(const call_t *c, long index, const format_t *f) {
  long r0, r1, bad = 0;
  range(c, index, &r0, &r1);
  for (long r = r0; r < r1; r++)
    for (long k = 0; k < c->cols; k += MX_BLOCK) {
      int byte = c->scale_in[r * (c->cols / MX_BLOCK) + k / MX_BLOCK];
      uint8_t *code = c->row_code + r * c->cols + k;
      if (c->kind == MX_BF16 && encode16((const uint16_t *)c->x + r * c->cols + k, byte, code, f)) continue;
      float v[MX_BLOCK];
      load32(c->x, c->kind, r * c->cols + k, v);
      bad += encode32(v, byte, code, f);
    }
  if (bad) atomic_fetch_add(c->bad, bad);
}

SPECIALIZE(encode_task, encode_range)

/* Element bytes of values that already lie on the grid with the given rowwise scales.
   Returns how many values do not. */
MX_API long mx_encode(const void *x, int kind, const uint8_t *scale, long rows, long cols, int format,
                      uint8_t *code, int threads) {
  atomic_long bad = 0;
  call_t c = {.x = x, .kind = kind, .scale_in = scale, .rows = rows, .cols = cols, .format = &FORMATS[format],
              .row_code = code, .bad = &bad};
  run(encode_task, &c, threads);
  return atomic_load(&bad);
}

/* Ask for large pages under memory that is about to be written for the first time: a fault for every
   4 KiB costs several times what writing them does. Changes no value. */
MX_API void mx_advise(void *start, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)start + page - 1) & ~(page - 1);
  uintptr_t to = ((uintptr_t)start + bytes) & ~(page - 1);
  if (to > from) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
  (void)start;
  (void)bytes;
#endif
}

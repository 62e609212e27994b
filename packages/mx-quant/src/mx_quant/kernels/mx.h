/* Shared declarations of the native kernels. Plain C11; loaded through ctypes. */
#ifndef MX_H
#define MX_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define MX_API __declspec(dllexport)
#else
#define MX_API __attribute__((visibility("default")))
#endif

/* Storage kinds of dense matrices. */
enum { MX_BF16 = 0, MX_FP16 = 1, MX_FP32 = 2 };
/* Element formats; MX_NONE means "not on a grid". */
enum { MX_NONE = -1, MX_E4M3 = 0, MX_E5M2 = 1 };
/* Scale rules, as in mx_quant.grids. */
enum { MX_ROUND_UP = 0, MX_ROUND_UP_PRE_2_13 = 1, MX_ROUND_UP_ZERO_AS_ONE = 2, MX_FLOOR = 3 };

#define MX_BLOCK 32

typedef void (*mx_task)(void *context, long index);
/* Run task(context, 0..count-1) on at most `threads` threads, the caller among them. */
void mx_run(mx_task task, void *context, long count, int threads);
/* Grow-only scratch memory, valid until the next request for the same slot. Call only between
   mx_begin and mx_end, which serialize callers. NULL when out of memory. */
enum { MX_SCRATCH_A = 0, MX_SCRATCH_B = 1, MX_SCRATCH_SLOTS = 2 };
void *mx_scratch(int slot, size_t bytes);
void mx_begin(void);
void mx_end(void);

/* Fake-quantize `rows` x `cols` row-major values, blocks along the columns, to fp32.
   format MX_NONE only widens. cols is a multiple of 32 unless format is MX_NONE. */
void mx_values_rowwise(const void *x, int kind, long rows, long cols, int format, int rule,
                       float *out);
/* The same for one strip of at most 32 rows whose columns are the blocks; missing rows are zero.
   Columns [c0, c1) of a matrix `cols` wide are written to out[row * (c1 - c0) + column - c0]. */
void mx_values_strip(const void *x, int kind, long rows, long cols, long c0, long c1, int format,
                     int rule, float *out);

/* bf16 bits of a block of 32 codes with one scale. */
void mx_decode_block(const uint8_t *code, int byte, int format, uint16_t *out);
/* bf16 bits of 32 rows, `stride` apart, of `width` <= 32 columns with a scale each: out[row][column]. */
void mx_decode_tile(const uint8_t *code, long stride, const uint8_t *scale, int width, int format, uint16_t *out);
/* Codes of 32 bf16 values on the grid with scale `byte`; returns how many are off it. */
long mx_encode_block(const uint16_t *x, int byte, int format, uint8_t *code);

static inline uint32_t mx_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float mx_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

/* fp32 to bf16, nearest even; NaN becomes the quiet NaN with its sign. */
static inline uint16_t mx_to_bf16(uint32_t u) {
  uint32_t rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16;
  return (u & 0x7FFFFFFF) > 0x7F800000 ? (uint16_t)0x7FC0 : (uint16_t)rounded;
}

static inline float mx_from_fp16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, a = h & 0x7FFF;
  float normal = mx_float((a << 13) + (112u << 23));
  float subnormal = (float)a * 0x1p-24f;
  float value = a < 0x400 ? subnormal : normal;
  uint32_t bits = a >= 0x7C00 ? (0x7F800000 | (a & 0x3FF) << 13) : mx_bits(value);
  return mx_float(bits | sign);
}

static inline uint16_t mx_to_fp16(float f) {
  uint32_t u = mx_bits(f), sign = (u >> 16) & 0x8000, a = u & 0x7FFFFFFF;
  if (a > 0x7F800000) return (uint16_t)(sign | 0x7E00);
  if (a < 0x38800000) /* below 2^-14: units of 2^-24 */
    return (uint16_t)(sign | (mx_bits(mx_float(a) + 0.5f) - 0x3F000000));
  uint32_t rounded = (a + 0xFFF + ((a >> 13) & 1)) >> 13;
  uint32_t h = rounded - (112u << 10);
  return (uint16_t)(sign | (h > 0x7C00 ? 0x7C00 : h));
}
#endif

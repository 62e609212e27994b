/* The GEMM of the emulated linear layer.
 *
 * Every output element is one chain of fused multiply-adds over k = 0, 1, 2, ... in fp32, rounded
 * once to the output type. The chain does not depend on the number of rows, the position of a row,
 * the thread count, the tiling, or the instruction set, so neither do the bits.
 *
 * A (activations) is packed as fp32 tiles of MR rows: tile[k][row]. B (weights) is packed as panels
 * of NR columns: for bf16 values, panel[k][lane] holds column `lane` in the low half and column
 * `lane + NR/2` in the high half of a 32-bit word, so that a mask and a shift widen both; for fp32
 * values, panel[k][column].
 */
#include "mx.h"
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__AVX512F__)
#include <immintrin.h>
typedef __m512 vec;
enum { L = 16, MR = 12, MR_WIDE = 6 };
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, v) _mm512_storeu_ps(p, v)
#define v_set(x) _mm512_set1_ps(x)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_low(p) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))
#define v_high(p) _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32((int)0xFFFF0000)))
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
typedef __m256 vec;
enum { L = 8, MR = 6, MR_WIDE = 3 };
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, v) _mm256_storeu_ps(p, v)
#define v_set(x) _mm256_set1_ps(x)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_low(p) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i *)(p)), 16))
#define v_high(p) _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const __m256i *)(p)), _mm256_set1_epi32((int)0xFFFF0000)))
#elif defined(__ARM_NEON)
#include <arm_neon.h>
typedef float32x4_t vec;
enum { L = 4, MR = 6, MR_WIDE = 3 };
#define v_load(p) vld1q_f32(p)
#define v_store(p, v) vst1q_f32(p, v)
#define v_set(x) vdupq_n_f32(x)
#define v_fma(a, b, c) vfmaq_f32(c, a, b)
#define v_low(p) vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(p), 16))
#define v_high(p) vreinterpretq_f32_u32(vandq_u32(vld1q_u32(p), vdupq_n_u32(0xFFFF0000u)))
#else
typedef struct { float f[4]; } vec;
enum { L = 4, MR = 6, MR_WIDE = 3 };
static inline vec v_load(const float *p) { vec v; memcpy(&v, p, sizeof v); return v; }
static inline void v_store(float *p, vec v) { memcpy(p, &v, sizeof v); }
static inline vec v_set(float x) { vec v = {{x, x, x, x}}; return v; }
static inline vec v_fma(vec a, vec b, vec c) {
  for (int i = 0; i < 4; i++) c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
  return c;
}
static inline vec v_low(const uint32_t *p) { vec v; for (int i = 0; i < 4; i++) v.f[i] = mx_float(p[i] << 16); return v; }
static inline vec v_high(const uint32_t *p) { vec v; for (int i = 0; i < 4; i++) v.f[i] = mx_float(p[i] & 0xFFFF0000u); return v; }
#endif

enum { NR = 2 * L, KC = 1024, A_BLOCK_BYTES = 192 * 1024 };

/* ---- micro-kernels: `rows` x (panels * NR) outputs, k from 0 to depth ------------------------- */

/* acc[row * ld + column] += A[k][row] * B[k][column]; with `fresh`, starts from zero. */
#define KERNEL(NAME, ROWS, PANELS, WORDS, LOW, HIGH, TYPE)                                            \
  static void NAME(const float *a, const TYPE *b, long panel_stride, long depth, float *acc, long ld, \
                   int fresh) {                                                                       \
    vec c[ROWS][PANELS][2];                                                                           \
    _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                           \
      _Pragma("GCC unroll 4") for (int p = 0; p < PANELS; p++) {                                      \
        c[i][p][0] = fresh ? v_set(0.0f) : v_load(acc + i * ld + p * NR);                             \
        c[i][p][1] = fresh ? v_set(0.0f) : v_load(acc + i * ld + p * NR + L);                         \
      }                                                                                               \
    for (long k = 0; k < depth; k++) {                                                                \
      _Pragma("GCC unroll 4") for (int p = 0; p < PANELS; p++) {                                      \
        const TYPE *word = b + p * panel_stride + k * WORDS;                                          \
        vec low = LOW(word), high = HIGH(word);                                                       \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                     \
          vec x = v_set(a[k * ROWS + i]);                                                             \
          c[i][p][0] = v_fma(x, low, c[i][p][0]);                                                     \
          c[i][p][1] = v_fma(x, high, c[i][p][1]);                                                    \
        }                                                                                             \
      }                                                                                               \
    }                                                                                                 \
    _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                           \
      _Pragma("GCC unroll 4") for (int p = 0; p < PANELS; p++) {                                      \
        v_store(acc + i * ld + p * NR, c[i][p][0]);                                                   \
        v_store(acc + i * ld + p * NR + L, c[i][p][1]);                                               \
      }                                                                                               \
  }

#define F_LOW(p) v_load(p)
#define F_HIGH(p) v_load((p) + L)
#define BOTH(ROWS, PANELS)                                                        \
  KERNEL(half_##ROWS##_##PANELS, ROWS, PANELS, L, v_low, v_high, uint32_t)        \
  KERNEL(full_##ROWS##_##PANELS, ROWS, PANELS, NR, F_LOW, F_HIGH, float)
BOTH(1, 4) BOTH(2, 2) BOTH(3, 2)
BOTH(1, 1) BOTH(2, 1) BOTH(3, 1) BOTH(4, 1) BOTH(5, 1) BOTH(6, 1)
#if defined(__AVX512F__)
BOTH(4, 2) BOTH(5, 2) BOTH(6, 2)
BOTH(7, 1) BOTH(8, 1) BOTH(9, 1) BOTH(10, 1) BOTH(11, 1) BOTH(12, 1)
#endif

#define CASE(ROWS, PANELS)                                                                             \
  case ROWS * 8 + PANELS:                                                                              \
    if (half) half_##ROWS##_##PANELS(a, b, stride, depth, acc, ld, fresh);                             \
    else full_##ROWS##_##PANELS(a, b, stride, depth, acc, ld, fresh);                                  \
    break;

static void kernel(int rows, int panels, int half, const float *a, const void *b, long stride, long depth,
                   float *acc, long ld, int fresh) {
  switch (rows * 8 + panels) {
    CASE(1, 4) CASE(2, 2) CASE(3, 2)
    CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1)
#if defined(__AVX512F__)
    CASE(4, 2) CASE(5, 2) CASE(6, 2)
    CASE(7, 1) CASE(8, 1) CASE(9, 1) CASE(10, 1) CASE(11, 1) CASE(12, 1)
#endif
  }
}

/* Panels that one kernel call handles when only `rows` rows are in a tile: enough independent
   accumulators to hide the latency of a fused multiply-add. */
static int panels_for(int rows) { return rows == 1 ? 4 : rows <= MR_WIDE ? 2 : 1; }

/* ---- packing ----------------------------------------------------------------------------------- */

static long panel_count(long n) { return (n + NR - 1) / NR; }

MX_API int mx_panel_columns(void) { return NR; }

/* Bytes of a packed operand with n outputs and depth k; `half` for bf16 values. */
MX_API long mx_packed_bytes(long n, long k, int half) { return panel_count(n) * k * NR * (half ? 2 : 4); }

typedef struct { const void *w; void *packed, *out; long n, k; int kind, transposed, half, out_kind; } pack_t;

/* Bits of w[column][depth] widened to fp32. */
static inline uint32_t element(const pack_t *p, long column, long depth) {
  long at = p->transposed ? depth * p->n + column : column * p->k + depth;
  return p->kind == MX_FP32 ? ((const uint32_t *)p->w)[at] : (uint32_t)((const uint16_t *)p->w)[at] << 16;
}

/* bf16 to bf16, w [n][k]: panels by blocks of 32 deep so that both sides stay in cache. */
static void pack_half_rows(const pack_t *p, long panel) {
  const uint16_t *w = p->w;
  uint32_t *out = (uint32_t *)p->packed + panel * p->k * L;
  long c0 = panel * NR;
  for (int j = 0; j < L; j++) {
    const uint16_t *low = w + (c0 + j) * p->k, *high = w + (c0 + j + L) * p->k;
    for (long k = 0; k < p->k; k++) out[k * L + j] = low[k] | (uint32_t)high[k] << 16;
  }
}

static void pack_half_columns(const pack_t *p, long panel) {
  uint32_t *out = (uint32_t *)p->packed + panel * p->k * L;
  for (long k = 0; k < p->k; k++) {
    const uint16_t *row = (const uint16_t *)p->w + k * p->n + panel * NR;
    for (int j = 0; j < L; j++) out[k * L + j] = row[j] | (uint32_t)row[j + L] << 16;
  }
}

static void pack_task(void *context, long panel) {
  const pack_t *p = context;
  long c0 = panel * NR;
  if (p->half && p->kind == MX_BF16 && c0 + NR <= p->n) {
    if (p->transposed) pack_half_columns(p, panel); else pack_half_rows(p, panel);
    return;
  }
  for (long k = 0; k < p->k; k++)
    for (int j = 0; j < L; j++) {
      uint32_t low = c0 + j < p->n ? element(p, c0 + j, k) : 0;
      uint32_t high = c0 + j + L < p->n ? element(p, c0 + j + L, k) : 0;
      if (p->half) {
        ((uint32_t *)p->packed)[(panel * p->k + k) * L + j] = low >> 16 | (high & 0xFFFF0000u);
      } else {
        ((uint32_t *)p->packed)[(panel * p->k + k) * NR + j] = low;
        ((uint32_t *)p->packed)[(panel * p->k + k) * NR + j + L] = high;
      }
    }
}

/* Pack w, [n][k] row-major or [k][n] when `transposed`, bf16 or fp32. With `half`, the values must
   be bf16 values. */
MX_API void mx_pack(const void *w, int kind, long n, long k, int transposed, int half, void *packed, int threads) {
  pack_t p = {.w = w, .kind = kind, .n = n, .k = k, .transposed = transposed, .half = half, .packed = packed};
  mx_begin();
  mx_run(pack_task, &p, panel_count(n), threads);
  mx_end();
}

/* 32 deep of one panel as bf16 rows, t[column][k]; columns beyond n are not written. */
static void unpack_block(const pack_t *p, long panel, long k0, long deep, uint16_t t[NR][MX_BLOCK]) {
  const uint32_t *words = (const uint32_t *)p->packed + (panel * p->k + k0) * L;
  for (int j = 0; j < L; j++)
    for (long k = 0; k < deep; k++) {
      t[j][k] = (uint16_t)words[k * L + j];
      t[j + L][k] = (uint16_t)(words[k * L + j] >> 16);
    }
}

static void unpack_half_rows(const pack_t *p, long panel) {
  uint16_t t[NR][MX_BLOCK];
  for (long k = 0; k < p->k; k += MX_BLOCK) {
    long deep = p->k - k < MX_BLOCK ? p->k - k : MX_BLOCK;
    unpack_block(p, panel, k, deep, t);
    for (long j = 0; j < NR && panel * NR + j < p->n; j++)
      memcpy((uint16_t *)p->out + (panel * NR + j) * p->k + k, t[j], (size_t)deep * 2);
  }
}

static void unpack_task(void *context, long panel) {
  const pack_t *p = context;
  if (p->half && p->out_kind == MX_BF16 && !p->transposed) { unpack_half_rows(p, panel); return; }
  for (long k = 0; k < p->k; k++)
    for (int j = 0; j < NR; j++) {
      long column = panel * NR + j;
      if (column >= p->n) break;
      uint32_t bits;
      if (p->half) {
        uint32_t word = ((const uint32_t *)p->packed)[(panel * p->k + k) * L + j % L];
        bits = j < L ? word << 16 : word & 0xFFFF0000u;
      } else {
        bits = ((const uint32_t *)p->packed)[(panel * p->k + k) * NR + j];
      }
      long at = p->transposed ? k * p->n + column : column * p->k + k;
      if (p->out_kind == MX_FP32) ((uint32_t *)p->out)[at] = bits;
      else ((uint16_t *)p->out)[at] = p->half ? (uint16_t)(bits >> 16) : mx_to_bf16(bits);
    }
}

/* The inverse of mx_pack, to bf16 or fp32: exactly what the GEMM reads. */
MX_API void mx_unpack(const void *packed, long n, long k, int transposed, int half, void *out, int out_kind, int threads) {
  pack_t p = {.n = n, .k = k, .transposed = transposed, .half = half, .packed = (void *)packed, .out = out, .out_kind = out_kind};
  mx_begin();
  mx_run(unpack_task, &p, panel_count(n), threads);
  mx_end();
}

/* ---- packing from codes, and back ------------------------------------------------------------------ */

typedef struct {
  const uint8_t *code_in, *scale; uint8_t *code_out; void *packed;
  long n, k; int format, transposed; atomic_long *bad;
} coded_t;

static void pack_rows_coded(const coded_t *c, long panel) {
  uint16_t t[NR][MX_BLOCK];
  memset(t, 0, sizeof t);
  for (long k = 0; k < c->k; k += MX_BLOCK) {
    for (long j = 0; j < NR && panel * NR + j < c->n; j++) {
      long row = panel * NR + j;
      mx_decode_block(c->code_in + row * c->k + k, c->scale[row * (c->k / MX_BLOCK) + k / MX_BLOCK], c->format, t[j]);
    }
    uint32_t *out = (uint32_t *)c->packed + (panel * c->k + k) * L;
    for (int i = 0; i < MX_BLOCK; i++)
      for (int j = 0; j < L; j++) out[i * L + j] = t[j][i] | (uint32_t)t[j + L][i] << 16;
  }
}

static void pack_columns_coded(const coded_t *c, long panel) {
  long c0 = panel * NR;
  int have = c->n - c0 < NR ? (int)(c->n - c0) : NR;
  uint16_t t[MX_BLOCK * NR], narrow[MX_BLOCK * NR];
  memset(t, 0, sizeof t);
  for (long k = 0; k < c->k; k += MX_BLOCK) {
    const uint8_t *code = c->code_in + k * c->n + c0, *scale = c->scale + k / MX_BLOCK * c->n + c0;
    mx_decode_tile(code, c->n, scale, have, c->format, have == NR ? t : narrow);
    if (have < NR)
      for (int i = 0; i < MX_BLOCK; i++) memcpy(t + i * NR, narrow + i * have, (size_t)have * 2);
    uint32_t *out = (uint32_t *)c->packed + (panel * c->k + k) * L;
    for (int i = 0; i < MX_BLOCK; i++)
      for (int j = 0; j < L; j++) out[i * L + j] = t[i * NR + j] | (uint32_t)t[i * NR + j + L] << 16;
  }
}

static void pack_coded_task(void *context, long panel) {
  const coded_t *c = context;
  if (c->transposed) pack_columns_coded(c, panel); else pack_rows_coded(c, panel);
}

/* Pack codes as bf16 values: [n][k] with rowwise scales, or [k][n] with columnwise scales when
   `transposed`. The caller has checked that bf16 holds the values. k % 32 == 0. */
MX_API void mx_pack_codes(const uint8_t *code, const uint8_t *scale, long n, long k, int format, int transposed,
                          void *packed, int threads) {
  coded_t c = {.code_in = code, .scale = scale, .n = n, .k = k, .format = format, .transposed = transposed, .packed = packed};
  mx_begin();
  mx_run(pack_coded_task, &c, panel_count(n), threads);
  mx_end();
}

static void read_back_task(void *context, long panel) {
  const coded_t *c = context;
  uint16_t t[NR][MX_BLOCK];
  pack_t p = {.packed = c->packed, .n = c->n, .k = c->k};
  long bad = 0;
  for (long k = 0; k < c->k; k += MX_BLOCK) {
    unpack_block(&p, panel, k, MX_BLOCK, t);
    for (long j = 0; j < NR && panel * NR + j < c->n; j++) {
      long row = panel * NR + j;
      bad += mx_encode_block(t[j], c->scale[row * (c->k / MX_BLOCK) + k / MX_BLOCK], c->format, c->code_out + row * c->k + k);
    }
  }
  if (bad) atomic_fetch_add(c->bad, bad);
}

/* Codes [n][k] of a packed bf16 operand, given its rowwise scales. Returns how many values are off
   the grid. */
MX_API long mx_read_back(const void *packed, const uint8_t *scale, long n, long k, int format, uint8_t *code, int threads) {
  atomic_long bad = 0;
  coded_t c = {.packed = (void *)packed, .scale = scale, .n = n, .k = k, .format = format, .code_out = code, .bad = &bad};
  mx_begin();
  mx_run(read_back_task, &c, panel_count(n), threads);
  mx_end();
  return atomic_load(&bad);
}

/* ---- C = A B ------------------------------------------------------------------------------------ */

typedef struct {
  const float *a; const void *b; void *y;
  long m, n, k, block_rows, group, groups;
  int half, y_kind;
} gemm_t;

static void store_row(const gemm_t *g, long row, long column, const float *acc, long count) {
  long o = row * g->n + column;
  if (g->y_kind == MX_FP32) { memcpy((float *)g->y + o, acc, (size_t)count * 4); return; }
  uint16_t *y = (uint16_t *)g->y + o;
  if (g->y_kind == MX_BF16) for (long i = 0; i < count; i++) y[i] = mx_to_bf16(mx_bits(acc[i]));
  else for (long i = 0; i < count; i++) y[i] = mx_to_fp16(acc[i]);
}

enum { GROUP_MAX = 8, BLOCK_MAX = 96 };

static void gemm_task(void *context, long index) {
  const gemm_t *g = context;
  float acc[BLOCK_MAX * GROUP_MAX * NR] __attribute__((aligned(64)));
  long block = index / g->groups, group = index % g->groups;
  long r0 = block * g->block_rows, r1 = r0 + g->block_rows < g->m ? r0 + g->block_rows : g->m;
  long p0 = group * g->group, p1 = p0 + g->group < panel_count(g->n) ? p0 + g->group : panel_count(g->n);
  long ld = (p1 - p0) * NR, width = g->half ? 2 : 4;
  for (long k = 0; k < g->k; k += KC) {
    long depth = g->k - k < KC ? g->k - k : KC;
    for (long p = p0; p < p1;) {
      int step = panels_for((int)(r1 - r0 < MR ? r1 - r0 : MR));
      if (step > p1 - p) step = 1;
      const char *b = (const char *)g->b + (p * g->k + k) * NR * width;
      for (long r = r0; r < r1; r += MR) {
        int rows = g->m - r < MR ? (int)(g->m - r) : MR;
        kernel(rows, step, g->half, g->a + r * g->k + k * rows, b, g->k * (g->half ? L : NR), depth,
               acc + (r - r0) * ld + (p - p0) * NR, ld, k == 0);
      }
      p += step;
    }
  }
  long c0 = p0 * NR, count = g->n - c0 < ld ? g->n - c0 : ld;
  for (long r = r0; r < r1; r++) store_row(g, r, c0, acc + (r - r0) * ld, count);
}

static void gemm(const float *a, const void *b, int half, long m, long n, long k, void *y, int y_kind, int threads) {
  long deep = k < KC ? (k > 0 ? k : 1) : KC, panels = panel_count(n);
  long rows = A_BLOCK_BYTES / (deep * 4) / MR * MR;
  if (rows < MR) rows = MR;
  if (rows > BLOCK_MAX) rows = BLOCK_MAX / MR * MR;
  long blocks = (m + rows - 1) / rows, group = GROUP_MAX;
  while (group > 4 && blocks * ((panels + group - 1) / group) < 4L * threads) group /= 2;
  gemm_t g = {.a = a, .b = b, .half = half, .m = m, .n = n, .k = k, .y = y, .y_kind = y_kind,
              .block_rows = rows, .group = group, .groups = (panels + group - 1) / group};
  /* Below about 0.5 MFLOP a second thread costs more than it brings. */
  if (2.0 * (double)m * (double)n * (double)k < 5e5) threads = 1;
  mx_run(gemm_task, &g, blocks * g.groups, threads);
}

/* ---- activations ---------------------------------------------------------------------------------- */

typedef struct { const void *x; float *a; long rows, cols, c0; int kind, format, rule; } rows_t;

static size_t kind_size(int kind) { return kind == MX_FP32 ? 4 : 2; }

enum { PACK_COLUMNS = 512 };

/* Tiles of MR rows of x, fake-quantized rowwise, as tile[k][row]. */
static void pack_rows_task(void *context, long tile) {
  const rows_t *c = context;
  float v[MR][PACK_COLUMNS];
  long r0 = tile * MR;
  int rows = c->rows - r0 < MR ? (int)(c->rows - r0) : MR;
  float *out = c->a + r0 * c->cols;
  for (long k = 0; k < c->cols; k += PACK_COLUMNS) {
    long width = c->cols - k < PACK_COLUMNS ? c->cols - k : PACK_COLUMNS;
    for (int r = 0; r < rows; r++)
      mx_values_rowwise((const char *)c->x + (size_t)((r0 + r) * c->cols + k) * kind_size(c->kind), c->kind, 1, width,
                        c->format, c->rule, v[r]);
    if (rows == MR)
      for (long j = 0; j < width; j++)
        for (int r = 0; r < MR; r++) out[(k + j) * MR + r] = v[r][j];
    else
      for (long j = 0; j < width; j++)
        for (int r = 0; r < rows; r++) out[(k + j) * rows + r] = v[r][j];
  }
}

/* y[m][n] = values(x)[m][k] B. format MX_NONE: x as it is. Returns 0, or 1 when out of memory. */
MX_API int mx_linear(const void *x, int kind, long m, long k, int format, int rule, const void *packed, int half,
                     long n, void *y, int y_kind, int threads) {
  mx_begin();
  float *a = mx_scratch(MX_SCRATCH_A, (size_t)(m * k) * sizeof(float) + 64);
  if (a) {
    rows_t c = {.x = x, .a = a, .rows = m, .cols = k, .kind = kind, .format = format, .rule = rule};
    mx_run(pack_rows_task, &c, (m + MR - 1) / MR, m * k < 16384 ? 1 : threads);
    gemm(a, packed, half, m, n, k, y, y_kind, threads);
  }
  mx_end();
  return a == NULL;
}

/* ---- weight gradient: dw[n][k] = sum over tokens of values(dy)[t][n] values(x)[t][k] --------------- */

enum { STRIP_COLUMNS = 96 };

typedef struct { const void *x; float *out; long tokens, padded, cols; int kind, format, rule, tile; } strips_t;

/* 96 columns of x, fake-quantized columnwise, as tiles of `tile` columns: out[tile][t][column].
   The last tile of A (tile == MR) is as narrow as it is; panels of B are zero-filled. */
static void pack_columns_task(void *context, long index) {
  const strips_t *c = context;
  float v[MX_BLOCK * STRIP_COLUMNS];
  long c0 = index * STRIP_COLUMNS, c1 = c0 + STRIP_COLUMNS < c->cols ? c0 + STRIP_COLUMNS : c->cols;
  long wide = c1 - c0;
  for (long t = 0; t < c->padded; t += MX_BLOCK) {
    long rows = c->tokens - t < MX_BLOCK ? c->tokens - t : MX_BLOCK;
    mx_values_strip((const char *)c->x + (size_t)(t * c->cols) * kind_size(c->kind), c->kind, rows, c->cols, c0, c1,
                    c->format, c->rule, v);
    for (long j = c0; j < c1; j += c->tile) {
      int have = c1 - j < c->tile ? (int)(c1 - j) : c->tile;
      int stride = c->tile == MR ? have : c->tile;
      float *out = c->out + j * c->padded + t * stride;
      for (int r = 0; r < MX_BLOCK; r++) {
        memcpy(out + r * stride, v + r * wide + (j - c0), (size_t)have * sizeof(float));
        for (int z = have; z < stride; z++) out[r * stride + z] = 0.0f;
      }
    }
  }
}

MX_API int mx_wgrad(const void *dy, int dy_kind, int dy_format, const void *x, int x_kind, int x_format, int rule,
                    long tokens, long n, long k, void *dw, int dw_kind, int threads) {
  long padded = (tokens + MX_BLOCK - 1) / MX_BLOCK * MX_BLOCK;
  mx_begin();
  float *a = mx_scratch(MX_SCRATCH_A, (size_t)(padded * n) * sizeof(float) + 64);
  float *b = mx_scratch(MX_SCRATCH_B, (size_t)(padded * panel_count(k) * NR) * sizeof(float) + 64);
  if (a && b) {
    strips_t sa = {.x = dy, .out = a, .tokens = tokens, .padded = padded, .cols = n, .kind = dy_kind,
                   .format = dy_format, .rule = rule, .tile = MR};
    mx_run(pack_columns_task, &sa, (n + STRIP_COLUMNS - 1) / STRIP_COLUMNS, threads);
    strips_t sb = {.x = x, .out = b, .tokens = tokens, .padded = padded, .cols = k, .kind = x_kind,
                   .format = x_format, .rule = rule, .tile = NR};
    mx_run(pack_columns_task, &sb, (k + STRIP_COLUMNS - 1) / STRIP_COLUMNS, threads);
    gemm(a, b, 0, n, k, padded, dw, dw_kind, threads);
  }
  mx_end();
  return !(a && b);
}

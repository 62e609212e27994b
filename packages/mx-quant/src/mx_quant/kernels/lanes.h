/* 32 values of 16 bits side by side, in as many registers as the instruction set needs.
 *
 * One interface for AVX-512, AVX2, SSE2 and NEON, and plain C for the rest. Lanes are signed; values
 * with the sign bit cleared order alike either way. A mask is whatever comparing gives.
 */
#ifndef MX_LANES_H
#define MX_LANES_H
#include "mx.h"

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512BW__)
#include <immintrin.h>
enum { PARTS = 1 };
typedef __m512i part_t;
typedef __mmask32 part_mask;
#define P_LOAD(p) _mm512_loadu_si512(p)
#define P_STORE(p, a) _mm512_storeu_si512(p, a)
#define P_SET(s) _mm512_set1_epi16(s)
#define P_AND(a, b) _mm512_and_si512(a, b)
#define P_OR(a, b) _mm512_or_si512(a, b)
#define P_ADD(a, b) _mm512_add_epi16(a, b)
#define P_SUB(a, b) _mm512_sub_epi16(a, b)
#define P_MAX(a, b) _mm512_max_epi16(a, b)
#define P_MIN(a, b) _mm512_min_epi16(a, b)
#define P_LESS(a, b) _mm512_subs_epu16(a, b)
#define P_LEAST(a, b) _mm512_min_epu16(a, b)
#define P_SHL(a, n) _mm512_slli_epi16(a, n)
#define P_SHR(a, n) _mm512_srli_epi16(a, n)
#define P_SAR(a, n) _mm512_srai_epi16(a, n)
#define P_LT(a, b) _mm512_cmplt_epi16_mask(a, b)
#define P_EQ(a, b) _mm512_cmpeq_epi16_mask(a, b)
#define M_AND(a, b) ((a) & (b))
#define M_OR(a, b) ((a) | (b))
#define M_LESS(a, b) ((a) & ~(b))
#define M_NONE() ((part_mask)0)
#define M_ANY(m) ((m) != 0)
#define P_CLEAR(m, a) _mm512_maskz_mov_epi16((part_mask)~(m), a)
#elif defined(__AVX2__)
#include <immintrin.h>
enum { PARTS = 2 };
typedef __m256i part_t;
typedef __m256i part_mask;
#define P_LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define P_STORE(p, a) _mm256_storeu_si256((__m256i *)(p), a)
#define P_SET(s) _mm256_set1_epi16(s)
#define P_AND(a, b) _mm256_and_si256(a, b)
#define P_OR(a, b) _mm256_or_si256(a, b)
#define P_ADD(a, b) _mm256_add_epi16(a, b)
#define P_SUB(a, b) _mm256_sub_epi16(a, b)
#define P_MAX(a, b) _mm256_max_epi16(a, b)
#define P_MIN(a, b) _mm256_min_epi16(a, b)
#define P_LESS(a, b) _mm256_subs_epu16(a, b)
#define P_LEAST(a, b) _mm256_min_epu16(a, b)
#define P_SHL(a, n) _mm256_slli_epi16(a, n)
#define P_SHR(a, n) _mm256_srli_epi16(a, n)
#define P_SAR(a, n) _mm256_srai_epi16(a, n)
#define P_LT(a, b) _mm256_cmpgt_epi16(b, a)
#define P_EQ(a, b) _mm256_cmpeq_epi16(a, b)
#define M_AND(a, b) _mm256_and_si256(a, b)
#define M_OR(a, b) _mm256_or_si256(a, b)
#define M_LESS(a, b) _mm256_andnot_si256(b, a)
#define M_NONE() _mm256_setzero_si256()
#define M_ANY(m) (!_mm256_testz_si256(m, m))
#define P_CLEAR(m, a) _mm256_andnot_si256(m, a)
#elif defined(__SSE2__)
#include <emmintrin.h>
enum { PARTS = 4 };
typedef __m128i part_t;
typedef __m128i part_mask;
#define P_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define P_STORE(p, a) _mm_storeu_si128((__m128i *)(p), a)
#define P_SET(s) _mm_set1_epi16(s)
#define P_AND(a, b) _mm_and_si128(a, b)
#define P_OR(a, b) _mm_or_si128(a, b)
#define P_ADD(a, b) _mm_add_epi16(a, b)
#define P_SUB(a, b) _mm_sub_epi16(a, b)
#define P_MAX(a, b) _mm_max_epi16(a, b)
#define P_MIN(a, b) _mm_min_epi16(a, b)
#define P_LESS(a, b) _mm_subs_epu16(a, b)
#define P_LEAST(a, b) _mm_sub_epi16(a, _mm_subs_epu16(a, b))
#define P_SHL(a, n) _mm_slli_epi16(a, n)
#define P_SHR(a, n) _mm_srli_epi16(a, n)
#define P_SAR(a, n) _mm_srai_epi16(a, n)
#define P_LT(a, b) _mm_cmplt_epi16(a, b)
#define P_EQ(a, b) _mm_cmpeq_epi16(a, b)
#define M_AND(a, b) _mm_and_si128(a, b)
#define M_OR(a, b) _mm_or_si128(a, b)
#define M_LESS(a, b) _mm_andnot_si128(b, a)
#define M_NONE() _mm_setzero_si128()
#define M_ANY(m) (_mm_movemask_epi8(m) != 0)
#define P_CLEAR(m, a) _mm_andnot_si128(m, a)
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
enum { PARTS = 4 };
typedef int16x8_t part_t;
typedef int16x8_t part_mask;
#define P_LOAD(p) vld1q_s16((const int16_t *)(p))
#define P_STORE(p, a) vst1q_s16((int16_t *)(p), a)
#define P_SET(s) vdupq_n_s16(s)
#define P_AND(a, b) vandq_s16(a, b)
#define P_OR(a, b) vorrq_s16(a, b)
#define P_ADD(a, b) vaddq_s16(a, b)
#define P_SUB(a, b) vsubq_s16(a, b)
#define P_MAX(a, b) vmaxq_s16(a, b)
#define P_MIN(a, b) vminq_s16(a, b)
#define P_UNSIGNED(f, a, b) vreinterpretq_s16_u16(f(vreinterpretq_u16_s16(a), vreinterpretq_u16_s16(b)))
#define P_LESS(a, b) P_UNSIGNED(vqsubq_u16, a, b)
#define P_LEAST(a, b) P_UNSIGNED(vminq_u16, a, b)
#define P_SHL(a, n) vshlq_s16(a, vdupq_n_s16(n))
#define P_SHR(a, n) vreinterpretq_s16_u16(vshlq_u16(vreinterpretq_u16_s16(a), vdupq_n_s16(-(n))))
#define P_SAR(a, n) vshlq_s16(a, vdupq_n_s16(-(n)))
#define P_LT(a, b) vreinterpretq_s16_u16(vcltq_s16(a, b))
#define P_EQ(a, b) vreinterpretq_s16_u16(vceqq_s16(a, b))
#define M_AND(a, b) vandq_s16(a, b)
#define M_OR(a, b) vorrq_s16(a, b)
#define M_LESS(a, b) vbicq_s16(a, b)
#define M_NONE() vdupq_n_s16(0)
#define M_ANY(m) (vmaxvq_u16(vreinterpretq_u16_s16(m)) != 0)
#define P_CLEAR(m, a) vbicq_s16(a, m)
#else
enum { PARTS = 32 };
typedef int16_t part_t;
typedef int16_t part_mask;
#define P_LOAD(p) (*(const int16_t *)(p))
#define P_STORE(p, a) (*(int16_t *)(p) = (a))
#define P_SET(s) ((int16_t)(s))
#define P_AND(a, b) ((int16_t)((a) & (b)))
#define P_OR(a, b) ((int16_t)((a) | (b)))
#define P_ADD(a, b) ((int16_t)((a) + (b)))
#define P_SUB(a, b) ((int16_t)((a) - (b)))
#define P_MAX(a, b) ((a) > (b) ? (a) : (b))
#define P_MIN(a, b) ((a) < (b) ? (a) : (b))
#define P_LESS(a, b) ((int16_t)((uint16_t)(a) > (uint16_t)(b) ? (uint16_t)(a) - (uint16_t)(b) : 0))
#define P_LEAST(a, b) ((uint16_t)(a) < (uint16_t)(b) ? (a) : (b))
#define P_SHL(a, n) ((int16_t)((uint16_t)(a) << (n)))
#define P_SHR(a, n) ((int16_t)((uint16_t)(a) >> (n)))
#define P_SAR(a, n) ((int16_t)((a) >> (n)))
#define P_LT(a, b) ((int16_t)-((a) < (b)))
#define P_EQ(a, b) ((int16_t)-((a) == (b)))
#define M_AND(a, b) P_AND(a, b)
#define M_OR(a, b) P_OR(a, b)
#define M_LESS(a, b) ((int16_t)((a) & ~(b)))
#define M_NONE() ((int16_t)0)
#define M_ANY(m) ((m) != 0)
#define P_CLEAR(m, a) ((int16_t)(~(m) & (a)))
#endif

typedef struct { part_t p[PARTS]; } lanes;
typedef struct { part_mask p[PARTS]; } lane_mask;

enum { PART_LANES = 32 / PARTS };
#define EACH_PART for (int i = 0; i < PARTS; i++)
#define LANES_OF(NAME, EXPRESSION, ...) \
  INLINE lanes NAME(__VA_ARGS__) { lanes o; EACH_PART o.p[i] = EXPRESSION; return o; }
#define MASK_OF(NAME, EXPRESSION, ...) \
  INLINE lane_mask NAME(__VA_ARGS__) { lane_mask o; EACH_PART o.p[i] = EXPRESSION; return o; }

LANES_OF(l_load, P_LOAD(x + i * PART_LANES), const uint16_t *x)
LANES_OF(l_set, P_SET((int16_t)value), int value)
LANES_OF(l_and, P_AND(a.p[i], b.p[i]), lanes a, lanes b)
LANES_OF(l_or, P_OR(a.p[i], b.p[i]), lanes a, lanes b)
LANES_OF(l_add, P_ADD(a.p[i], b.p[i]), lanes a, lanes b)
LANES_OF(l_sub, P_SUB(a.p[i], b.p[i]), lanes a, lanes b)
LANES_OF(l_max, P_MAX(a.p[i], b.p[i]), lanes a, lanes b)
LANES_OF(l_min, P_MIN(a.p[i], b.p[i]), lanes a, lanes b)
/* As unsigned numbers: the difference, at least 0; the smaller one. */
LANES_OF(l_less, P_LESS(a.p[i], b.p[i]), lanes a, lanes b)
LANES_OF(l_least, P_LEAST(a.p[i], b.p[i]), lanes a, lanes b)
/* Shifts: left, right filling with zeros, right filling with the sign. */
LANES_OF(l_shl, P_SHL(a.p[i], n), lanes a, int n)
LANES_OF(l_shr, P_SHR(a.p[i], n), lanes a, int n)
LANES_OF(l_sar, P_SAR(a.p[i], n), lanes a, int n)
LANES_OF(l_clear, P_CLEAR(m.p[i], a.p[i]), lane_mask m, lanes a)
MASK_OF(l_lt, P_LT(a.p[i], b.p[i]), lanes a, lanes b)
MASK_OF(l_eq, P_EQ(a.p[i], b.p[i]), lanes a, lanes b)
MASK_OF(m_and, M_AND(a.p[i], b.p[i]), lane_mask a, lane_mask b)
MASK_OF(m_or, M_OR(a.p[i], b.p[i]), lane_mask a, lane_mask b)
MASK_OF(m_less, M_LESS(a.p[i], b.p[i]), lane_mask a, lane_mask b)
MASK_OF(m_none, M_NONE(), void)

INLINE int m_any(lane_mask m) {
  part_mask all = m.p[0];
  for (int i = 1; i < PARTS; i++) all = M_OR(all, m.p[i]);
  return M_ANY(all);
}

INLINE void l_store(uint16_t *out, lanes a) { EACH_PART P_STORE(out + i * PART_LANES, a.p[i]); }

/* The low byte of each lane, whose values are 0 to 255. */
INLINE void l_store_bytes(uint8_t *out, lanes a) {
#if defined(__AVX512BW__)
  _mm256_storeu_si256((__m256i *)out, _mm512_cvtepi16_epi8(a.p[0]));
#elif defined(__AVX2__)
  __m256i packed = _mm256_packus_epi16(a.p[0], a.p[1]);
  _mm256_storeu_si256((__m256i *)out, _mm256_permute4x64_epi64(packed, 0xD8));
#elif defined(__SSE2__)
  for (int i = 0; i < 2; i++)
    _mm_storeu_si128((__m128i *)(out + 16 * i), _mm_packus_epi16(a.p[2 * i], a.p[2 * i + 1]));
#elif defined(__ARM_NEON) && defined(__aarch64__)
  for (int i = 0; i < 4; i++) vst1_u8(out + 8 * i, vmovn_u16(vreinterpretq_u16_s16(a.p[i])));
#else
  EACH_PART out[i] = (uint8_t)a.p[i];
#endif
}

/* 32 bytes, one to a lane. */
INLINE lanes l_load_bytes(const uint8_t *x) {
  lanes o;
#if defined(__AVX512BW__)
  o.p[0] = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)x));
#elif defined(__AVX2__)
  EACH_PART o.p[i] = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(x + 16 * i)));
#elif defined(__SSE2__)
  for (int i = 0; i < 2; i++) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)(x + 16 * i)), zero = _mm_setzero_si128();
    o.p[2 * i] = _mm_unpacklo_epi8(bytes, zero);
    o.p[2 * i + 1] = _mm_unpackhi_epi8(bytes, zero);
  }
#elif defined(__ARM_NEON) && defined(__aarch64__)
  EACH_PART o.p[i] = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(x + 8 * i)));
#else
  EACH_PART o.p[i] = x[i];
#endif
  return o;
}

/* Lanes that hold bf16 bits, as fp32. */
INLINE void l_store_fp32(float *out, lanes a) {
#if defined(__AVX512BW__)
  __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(a.p[0]));
  __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(a.p[0], 1));
  _mm512_storeu_si512(out, _mm512_slli_epi32(low, 16));
  _mm512_storeu_si512(out + 16, _mm512_slli_epi32(high, 16));
#else
  uint16_t bits[32];
  l_store(bits, a);
  for (int i = 0; i < 32; i++) out[i] = mx_float((uint32_t)bits[i] << 16);
#endif
}

/* The largest lane, none of which is negative. */
INLINE int l_largest(lanes a) {
#if defined(__AVX2__)
#if defined(__AVX512BW__)
  __m256i m = _mm256_max_epi16(_mm512_castsi512_si256(a.p[0]), _mm512_extracti64x4_epi64(a.p[0], 1));
#else
  __m256i m = _mm256_max_epi16(a.p[0], a.p[1]);
#endif
  __m128i q = _mm_max_epi16(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  return 0x7FFF - _mm_extract_epi16(_mm_minpos_epu16(_mm_sub_epi16(_mm_set1_epi16(0x7FFF), q)), 0);
#elif defined(__SSE2__)
  __m128i q = _mm_max_epi16(_mm_max_epi16(a.p[0], a.p[1]), _mm_max_epi16(a.p[2], a.p[3]));
  q = _mm_max_epi16(q, _mm_shuffle_epi32(q, 0x4E));
  q = _mm_max_epi16(q, _mm_shuffle_epi32(q, 0xB1));
  q = _mm_max_epi16(q, _mm_srli_epi32(q, 16));
  return _mm_extract_epi16(q, 0);
#elif defined(__ARM_NEON) && defined(__aarch64__)
  return vmaxvq_s16(vmaxq_s16(vmaxq_s16(a.p[0], a.p[1]), vmaxq_s16(a.p[2], a.p[3])));
#else
  int m = 0;
  EACH_PART m = a.p[i] > m ? a.p[i] : m;
  return m;
#endif
}

#endif

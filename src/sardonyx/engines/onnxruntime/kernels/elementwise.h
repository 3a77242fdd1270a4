/* Functions of one element. Nothing branches, so that a compiler makes vectors of them. */

/* Within a polynomial a product may be merged with a sum: no other kernel has the same bits. */
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define PRODUCT_AND_SUM(a, b, c) fmaf(a, b, c)
#else
#define PRODUCT_AND_SUM(a, b, c) ((a) * (b) + (c))
#endif

static inline float exponential(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  /* adding and subtracting 1.5 · 2^23 rounds to a whole number */
  float whole = (x * 0x1.715476p+0f + 0x1.8p+23f) - 0x1.8p+23f;
  float r = (x - whole * 0x1.62e4p-1f) - whole * 0x1.7f7d1cp-20f;
  float p = 0x1.6da76cp-10f;
  p = PRODUCT_AND_SUM(p, r, 0x1.126fbep-7f);
  p = PRODUCT_AND_SUM(p, r, 0x1.555464p-5f);
  p = PRODUCT_AND_SUM(p, r, 0x1.555404p-3f);
  p = PRODUCT_AND_SUM(p, r, 0.5f);
  p = PRODUCT_AND_SUM(p, r, 1.0f);
  p = PRODUCT_AND_SUM(p, r, 1.0f);
  /* two factors, because one alone would overflow, or lose small results */
  int32_t power = (int32_t)whole, half = power >> 1;
  union { int32_t bits; float value; } a = {(half + 127) << 23}, b = {(power - half + 127) << 23};
  return p * a.value * b.value;
}

static inline float error_function(float x) {
  float a = fabsf(x), z = x * x;
  float s = -0x1.449782p-17f;
  s = PRODUCT_AND_SUM(s, z, 0x1.d89ff4p-14f);
  s = PRODUCT_AND_SUM(s, z, -0x1.bcd3a4p-11f);
  s = PRODUCT_AND_SUM(s, z, 0x1.562abep-8f);
  s = PRODUCT_AND_SUM(s, z, -0x1.b829dp-6f);
  s = PRODUCT_AND_SUM(s, z, 0x1.ce2f0ap-4f);
  s = PRODUCT_AND_SUM(s, z, -0x1.812746p-2f);
  s = PRODUCT_AND_SUM(s, z, 0x1.20dd76p+0f);
  float m = a > 4.0f ? 4.0f : a; /* from here on it is 1 */
  float t = 0x1.b14578p-20f;
  t = PRODUCT_AND_SUM(t, m, -0x1.7e711ep-15f);
  t = PRODUCT_AND_SUM(t, m, 0x1.36c82ep-11f);
  t = PRODUCT_AND_SUM(t, m, -0x1.36a7bcp-8f);
  t = PRODUCT_AND_SUM(t, m, 0x1.aff5a4p-6f);
  t = PRODUCT_AND_SUM(t, m, -0x1.c2788cp-4f);
  t = PRODUCT_AND_SUM(t, m, -0x1.438d42p-1f);
  t = PRODUCT_AND_SUM(t, m, -0x1.21529ap+0f);
  t = PRODUCT_AND_SUM(t, m, 0x1.3df11cp-12f);
  return a < 1.0f ? x * s : copysignf(1.0f - exponential(t), x);
}

static inline float hyperbolic_tangent(float x) {
  float a = fabsf(x), z = x * x;
  float s = -0x1.6f8168p-8f;
  s = PRODUCT_AND_SUM(s, z, 0x1.509b94p-6f);
  s = PRODUCT_AND_SUM(s, z, -0x1.b7f7e2p-5f);
  s = PRODUCT_AND_SUM(s, z, 0x1.11049cp-3f);
  s = PRODUCT_AND_SUM(s, z, -0x1.55552p-2f);
  s = PRODUCT_AND_SUM(s, z, 1.0f);
  float e = exponential(a + a);
  return a < 0.625f ? x * s : copysignf(1.0f - 2.0f / (e + 1.0f), x);
}

static inline float logistic(float x) {
  float e = exponential(-fabsf(x));
  return x < 0.0f ? e / (1.0f + e) : 1.0f / (1.0f + e);
}

static inline float sign(float x) { return x != x ? x : (float)((x > 0.0f) - (x < 0.0f)); }

/* What is not a number stays so, as in onnxruntime. */
static inline float greater_of(float a, float b) {
  return a != a ? a : b != b ? b : a > b ? a : b;
}

static inline float less_of(float a, float b) {
  return a != a ? a : b != b ? b : a < b ? a : b;
}

/* Computes n elements. scratch: buffers of `width` numbers each. */
typedef void (*Body)(const float *const *in, float *const *out, float *scratch, int64_t n,
                     int64_t width);

/* The operator KernelGradient: the gradient of the kernel of a convolution, from its images and the
   gradient of its results.

   One sum for each channel of the results, channel of the images and place in the kernel, over all
   pixels of all images. Channels of the images lie next to each other in vectors: images are copied
   so, with their padding, some rows at a time. The sums of up to three places in the kernel and of
   OUTS channels of the results stay in registers while the pixels of these rows are passed.

   Kernels of three by three over enough pixels need fewer multiplications (winograd_gradient.h).

   The attribute `kernel`: rows and columns of the kernel, then of its steps, its dilations, and the
   padding before the image; threads. */

#if LANES == 16
#define OUTS 8
#else
#define OUTS 4
#endif
#define BAND 6144      /* numbers of a copied image that are passed at a time: they fit the cache */
#define MOST_OUTS 128  /* channels of the results in one part of the work */
#define FEWEST_PARTS 8

#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

typedef struct {
  const float *x, *g;
  float *dw;
  int64_t images, in, out, rows, columns, high, wide; /* of images, and of the results */
  const int64_t *v;
  int64_t outs, groups, wide_copy, band, taps; /* outs: of a part; band: rows of results */
  const int64_t *places; /* of the taps in the copied images */
  int failed;
} Correlation;

static Status create_kernel(const Operator *op, const void *api, const void *info, void **kernel) {
  return (void)op, create_settings(api, info, "kernel", kernel);
}

#include "winograd_gradient.h"

/* Rows `first` on of the padded image of one vector of channels; `count` channels are there. */
static void copy_rows(const Correlation *c, const float *x, int64_t count, int64_t first,
                      int64_t rows, float *copy) {
  int64_t plane = c->rows * c->columns, row_size = c->wide_copy * LANES, left = c->v[7];
  int64_t width = c->wide_copy - left < c->columns ? c->wide_copy - left : c->columns;
  for (int64_t i = 0; i < rows; i++) {
    int64_t row = first + i - c->v[6];
    float *target = copy + i * row_size;
    if (row < 0 || row >= c->rows) memset(target, 0, row_size * sizeof(float));
    else if (width > 0)
      pack(x + row * c->columns, 1, plane, count, LANES, width, target + left * LANES);
  }
}

/* Add the products of all pixels of some rows to the sums of `taps` places in the kernel. */
static inline __attribute__((always_inline)) void add_products(
    const int taps, const float *const *g, const float *x, const int64_t *places, int64_t rows,
    int64_t wide, int64_t row_step, int64_t step, float *sums, int64_t next) {
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
  Vector s[OUTS][3];
#pragma GCC unroll 8
  for (int o = 0; o < OUTS; o++)
#pragma GCC unroll 3
    for (int t = 0; t < taps; t++) s[o][t] = *(const Vector *)(sums + o * next + t * LANES);
  int64_t pixel = 0;
  for (int64_t row = 0; row < rows; row++) {
    const float *from = x + row * row_step;
    for (int64_t k = 0; k < wide; k++, pixel++, from += step) {
      Vector a[3];
#pragma GCC unroll 3
      for (int t = 0; t < taps; t++) a[t] = *(const Vector *)(from + places[t]);
#pragma GCC unroll 8
      for (int o = 0; o < OUTS; o++) {
        float factor = g[o][pixel];
#pragma GCC unroll 3
        for (int t = 0; t < taps; t++) s[o][t] += a[t] * factor;
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < OUTS; o++)
#pragma GCC unroll 3
    for (int t = 0; t < taps; t++) *(Vector *)(sums + o * next + t * LANES) = s[o][t];
}

/* All taps and all channels of a part, for some rows of one image. */
static void add_band(const Correlation *c, const float *copy, const float *g, int64_t channels,
                     int64_t rows, float *sums) {
  int64_t plane = c->high * c->wide, next = c->taps * LANES;
  int64_t row_step = c->v[2] * c->wide_copy * LANES, step = c->v[3] * LANES;
  for (int64_t o = 0; o < channels; o += OUTS) {
    const float *from[OUTS]; /* beyond the last channel its numbers again, into sums not used */
    for (int64_t i = 0; i < OUTS; i++)
      from[i] = g + (o + i < channels ? o + i : channels - 1) * plane;
    float *target = sums + o * next;
    for (int64_t t = 0; t < c->taps; t += 3, target += 3 * LANES) {
      const int64_t *places = c->places + t;
      if (c->taps - t >= 3)
        add_products(3, from, copy, places, rows, c->wide, row_step, step, target, next);
      else if (c->taps - t == 2)
        add_products(2, from, copy, places, rows, c->wide, row_step, step, target, next);
      else
        add_products(1, from, copy, places, rows, c->wide, row_step, step, target, next);
    }
  }
}

static void correlate_part(void *data, size_t part) {
  Correlation *c = data;
  int64_t first_in = (int64_t)part / c->groups * LANES, first_out = (int64_t)part % c->groups * c->outs;
  int64_t ins = c->in - first_in < LANES ? c->in - first_in : LANES;
  int64_t outs = c->out - first_out < c->outs ? c->out - first_out : c->outs;
  int64_t most = (c->band - 1) * c->v[2] + (c->v[0] - 1) * c->v[4] + 1;
  int64_t sums_size = (outs + OUTS) * c->taps * LANES, copy_size = most * c->wide_copy * LANES;
  float *memory = calloc((size_t)(sums_size + copy_size + 16), sizeof(float));
  if (!memory) {
    __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  float *sums = (float *)(((uintptr_t)memory + 63) / 64 * 64), *copy = sums + sums_size;
  for (int64_t n = 0; n < c->images; n++) {
    const float *x = c->x + (n * c->in + first_in) * c->rows * c->columns;
    const float *g = c->g + (n * c->out + first_out) * c->high * c->wide;
    for (int64_t row = 0; row < c->high; row += c->band) {
      int64_t rows = c->high - row < c->band ? c->high - row : c->band;
      copy_rows(c, x, ins, row * c->v[2], (rows - 1) * c->v[2] + (c->v[0] - 1) * c->v[4] + 1, copy);
      add_band(c, copy, g + row * c->wide, outs, rows, sums);
    }
  }
  for (int64_t o = 0; o < outs; o++)
    for (int64_t i = 0; i < ins; i++) {
      float *target = c->dw + ((first_out + o) * c->in + first_in + i) * c->taps;
      for (int64_t t = 0; t < c->taps; t++) target[t] = sums[(o * c->taps + t) * LANES + i];
    }
  free(memory);
}

static Status run_kernel(void *kernel, void *context) {
  const Settings *s = kernel;
  const int64_t *v = s->settings;
  Tensor x, g;
  TRY(read_input(s->api, context, 0, &x));
  TRY(read_input(s->api, context, 1, &g));
  if (x.rank != 4 || g.rank != 4 || x.type != FLOAT || g.type != FLOAT || x.sizes[0] != g.sizes[0])
    return failure(s->api, "images and the gradient of their convolution do not fit");
  Correlation c = {.x = x.data, .g = g.data, .images = x.sizes[0], .in = x.sizes[1], .v = v};
  c.rows = x.sizes[2], c.columns = x.sizes[3];
  c.out = g.sizes[1], c.high = g.sizes[2], c.wide = g.sizes[3];
  int64_t shape[] = {c.out, c.in, v[0], v[1]};
  void *target;
  TRY(make_output(s->api, context, 0, shape, 4, &target));
  c.dw = target, c.taps = v[0] * v[1];
  int infinite = 1;
  int64_t threads = s->length > 8 ? v[8] : 1;
  if (can_be_transformed(&c)) TRY(correlate_tiles(s->api, context, &c, threads, &infinite));
  if (!infinite) return 0;
  int64_t vectors = (c.in + LANES - 1) / LANES, chunks = (c.out + OUTS - 1) / OUTS;
  if (!vectors || !chunks || !c.taps) return 0;
  c.wide_copy = c.wide ? (c.wide - 1) * v[3] + (v[1] - 1) * v[5] + 1 : 1;
  int64_t fit = BAND / (c.wide_copy * v[2] * LANES), bands = (c.high + fit) / (fit + 1);
  c.band = bands ? (c.high + bands - 1) / bands : 1;
  c.groups = (FEWEST_PARTS + vectors - 1) / vectors;
  if (c.groups * MOST_OUTS < c.out) c.groups = (c.out + MOST_OUTS - 1) / MOST_OUTS;
  if (c.groups > chunks) c.groups = chunks;
  c.outs = (chunks + c.groups - 1) / c.groups * OUTS;
  c.groups = (c.out + c.outs - 1) / c.outs;
  int64_t *places = alloca(c.taps * sizeof(int64_t));
  for (int64_t t = 0; t < c.taps; t++)
    places[t] = (t / v[1] * v[4] * c.wide_copy + t % v[1] * v[5]) * LANES;
  c.places = places;
  TRY(parallel(s->api, context, correlate_part, (size_t)(vectors * c.groups), &c));
  return c.failed ? failure(s->api, NO_MEMORY) : 0;
}

#ifndef __clang__
#pragma GCC pop_options
#endif

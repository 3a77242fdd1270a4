/* The operator Winograd: a convolution by a kernel of three by three with 2.25 times fewer
   multiplications, after S. Winograd's F(2×2, 3×3).

   Results are computed in tiles of two by two pixels. The four by four pixels that a tile depends on
   are transformed, and so is the kernel; then each of the 16 places is a matrix product of its own,
   over the channels; the transform of its results is the tile. Both transforms are sums, of halves
   for the kernel. Channels lie next to each other in vectors.

   Where a result is not finite, all is computed again without transforms: they would spread what is
   not a number over a tile.

   The attribute `winograd`: whether the kernel is that of the convolution whose gradient this is,
   so that its channels are exchanged and its places turned around; rows and columns of padding
   before the image and behind it; threads. */

#define PLACES 16
#define STEP (2 * LANES) /* channels of a panel of results */
#if LANES == 16
#define TILES 14 /* whose sums stay in registers */
#else
#define TILES 6
#endif
#define BUDGET (160 << 10) /* numbers of transformed pixels that stay in the second cache */

#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

typedef struct {
  const float *x, *w, *bias;
  float *y, *kernels;
  int64_t images, in, out, rows, columns, high, wide; /* of images, and of results */
  int64_t top, left, turned;
  int64_t down, across;       /* tiles of an image */
  int64_t vectors, panels;    /* of channels: of images, and of results */
  int64_t band, block;        /* rows of tiles in one part of the work, and room for their tiles */
  int64_t groups, group;      /* parts that share their tiles, and panels of each */
  int failed, infinite;
} Tiling;

/* Four numbers and what the transform of pixels makes of them. */
#define TRANSFORM(to, a, b, c, d) \
  (to)[0] = (a) - (c), (to)[1] = (b) + (c), (to)[2] = (c) - (b), (to)[3] = (b) - (d)

/* A tile of pixels, whose rows are `row` apart, to 16 places that are `next` apart. */
static inline void transform_pixels(const float *from, int64_t row, float *to, int64_t next) {
  Vector half[4][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const float *p = from + i * LANES;
    Vector a = *(const Vector *)p, b = *(const Vector *)(p + row);
    Vector c = *(const Vector *)(p + 2 * row), d = *(const Vector *)(p + 3 * row);
    half[0][i] = a - c, half[1][i] = b + c, half[2][i] = c - b, half[3][i] = b - d;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    Vector all[4];
    TRANSFORM(all, half[i][0], half[i][1], half[i][2], half[i][3]);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) *(Vector *)(to + (4 * i + k) * next) = all[k];
  }
}

/* Rows of an image, of one vector of channels: `columns` of the padded image from its start. */
static void copy_padded(const float *x, int64_t plane, int64_t channels, int64_t rows,
                        int64_t columns, int64_t top, int64_t left, int64_t count, int64_t width,
                        float *copy) {
  int64_t inside = width - left < columns ? width - left : columns;
  for (int64_t i = 0; i < count; i++) {
    int64_t row = top + i;
    float *target = copy + i * width * LANES;
    if (row < 0 || row >= rows || inside <= 0) {
      memset(target, 0, (size_t)(width * LANES) * sizeof(float));
      continue;
    }
    memset(target, 0, (size_t)(left * LANES) * sizeof(float));
    pack(x + row * columns, 1, plane, channels, LANES, inside, target + left * LANES);
    memset(target + (left + inside) * LANES, 0,
           (size_t)((width - left - inside) * LANES) * sizeof(float));
  }
}

/* The pixels of some rows of tiles, `first` on, of one vector of channels. Places are `next` apart. */
static void transform_rows(const Tiling *t, int64_t vector, int64_t first, int64_t count,
                           float *copy, float *to, int64_t next) {
  int64_t width = 2 * t->across + 2, channels = t->in - vector * LANES;
  int64_t plane = t->rows * t->columns;
  if (channels > LANES) channels = LANES;
  for (int64_t done = 0; done < count;) {
    int64_t image = (first + done) / t->down, row = (first + done) % t->down;
    int64_t run = t->down - row < count - done ? t->down - row : count - done;
    const float *x = t->x + (image * t->in + vector * LANES) * plane;
    copy_padded(x, plane, channels, t->rows, t->columns, 2 * row - t->top, t->left, 2 * run + 2,
                width, copy);
    for (int64_t i = 0; i < run; i++)
      for (int64_t k = 0; k < t->across; k++, to += LANES)
        transform_pixels(copy + (2 * i * width + 2 * k) * LANES, width * LANES, to, next);
    done += run;
  }
}

/* The kernel of one panel of results: 16 places, for each channel of the images a row of STEP. */
static void transform_kernel(void *data, size_t panel) {
  const Tiling *t = data;
  int64_t depth = t->vectors * LANES, first = (int64_t)panel * STEP;
  int64_t count = t->out - first < STEP ? t->out - first : STEP;
  float *to = t->kernels + (int64_t)panel * PLACES * depth * STEP;
  float taps[9 * STEP] __attribute__((aligned(64))) = {0};
  for (int64_t k = 0; k < depth; k++, to += STEP) {
    if (k == t->in) memset(taps, 0, sizeof(taps));
    for (int64_t i = 0; k < t->in && i < count; i++) {
      const float *w = t->w + (t->turned ? k * t->out + first + i : (first + i) * t->in + k) * 9;
      for (int j = 0; j < 9; j++) taps[j * STEP + i] = w[t->turned ? 8 - j : j];
    }
    for (int side = 0; side < STEP; side += LANES) {
      Vector half[4][3];
#pragma GCC unroll 3
      for (int i = 0; i < 3; i++) {
        const float *p = taps + i * STEP + side;
        Vector a = *(const Vector *)p, b = *(const Vector *)(p + 3 * STEP);
        Vector c = *(const Vector *)(p + 6 * STEP), ends = (a + c) * 0.5f, middle = b * 0.5f;
        half[0][i] = a, half[1][i] = ends + middle, half[2][i] = ends - middle, half[3][i] = c;
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        Vector *h = half[i], ends = (h[0] + h[2]) * 0.5f, middle = h[1] * 0.5f;
        float *target = to + 4 * i * depth * STEP + side;
        *(Vector *)target = h[0];
        *(Vector *)(target + depth * STEP) = ends + middle;
        *(Vector *)(target + 2 * depth * STEP) = ends - middle;
        *(Vector *)(target + 3 * depth * STEP) = h[2];
      }
    }
  }
}

/* TILES tiles by one panel of results, at one place. Vectors of channels are `next` apart. */
static void multiply_places(const float *a, int64_t next, const float *b, int64_t vectors,
                            float *target) {
  Vector sums[TILES][2];
#pragma GCC unroll 14
  for (int i = 0; i < TILES; i++) sums[i][0] = sums[i][1] = (Vector){0};
  for (int64_t v = 0; v < vectors; v++, a += next)
    for (int64_t k = 0; k < LANES; k++, b += STEP) {
      Vector left = *(const Vector *)b, right = *(const Vector *)(b + LANES);
#pragma GCC unroll 14
      for (int i = 0; i < TILES; i++) {
        float factor = a[i * LANES + k];
        sums[i][0] += factor * left;
        sums[i][1] += factor * right;
      }
    }
#pragma GCC unroll 14
  for (int i = 0; i < TILES; i++) {
    *(Vector *)(target + i * STEP) = sums[i][0];
    *(Vector *)(target + i * STEP + LANES) = sums[i][1];
  }
}

/* 16 places, which are `next` apart, to two by two pixels, whose rows are `row` apart. What is not
   finite makes a NaN of the result. */
static inline Vector transform_back(const float *from, int64_t next, Vector bias, float *to,
                                    int64_t row) {
  Vector half[2][4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const float *p = from + i * next;
    Vector a = *(const Vector *)p, b = *(const Vector *)(p + 4 * next);
    Vector c = *(const Vector *)(p + 8 * next), d = *(const Vector *)(p + 12 * next);
    half[0][i] = a + b + c, half[1][i] = b - c - d;
  }
  Vector check = {0};
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    Vector *h = half[i], first = h[0] + h[1] + h[2] + bias, second = h[1] - h[2] - h[3] + bias;
    *(Vector *)(to + i * row) = first, *(Vector *)(to + i * row + LANES) = second;
    check += (first + second) * 0.0f;
  }
  return check;
}

/* Pixels of `count` channels, which lie next to each other, to images of one channel each. */
static void separate(const float *from, int64_t pixels, int64_t count, float *to, int64_t plane) {
  int64_t done = 0;
#ifdef TRANSPOSES
  if (count == LANES)
    for (; done + 16 <= pixels; done += 16) transpose_sixteen(from + done * LANES, LANES, to + done, plane);
#endif
  for (int64_t i = 0; i < count; i++)
    for (int64_t k = done; k < pixels; k++) to[i * plane + k] = from[k * LANES + i];
}

/* Results of some rows of tiles, of one vector of channels. */
static int store_rows(const Tiling *t, const float *sums, int64_t channel, int64_t first,
                      int64_t count, float *copy) {
  int64_t width = 2 * t->across, plane = t->high * t->wide, channels = t->out - channel;
  int64_t tile = 0;
  if (channels > LANES) channels = LANES;
  float shift[LANES] = {0};
  if (t->bias) memcpy(shift, t->bias + channel, (size_t)channels * sizeof(float));
  Vector bias = *(const Vector *)shift, check = {0};
  for (int64_t done = 0; done < count;) {
    int64_t image = (first + done) / t->down, row = (first + done) % t->down;
    int64_t run = t->down - row < count - done ? t->down - row : count - done;
    for (int64_t i = 0; i < run; i++)
      for (int64_t k = 0; k < t->across; k++, tile++)
        check += transform_back(sums + tile * STEP, t->block * STEP, bias,
                                copy + (2 * i * width + 2 * k) * LANES, width * LANES);
    int64_t rows = t->high - 2 * row < 2 * run ? t->high - 2 * row : 2 * run;
    float *y = t->y + (image * t->out + channel) * plane + 2 * row * t->wide;
    if (width == t->wide) separate(copy, rows * width, channels, y, plane);
    else
      for (int64_t i = 0; i < rows; i++)
        separate(copy + i * width * LANES, t->wide, channels, y + i * t->wide, plane);
    done += run;
  }
  int infinite = 0;
  for (int i = 0; i < LANES; i++) infinite |= check[i] != 0.0f;
  return infinite;
}

static void convolve_part(void *data, size_t part) {
  Tiling *t = data;
  int64_t all = t->images * t->down, first = (int64_t)part / t->groups * t->band;
  int64_t count = all - first < t->band ? all - first : t->band, depth = t->vectors * LANES;
  int64_t panel = (int64_t)part % t->groups * t->group;
  int64_t end = panel + t->group < t->panels ? panel + t->group : t->panels;
  int64_t pixels = PLACES * t->vectors * t->block * LANES, sums = PLACES * t->block * STEP;
  int64_t copy = (2 * count + 2) * (2 * t->across + 2) * LANES;
  float *memory = malloc((size_t)(pixels + sums + copy + 64) * sizeof(float));
  if (!memory) {
    __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  float *places = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  float *results = places + pixels, *buffer = results + sums;
  int64_t used = (count * t->across + TILES - 1) / TILES * TILES;
  for (int64_t i = 0; i < PLACES * t->vectors; i++) /* behind the last tile */
    memset(places + (i * t->block + count * t->across) * LANES, 0,
           (size_t)((used - count * t->across) * LANES) * sizeof(float));
  for (int64_t v = 0; v < t->vectors; v++)
    transform_rows(t, v, first, count, buffer, places + v * t->block * LANES,
                   t->vectors * t->block * LANES);
  int infinite = 0;
  for (; panel < end; panel++) {
    const float *kernel = t->kernels + panel * PLACES * depth * STEP;
    for (int64_t place = 0; place < PLACES; place++)
      for (int64_t i = 0; i < used; i += TILES)
        multiply_places(places + (place * t->vectors * t->block + i) * LANES, t->block * LANES,
                        kernel + place * depth * STEP, t->vectors,
                        results + (place * t->block + i) * STEP);
    for (int64_t side = 0; side < STEP && panel * STEP + side < t->out; side += LANES)
      infinite |= store_rows(t, results + side, panel * STEP + side, first, count, buffer);
  }
  if (infinite) __atomic_store_n(&t->infinite, 1, __ATOMIC_RELAXED);
  free(memory);
}

#ifndef __clang__
#pragma GCC pop_options
#endif

/* One channel of one image, as a convolution is defined. */
static void convolve_plainly(void *data, size_t part) {
  const Tiling *t = data;
  int64_t image = (int64_t)part / t->out, channel = (int64_t)part % t->out;
  float *y = t->y + (int64_t)part * t->high * t->wide;
  for (int64_t i = 0; i < t->high * t->wide; i++) y[i] = t->bias ? t->bias[channel] : 0.0f;
  for (int64_t c = 0; c < t->in; c++) {
    const float *x = t->x + (image * t->in + c) * t->rows * t->columns;
    const float *w = t->w + (t->turned ? c * t->out + channel : channel * t->in + c) * 9;
    for (int64_t tap = 0; tap < 9; tap++) {
      float factor = w[t->turned ? 8 - tap : tap];
      int64_t down = tap / 3 - t->top, right = tap % 3 - t->left;
      int64_t first = right < 0 ? -right : 0;
      int64_t end = t->columns - right < t->wide ? t->columns - right : t->wide;
      for (int64_t i = 0; i < t->high; i++) {
        if (i + down < 0 || i + down >= t->rows) continue;
        const float *row = x + (i + down) * t->columns + right;
        for (int64_t k = first; k < end; k++) y[i * t->wide + k] += factor * row[k];
      }
    }
  }
}

static Status create_winograd(const Operator *op, const void *api, const void *info, void **kernel) {
  return (void)op, create_settings(api, info, "winograd", kernel);
}

/* How many rows of tiles are one part of the work, and how many panels of results. */
static void plan_tiles(Tiling *t, int64_t threads) {
  int64_t all = t->images * t->down, unit = TILES;
  while (unit > 1 && unit / 2 * t->across % TILES == 0 && unit % 2 == 0) unit /= 2;
  if (t->across % TILES == 0) unit = 1;
  int64_t fit = BUDGET / (PLACES * t->vectors * LANES * t->across) / unit * unit;
  t->band = fit > unit ? fit : unit;
  if (t->band > all) t->band = all;
  t->block = (t->band * t->across + TILES - 1) / TILES * TILES;
  int64_t bands = (all + t->band - 1) / t->band;
  t->groups = (2 * threads + bands - 1) / bands;
  if (t->groups > t->panels || threads == 1) t->groups = threads == 1 ? 1 : t->panels;
  t->group = (t->panels + t->groups - 1) / t->groups;
  t->groups = (t->panels + t->group - 1) / t->group;
}

static Status run_winograd(void *kernel, void *context) {
  const Settings *s = kernel;
  const int64_t *v = s->settings;
  Tensor x, w, bias;
  size_t inputs;
  TRY(CALL(s->api, INPUT_COUNT, Status(*)(const void *, size_t *))(context, &inputs));
  TRY(read_input(s->api, context, 0, &x));
  TRY(read_input(s->api, context, 1, &w));
  Tiling t = {.x = x.data, .w = w.data, .turned = v[0], .top = v[1], .left = v[2]};
  int fits = x.rank == 4 && w.rank == 4 && x.type == FLOAT && w.type == FLOAT;
  if (!fits || w.sizes[2] != 3 || w.sizes[3] != 3 || w.sizes[t.turned ? 0 : 1] != x.sizes[1])
    return failure(s->api, "images and the kernel of their convolution do not fit");
  t.images = x.sizes[0], t.in = x.sizes[1], t.rows = x.sizes[2], t.columns = x.sizes[3];
  t.out = w.sizes[t.turned ? 1 : 0];
  t.high = t.rows + v[1] + v[3] - 2, t.wide = t.columns + v[2] + v[4] - 2;
  if (t.high < 0 || t.wide < 0) return failure(s->api, "an image is smaller than its kernel");
  if (inputs > 2) {
    TRY(read_input(s->api, context, 2, &bias));
    if (bias.count != t.out || bias.type != FLOAT)
      return failure(s->api, "what is added to a convolution has another size");
    t.bias = bias.data;
  }
  int64_t shape[] = {t.images, t.out, t.high, t.wide};
  void *target;
  TRY(make_output(s->api, context, 0, shape, 4, &target));
  t.y = target;
  if (!t.images || !t.out || !t.high || !t.wide) return 0;
  size_t planes = (size_t)(t.images * t.out);
  if (!t.in) return parallel(s->api, context, convolve_plainly, planes, &t);
  t.down = (t.high + 1) / 2, t.across = (t.wide + 1) / 2;
  t.vectors = (t.in + LANES - 1) / LANES, t.panels = (t.out + STEP - 1) / STEP;
  plan_tiles(&t, v[5]);
  size_t size = (size_t)(t.panels * PLACES * t.vectors * LANES * STEP + 16) * sizeof(float);
  float *memory = malloc(size);
  if (!memory) return failure(s->api, NO_MEMORY);
  t.kernels = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  int64_t bands = (t.images * t.down + t.band - 1) / t.band;
  Status status = parallel(s->api, context, transform_kernel, (size_t)t.panels, &t);
  if (!status) status = parallel(s->api, context, convolve_part, (size_t)(bands * t.groups), &t);
  free(memory);
  if (!status && t.failed) return failure(s->api, NO_MEMORY);
  if (!status && t.infinite)
    status = parallel(s->api, context, convolve_plainly, planes, &t);
  return status;
}

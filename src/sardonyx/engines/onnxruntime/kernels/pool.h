/* The operator PoolGradient: the gradient of the largest number of each window of an image.

   Each number of the gradient goes to the first largest number of its window, as in torch; what is
   not a number counts as the largest, the last one where there are several.

   The attribute `pool`: height and width of a window, the same of its steps, rows and columns of
   padding before the image, and whether zeros of the image pass no gradient on (a Relu before). */

typedef struct {
  const float *x, *g;
  float *dx;
  int64_t rows, columns, high, wide; /* of an image, and of its gradient */
  const int64_t *v;
  int failed;
} Pooling;

static Status create_pool(const Operator *op, const void *api, const void *info, void **kernel) {
  return (void)op, create_settings(api, info, "pool", kernel);
}

#define WINS(a, b) ((a) > (b) || (a) != (a))

/* One of two numbers, without a branch: which one is the largest is a guess that a processor gets
   wrong, also where a row ends within a vector. `bits` are all set, or none. */
static inline int32_t pick(int32_t bits, int32_t yes, int32_t no) {
  return (yes & bits) | (no & ~bits);
}

static inline float pick_float(int32_t bits, float yes, float no) {
  union {
    float number;
    int32_t bits;
  } a = {yes}, b = {no};
  a.bits = pick(bits, a.bits, b.bits);
  return a.number;
}

#define WINS_ALL(a, b) (-(int32_t)(((a) > (b)) | ((a) != (a))))

/* Windows of two by two that lie next to each other. */
static void spread_two(const Pooling *p, const float *x, const float *g, float *dx) {
  const int masked = p->v[6] != 0;
  for (int64_t i = 0; i < p->high; i++) {
    const float *above = x + 2 * i * p->columns, *below = above + p->columns;
    const float *from = g + i * p->wide;
    float *first = dx + 2 * i * p->columns, *second = first + p->columns;
    /* longer vectors lose what they gain to taking every second number */
#pragma omp simd simdlen(4)
    for (int64_t k = 0; k < p->wide; k++) {
      float a = above[2 * k], b = above[2 * k + 1], c = below[2 * k], d = below[2 * k + 1];
      int32_t wins = WINS_ALL(b, a), place = pick(wins, 1, 0);
      float most = pick_float(wins, b, a);
      wins = WINS_ALL(c, most), place = pick(wins, 2, place), most = pick_float(wins, c, most);
      wins = WINS_ALL(d, most), place = pick(wins, 3, place), most = pick_float(wins, d, most);
      float value = pick_float(-(int32_t)(masked & (most == 0.0f)), 0.0f, from[k]);
      first[2 * k] = pick_float(-(int32_t)(place == 0), value, 0.0f);
      first[2 * k + 1] = pick_float(-(int32_t)(place == 1), value, 0.0f);
      second[2 * k] = pick_float(-(int32_t)(place == 2), value, 0.0f);
      second[2 * k + 1] = pick_float(-(int32_t)(place == 3), value, 0.0f);
    }
    for (int64_t k = 2 * p->wide; k < p->columns; k++) first[k] = second[k] = 0.0f;
  }
  int64_t done = 2 * p->high * p->columns;
  memset(dx + done, 0, (p->rows * p->columns - done) * sizeof(float));
}

/* Any windows. Columns of the padded image that are a step apart lie next to each other here, so
   that neighbouring windows read and write neighbouring numbers. */
typedef struct {
  int64_t steps, length; /* of a row: so many parts of this length, the last one is not used whole */
  float *x, *dx;         /* rows of the image and of its gradient */
  float *most, *place;   /* of each window of a row: its largest number, and which one that is */
} Parts;

static void divide_columns(const Pooling *p, const Parts *parts, const float *x) {
  int64_t size = parts->steps * parts->length, left = p->v[5];
  for (int64_t i = 0; i < p->rows * size; i++) parts->x[i] = -INFINITY, parts->dx[i] = 0.0f;
  for (int64_t row = 0; row < p->rows; row++)
    for (int64_t part = 0; part < parts->steps; part++) {
      float *to = parts->x + row * size + part * parts->length;
      int64_t first = part < left ? (left - part + parts->steps - 1) / parts->steps : 0;
      const float *from = x + row * p->columns + part - left;
      int64_t end = (p->columns + left - part + parts->steps - 1) / parts->steps;
      for (int64_t q = first; q < end; q++) to[q] = from[q * parts->steps];
    }
}

static void join_columns(const Pooling *p, const Parts *parts, float *dx) {
  int64_t size = parts->steps * parts->length, left = p->v[5];
  for (int64_t row = 0; row < p->rows; row++)
    for (int64_t part = 0; part < parts->steps; part++) {
      const float *from = parts->dx + row * size + part * parts->length;
      int64_t first = part < left ? (left - part + parts->steps - 1) / parts->steps : 0;
      float *to = dx + row * p->columns + part - left;
      int64_t end = (p->columns + left - part + parts->steps - 1) / parts->steps;
      for (int64_t q = first; q < end; q++) to[q * parts->steps] = from[q];
    }
}

/* The windows of one row: where the largest numbers are, then what goes there. */
static void spread_row(const Pooling *p, const Parts *parts, int64_t top, const float *g) {
  const int64_t *v = p->v;
  const int masked = v[6] != 0;
  int64_t size = parts->steps * parts->length, bottom = top + v[0];
  int64_t above = top < 0 ? -top : 0, end = bottom > p->rows ? p->rows - top : v[0];
  float *restrict most = parts->most, *restrict place = parts->place;
  for (int64_t k = 0; k < p->wide; k++) {
    int64_t outside = v[5] - k * v[3];
    most[k] = -INFINITY; /* where nothing is larger, the first number of the window counts */
    place[k] = outside < v[1] ? (float)(above * v[1] + (outside > 0 ? outside : 0)) : -1.0f;
  }
  for (int64_t r = above; r < end; r++)
    for (int64_t c = 0; c < v[1]; c++) {
      const float *from = parts->x + (top + r) * size + c % v[3] * parts->length + c / v[3];
      const float number = (float)(r * v[1] + c);
#pragma omp simd
      for (int64_t k = 0; k < p->wide; k++) {
        float value = from[k], old = most[k];
        most[k] = WINS(value, old) ? value : old;
        place[k] = WINS(value, old) ? number : place[k];
      }
    }
  for (int64_t r = above; r < end; r++)
    for (int64_t c = 0; c < v[1]; c++) {
      float *restrict to = parts->dx + (top + r) * size + c % v[3] * parts->length + c / v[3];
      const float number = (float)(r * v[1] + c);
#pragma omp simd
      for (int64_t k = 0; k < p->wide; k++)
        to[k] += place[k] == number && !(masked && most[k] == 0.0f) ? g[k] : 0.0f;
    }
}

static int spread(const Pooling *p, const float *x, const float *g, float *dx) {
  const int64_t *v = p->v;
  int64_t last = p->wide - 1 + (v[1] - 1) / v[3], other = (p->columns - 1 + v[5]) / v[3];
  Parts parts = {.steps = v[3], .length = (last > other ? last : other) + 1};
  int64_t size = p->rows * parts.steps * parts.length;
  float *memory = malloc((size_t)(2 * size + 2 * p->wide + 1) * sizeof(float));
  if (!memory) return 1;
  parts.x = memory, parts.dx = memory + size;
  parts.most = parts.dx + size, parts.place = parts.most + p->wide;
  divide_columns(p, &parts, x);
  for (int64_t i = 0; i < p->high; i++) spread_row(p, &parts, i * v[2] - v[4], g + i * p->wide);
  join_columns(p, &parts, dx);
  free(memory);
  return 0;
}

static void spread_image(void *data, size_t image) {
  Pooling *p = data;
  const int64_t *v = p->v;
  int64_t size = p->rows * p->columns;
  const float *x = p->x + (int64_t)image * size;
  const float *g = p->g + (int64_t)image * p->high * p->wide;
  int two = v[0] == 2 && v[1] == 2 && v[2] == 2 && v[3] == 2 && !v[4] && !v[5];
  if (two && 2 * p->high <= p->rows && 2 * p->wide <= p->columns)
    spread_two(p, x, g, p->dx + (int64_t)image * size);
  else if (spread(p, x, g, p->dx + (int64_t)image * size))
    __atomic_store_n(&p->failed, 1, __ATOMIC_RELAXED);
}

static Status run_pool(void *kernel, void *context) {
  const Settings *s = kernel;
  Tensor x, g;
  TRY(read_input(s->api, context, 0, &x));
  TRY(read_input(s->api, context, 1, &g));
  int fits = x.rank == 4 && g.rank == 4 && x.type == FLOAT && g.type == FLOAT;
  if (!fits || x.sizes[0] != g.sizes[0] || x.sizes[1] != g.sizes[1])
    return failure(s->api, "images and the gradient of their windows do not fit");
  Pooling p = {.x = x.data, .g = g.data, .rows = x.sizes[2], .columns = x.sizes[3]};
  p.high = g.sizes[2], p.wide = g.sizes[3], p.v = s->settings;
  void *target;
  TRY(make_output(s->api, context, 0, x.sizes, 4, &target));
  p.dx = target;
  size_t images = (size_t)(x.sizes[0] * x.sizes[1]);
  if (images && x.count) TRY(parallel(s->api, context, spread_image, images, &p));
  return p.failed ? failure(s->api, NO_MEMORY) : 0;
}

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
} Pooling;

static Status create_pool(const Operator *op, const void *api, const void *info, void **kernel) {
  return (void)op, create_settings(api, info, "pool", kernel);
}

#define WINS(a, b) ((a) > (b) || (a) != (a))

/* Windows of two by two that lie next to each other. */
static void spread_two(const Pooling *p, const float *x, const float *g, float *dx) {
  const int masked = p->v[6] != 0;
  for (int64_t i = 0; i < p->high; i++) {
    const float *above = x + 2 * i * p->columns, *below = above + p->columns;
    const float *from = g + i * p->wide;
    float *first = dx + 2 * i * p->columns, *second = first + p->columns;
#pragma omp simd
    for (int64_t k = 0; k < p->wide; k++) {
      float a = above[2 * k], b = above[2 * k + 1], c = below[2 * k], d = below[2 * k + 1];
      float most = a, place = 0.0f;
      place = WINS(b, most) ? 1.0f : place, most = WINS(b, most) ? b : most;
      place = WINS(c, most) ? 2.0f : place, most = WINS(c, most) ? c : most;
      place = WINS(d, most) ? 3.0f : place, most = WINS(d, most) ? d : most;
      float value = masked && most == 0.0f ? 0.0f : from[k];
      first[2 * k] = place == 0.0f ? value : 0.0f;
      first[2 * k + 1] = place == 1.0f ? value : 0.0f;
      second[2 * k] = place == 2.0f ? value : 0.0f;
      second[2 * k + 1] = place == 3.0f ? value : 0.0f;
    }
    for (int64_t k = 2 * p->wide; k < p->columns; k++) first[k] = second[k] = 0.0f;
  }
  int64_t done = 2 * p->high * p->columns;
  memset(dx + done, 0, (p->rows * p->columns - done) * sizeof(float));
}

static void spread(const Pooling *p, const float *x, const float *g, float *dx) {
  const int64_t *v = p->v;
  memset(dx, 0, p->rows * p->columns * sizeof(float));
  for (int64_t i = 0; i < p->high; i++) {
    int64_t top = i * v[2] - v[4], bottom = top + v[0];
    top = top < 0 ? 0 : top, bottom = bottom > p->rows ? p->rows : bottom;
    for (int64_t k = 0; k < p->wide; k++) {
      int64_t left = k * v[3] - v[5], right = left + v[1];
      left = left < 0 ? 0 : left, right = right > p->columns ? p->columns : right;
      if (top >= bottom || left >= right) continue;
      int64_t place = top * p->columns + left;
      float most = x[place];
      for (int64_t row = top; row < bottom; row++)
        for (int64_t column = left; column < right; column++) {
          float value = x[row * p->columns + column];
          int wins = WINS(value, most);
          most = wins ? value : most;
          place = wins ? row * p->columns + column : place;
        }
      if (!v[6] || most != 0.0f) dx[place] += g[i * p->wide + k];
    }
  }
}

static void spread_image(void *data, size_t image) {
  const Pooling *p = data;
  const int64_t *v = p->v;
  int64_t size = p->rows * p->columns;
  const float *x = p->x + (int64_t)image * size;
  const float *g = p->g + (int64_t)image * p->high * p->wide;
  int two = v[0] == 2 && v[1] == 2 && v[2] == 2 && v[3] == 2 && !v[4] && !v[5];
  if (two && 2 * p->high <= p->rows && 2 * p->wide <= p->columns)
    spread_two(p, x, g, p->dx + (int64_t)image * size);
  else
    spread(p, x, g, p->dx + (int64_t)image * size);
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
  return images && x.count ? parallel(s->api, context, spread_image, images, &p) : 0;
}

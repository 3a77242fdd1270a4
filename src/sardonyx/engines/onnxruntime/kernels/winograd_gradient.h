/* The gradient of a kernel of three by three, with 2.25 times fewer multiplications (winograd.h).

   A result of winograd.h is a sum over 16 places of the transformed kernel times the transformed
   pixels, so that the gradient of the transformed kernel is a product for each place: of the pixels,
   and of the gradient of the results, which is transformed by the transpose of what makes results.
   Its sums run over all tiles. They are kept for 64 × 128 channels at a time. */

#define GROUP_IN (64 / LANES)   /* vectors of channels that share their tiles */
#define GROUP_OUT (128 / LANES)
#define HALF (LANES / 2)        /* channels of the results whose sums stay in registers */
#define TILES_AT_ONCE 64
#define FEWEST_TILES 32

#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

typedef struct {
  Tiling t;
  const float *g;
  float *dw, *sums;
  int64_t groups_in, groups_out, ranges, range; /* parts of the work, and rows of tiles of a range */
  int64_t ins, outs, size;                      /* vectors of a group, and numbers of its sums */
} Gradient;

/* Two by two numbers of a gradient to 16 places. */
static inline void transform_gradient(const float *from, int64_t row, float *to, int64_t next) {
  Vector half[4][2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    Vector a = *(const Vector *)(from + i * LANES), b = *(const Vector *)(from + i * LANES + row);
    half[0][i] = a, half[1][i] = a + b, half[2][i] = a - b, half[3][i] = -b;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    Vector a = half[i][0], b = half[i][1];
    float *target = to + 4 * i * next;
    *(Vector *)target = a, *(Vector *)(target + next) = a + b;
    *(Vector *)(target + 2 * next) = a - b, *(Vector *)(target + 3 * next) = -b;
  }
}

static void transform_gradient_rows(const Gradient *d, int64_t vector, int64_t first, int64_t count,
                                    float *copy, float *to, int64_t next) {
  const Tiling *t = &d->t;
  int64_t width = 2 * t->across, channels = t->out - vector * LANES, plane = t->high * t->wide;
  if (channels > LANES) channels = LANES;
  for (int64_t done = 0; done < count;) {
    int64_t image = (first + done) / t->down, row = (first + done) % t->down;
    int64_t run = t->down - row < count - done ? t->down - row : count - done;
    const float *g = d->g + (image * t->out + vector * LANES) * plane;
    copy_padded(g, plane, channels, t->high, t->wide, 2 * row, 0, 2 * run, width, copy);
    for (int64_t i = 0; i < run; i++)
      for (int64_t k = 0; k < t->across; k++, to += LANES)
        transform_gradient(copy + (2 * i * width + 2 * k) * LANES, width * LANES, to, next);
    done += run;
  }
}

/* Add the products of all tiles of HALF channels of the results with two vectors of the images. */
static void add_tiles(const float *g, const float *first, const float *second, int64_t tiles,
                      float *sums) {
  Vector s[HALF][2];
#pragma GCC unroll 8
  for (int i = 0; i < HALF; i++)
    s[i][0] = *(const Vector *)(sums + i * STEP), s[i][1] = *(const Vector *)(sums + i * STEP + LANES);
  for (int64_t k = 0; k < tiles; k++, g += LANES, first += LANES, second += LANES) {
    Vector left = *(const Vector *)first, right = *(const Vector *)second;
#pragma GCC unroll 8
    for (int i = 0; i < HALF; i++) {
      s[i][0] += g[i] * left;
      s[i][1] += g[i] * right;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < HALF; i++)
    *(Vector *)(sums + i * STEP) = s[i][0], *(Vector *)(sums + i * STEP + LANES) = s[i][1];
}

/* All places and channels of a group, for some tiles. */
static void add_group(const Gradient *d, const float *pixels, const float *gradients, int64_t ins,
                      int64_t outs, int64_t tiles, float *sums) {
  int64_t room = d->t.block * LANES;
  for (int64_t place = 0; place < PLACES; place++)
    for (int64_t i = 0; i < ins; i += 2) {
      const float *first = pixels + (place * d->ins + i) * room;
      const float *second = i + 1 < ins ? first + room : first; /* or into sums not used */
      for (int64_t o = 0; o < outs; o++) {
        const float *g = gradients + (place * d->outs + o) * room;
        float *target = sums + ((place * d->ins + i) * d->outs + o * 2) * LANES * LANES;
        add_tiles(g, first, second, tiles, target);
        add_tiles(g + HALF, first, second, tiles, target + HALF * STEP);
      }
    }
}

/* From the sums of 16 places to three by three, of a vector of channels. Sums are `next` apart. */
static Vector transform_sums(const float *from, int64_t next, float *taps) {
  Vector half[3][4], check = {0};
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const float *p = from + i * next;
    Vector a = *(const Vector *)p, b = *(const Vector *)(p + 4 * next) * 0.5f;
    Vector c = *(const Vector *)(p + 8 * next) * 0.5f, d = *(const Vector *)(p + 12 * next);
    half[0][i] = a + (b + c), half[1][i] = b - c, half[2][i] = (b + c) + d;
  }
#pragma GCC unroll 3
  for (int i = 0; i < 3; i++) {
    Vector a = half[i][0], b = half[i][1] * 0.5f, c = half[i][2] * 0.5f, d = half[i][3];
    Vector *target = (Vector *)(taps + 3 * i * LANES);
    target[0] = a + (b + c), target[1] = b - c, target[2] = (b + c) + d;
    check += (target[0] + target[1] + target[2]) * 0.0f;
  }
  return check;
}

/* The gradient of one vector of channels of the results, of a group. */
static void store_group(Gradient *d, int64_t group, int64_t vector, const float *sums) {
  const Tiling *t = &d->t;
  int64_t in = group / d->groups_out * d->ins * LANES, ins = t->in - in;
  int64_t out = (group % d->groups_out * d->outs + vector) * LANES, outs = t->out - out;
  int64_t next = d->ins * d->outs * LANES * LANES;
  float taps[9 * LANES] __attribute__((aligned(64)));
  int infinite = 0;
  if (ins > d->ins * LANES) ins = d->ins * LANES;
  for (int64_t o = 0; o < LANES && o < outs; o++)
    for (int64_t i = 0; i < ins; i += LANES) {
      int64_t v = i / LANES, count = ins - i < LANES ? ins - i : LANES;
      const float *from = sums + ((v / 2 * 2) * d->outs + vector * 2) * LANES * LANES + o * STEP;
      Vector check = transform_sums(from + v % 2 * LANES, next, taps);
      float *target = d->dw + ((out + o) * t->in + in + i) * 9;
      for (int64_t k = 0; k < count; k++) {
        infinite |= check[k] != 0.0f;
        for (int j = 0; j < 9; j++) target[9 * k + j] = taps[j * LANES + k];
      }
    }
  if (infinite) __atomic_store_n(&d->t.infinite, 1, __ATOMIC_RELAXED);
}

static void add_part(void *data, size_t part) {
  Gradient *d = data;
  Tiling *t = &d->t;
  int64_t group = (int64_t)part / d->ranges, first = (int64_t)part % d->ranges * d->range;
  int64_t in = group / d->groups_out * d->ins, out = group % d->groups_out * d->outs;
  int64_t ins = (t->in + LANES - 1) / LANES - in, outs = (t->out + LANES - 1) / LANES - out;
  int64_t end = t->images * t->down - first < d->range ? t->images * t->down : first + d->range;
  int64_t places = PLACES * t->block * LANES, next_in = d->ins * t->block * LANES;
  int64_t next_out = d->outs * t->block * LANES;
  int64_t copy = (2 * t->band + 2) * (2 * t->across + 2) * LANES;
  if (ins > d->ins) ins = d->ins;
  if (outs > d->outs) outs = d->outs;
  int64_t size = places * (d->ins + d->outs) + copy + (d->ranges == 1 ? d->size : 0);
  float *memory = malloc((size_t)(size + 64) * sizeof(float));
  if (!memory) {
    __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
    return;
  }
  float *pixels = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  float *gradients = pixels + places * d->ins, *buffer = gradients + places * d->outs;
  float *sums = d->ranges == 1 ? buffer + copy : d->sums + (int64_t)part * d->size;
  memset(sums, 0, (size_t)d->size * sizeof(float));
  for (; first < end; first += t->band) {
    int64_t count = end - first < t->band ? end - first : t->band;
    for (int64_t i = 0; i < ins; i++)
      transform_rows(t, in + i, first, count, buffer, pixels + i * t->block * LANES, next_in);
    for (int64_t i = 0; i < outs; i++)
      transform_gradient_rows(d, out + i, first, count, buffer, gradients + i * t->block * LANES,
                              next_out);
    add_group(d, pixels, gradients, ins, outs, count * t->across, sums);
  }
  for (int64_t i = 0; d->ranges == 1 && i < outs; i++) store_group(d, group, i, sums);
  free(memory);
}

/* Add up the sums of all ranges of tiles, and store them: one vector of channels of a group. */
static void finish_part(void *data, size_t part) {
  Gradient *d = data;
  int64_t group = (int64_t)part / d->outs, vector = (int64_t)part % d->outs;
  float *sums = d->sums + group * d->ranges * d->size;
  for (int64_t k = 0; k < PLACES * d->ins / 2; k++) {
    float *to = sums + (k * 2 * d->outs + vector * 2) * LANES * LANES;
    for (int64_t range = 1; range < d->ranges; range++)
      for (int64_t i = 0; i < 2 * LANES * LANES; i++) to[i] += to[range * d->size + i];
  }
  store_group(d, group, vector, sums);
}

#ifndef __clang__
#pragma GCC pop_options
#endif

static int can_be_transformed(const Correlation *c) {
  const int64_t *v = c->v;
  int plain = v[0] == 3 && v[1] == 3 && v[2] == 1 && v[3] == 1 && v[4] == 1 && v[5] == 1;
  if (c->in < 2 * LANES || c->out < LANES) return 0;
  return plain && c->images * ((c->high + 1) / 2) * ((c->wide + 1) / 2) >= FEWEST_TILES;
}

/* infinite -- set to whether a result is not finite, so that it is to be computed otherwise */
static Status correlate_tiles(Api api, void *context, const Correlation *c, int64_t threads,
                              int *infinite) {
  Gradient d = {.g = c->g, .dw = c->dw};
  Tiling *t = &d.t;
  *t = (Tiling){.x = c->x, .images = c->images, .in = c->in, .out = c->out, .rows = c->rows};
  t->columns = c->columns, t->high = c->high, t->wide = c->wide, t->top = c->v[6], t->left = c->v[7];
  t->down = (t->high + 1) / 2, t->across = (t->wide + 1) / 2;
  int64_t all = t->images * t->down;
  t->band = TILES_AT_ONCE / t->across > 1 ? TILES_AT_ONCE / t->across : 1;
  if (t->band > all) t->band = all;
  t->block = t->band * t->across;
  int64_t ins = (t->in + LANES - 1) / LANES, outs = (t->out + LANES - 1) / LANES;
  d.groups_in = (ins + GROUP_IN - 1) / GROUP_IN, d.groups_out = (outs + GROUP_OUT - 1) / GROUP_OUT;
  d.ins = ((ins + d.groups_in - 1) / d.groups_in + 1) / 2 * 2;
  d.outs = (outs + d.groups_out - 1) / d.groups_out;
  int64_t groups = d.groups_in * d.groups_out;
  d.size = PLACES * d.ins * d.outs * LANES * LANES;
  int64_t bands = (all + t->band - 1) / t->band;
  d.ranges = (threads + groups - 1) / groups < bands ? (threads + groups - 1) / groups : bands;
  d.range = (bands + d.ranges - 1) / d.ranges * t->band;
  d.ranges = (all + d.range - 1) / d.range;
  float *memory = 0;
  if (d.ranges > 1) {
    memory = malloc((size_t)(groups * d.ranges * d.size + 16) * sizeof(float));
    if (!memory) return failure(api, NO_MEMORY);
    d.sums = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  }
  Status status = parallel(api, context, add_part, (size_t)(groups * d.ranges), &d);
  if (!status && d.ranges > 1 && !t->failed)
    status = parallel(api, context, finish_part, (size_t)(groups * d.outs), &d);
  free(memory);
  *infinite = t->infinite;
  return !status && t->failed ? failure(api, NO_MEMORY) : status;
}

/* The operator Product: a matrix product in single precision, with a row that is added to each row.

   Both matrices are first copied into panels: of A, up to TALL rows next to each other; of B, WIDE
   columns. The inner loop keeps a tile of results in registers and reads both panels from end to
   end. Tiles are spread over the threads of onnxruntime. What is added is a row, or a whole matrix.
   Where A has few rows, few_rows.h computes the product, and split.h where the processor has AMX.

   The attribute `product`: whether A and B are transposed, and 0; or, where B comes from the
   operator Pack, which copies it into panels once for many products, the columns of B. */

#if defined(__AVX512F__)
#define LANES 16
#define TALL 14
#elif defined(__AVX__)
#define LANES 8
#define TALL 6
#else
#define LANES 4
#define TALL 6
#endif
#define WIDE (2 * LANES)
#define DEEP 384          /* of the common axis, so that panels fit the cache */
#define TILE_ROWS 8       /* panels of A in the work of one thread */
#define TILE_COLUMNS 8    /* panels of B */
#define SLAB_A 128        /* panels of A that are copied at a time */
#define SLAB_B 64         /* panels of B */
#define ALONE (1 << 18)   /* operations below which one thread does all */
#define FEW 128           /* rows: B is then read once */

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef __clang__
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

typedef struct {
  Api api;
  int64_t *settings;
} Product;

typedef struct {
  const float *a, *b, *bias;
  const float *ready; /* B in panels, for the whole depth */
  float *c, *packed_a, *packed_b;
  int64_t height; /* of panels of A: tiles of nearly equal height leave the fewest empty rows */
  int64_t bias_row; /* how far the next row of what is added is: 0 for a single row */
  int64_t rows, columns, depth; /* of the whole product */
  int64_t row_a, step_a, row_b, step_b; /* strides of A by row and depth, of B by depth and column */
  int64_t from, length; /* the part of the depth that is multiplied now */
  int64_t panels_a, panels_b, tiles_a, tiles_b;
  int64_t first_a, first_b, count_a, count_b; /* the panels that are multiplied now */
  int failed; /* whether split.h has met numbers that it does not multiply */
} Multiplication;

/* How a product is computed from panels. */
typedef struct {
  void (*pack_a)(void *, size_t), (*pack_b)(void *, size_t), (*pack_both)(void *, size_t);
  void (*multiply)(void *, size_t);
  int64_t (*size_a)(const Multiplication *), (*size_b)(const Multiplication *); /* of a panel */
  int64_t deep, slab_a, slab_b, tile_rows, tile_columns;
} Way;

/* Four by four numbers, whose rows are `stride` apart, with rows and columns exchanged. */
static inline void transpose_four(const float *source, int64_t stride, float *target,
                                  int64_t height) {
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  Four a = *(const Four *)source, b = *(const Four *)(source + stride);
  Four c = *(const Four *)(source + 2 * stride), d = *(const Four *)(source + 3 * stride);
  Four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  Four ef = __builtin_shufflevector(a, b, 2, 6, 3, 7), gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  *(Four *)target = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
  *(Four *)(target + height) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
  *(Four *)(target + 2 * height) = __builtin_shufflevector(ef, gh, 0, 1, 4, 5);
  *(Four *)(target + 3 * height) = __builtin_shufflevector(ef, gh, 2, 3, 6, 7);
  return;
#endif
#endif
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 4; k++) target[k * height + i] = source[i * stride + k];
}

#if LANES == 16
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TRANSPOSES 1
#define EACH(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#define LOW(x, y) EACH(x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH(x, y) EACH(x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOW_PAIRS(x, y) EACH(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_PAIRS(x, y) EACH(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define EVEN_FOURS(x, y) EACH(x, y, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD_FOURS(x, y) EACH(x, y, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)

/* Sixteen by sixteen numbers likewise. */
static inline void transpose_sixteen(const float *source, int64_t stride, float *target,
                                     int64_t height) {
  Vector rows[16], pairs[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    Vector x = *(const Vector *)(source + i * stride);
    Vector y = *(const Vector *)(source + (i + 1) * stride);
    pairs[i] = LOW(x, y), pairs[i + 1] = HIGH(x, y);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    rows[i] = LOW_PAIRS(pairs[i], pairs[i + 2]), rows[i + 1] = HIGH_PAIRS(pairs[i], pairs[i + 2]);
    rows[i + 2] = LOW_PAIRS(pairs[i + 1], pairs[i + 3]);
    rows[i + 3] = HIGH_PAIRS(pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    Vector a = EVEN_FOURS(rows[i], rows[4 + i]), b = ODD_FOURS(rows[i], rows[4 + i]);
    Vector c = EVEN_FOURS(rows[8 + i], rows[12 + i]), d = ODD_FOURS(rows[8 + i], rows[12 + i]);
    *(Vector *)(target + i * height) = EVEN_FOURS(a, c);
    *(Vector *)(target + (4 + i) * height) = EVEN_FOURS(b, d);
    *(Vector *)(target + (8 + i) * height) = ODD_FOURS(a, c);
    *(Vector *)(target + (12 + i) * height) = ODD_FOURS(b, d);
  }
}
#endif
#endif
#endif

/* Copy `count` rows of `length` numbers next to each other: a panel of `height`, filled with zeros.

   along, across -- how far the next number of a row is, and the next row */
static void pack(const float *source, int64_t along, int64_t across, int64_t count, int64_t height,
                 int64_t length, float *target) {
  if (across == 1 && count == height) {
    for (int64_t k = 0; k < length; k++)
      for (int64_t i = 0; i < height; i++) target[k * height + i] = source[k * along + i];
    return;
  }
#ifdef TRANSPOSES
  if (along == 1 && count == height && height % 16 == 0 && length % 16 == 0) {
    for (int64_t k = 0; k < length; k += 16)
      for (int64_t i = 0; i < height; i += 16)
        transpose_sixteen(source + i * across + k, across, target + k * height + i, height);
    return;
  }
#endif
  int64_t fours = along == 1 ? count / 4 * 4 : 0, whole = length / 4 * 4;
  for (int64_t k = 0; k < whole; k += 4)
    for (int64_t i = 0; i < fours; i += 4)
      transpose_four(source + i * across + k, across, target + k * height + i, height);
  for (int64_t k = 0; k < length; k++) {
    int64_t i = k < whole ? fours : 0;
    for (; i < count; i++) target[k * height + i] = source[k * along + i * across];
    for (; i < height; i++) target[k * height + i] = 0;
  }
}

static void pack_a(void *data, size_t panel) {
  Multiplication *m = data;
  int64_t first = (m->first_a + (int64_t)panel) * m->height, left = m->rows - first;
  pack(m->a + first * m->row_a + m->from * m->step_a, m->step_a, m->row_a,
       left < m->height ? left : m->height, m->height, m->length,
       m->packed_a + (int64_t)panel * m->height * m->length);
}

static void pack_b(void *data, size_t panel) {
  Multiplication *m = data;
  int64_t first = (m->first_b + (int64_t)panel) * WIDE, left = m->columns - first;
  pack(m->b + first * m->step_b + m->from * m->row_b, m->row_b, m->step_b,
       left < WIDE ? left : WIDE, WIDE, m->length,
       m->packed_b + (int64_t)panel * WIDE * m->length);
}

static void pack_both(void *data, size_t panel) {
  Multiplication *m = data;
  if ((int64_t)panel < m->count_a) pack_a(data, panel);
  else pack_b(data, panel - (size_t)m->count_a);
}

/* One tile of results into `target`, whose rows are `stride` apart. */
static inline __attribute__((always_inline)) void multiply_rows(
    const int height, const float *a, const float *b, int64_t length, float *target,
    int64_t stride) {
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
  Vector sums[TALL][2];
#pragma GCC unroll 14
  for (int i = 0; i < height; i++) sums[i][0] = sums[i][1] = (Vector){0};
  for (int64_t k = 0; k < length; k++, a += height, b += WIDE) {
    Vector left = *(const Vector *)b, right = *(const Vector *)(b + LANES);
#pragma GCC unroll 14
    for (int i = 0; i < height; i++) {
      sums[i][0] += a[i] * left;
      sums[i][1] += a[i] * right;
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < height; i++) {
    *(Vector *)(target + i * stride) = sums[i][0];
    *(Vector *)(target + i * stride + LANES) = sums[i][1];
  }
}

#define HEIGHT(n) \
  case n: multiply_rows(n, a, b, length, target, stride); break;

static void multiply_tile(int64_t height, const float *a, const float *b, int64_t length,
                          float *target, int64_t stride) {
  switch (height) {
    HEIGHT(1) HEIGHT(2) HEIGHT(3) HEIGHT(4) HEIGHT(5) HEIGHT(6)
#if TALL > 6
    HEIGHT(7) HEIGHT(8) HEIGHT(9) HEIGHT(10) HEIGHT(11) HEIGHT(12) HEIGHT(13) HEIGHT(14)
#endif
  }
}

/* Add a tile to the results, or store it where it is the first. */
static void store_tile(const Multiplication *m, const float *tile, int64_t row, int64_t column) {
  int64_t rows = m->rows - row < m->height ? m->rows - row : m->height;
  int64_t columns = m->columns - column < WIDE ? m->columns - column : WIDE;
  for (int64_t i = 0; i < rows; i++) {
    float *to = m->c + (row + i) * m->columns + column;
    const float *from = tile + i * WIDE, *bias = m->bias + (row + i) * m->bias_row + column;
    if (m->from)
      for (int64_t k = 0; k < columns; k++) to[k] += from[k];
    else if (m->bias)
      for (int64_t k = 0; k < columns; k++) to[k] = from[k] + bias[k];
    else
      for (int64_t k = 0; k < columns; k++) to[k] = from[k];
  }
}

static void multiply_tiles(void *data, size_t index) {
  Multiplication *m = data;
  int64_t first_a = (int64_t)index / m->tiles_b * TILE_ROWS;
  int64_t first_b = (int64_t)index % m->tiles_b * TILE_COLUMNS;
  float tile[TALL * WIDE] __attribute__((aligned(64)));
  const float *panels_b = m->ready ? m->ready + m->from * m->panels_b * WIDE : m->packed_b;
  for (int64_t j = first_b; j < first_b + TILE_COLUMNS && j < m->count_b; j++)
    for (int64_t i = first_a; i < first_a + TILE_ROWS && i < m->count_a; i++) {
      int64_t row = (m->first_a + i) * m->height, column = (m->first_b + j) * WIDE;
      int whole = row + m->height <= m->rows && column + WIDE <= m->columns && !m->from && !m->bias;
      multiply_tile(m->height, m->packed_a + i * m->height * m->length,
                    panels_b + j * WIDE * m->length, m->length,
                    whole ? m->c + row * m->columns + column : tile, whole ? m->columns : WIDE);
      if (!whole) store_tile(m, tile, row, column);
    }
}

static Status create_product(const Operator *op, const void *table, const void *info,
                             void **kernel) {
  (void)op;
  Product *p = calloc(1, sizeof(Product));
  size_t size;
  p->api = table;
  TRY(read_integers(p->api, info, "product", &p->settings, &size));
  *kernel = p;
  return 0;
}

static void destroy_product(void *kernel) {
  Product *p = kernel;
  free(p->settings);
  free(p);
}

static Status all_parts(Api api, void *context, void (*work)(void *, size_t), int64_t count,
                        Multiplication *m, int alone) {
  if (!alone) return parallel(api, context, work, (size_t)count, m);
  for (int64_t i = 0; i < count; i++) work(m, (size_t)i);
  return 0;
}

static int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }

/* The panels that are multiplied now, if those of before were others. */
static Status copy_panels(Api api, void *context, const Way *way, Multiplication *m, int alone) {
  int64_t a = m->first_b ? 0 : m->count_a;
  int64_t b = m->ready || (m->first_a && m->count_b == m->panels_b) ? 0 : m->count_b;
  if (!a) return all_parts(api, context, way->pack_b, b, m, alone);
  return all_parts(api, context, way->pack_both, a + b, m, alone || (m->ready && a < 64));
}

/* A part of the depth after part, and in it a slab of panels after slab. */
static Status multiply_slabs(Api api, void *context, const Way *way, Multiplication *m, int alone) {
  int64_t slab_a = smaller(m->panels_a, way->slab_a);
  int64_t slab_b = m->ready ? m->panels_b : smaller(m->panels_b, way->slab_b);
  m->length = smaller(m->depth, way->deep);
  int64_t size_a = slab_a * way->size_a(m), size_b = m->ready ? 0 : slab_b * way->size_b(m);
  float *memory = malloc((size_a + size_b + 64) * sizeof(float));
  if (!memory) return failure(api, NO_MEMORY);
  m->packed_b = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  m->packed_a = m->packed_b + size_b;
  Status status = 0;
  for (m->from = 0; !status && !m->failed && m->from < m->depth; m->from += m->length) {
    m->length = smaller(m->depth - m->from, way->deep);
    for (m->first_a = 0; !status && m->first_a < m->panels_a; m->first_a += slab_a)
      for (m->first_b = 0; !status && m->first_b < m->panels_b; m->first_b += slab_b) {
        m->count_a = smaller(m->panels_a - m->first_a, slab_a);
        m->count_b = smaller(m->panels_b - m->first_b, slab_b);
        m->tiles_a = (m->count_a + way->tile_rows - 1) / way->tile_rows;
        m->tiles_b = (m->count_b + way->tile_columns - 1) / way->tile_columns;
        status = copy_panels(api, context, way, m, alone);
        if (!status)
          status = all_parts(api, context, way->multiply, m->tiles_a * m->tiles_b, m, alone);
      }
  }
  free(memory);
  return status;
}

static int64_t panel_size_a(const Multiplication *m) { return m->height * m->length; }
static int64_t panel_size_b(const Multiplication *m) { return WIDE * m->length; }

static const Way IN_REGISTERS = {
    pack_a, pack_b, pack_both, multiply_tiles, panel_size_a, panel_size_b, DEEP, SLAB_A, SLAB_B,
    TILE_ROWS, TILE_COLUMNS};

#include "few_rows.h"
#include "split.h"

static Status multiply(Api api, void *context, Multiplication *m) {
  int64_t least = (m->rows + TALL - 1) / TALL; /* panels of A */
  m->height = (m->rows + least - 1) / least;
  m->panels_a = (m->rows + m->height - 1) / m->height;
  m->panels_b = (m->columns + WIDE - 1) / WIDE;
  if (m->row_a != 1 && !m->ready && m->rows <= FEW) return multiply_few(api, context, m);
  int alone = m->rows * m->columns * m->depth < ALONE;
#ifdef SPLITS
  if (!m->ready && !alone && has_tiles()) {
    Multiplication split = *m;
    Status status = multiply_on_tiles(api, context, &split);
    if (status || !split.failed) return status;
  }
#endif
  return multiply_slabs(api, context, &IN_REGISTERS, m, alone);
}

/* The product of matrices without a common axis: what is added, or zeros. */
static void fill(const Multiplication *m) {
  for (int64_t i = 0; i < m->rows; i++)
    for (int64_t k = 0; k < m->columns; k++)
      m->c[i * m->columns + k] = m->bias ? m->bias[i * m->bias_row + k] : 0;
}

/* Leading axes of A count as rows where it is not transposed. */
static Status run_product(void *kernel, void *context) {
  const Product *p = kernel;
  Tensor a, b, bias;
  size_t inputs;
  TRY(read_input(p->api, context, 0, &a));
  TRY(read_input(p->api, context, 1, &b));
  TRY(CALL(p->api, INPUT_COUNT, Status(*)(const void *, size_t *))(context, &inputs));
  int transposed_a = (int)p->settings[0], transposed_b = (int)p->settings[1];
  int64_t packed = p->settings[2], depth_b = packed ? 0 : b.sizes[transposed_b ? 1 : 0];
  if (a.rank < 2 || b.rank != (packed ? 1 : 2) || (transposed_a && a.rank != 2))
    return failure(p->api, "a product of these ranks is not supported");
  Multiplication m = {.a = a.data, .b = b.data};
  int64_t last = a.sizes[a.rank - 1];
  m.depth = transposed_a ? a.sizes[0] : last;
  m.rows = transposed_a ? last : 1;
  for (int axis = 0; !transposed_a && axis < a.rank - 1; axis++) m.rows *= a.sizes[axis];
  m.columns = packed ? packed : b.sizes[transposed_b ? 0 : 1];
  if (packed) {
    m.ready = b.data;
    depth_b = b.count / ((packed + WIDE - 1) / WIDE * WIDE);
  }
  if (depth_b != m.depth)
    return failure(p->api, "the sizes of a product do not match");
  if (inputs > 2) {
    TRY(read_input(p->api, context, 2, &bias));
    if (bias.count != m.columns && bias.count != m.rows * m.columns)
      return failure(p->api, "what is added to a product has another size");
    m.bias = bias.data, m.bias_row = bias.count == m.columns ? 0 : m.columns;
  }
  m.row_a = transposed_a ? 1 : last, m.step_a = transposed_a ? last : 1;
  m.row_b = transposed_b ? 1 : m.columns, m.step_b = transposed_b ? m.depth : 1;
  int64_t shape[MAX_RANK];
  memcpy(shape, a.sizes, sizeof(shape));
  if (transposed_a) shape[0] = m.rows;
  shape[a.rank - 1] = m.columns;
  void *target;
  TRY(make_output(p->api, context, 0, shape, a.rank, &target));
  m.c = target;
  if (!m.depth) fill(&m);
  return m.rows && m.columns && m.depth ? multiply(p->api, context, &m) : 0;
}

/* The operator Pack: a matrix in panels, part of the depth after part; or, where the last number of
   `product` is 1, the whole depth in one. */
static Status run_pack(void *kernel, void *context) {
  const Product *p = kernel;
  Tensor b;
  TRY(read_input(p->api, context, 0, &b));
  if (b.rank != 2) return failure(p->api, "only matrices are packed");
  int transposed = (int)p->settings[1], whole = (int)p->settings[2];
  Multiplication m = {.b = b.data};
  m.depth = b.sizes[transposed ? 1 : 0], m.columns = b.sizes[transposed ? 0 : 1];
  m.row_b = transposed ? 1 : m.columns, m.step_b = transposed ? m.depth : 1;
  m.panels_b = (m.columns + WIDE - 1) / WIDE;
  int64_t size = m.panels_b * WIDE * m.depth;
  void *target;
  TRY(make_output(p->api, context, 0, &size, 1, &target));
  for (m.from = 0; m.from < m.depth; m.from += m.length) {
    m.length = whole || m.depth - m.from < DEEP ? m.depth - m.from : DEEP;
    m.packed_b = (float *)target + m.from * m.panels_b * WIDE;
    TRY(parallel(p->api, context, pack_b, (size_t)m.panels_b, &m));
  }
  return 0;
}

#ifndef __clang__
#pragma GCC pop_options
#endif

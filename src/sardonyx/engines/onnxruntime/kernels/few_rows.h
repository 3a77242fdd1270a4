/* Products of a matrix A of few rows with a large matrix B, as layers compute them for a batch.

   Each number of B is then used a few dozen times only, so that the product takes little longer
   than reading B from memory. B is therefore read once: a panel of it is copied to where it stays
   in the first cache, all rows of A are multiplied with it, and meanwhile the processor is told to
   fetch the panel that follows. */

#define SHALLOW 192 /* of the common axis, in a panel */
#define GROUP 4     /* panels of B in the work of one thread */
#define PANELS 16    /* panels of A that are multiplied with a panel of B */

/* What is fetched while a tile is computed: parts of WIDE × WIDE numbers. */
typedef struct {
  const float *start;
  int64_t count;     /* how many parts */
  int64_t row, part; /* how far the next row of a part is, and the next part */
} Ahead;

/* One tile of results into `target`, as multiply_rows of product.h computes it. */
static inline __attribute__((always_inline)) void multiply_ahead(
    const int height, const float *a, const float *b, int64_t length, float *target,
    int64_t stride, Ahead ahead) {
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
  Vector sums[TALL][2];
#pragma GCC unroll 14
  for (int i = 0; i < height; i++) sums[i][0] = sums[i][1] = (Vector){0};
  for (int64_t k = 0, part = 0; k < length; part++) {
    const float *line = part < ahead.count ? ahead.start + part * ahead.part : b;
    int64_t row = part < ahead.count ? ahead.row : 0, end = k + WIDE < length ? k + WIDE : length;
    for (; k < end; k++, a += height, b += WIDE, line += row) {
      __builtin_prefetch(line, 0, 2);
      __builtin_prefetch(line + WIDE - 1, 0, 2);
      Vector left = *(const Vector *)b, right = *(const Vector *)(b + LANES);
#pragma GCC unroll 14
      for (int i = 0; i < height; i++) {
        sums[i][0] += a[i] * left;
        sums[i][1] += a[i] * right;
      }
    }
  }
#pragma GCC unroll 14
  for (int i = 0; i < height; i++) {
    *(Vector *)(target + i * stride) = sums[i][0];
    *(Vector *)(target + i * stride + LANES) = sums[i][1];
  }
}

#define HEIGHT_AHEAD(n) \
  case n: multiply_ahead(n, a, b, length, target, stride, ahead); break;

static void multiply_tile_ahead(int64_t height, const float *a, const float *b, int64_t length,
                                float *target, int64_t stride, Ahead ahead) {
  switch (height) {
    HEIGHT_AHEAD(1) HEIGHT_AHEAD(2) HEIGHT_AHEAD(3) HEIGHT_AHEAD(4) HEIGHT_AHEAD(5) HEIGHT_AHEAD(6)
#if TALL > 6
    HEIGHT_AHEAD(7) HEIGHT_AHEAD(8) HEIGHT_AHEAD(9) HEIGHT_AHEAD(10) HEIGHT_AHEAD(11)
    HEIGHT_AHEAD(12) HEIGHT_AHEAD(13) HEIGHT_AHEAD(14)
#endif
  }
}

/* Parts of the depth: all panels of A lie next to each other in each. */
static void select_depth(Multiplication *m, float *packed_a, int64_t from) {
  m->from = from;
  m->length = m->depth - from < SHALLOW ? m->depth - from : SHALLOW;
  m->packed_a = packed_a + from * m->panels_a * m->height;
}

static void pack_depth(void *data, size_t index) {
  Multiplication m = *(const Multiplication *)data;
  select_depth(&m, m.packed_a, (int64_t)index * SHALLOW);
  for (int64_t i = 0; i < m.panels_a; i++) pack_a(&m, (size_t)i);
}

/* The panel of B at `column`, which lies in `panel`, with the panels of A from `first` on. */
static void multiply_panel(const Multiplication *m, const float *panel, int64_t column,
                           int64_t first, const float *next) {
  float tile[TALL * WIDE] __attribute__((aligned(64)));
  int64_t count = m->panels_a - first < PANELS ? m->panels_a - first : PANELS;
  int64_t parts = next ? (m->length + WIDE - 1) / WIDE : 0;
  int64_t row = m->step_b == 1 ? m->row_b : m->step_b;
  for (int64_t i = 0; i < count; i++) {
    int64_t begin = i * parts / count, line = (first + i) * m->height;
    Ahead ahead = {next + begin * WIDE * m->row_b, (i + 1) * parts / count - begin, row,
                   WIDE * m->row_b};
    int whole = line + m->height <= m->rows && column + WIDE <= m->columns && !m->from && !m->bias;
    multiply_tile_ahead(m->height, m->packed_a + line * m->length, panel, m->length,
                        whole ? m->c + line * m->columns + column : tile,
                        whole ? m->columns : WIDE, ahead);
    if (!whole) store_tile(m, tile, line, column);
  }
}

static void multiply_group(void *data, size_t index) {
  Multiplication m = *(const Multiplication *)data;
  float *packed_a = m.packed_a, panel[SHALLOW * WIDE] __attribute__((aligned(64)));
  int64_t rows = (int64_t)index / m.tiles_b * PANELS, first = (int64_t)index % m.tiles_b * GROUP;
  int64_t end = first + GROUP < m.panels_b ? first + GROUP : m.panels_b;
  for (int64_t from = 0; from < m.depth; from += SHALLOW) {
    select_depth(&m, packed_a, from);
    for (int64_t j = first; j < end; j++) {
      int64_t column = j * WIDE, left = m.columns - column;
      const float *source = m.b + column * m.step_b + from * m.row_b;
      pack(source, m.row_b, m.step_b, left < WIDE ? left : WIDE, WIDE, m.length, panel);
      const float *next = source + WIDE * m.step_b; /* or the first panel of the next part */
      if (j + 1 == end) next = m.b + first * WIDE * m.step_b + (from + SHALLOW) * m.row_b;
      int last = j + 1 == end && from + SHALLOW >= m.depth;
      multiply_panel(&m, panel, column, rows, last ? 0 : next);
    }
  }
}

static Status multiply_few(Api api, void *context, Multiplication *m) {
  int64_t size = m->panels_a * m->height * m->depth;
  float *memory = malloc((size + 16) * sizeof(float));
  if (!memory) return failure(api, NO_MEMORY);
  m->packed_a = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  m->tiles_a = (m->panels_a + PANELS - 1) / PANELS;
  m->tiles_b = (m->panels_b + GROUP - 1) / GROUP;
  int alone = m->rows * m->columns * m->depth < ALONE;
  Status status = all_parts(api, context, pack_depth, (m->depth + SHALLOW - 1) / SHALLOW, m, alone);
  if (!status)
    status = all_parts(api, context, multiply_group, m->tiles_a * m->tiles_b, m, alone);
  free(memory);
  return status;
}

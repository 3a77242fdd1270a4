/* Products on the tile registers of AMX, which multiply numbers of eight significant bits (bf16).

   A number of single precision is the sum of three such numbers. Of the nine products of their parts
   the six largest are computed; the others are smaller than half a unit in the last place. Sums are
   in single precision. What would be wrong is computed again without tiles: results that are not
   finite, because the parts of an infinite number are none, and panels whose numbers are all so
   small that their last parts vanish.

   Panels are of 32 rows of A or columns of B. For each BLOCK of the depth, the parts of 16 rows are
   a tile each: of A, a row of the tile is a row of the matrix; of B, it is a pair of rows. */

#if defined(__x86_64__) && defined(__AVX512BF16__) && (defined(__AMX_BF16__) || defined(EMULATED_TILES))
#define SPLITS 1
#include <sys/syscall.h>
#include <unistd.h>

#define PARTS 3
#define BLOCK 32 /* of the depth */
#define TILE 256 /* single numbers that take as much memory as a tile */
#define BLOCK_SIZE (2 * PARTS * TILE) /* likewise, of a block of a panel */
#define SPLIT_DEEP 512 /* of the depth, so that panels fit the cache */
#define SPLIT_WIDE 32  /* rows of a panel of A, columns of one of B */
#define SPLIT_SLAB 64  /* panels that are copied at a time */
#define SPLIT_GROUP 4  /* panels in the work of one thread, in each direction */
#define SMALLEST 0x1p-90f /* a panel of smaller numbers is not multiplied here */
#define REQUEST_PERMISSION 0x1023 /* of arch_prctl */
#define TILE_DATA 18

#ifdef EMULATED_TILES /* what the instructions do, for a test on a processor that lacks them */
__attribute__((visibility("default"))) int64_t products_on_tiles; /* a test reads it */
static _Thread_local float tiles[8][TILE];
static float part_of(const float *pair, int high) {
  uint32_t bits;
  memcpy(&bits, pair, 4);
  bits = high ? bits & 0xffff0000u : bits << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static void emulate_product(float *c, const float *a, const float *b) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) {
      float even = 0, odd = 0;
      for (int k = 0; k < 16; k++) {
        even = fmaf(part_of(a + i * 16 + k, 0), part_of(b + k * 16 + j, 0), even);
        odd = fmaf(part_of(a + i * 16 + k, 1), part_of(b + k * 16 + j, 1), odd);
      }
      c[i * 16 + j] += even + odd;
    }
}
static void emulate_copy(float *to, int64_t to_row, const float *from, int64_t from_row) {
  for (int i = 0; i < 16; i++)
    memcpy((char *)to + i * to_row, (const char *)from + i * from_row, 64);
}
#define LOAD_TILE(t, from, row) emulate_copy(tiles[t], 64, from, row)
#define STORE_TILE(t, to, row) emulate_copy(to, row, tiles[t], 64)
#define ZERO_TILE(t) memset(tiles[t], 0, sizeof(tiles[t]))
#define MULTIPLY_TILES(c, a, b) emulate_product(tiles[c], tiles[a], tiles[b])
#define CONFIGURE_TILES(shape)
#define RELEASE_TILES()
#else
#define LOAD_TILE(t, from, row) _tile_loadd(t, from, row)
#define STORE_TILE(t, to, row) _tile_stored(t, to, row)
#define ZERO_TILE(t) _tile_zero(t)
#define MULTIPLY_TILES(c, a, b) _tile_dpbf16ps(c, a, b)
#define CONFIGURE_TILES(shape) _tile_loadconfig(shape)
#define RELEASE_TILES() _tile_release()

/* All eight registers have sixteen rows of 64 bytes. */
static const struct {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
} TILE_SHAPES __attribute__((aligned(64))) = {
    1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
#endif

/* Whether the system lets this process use tiles: it asks for that once. */
static int has_tiles(void) {
#ifdef EMULATED_TILES
  return 1;
#else
  static int state; /* threads that come here at once ask twice */
  if (!state) state = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) ? -1 : 1;
  return state > 0;
#endif
}

/* The parts of 32 numbers, those of `x` before those of `y`. */
static inline void split(__m512 x, __m512 y, __m512i *parts) {
#pragma GCC unroll 3
  for (int i = 0; i < PARTS; i++) {
    parts[i] = (__m512i)_mm512_cvtne2ps_pbh(y, x);
    __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(parts[i]));
    __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(parts[i], 1));
    x = _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16)));
    y = _mm512_sub_ps(y, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
  }
}

static inline __m512 larger(__m512 most, __m512 x, __m512 y) {
  return _mm512_max_ps(most, _mm512_max_ps(_mm512_abs_ps(x), _mm512_abs_ps(y)));
}

/* Tiles of sixteen rows of 32 numbers each; tiles of parts are `next` apart. */
static inline __m512 split_rows(const float *source, int64_t stride, float *to, int64_t next,
                                __m512 most) {
  for (int i = 0; i < 16; i++) {
    __m512 x = _mm512_loadu_ps(source + i * stride), y = _mm512_loadu_ps(source + i * stride + 16);
    __m512i parts[PARTS];
    split(x, y, parts);
    for (int p = 0; p < PARTS; p++) _mm512_storeu_si512(to + p * next + i * 16, parts[p]);
    most = larger(most, x, y);
  }
  return most;
}

/* Tiles of 32 rows of sixteen numbers: a row of a tile is a pair of them, number beside number. */
static inline __m512 split_pairs(const float *source, int64_t stride, float *to, int64_t next,
                                 __m512 most) {
  int16_t order[32];
  for (int i = 0; i < 32; i++) order[i] = (int16_t)(i / 2 + i % 2 * 16);
  __m512i beside = _mm512_loadu_si512(order);
  for (int i = 0; i < 16; i++) {
    const float *pair = source + 2 * i * stride;
    __m512 x = _mm512_loadu_ps(pair), y = _mm512_loadu_ps(pair + stride);
    __m512i parts[PARTS];
    split(x, y, parts);
    for (int p = 0; p < PARTS; p++)
      _mm512_storeu_si512(to + p * next + i * 16, _mm512_permutexvar_epi16(beside, parts[p]));
    most = larger(most, x, y);
  }
  return most;
}

/* The tiles of sixteen rows, or columns, and a block of the depth.

   along, across -- how far the next number of a row is, and the next row; one of them is 1
   count, length -- rows, and how deep they are: the rest is zeros
   of_b          -- whether they are columns of B */
static __m512 pack_tiles(const float *source, int64_t along, int64_t across, int64_t count,
                         int64_t length, int of_b, float *to, __m512 most) {
  float whole[16 * BLOCK], parts[PARTS * TILE] __attribute__((aligned(64)));
  int by_rows = along == 1;
  if (count < 16 || length < BLOCK) {
    int64_t next = by_rows ? BLOCK : 1, deeper = by_rows ? 1 : 16;
    memset(whole, 0, sizeof(whole));
    for (int64_t i = 0; i < count && i < 16; i++)
      for (int64_t k = 0; k < length && k < BLOCK; k++)
        whole[i * next + k * deeper] = source[i * across + k * along];
    source = whole, along = deeper, across = next;
  }
  int turned = by_rows == of_b; /* rows of A and pairs of B are tiles as they are */
  float *target = turned ? parts : to;
  int64_t apart = turned ? TILE : 2 * TILE;
  most = by_rows ? split_rows(source, across, target, apart, most)
                 : split_pairs(source, along, target, apart, most);
  if (turned)
    for (int p = 0; p < PARTS; p++)
      transpose_sixteen(parts + p * TILE, 16, to + p * 2 * TILE, 16);
  return most;
}

static void pack_split(Multiplication *m, const float *source, int64_t along, int64_t across,
                       int64_t count, int of_b, float *to) {
  __m512 most = _mm512_setzero_ps();
  for (int64_t k = 0; k < m->length; k += BLOCK, to += BLOCK_SIZE)
    for (int64_t half = 0; half < SPLIT_WIDE; half += 16) {
      int64_t left = count > half ? count - half : 0;
      const float *from = source + (left ? half * across : 0) + k * along;
      most = pack_tiles(from, along, across, left, m->length - k, of_b, to + half * 16, most);
    }
  float largest = _mm512_reduce_max_ps(most);
  if (largest > 0 && largest < SMALLEST) m->failed = 1;
}

static int64_t split_size(const Multiplication *m) {
  return (m->length + BLOCK - 1) / BLOCK * BLOCK_SIZE;
}

static void pack_split_a(void *data, size_t panel) {
  Multiplication *m = data;
  int64_t first = (m->first_a + (int64_t)panel) * SPLIT_WIDE;
  pack_split(m, m->a + first * m->row_a + m->from * m->step_a, m->step_a, m->row_a,
             m->rows - first, 0, m->packed_a + (int64_t)panel * split_size(m));
}

static void pack_split_b(void *data, size_t panel) {
  Multiplication *m = data;
  int64_t first = (m->first_b + (int64_t)panel) * SPLIT_WIDE;
  pack_split(m, m->b + first * m->step_b + m->from * m->row_b, m->row_b, m->step_b,
             m->columns - first, 1, m->packed_b + (int64_t)panel * split_size(m));
}

static void pack_split_both(void *data, size_t panel) {
  Multiplication *m = data;
  if ((int64_t)panel < m->count_a) pack_split_a(data, panel);
  else pack_split_b(data, panel - (size_t)m->count_a);
}

#define MULTIPLY_FOUR()                       \
  MULTIPLY_TILES(0, 4, 6);                    \
  MULTIPLY_TILES(1, 4, 7);                    \
  MULTIPLY_TILES(2, 5, 6);                    \
  MULTIPLY_TILES(3, 5, 7)
#define LOAD_PAIR(first, second, from, part)        \
  LOAD_TILE(first, (from) + 2 * (part) * TILE, 64); \
  LOAD_TILE(second, (from) + (2 * (part) + 1) * TILE, 64)

/* 32 by 32 results, whose rows are `stride` apart; `add`: to what is there. */
static inline void multiply_blocks(const float *a, const float *b, int64_t blocks, float *c,
                                   int64_t stride, int add) {
  if (add) {
    LOAD_TILE(0, c, stride * 4);
    LOAD_TILE(1, c + 16, stride * 4);
    LOAD_TILE(2, c + 16 * stride, stride * 4);
    LOAD_TILE(3, c + 16 * stride + 16, stride * 4);
  } else {
    ZERO_TILE(0);
    ZERO_TILE(1);
    ZERO_TILE(2);
    ZERO_TILE(3);
  }
  for (int64_t k = 0; k < blocks; k++, a += BLOCK_SIZE, b += BLOCK_SIZE) {
    LOAD_PAIR(4, 5, a, 0);
    LOAD_PAIR(6, 7, b, 0);
    MULTIPLY_FOUR();
    LOAD_PAIR(6, 7, b, 2);
    MULTIPLY_FOUR();
    LOAD_PAIR(6, 7, b, 1);
    MULTIPLY_FOUR();
    LOAD_PAIR(4, 5, a, 1);
    MULTIPLY_FOUR();
    LOAD_PAIR(6, 7, b, 0);
    MULTIPLY_FOUR();
    LOAD_PAIR(4, 5, a, 2);
    MULTIPLY_FOUR();
  }
  STORE_TILE(0, c, stride * 4);
  STORE_TILE(1, c + 16, stride * 4);
  STORE_TILE(2, c + 16 * stride, stride * 4);
  STORE_TILE(3, c + 16 * stride + 16, stride * 4);
}

/* Results from `tile` to where they belong; whether all of them are finite. */
static int store_blocks(const Multiplication *m, const float *tile, int64_t row, int64_t column) {
  int64_t rows = m->rows - row < SPLIT_WIDE ? m->rows - row : SPLIT_WIDE;
  int64_t columns = m->columns - column < SPLIT_WIDE ? m->columns - column : SPLIT_WIDE;
  float check = 0;
  for (int64_t i = 0; i < rows; i++) {
    float *to = m->c + (row + i) * m->columns + column;
    const float *from = tile + i * SPLIT_WIDE;
    const float *start = m->from ? to : m->bias ? m->bias + (row + i) * m->bias_row + column : 0;
    for (int64_t k = 0; k < columns; k++) {
      to[k] = start ? from[k] + start[k] : from[k];
      check += to[k] * 0.0f;
    }
  }
  return check == 0.0f;
}

static int are_finite(const float *c, int64_t stride) {
  __m512 check = _mm512_setzero_ps(), zero = check;
  for (int i = 0; i < SPLIT_WIDE; i++) {
    check = _mm512_fmadd_ps(_mm512_loadu_ps(c + i * stride), zero, check);
    check = _mm512_fmadd_ps(_mm512_loadu_ps(c + i * stride + 16), zero, check);
  }
  return _mm512_reduce_add_ps(check) == 0.0f;
}

static void multiply_splits(void *data, size_t index) {
  Multiplication *m = data;
  float tile[SPLIT_WIDE * SPLIT_WIDE] __attribute__((aligned(64)));
  int64_t first_a = (int64_t)index / m->tiles_b * SPLIT_GROUP;
  int64_t first_b = (int64_t)index % m->tiles_b * SPLIT_GROUP;
  int64_t size = split_size(m), blocks = size / BLOCK_SIZE;
  int last = m->from + m->length == m->depth, finite = 1;
  CONFIGURE_TILES(&TILE_SHAPES);
  for (int64_t j = first_b; j < first_b + SPLIT_GROUP && j < m->count_b; j++)
    for (int64_t i = first_a; i < first_a + SPLIT_GROUP && i < m->count_a; i++) {
      int64_t row = (m->first_a + i) * SPLIT_WIDE, column = (m->first_b + j) * SPLIT_WIDE;
      const float *a = m->packed_a + i * size, *b = m->packed_b + j * size;
      float *c = m->c + row * m->columns + column;
      int whole = row + SPLIT_WIDE <= m->rows && column + SPLIT_WIDE <= m->columns;
      if (whole && (m->from || !m->bias)) {
        multiply_blocks(a, b, blocks, c, m->columns, m->from > 0);
        if (last) finite &= are_finite(c, m->columns);
      } else {
        multiply_blocks(a, b, blocks, tile, SPLIT_WIDE, 0);
        finite &= store_blocks(m, tile, row, column);
      }
    }
  RELEASE_TILES();
  if (!finite) m->failed = 1;
}

static const Way ON_TILES = {
    pack_split_a, pack_split_b, pack_split_both, multiply_splits, split_size, split_size,
    SPLIT_DEEP, SPLIT_SLAB, SPLIT_SLAB, SPLIT_GROUP, SPLIT_GROUP};

/* A product on tiles. Where `m->failed` is set afterwards, the results are none. */
static Status multiply_on_tiles(Api api, void *context, Multiplication *m) {
  m->panels_a = (m->rows + SPLIT_WIDE - 1) / SPLIT_WIDE;
  m->panels_b = (m->columns + SPLIT_WIDE - 1) / SPLIT_WIDE;
#ifdef EMULATED_TILES
  products_on_tiles++;
#endif
  return multiply_slabs(api, context, &ON_TILES, m, 0);
}
#endif

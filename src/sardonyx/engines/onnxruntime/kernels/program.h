/* The operator Fused: elementwise operations over one set of elements, in one pass.

   The elements are those of the shape to which all inputs broadcast. They are computed in blocks
   that fit the cache, by a function that was written for this program (program.py). Where a program
   sums over rows (the last axis), a block is one row.

   The attribute `program`: the number of its function, inputs, outputs, buffers of a block that the
   function needs, whether it works by rows, the rank; then for each output its kind (whole, row or
   sum) and, for a sum, which axes are summed (a bit each) and whether they stay as axes of size 1. */

enum { WHOLE, ROW, SUM };
enum { HEAD = 6, PER_OUTPUT = 3 };
#define BLOCK 256
#define PADDING 16 /* between buffers, whose addresses would otherwise collide in the cache */
#define MOST_CHUNKS 64
#define CHUNK_ELEMENTS 16384

typedef struct {
  Api api;
  int64_t *program;
  Body body;
  int64_t inputs, outputs, buffers, by_rows, rank;
  const int64_t *results;
} Program;

static int64_t kind_of(const Program *p, int64_t output) { return p->results[PER_OUTPUT * output]; }

/* How a tensor lies in the set of elements: a stride of 0 repeats it along an axis. */
typedef struct {
  void *data;
  int type, whole, single;
  int64_t strides[MAX_RANK];
} View;

typedef struct {
  const Program *p;
  const Tensor *tensors;
  View *inputs;
  void **targets;      /* of outputs */
  int *direct;         /* of outputs: whether they are computed where they are stored */
  View *sums;          /* of outputs that are sums */
  double **partial;    /* of outputs that are sums: chunk after chunk */
  int64_t *sum_sizes;
  int rank;            /* after axes were joined */
  int64_t sizes[MAX_RANK];
  int64_t count, block, blocks, chunks;
  int no_memory;
} Run;

/* Whether an output can be computed where it is stored. It may lie over an input, an update over
   the old value, if each element is read before it is written. */
static int is_direct(const Run *run, int64_t i) {
  const Program *p = run->p;
  const char *begin = run->targets[i], *end = begin + run->count * (int64_t)sizeof(float);
  if (kind_of(p, i) != WHOLE) return 0;
  for (int64_t k = 0; k < p->inputs; k++) {
    const char *data = run->inputs[k].data;
    const char *stop = data + run->tensors[k].count * (int64_t)sizeof(float);
    if (data >= end || stop <= begin) continue;
    if (p->by_rows || data != begin || !run->inputs[k].whole) return 0;
  }
  return 1;
}

static Status create_program(const Operator *op, const void *table, const void *info,
                             void **kernel) {
  (void)op;
  Program *p = calloc(1, sizeof(Program));
  size_t size;
  p->api = table;
  TRY(read_integers(p->api, info, "program", &p->program, &size));
  const int64_t *head = p->program;
  p->body = BODIES[head[0]], p->inputs = head[1], p->outputs = head[2];
  p->buffers = head[3], p->by_rows = head[4], p->rank = head[5];
  p->results = head + HEAD;
  *kernel = p;
  return 0;
}

static void destroy_program(void *kernel) {
  Program *p = kernel;
  free(p->program);
  free(p);
}

/* Strides of a tensor whose last axis is that of the elements. */
static void set_strides(View *view, const int64_t *sizes, int rank, int all_rank) {
  int64_t stride = 1;
  for (int i = all_rank - 1, j = rank - 1; i >= 0; i--, j--) {
    int64_t size = j >= 0 ? sizes[j] : 1;
    view->strides[i] = size == 1 ? 0 : stride;
    stride *= size;
  }
}

/* Join neighbouring axes that every tensor passes in one stride, and drop axes of size 1. */
static void join_axes(Run *run, View **views, int count) {
  int rank = 0;
  for (int axis = 0; axis < run->rank; axis++) {
    if (run->sizes[axis] == 1) continue;
    int joins = rank > 0;
    for (int v = 0; joins && v < count; v++)
      joins = views[v]->strides[rank - 1] == views[v]->strides[axis] * run->sizes[axis];
    if (joins) {
      run->sizes[rank - 1] *= run->sizes[axis];
      for (int v = 0; v < count; v++) views[v]->strides[rank - 1] = views[v]->strides[axis];
    } else {
      run->sizes[rank] = run->sizes[axis];
      for (int v = 0; v < count; v++) views[v]->strides[rank] = views[v]->strides[axis];
      rank++;
    }
  }
  if (!rank) {
    run->sizes[0] = 1;
    for (int v = 0; v < count; v++) views[v]->strides[0] = 0;
    rank = 1;
  }
  run->rank = rank;
}

/* A place among the elements, and where each tensor has its number for it. */
typedef struct {
  int64_t at[MAX_RANK], offset;
} Place;

static Place place_of(const Run *run, const View *view, int64_t element) {
  Place place = {{0}, 0};
  for (int axis = run->rank - 1; axis >= 0; axis--) {
    place.at[axis] = element % run->sizes[axis];
    element /= run->sizes[axis];
    place.offset += place.at[axis] * view->strides[axis];
  }
  return place;
}

/* Move on by `n` elements of the last axis, at most to its end. */
static void move_on(const Run *run, const View *view, Place *place, int64_t n) {
  int axis = run->rank - 1;
  place->at[axis] += n;
  place->offset += n * view->strides[axis];
  while (axis > 0 && place->at[axis] == run->sizes[axis]) {
    place->offset -= place->at[axis] * view->strides[axis];
    place->at[axis] = 0;
    axis--;
    place->at[axis]++;
    place->offset += view->strides[axis];
  }
}

static float sum_of(const float *a, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += a[i];
  return sum;
}

static float number(const View *view, int64_t offset) {
  return view->type == BOOL ? (float)((const uint8_t *)view->data)[offset]
                            : ((const float *)view->data)[offset];
}

/* The numbers of an input for a block: in the tensor itself, or in `buffer`.

   A tensor of one element is read in full all the same: its size may be free, so that the function
   was written for any number of elements. `repeat_singles` has filled its buffer. */
static const float *load(const Run *run, const View *view, int64_t begin, int64_t n,
                         float *buffer) {
  const float *data = view->data;
  if (view->single) return buffer;
  int is_float = view->type == FLOAT;
  if (is_float && view->whole) return data + begin;
  Place place = place_of(run, view, begin);
  int last = run->rank - 1;
  int64_t stride = view->strides[last];
  if (is_float && stride == 1 && place.at[last] + n <= run->sizes[last]) return data + place.offset;
  for (int64_t i = 0; i < n;) {
    int64_t left = run->sizes[last] - place.at[last], length = left < n - i ? left : n - i;
    float *target = buffer + i;
    if (stride == 0) {
      float value = number(view, place.offset);
      for (int64_t k = 0; k < length; k++) target[k] = value;
    } else if (is_float) {
      memcpy(target, data + place.offset, length * sizeof(float));
    } else {
      const uint8_t *flags = (const uint8_t *)view->data + place.offset;
      for (int64_t k = 0; k < length; k++) target[k] = (float)flags[k];
    }
    i += length;
    move_on(run, view, &place, length);
  }
  return buffer;
}

/* The buffers of inputs of one element, which are the same for every block. */
static void repeat_singles(const Run *run, float *buffers, int64_t width) {
  for (int64_t i = 0; i < run->p->inputs; i++) {
    if (!run->inputs[i].single) continue;
    float value = number(&run->inputs[i], 0), *buffer = buffers + i * width;
    for (int64_t k = 0; k < width; k++) buffer[k] = value;
  }
}

static void add_to_sums(const Run *run, const View *view, double *sums, const float *values,
                        int64_t begin, int64_t n) {
  Place place = place_of(run, view, begin);
  int last = run->rank - 1;
  for (int64_t i = 0; i < n;) {
    int64_t left = run->sizes[last] - place.at[last], length = left < n - i ? left : n - i;
    double *target = sums + place.offset;
    if (view->strides[last] == 0) {
      *target += sum_of(values + i, length);
    } else {
      for (int64_t k = 0; k < length; k++) target[k] += values[i + k];
    }
    i += length;
    move_on(run, view, &place, length);
  }
}

static void run_chunk(void *data, size_t chunk) {
  Run *run = data;
  const Program *p = run->p;
  int64_t first = run->blocks * (int64_t)chunk / run->chunks;
  int64_t end = run->blocks * ((int64_t)chunk + 1) / run->chunks;
  int64_t block = run->block, width = (block + 15) / 16 * 16 + PADDING;
  float *memory = malloc(((p->inputs + p->outputs + p->buffers) * width + PADDING) * sizeof(float));
  if (!memory) {
    run->no_memory = 1;
    return;
  }
  float *buffers = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  float *own = buffers + p->inputs * width, *scratch = own + p->outputs * width;
  const float **in = alloca((p->inputs + 1) * sizeof(float *));
  float **out = alloca((p->outputs + 1) * sizeof(float *));
  repeat_singles(run, buffers, width);
  for (int64_t b = first; b < end; b++) {
    int64_t begin = b * block, n = run->count - begin < block ? run->count - begin : block;
    for (int64_t i = 0; i < p->inputs; i++)
      in[i] = load(run, &run->inputs[i], begin, n, buffers + i * width);
    for (int64_t i = 0; i < p->outputs; i++) {
      float *target = run->targets[i];
      out[i] = run->direct[i] ? target + begin : kind_of(p, i) == ROW ? target + b : own + i * width;
    }
    p->body(in, out, scratch, n, width);
    for (int64_t i = 0; i < p->outputs; i++) {
      if (kind_of(p, i) == SUM) {
        double *sums = run->partial[i] + (int64_t)chunk * run->sum_sizes[i];
        add_to_sums(run, &run->sums[i], sums, out[i], begin, n);
      } else if (kind_of(p, i) == WHOLE && !run->direct[i]) {
        memcpy((float *)run->targets[i] + begin, out[i], n * sizeof(float));
      }
    }
  }
  free(memory);
}

/* The shape to which all inputs broadcast. */
static Status broadcast(const Program *p, const Tensor *tensors, int64_t *sizes, int rank) {
  for (int axis = 0; axis < rank; axis++) sizes[axis] = 1;
  for (int64_t i = 0; i < p->inputs; i++) {
    int shift = rank - tensors[i].rank;
    if (shift < 0) return failure(p->api, "an input has more axes than its elements");
    for (int axis = 0; axis < tensors[i].rank; axis++) {
      int64_t size = tensors[i].sizes[axis];
      if (size == 1 || size == sizes[axis + shift]) continue;
      if (sizes[axis + shift] != 1) return failure(p->api, "inputs do not broadcast");
      sizes[axis + shift] = size;
    }
  }
  return 0;
}

/* Output shapes; for sums also the view of the memory in which they are added up. */
static Status make_outputs(Run *run, void *context, const int64_t *sizes, int rank) {
  const Program *p = run->p;
  for (int64_t i = 0; i < p->outputs; i++) {
    const int64_t *result = p->results + PER_OUTPUT * i;
    int64_t shape[MAX_RANK], all[MAX_RANK];
    int kept = 0;
    run->sum_sizes[i] = 1;
    for (int axis = 0; axis < rank; axis++) {
      int summed = result[0] == SUM ? (int)(result[1] >> axis & 1) : 0;
      if (result[0] == ROW && axis == rank - 1) summed = 1;
      all[axis] = summed ? 1 : sizes[axis];
      run->sum_sizes[i] *= all[axis];
      if (!summed || result[2]) shape[kept++] = all[axis];
    }
    if (result[0] == SUM) set_strides(&run->sums[i], all, rank, rank);
    TRY(make_output(p->api, context, (size_t)i, shape, kept, &run->targets[i]));
  }
  return 0;
}

static void choose_chunks(Run *run) {
  const Program *p = run->p;
  int64_t chunks = run->count / CHUNK_ELEMENTS;
  for (int64_t i = 0; i < p->outputs; i++) /* the memory of sums stays small */
    if (kind_of(p, i) == SUM)
      while (chunks > 1 && chunks * run->sum_sizes[i] > run->count) chunks /= 2;
  if (chunks > MOST_CHUNKS) chunks = MOST_CHUNKS;
  if (chunks > run->blocks) chunks = run->blocks;
  run->chunks = chunks > 1 ? chunks : 1;
}

static void make_partial(Run *run) {
  for (int64_t i = 0; i < run->p->outputs; i++) {
    run->partial[i] = 0;
    if (kind_of(run->p, i) != SUM) continue;
    run->partial[i] = calloc((size_t)(run->chunks * run->sum_sizes[i]) + 1, sizeof(double));
    if (!run->partial[i]) run->no_memory = 1;
  }
}

static void finish_sums(Run *run) {
  for (int64_t i = 0; i < run->p->outputs; i++) {
    if (kind_of(run->p, i) != SUM) continue;
    float *target = run->targets[i];
    int64_t size = run->sum_sizes[i];
    for (int64_t k = 0; k < size; k++) {
      double sum = 0;
      for (int64_t chunk = 0; chunk < run->chunks; chunk++) sum += run->partial[i][chunk * size + k];
      target[k] = (float)sum;
    }
  }
}

static Status run_program(void *kernel, void *context) {
  const Program *p = kernel;
  Run run = {.p = p, .rank = (int)p->rank};
  Tensor *tensors = alloca((p->inputs + 1) * sizeof(Tensor));
  run.inputs = alloca((p->inputs + 1) * sizeof(View));
  run.tensors = tensors;
  run.direct = alloca((p->outputs + 1) * sizeof(int));
  run.targets = alloca((p->outputs + 1) * sizeof(void *));
  run.sums = alloca((p->outputs + 1) * sizeof(View));
  run.partial = alloca((p->outputs + 1) * sizeof(double *));
  run.sum_sizes = alloca((p->outputs + 1) * sizeof(int64_t));
  View **views = alloca((p->inputs + p->outputs + 1) * sizeof(View *));
  for (int64_t i = 0; i < p->inputs; i++) {
    TRY(read_input(p->api, context, (size_t)i, &tensors[i]));
    if (tensors[i].type != FLOAT && tensors[i].type != BOOL)
      return failure(p->api, "an input is neither float nor bool");
  }
  TRY(broadcast(p, tensors, run.sizes, run.rank));
  int64_t sizes[MAX_RANK], row = run.rank ? run.sizes[run.rank - 1] : 1;
  memcpy(sizes, run.sizes, sizeof(sizes));
  run.count = 1;
  for (int axis = 0; axis < run.rank; axis++) run.count *= sizes[axis];
  int count = 0;
  for (int64_t i = 0; i < p->inputs; i++) {
    View *view = &run.inputs[i];
    set_strides(view, tensors[i].sizes, tensors[i].rank, run.rank);
    view->data = tensors[i].data, view->type = tensors[i].type;
    view->single = tensors[i].count == 1, view->whole = tensors[i].count == run.count;
    views[count++] = view;
  }
  TRY(make_outputs(&run, context, sizes, run.rank));
  for (int64_t i = 0; i < p->outputs; i++)
    if (kind_of(p, i) == SUM) views[count++] = &run.sums[i];
  for (int64_t i = 0; i < p->outputs; i++) run.direct[i] = is_direct(&run, i);
  join_axes(&run, views, count);
  run.block = p->by_rows ? (row > 0 ? row : 1) : BLOCK;
  run.blocks = (run.count + run.block - 1) / run.block;
  choose_chunks(&run);
  make_partial(&run);
  Status status = 0;
  if (run.count && !run.no_memory)
    status = parallel(p->api, context, run_chunk, (size_t)run.chunks, &run);
  if (!status && run.no_memory) status = failure(p->api, NO_MEMORY);
  if (!status) finish_sums(&run);
  for (int64_t i = 0; i < p->outputs; i++) free(run.partial[i]);
  return status;
}

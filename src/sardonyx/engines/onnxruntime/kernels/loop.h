/* The operator Recurrence: a loop over the steps of sequences, as recurrent layers have it.

   The rows of a batch do not depend on each other, so that a thread takes some rows through all
   steps, without waiting for the others. One step is a function that was written for this loop
   (loop_program.py); its products read matrices that the operator Pack has put into panels.

   Inputs: the first states, sequences, what is the same in every step, matrices in panels.
   Outputs: the last states, sequences.

   The attribute `recurrence`: the number of the function, threads, and how many states, sequences
   read and written, constant values, matrices and buffers there are; then the width of each state;
   of each sequence that is read its width, whether it is bool and whether it runs backwards; of
   each that is written its width and whether it runs backwards; of each constant value its width
   and whether it has rows of the batch; of each matrix its depth and columns; the width of each
   buffer. */

#define PADDED(n) (((n) + WIDE - 1) / WIDE * WIDE)
#define FEWEST_ROWS 4 /* of a thread: fewer would only read the matrices */
enum { LOOP_HEAD = 8 };

typedef void (*LoopBody)(const void *const *read, float *const *write, const float *const *now,
                         float *const *next, const float *const *outer, float *const *temp,
                         const float *const *matrix, int64_t rows, float *panels);

static LoopBody loop_body(int64_t number);

/* Rows times a matrix in panels. The target has rows of PADDED(columns) and room for TALL more. */
static void multiply_panels(const float *a, int64_t row_a, int64_t depth, const float *matrix,
                            float *target, int64_t columns, int64_t rows, float *panels) {
  int64_t least = (rows + TALL - 1) / TALL, height = (rows + least - 1) / least;
  int64_t stride = PADDED(columns);
  for (int64_t row = 0; row < rows; row += height)
    pack(a + row * row_a, 1, row_a, rows - row < height ? rows - row : height, height, depth,
         panels + row * depth);
  for (int64_t column = 0; column < columns; column += WIDE)
    for (int64_t row = 0; row < rows; row += height)
      multiply_tile(height, panels + row * depth, matrix + column * depth, depth,
                    target + row * stride + column, stride);
}

typedef struct {
  Api api;
  int64_t *settings;
  LoopBody body;
  int64_t threads, states, reads, writes, outers, matrices, temps;
  const int64_t *state, *read, *write, *outer, *matrix, *temp; /* what is said of each */
} Loop;

typedef struct {
  const Loop *p;
  const Tensor *states, *reads, *outers, *matrices;
  void **outputs;
  int64_t steps, rows, chunk, deepest;
  float *memory;
  int64_t size; /* of the memory of one thread */
} LoopRun;

static void destroy_loop(void *kernel) {
  Loop *p = kernel;
  free(p->settings);
  free(p);
}

static Status create_loop(const Operator *op, const void *table, const void *info, void **kernel) {
  (void)op;
  Loop *p = calloc(1, sizeof(Loop));
  size_t size;
  if (!p) return failure(table, NO_MEMORY);
  p->api = table;
  Status status = read_integers(p->api, info, "recurrence", &p->settings, &size);
  if (status) return free(p), status;
  const int64_t *s = p->settings;
  int64_t total = LOOP_HEAD;
  if (size >= LOOP_HEAD) total += s[2] + 3 * s[3] + 2 * s[4] + 2 * s[5] + 2 * s[6] + s[7];
  p->body = size >= LOOP_HEAD ? loop_body(s[0]) : 0;
  if (!p->body || (int64_t)size != total) {
    destroy_loop(p);
    return failure(table, "the settings of a loop are not those of this library");
  }
  p->threads = s[1], p->states = s[2], p->reads = s[3], p->writes = s[4], p->outers = s[5];
  p->matrices = s[6], p->temps = s[7];
  p->state = s + LOOP_HEAD, p->read = p->state + p->states, p->write = p->read + 3 * p->reads;
  p->outer = p->write + 2 * p->writes, p->matrix = p->outer + 2 * p->outers;
  p->temp = p->matrix + 2 * p->matrices;
  *kernel = p;
  return 0;
}

/* Memory of one thread, cut into buffers of padded rows. */
static float *take(float **memory, int64_t rows, int64_t width) {
  float *taken = *memory;
  *memory += (rows + TALL) * PADDED(width);
  return taken;
}

static void copy_columns(const float *from, int64_t from_row, float *to, int64_t to_row, int64_t rows,
                      int64_t width) {
  for (int64_t r = 0; r < rows; r++)
    memcpy(to + r * to_row, from + r * from_row, (size_t)width * sizeof(float));
}

/* Take the rows of one chunk through all steps. */
static void run_rows(void *data, size_t index) {
  const LoopRun *run = data;
  const Loop *p = run->p;
  int64_t first = (int64_t)index * run->chunk, left = run->rows - first;
  int64_t rows = left < run->chunk ? left : run->chunk;
  float *memory = run->memory + (int64_t)index * run->size;
  const void **read = alloca((p->reads + 1) * sizeof(void *));
  float **write = alloca((p->writes + 1) * sizeof(float *));
  float **now = alloca((p->states + 1) * sizeof(float *));
  float **next = alloca((p->states + 1) * sizeof(float *));
  const float **outer = alloca((p->outers + 1) * sizeof(float *));
  const float **matrix = alloca((p->matrices + 1) * sizeof(float *));
  float **temp = alloca((p->temps + 1) * sizeof(float *));
  for (int64_t i = 0; i < p->states; i++) {
    int64_t width = p->state[i];
    now[i] = take(&memory, rows, width), next[i] = take(&memory, rows, width);
    copy_columns((const float *)run->states[i].data + first * width, width, now[i], PADDED(width),
              rows, width);
  }
  for (int64_t i = 0; i < p->temps; i++) temp[i] = take(&memory, rows, p->temp[i]);
  for (int64_t i = 0; i < p->outers; i++)
    outer[i] = (const float *)run->outers[i].data + (p->outer[2 * i + 1] ? first * p->outer[2 * i] : 0);
  for (int64_t i = 0; i < p->matrices; i++) matrix[i] = run->matrices[i].data;
  for (int64_t step = 0; step < run->steps; step++) {
    for (int64_t i = 0; i < p->reads; i++) {
      const int64_t *s = p->read + 3 * i;
      int64_t row = (s[2] ? run->steps - 1 - step : step) * run->rows + first;
      int64_t bytes = s[1] ? 1 : (int64_t)sizeof(float);
      read[i] = (const char *)run->reads[i].data + row * s[0] * bytes;
    }
    for (int64_t i = 0; i < p->writes; i++) {
      const int64_t *s = p->write + 2 * i;
      int64_t row = (s[1] ? run->steps - 1 - step : step) * run->rows + first;
      write[i] = (float *)run->outputs[p->states + i] + row * s[0];
    }
    p->body(read, write, (const float *const *)now, next, outer, temp, matrix, rows, memory);
    float **old = now;
    now = next, next = old;
  }
  for (int64_t i = 0; i < p->states; i++) {
    int64_t width = p->state[i];
    copy_columns(now[i], PADDED(width), (float *)run->outputs[i] + first * width, width, rows, width);
  }
}

static Status check_sequences(const LoopRun *run) {
  const Loop *p = run->p;
  for (int64_t i = 0; i < p->states; i++) {
    const Tensor *t = run->states + i;
    if (t->type != FLOAT || t->rank != 2 || t->sizes[0] != run->rows || t->sizes[1] != p->state[i])
      return failure(p->api, "a state of a loop has another type or shape than was written down");
  }
  for (int64_t i = 0; i < p->reads; i++) {
    const Tensor *t = run->reads + i;
    const int64_t *s = p->read + 3 * i;
    if (t->type != (s[1] ? BOOL : FLOAT) || t->rank != 3 || t->sizes[0] != run->steps ||
        t->sizes[1] != run->rows || t->sizes[2] != s[0])
      return failure(p->api, "a sequence of a loop has another type or shape than was written down");
  }
  for (int64_t i = 0; i < p->outers; i++) {
    const Tensor *t = run->outers + i;
    int64_t rows = p->outer[2 * i + 1] ? run->rows : 1;
    if (t->type != FLOAT || t->count != rows * p->outer[2 * i])
      return failure(p->api, "a value in a loop has another type or size than was written down");
  }
  for (int64_t i = 0; i < p->matrices; i++) {
    const Tensor *t = run->matrices + i;
    if (t->type != FLOAT || t->count != p->matrix[2 * i] * PADDED(p->matrix[2 * i + 1]))
      return failure(p->api, "a matrix in a loop has another size than was written down");
  }
  return 0;
}

static void plan_memory(LoopRun *run) {
  const Loop *p = run->p;
  int64_t chunks = (run->rows + FEWEST_ROWS - 1) / FEWEST_ROWS, width = 0, deepest = 0;
  if (chunks > p->threads) chunks = p->threads;
  run->chunk = (run->rows + chunks - 1) / chunks;
  for (int64_t i = 0; i < p->states; i++) width += 2 * PADDED(p->state[i]);
  for (int64_t i = 0; i < p->temps; i++) width += PADDED(p->temp[i]);
  for (int64_t i = 0; i < p->matrices; i++)
    if (p->matrix[2 * i] > deepest) deepest = p->matrix[2 * i];
  run->size = (run->chunk + TALL) * (width + PADDED(deepest));
}

static Status run_loop(void *kernel, void *context) {
  const Loop *p = kernel;
  int64_t count = p->states + p->reads + p->outers + p->matrices;
  size_t inputs;
  TRY(CALL(p->api, INPUT_COUNT, Status(*)(const void *, size_t *))(context, &inputs));
  if ((int64_t)inputs != count || !p->reads)
    return failure(p->api, "a loop has another number of inputs than was written down");
  Tensor *tensors = alloca(count * sizeof(Tensor));
  for (int64_t i = 0; i < count; i++) TRY(read_input(p->api, context, (size_t)i, tensors + i));
  LoopRun run = {.p = p, .states = tensors, .reads = tensors + p->states};
  run.outers = run.reads + p->reads, run.matrices = run.outers + p->outers;
  if (run.reads[0].rank != 3) return failure(p->api, "a sequence of a loop has not three axes");
  run.steps = run.reads[0].sizes[0], run.rows = run.reads[0].sizes[1];
  TRY(check_sequences(&run));
  run.outputs = alloca((p->states + p->writes + 1) * sizeof(void *));
  for (int64_t i = 0; i < p->states; i++) {
    int64_t shape[] = {run.rows, p->state[i]};
    TRY(make_output(p->api, context, (size_t)i, shape, 2, run.outputs + i));
  }
  for (int64_t i = 0; i < p->writes; i++) {
    int64_t shape[] = {run.steps, run.rows, p->write[2 * i]};
    size_t index = (size_t)(p->states + i);
    TRY(make_output(p->api, context, index, shape, 3, run.outputs + index));
  }
  if (!run.rows) return 0;
  plan_memory(&run);
  int64_t chunks = (run.rows + run.chunk - 1) / run.chunk;
  float *memory = malloc((size_t)(run.size * chunks + 64) * sizeof(float));
  if (!memory) return failure(p->api, NO_MEMORY);
  run.memory = (float *)(((uintptr_t)memory + 63) / 64 * 64);
  Status status = parallel(p->api, context, run_rows, (size_t)chunks, &run);
  free(memory);
  return status;
}

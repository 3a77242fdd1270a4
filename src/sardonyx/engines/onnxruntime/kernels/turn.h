/* The operator Turn: a tensor with its axes in another order, some of them passed backwards.

   The attribute `turn`: the first element that is read; the number of axes, their sizes and how far
   apart their elements lie in the input; the rank of the output and its sizes. */

typedef struct {
  Api api;
  int64_t *settings;
  size_t length;
} Settings;

static Status create_settings(const void *table, const void *info, const char *name,
                              void **kernel) {
  Settings *s = calloc(1, sizeof(Settings));
  if (!s) return failure(table, NO_MEMORY);
  s->api = table;
  Status status = read_integers(s->api, info, name, &s->settings, &s->length);
  if (status) {
    free(s->settings);
    free(s);
    return status;
  }
  *kernel = s;
  return 0;
}

static void destroy_settings(void *kernel) {
  Settings *s = kernel;
  free(s->settings);
  free(s);
}

static Status create_turn(const Operator *op, const void *api, const void *info, void **kernel) {
  return (void)op, create_settings(api, info, "turn", kernel);
}

typedef struct {
  const float *source;
  float *target;
  const int64_t *sizes, *strides;
  int64_t rank, part; /* elements of one index of the first axis */
} Turning;

/* One index of the first axis: the two last axes as loops, those in between counted by hand. */
static void turn_part(void *data, size_t first) {
  const Turning *t = data;
  const float *source = t->source + (int64_t)first * t->strides[0];
  float *target = t->target + (int64_t)first * t->part, *end = target + t->part;
  int64_t rows = t->sizes[t->rank - 2], columns = t->sizes[t->rank - 1];
  int64_t down = t->strides[t->rank - 2], across = t->strides[t->rank - 1];
  int64_t at[MAX_RANK] = {0};
  while (target < end) {
    for (int64_t i = 0; i < rows; i++, target += columns) {
      const float *row = source + i * down;
      for (int64_t k = 0; k < columns; k++) target[k] = row[k * across];
    }
    for (int64_t axis = t->rank - 3; axis > 0; axis--) {
      source += t->strides[axis];
      if (++at[axis] < t->sizes[axis]) break;
      source -= at[axis] * t->strides[axis];
      at[axis] = 0;
    }
  }
}

static Status run_turn(void *kernel, void *context) {
  const Settings *s = kernel;
  const int64_t *v = s->settings;
  Tensor x;
  TRY(read_input(s->api, context, 0, &x));
  Turning t = {.rank = v[1], .sizes = v + 2, .strides = v + 2 + v[1], .part = 1};
  const int64_t *shape = v + 2 + 2 * t.rank;
  for (int64_t axis = 1; axis < t.rank; axis++) t.part *= t.sizes[axis];
  if (x.type != FLOAT || x.count != t.part * t.sizes[0])
    return failure(s->api, "a tensor that is turned has another size");
  t.source = (const float *)x.data + v[0];
  void *target;
  TRY(make_output(s->api, context, 0, shape + 1, (int)shape[0], &target));
  t.target = target;
  return parallel(s->api, context, turn_part, (size_t)t.sizes[0], &t);
}

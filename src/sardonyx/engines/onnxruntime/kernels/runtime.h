/* What the kernels use of onnxruntime's C interface. Its functions stand in a table whose order
   never changes; here they are named by their places in it. */

#include <alloca.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API_VERSION 21 /* the oldest onnxruntime that is supported: 1.21 */
#define MAX_RANK 8

typedef void *Status; /* null: everything went well */
typedef const void *const *Api;

typedef struct {
  const void *(*get_api)(uint32_t version);
  const char *(*version)(void);
} ApiBase;

enum {
  CREATE_STATUS = 0,
  CREATE_DOMAIN = 26,
  ADD_TO_DOMAIN = 27,
  ADD_DOMAIN = 28,
  TENSOR_DATA = 51,
  ELEMENT_TYPE = 60,
  DIMENSION_COUNT = 61,
  DIMENSIONS = 62,
  TYPE_AND_SHAPE = 65,
  INPUT_COUNT = 88,
  INPUT = 90,
  OUTPUT = 91,
  RELEASE_TYPE_AND_SHAPE = 99,
  ATTRIBUTE_INTEGERS = 163,
  PARALLEL_FOR = 274,
};

enum { UNDEFINED = 0, FLOAT = 1, BOOL = 9 }; /* types of elements */

/* One operator: what onnxruntime asks of it, in the order of its structure. */
typedef struct Operator {
  uint32_t version;
  void *(*create)(const struct Operator *, const void *api, const void *info);
  const char *(*name)(const struct Operator *);
  const char *(*provider)(const struct Operator *);
  int (*input_type)(const struct Operator *, size_t);
  size_t (*input_count)(const struct Operator *);
  int (*output_type)(const struct Operator *, size_t);
  size_t (*output_count)(const struct Operator *);
  void (*compute)(void *kernel, void *context);
  void (*destroy)(void *kernel);
  int (*input_kind)(const struct Operator *, size_t);
  int (*output_kind)(const struct Operator *, size_t);
  int (*input_memory)(const struct Operator *, size_t);
  int (*input_least)(const struct Operator *);
  int (*input_alike)(const struct Operator *);
  int (*output_least)(const struct Operator *);
  int (*output_alike)(const struct Operator *);
  Status (*create2)(const struct Operator *, const void *api, const void *info, void **kernel);
  Status (*compute2)(void *kernel, void *context);
  Status (*infer)(const struct Operator *, void *);
  int (*start_version)(const struct Operator *);
  int (*end_version)(const struct Operator *);
  size_t (*may_inplace)(int **, int **);
  void (*release_may_inplace)(int *, int *);
  size_t (*aliases)(int **, int **);
  void (*release_aliases)(int *, int *);
  /* what follows is ours */
  const char *title;
} Operator;

#define CALL(api, index, type) ((type)(api)[index])
#define TRY(call)                      \
  do {                                 \
    Status status_ = (call);           \
    if (status_) return status_;       \
  } while (0)

#define NO_MEMORY "there is not enough memory"

static Status failure(Api api, const char *text) {
  return CALL(api, CREATE_STATUS, Status(*)(int, const char *))(1, text);
}

typedef struct {
  void *data;
  int type, rank;
  int64_t sizes[MAX_RANK], count;
} Tensor;

static Status read_input(Api api, void *context, size_t index, Tensor *tensor) {
  void *value, *info;
  size_t rank;
  TRY(CALL(api, INPUT, Status(*)(const void *, size_t, void **))(context, index, &value));
  if (!value) return failure(api, "an input is missing");
  TRY(CALL(api, TENSOR_DATA, Status(*)(void *, void **))(value, &tensor->data));
  TRY(CALL(api, TYPE_AND_SHAPE, Status(*)(const void *, void **))(value, &info));
  CALL(api, ELEMENT_TYPE, Status(*)(const void *, int *))(info, &tensor->type);
  CALL(api, DIMENSION_COUNT, Status(*)(const void *, size_t *))(info, &rank);
  if (rank <= MAX_RANK)
    CALL(api, DIMENSIONS, Status(*)(const void *, int64_t *, size_t))(info, tensor->sizes, rank);
  CALL(api, RELEASE_TYPE_AND_SHAPE, void (*)(void *))(info);
  if (rank > MAX_RANK) return failure(api, "a tensor has more than eight axes");
  tensor->rank = (int)rank;
  tensor->count = 1;
  for (size_t i = 0; i < rank; i++) tensor->count *= tensor->sizes[i];
  return 0;
}

static Status make_output(Api api, void *context, size_t index, const int64_t *sizes, int rank,
                          void **data) {
  void *value;
  TRY(CALL(api, OUTPUT, Status(*)(void *, size_t, const int64_t *, size_t, void **))(
      context, index, sizes, (size_t)rank, &value));
  return CALL(api, TENSOR_DATA, Status(*)(void *, void **))(value, data);
}

static Status parallel(Api api, void *context, void (*work)(void *, size_t), size_t count,
                       void *data) {
  if (count == 1) {
    work(data, 0);
    return 0;
  }
  return CALL(api, PARALLEL_FOR,
              Status(*)(const void *, void (*)(void *, size_t), size_t, size_t, void *))(
      context, work, count, 0, data);
}

static Status read_integers(Api api, const void *info, const char *name, int64_t **values,
                            size_t *count) {
  *count = 0;
  typedef Status (*Read)(const void *, const char *, int64_t *, size_t *);
  TRY(CALL(api, ATTRIBUTE_INTEGERS, Read)(info, name, 0, count));
  *values = malloc((*count + 1) * sizeof(int64_t));
  if (!*values) return failure(api, NO_MEMORY);
  return CALL(api, ATTRIBUTE_INTEGERS, Read)(info, name, *values, count);
}

/* The operators of this library, and the function by which onnxruntime finds them. */

static const char *title(const Operator *op) { return op->title; }
static const char *no_provider(const Operator *op) { return (void)op, (const char *)0; }
static int any_type(const Operator *op, size_t i) { return (void)op, (void)i, UNDEFINED; }
static int float_type(const Operator *op, size_t i) { return (void)op, (void)i, FLOAT; }
static size_t one(const Operator *op) { return (void)op, 1; }
static int variadic(const Operator *op, size_t i) { return (void)op, (void)i, 2; }
static int cpu_memory(const Operator *op, size_t i) { return (void)op, (void)i, 0; }
static int at_least_one(const Operator *op) { return (void)op, 1; }
static int no(const Operator *op) { return (void)op, 0; }
static int yes(const Operator *op) { return (void)op, 1; }
static int first_version(const Operator *op) { return (void)op, 1; }
static int last_version(const Operator *op) { return (void)op, 2147483647; }
static void *unused_create(const Operator *op, const void *api, const void *info) {
  return (void)op, (void)api, (void)info, (void *)0;
}
static void unused_compute(void *kernel, void *context) { (void)kernel, (void)context; }
static size_t no_places(int **a, int **b) { return (void)a, (void)b, 0; }
static void release_places(int *a, int *b) { (void)a, (void)b; }
static Status no_inference(const Operator *op, void *context) { return (void)op, (void)context, (Status)0; }

#define OPERATOR(name_, create_, run_, destroy_)                                            \
  {                                                                                         \
    .version = API_VERSION, .create = unused_create, .name = title, .provider = no_provider, \
    .input_type = any_type, .input_count = one, .output_type = float_type,                  \
    .output_count = one, .compute = unused_compute, .destroy = destroy_,                    \
    .input_kind = variadic, .output_kind = variadic, .input_memory = cpu_memory,            \
    .input_least = at_least_one, .input_alike = no, .output_least = at_least_one,           \
    .output_alike = yes, .create2 = create_, .compute2 = run_, .infer = no_inference,       \
    .start_version = first_version, .end_version = last_version, .may_inplace = no_places,  \
    .release_may_inplace = release_places, .aliases = no_places,                            \
    .release_aliases = release_places, .title = name_,                                      \
  }

static const Operator OPERATORS[] = {
    OPERATOR("Fused", create_program, run_program, destroy_program),
    OPERATOR("Product", create_product, run_product, destroy_product),
    OPERATOR("Pack", create_product, run_pack, destroy_product),
    OPERATOR("Turn", create_turn, run_turn, destroy_settings),
    OPERATOR("PoolGradient", create_pool, run_pool, destroy_settings),
    OPERATOR("KernelGradient", create_kernel, run_kernel, destroy_settings),
    OPERATOR("Winograd", create_winograd, run_winograd, destroy_settings),
    OPERATOR("Recurrence", create_loop, run_loop, destroy_loop),
};

__attribute__((visibility("default"))) Status RegisterCustomOps(void *options, const ApiBase *base) {
  static void *domain; /* it must outlive every session */
  Api api = base->get_api(API_VERSION);
  if (!api) return 0;
  if (!domain) {
    void *whole; /* threads that come here at once each make one, and nobody sees half of it */
    TRY(CALL(api, CREATE_DOMAIN, Status(*)(const char *, void **))("sardonyx.kernels", &whole));
    for (size_t i = 0; i < sizeof(OPERATORS) / sizeof(*OPERATORS); i++)
      TRY(CALL(api, ADD_TO_DOMAIN, Status(*)(void *, const void *))(whole, &OPERATORS[i]));
    domain = whole;
  }
  return CALL(api, ADD_DOMAIN, Status(*)(void *, void *))(options, domain);
}

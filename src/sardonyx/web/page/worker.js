// Trains in the background, so that the page stays responsive. Messages in: load, data, start, stop,
// predict, evaluate, export, restore. Messages out: the answers, and progress.

import { ARRAYS, fetched, size } from "./csv.js";

// onnxruntime-web: in WebAssembly, and on the GPU where the page was written for it and there is one.
let wasm, webgpu = null, provider = "wasm";

async function loadRuntime(target) {
  wasm = await configured("wasm");
  if (target !== "webgpu" || !(await navigator.gpu?.requestAdapter())) return;
  webgpu = await configured("webgpu");
  provider = "webgpu";
}

async function configured(name) {
  const ort = await import(`./runtime/ort.${name}.min.mjs`);
  ort.env.wasm.wasmPaths = new URL("./runtime/", import.meta.url).href;
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;
  ort.env.logLevel = "error";
  return ort;
}

const GOLDEN = 0x9e3779b9, ORDER = 0xf5299398, VALIDATION = 0x16ac5b6e;

let manifest, sessions = {}, state = {}, before = {}, table = null, original = null, stopping = false;
const NEW_EPOCH = { position: 0, sum: 0, count: 0 };
const fresh = () => ({ epoch: 0, step: 0, ...NEW_EPOCH, history: [], losses: [] });
let progress = fresh();

async function session(file) {
  sessions[file] ??= open(file);
  return sessions[file];
}

async function open(file) {
  const answer = await fetched(new URL(`./step/${file}`, import.meta.url));
  const options = { executionProviders: ["wasm"], graphOptimizationLevel: "all", logSeverityLevel: 3 };
  const { train } = manifest.step.steps[0];
  const beside = [train.scalars?.file, manifest.step.initialize.file, manifest.front?.file].includes(file);
  const runtime = beside || !webgpu ? wasm : webgpu;
  if (runtime === webgpu) options.executionProviders = ["webgpu"];
  if (runtime === webgpu && file === train.file) options.preferredOutputLocation = onGpu(train);
  return runtime.InferenceSession.create(await answer.arrayBuffer(), options);
}

// New weights stay on the GPU; integers and scalars are computed beside it.
function onGpu({ updates, scalars }) {
  const float = new Set(manifest.step.state.filter((s) => s.type === "float32").map((s) => s.name));
  const rest = Object.entries(updates).filter(([, output]) => !scalars.outputs.includes(output));
  return Object.fromEntries(rest.map(([name, output]) => [output, float.has(name) ? "gpu-buffer" : "cpu"]));
}

// One run at a time, because sessions share the GPU; a session takes those of the feeds that it has.
let turn = Promise.resolve();
function run(file, feeds) {
  const result = turn.then(async () => {
    const opened = await session(file);
    return opened.run(Object.fromEntries(opened.inputNames.map((name) => [name, feeds[name]])));
  });
  turn = result.catch(() => {});
  return result;
}

// A step: where a graph of its own computes the scalars, it runs first.
async function runStep(step, feeds) {
  const scalars = step.scalars ? await run(step.scalars.file, feeds) : {};
  return { ...scalars, ...(await run(step.file, { ...feeds, ...scalars })) };
}

function numbers(type, value, shape) {
  const data = new ARRAYS[type](size(shape));
  data.fill(type.includes("int64") ? BigInt(Math.round(value)) : value);
  return new wasm.Tensor(type, data, shape);
}

// -- the order of rows, as record/hash_order.py defines it ---------------------------------------

function mix(x) {
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
  x = Math.imul(x ^ (x >>> 15), 0x846ca68b);
  return (x ^ (x >>> 16)) >>> 0;
}

export function hashOrder(seed, epoch, count, draw) {
  let start = mix((Math.imul(seed >>> 0, GOLDEN) + epoch) >>> 0);
  start = mix((start ^ draw) >>> 0);
  const keys = new Uint32Array(count);
  for (let i = 0; i < count; i++) keys[i] = mix((Math.imul(i, GOLDEN) ^ start) >>> 0);
  return Uint32Array.from({ length: count }, (_, i) => i).sort((a, b) => keys[a] - keys[b]);
}

function split(settings) {
  const count = table.rows;
  if (!settings.validation) return { train: Uint32Array.from({ length: count }, (_, i) => i), held: new Uint32Array() };
  const order = hashOrder(settings.seed, 0, count, VALIDATION);
  const held = Math.max(1, roundHalfEven(count * settings.validation));
  return { train: order.slice(held).sort(), held: order.slice(0, held).sort() };
}

function roundHalfEven(x) {
  const low = Math.floor(x);
  if (x - low !== 0.5) return Math.round(x);
  return low % 2 ? low + 1 : low;
}

// -- batches --------------------------------------------------------------------------------------

function batch(rows) {
  const feeds = {};
  for (const { name } of manifest.fed) feeds[name] = some(table.fields[name], rows);
  return prepared(feeds);
}

// Some rows of a field; text is in a plain array.
function some({ type, shape, data }, rows) {
  const width = size(shape), dims = [rows.length, ...shape];
  if (type === "string") return new wasm.Tensor(type, Array.from(rows, (row) => data.slice(row * width, (row + 1) * width)).flat(), dims);
  const numbers = new ARRAYS[type](rows.length * width);
  rows.forEach((row, i) => numbers.set(data.subarray(row * width, (row + 1) * width), i * width));
  return new wasm.Tensor(type, numbers, dims);
}

// What a step takes: a front of the model turns text and raw columns into numbers.
async function prepared(feeds) {
  return manifest.front ? { ...feeds, ...(await run(manifest.front.file, feeds)) } : feeds;
}

const numberOf = (result, name) => Number(result[name].data[0]);
const lossOf = (result) => numberOf(result, manifest.losses[0]);

const withState = (feeds, names, from = state) => {
  for (const name of names) feeds[name] = from[name];
  return feeds;
};

// -- training -------------------------------------------------------------------------------------

async function train(settings) {
  const { train: step, evaluate } = manifest.step.steps[0];
  const parts = split(settings);
  // an epoch that began with other rows, or in another order, begins anew
  const begun = JSON.stringify([table.rows, settings.seed, settings.batch_size, settings.validation]);
  if (progress.begun !== begun) Object.assign(progress, { begun, ...NEW_EPOCH });
  if (!parts.train.length) throw new Error("the validation share leaves nothing to train on");
  const hyper = {};
  for (const h of step.hyperparameters) hyper[h.name] = numbers(h.type, settings.hyper[h.name] ?? h.default, h.shape);
  stopping = false;
  for (; progress.epoch < settings.epochs && !stopping; ) {
    const places = hashOrder(settings.seed, progress.epoch, parts.train.length, ORDER);
    const order = places.map((p) => parts.train[p]);
    for (let at = progress.position; at < order.length; at += settings.batch_size) {
      const rows = order.slice(at, at + settings.batch_size);
      const feeds = withState({ ...(await batch(rows)), ...hyper }, step.state);
      const result = await runStep(step, feeds);
      const loss = lossOf(result);
      // the state stays that before this step
      if (!Number.isFinite(loss)) throw new Error(`the loss of step ${progress.step + 1} is ${loss}: try a lower rate`);
      replaceState({ ...state, ...Object.fromEntries(Object.entries(step.updates).map(([name, output]) => [name, result[output]])) });
      progress.losses.push(loss);
      progress.step += 1;
      progress.sum += loss * rows.length;
      progress.count += rows.length;
      progress.position = at + settings.batch_size;
      if (progress.step % 5 === 0 || at + settings.batch_size >= order.length) {
        self.postMessage({ kind: "step", step: progress.step, epoch: progress.epoch, share: Math.min(1, progress.position / order.length), losses: progress.losses.slice(-5), total: progress.losses.length });
        await new Promise((resolve) => setTimeout(resolve)); // lets a stop message in
      }
      if (stopping) break;
    }
    if (stopping && progress.position < order.length) break;
    progress.epoch += 1;
    const row = { epoch: progress.epoch, loss: progress.sum / progress.count };
    Object.assign(progress, NEW_EPOCH);
    let confusion = null;
    if (parts.held.length) {
      const measured = await measure(evaluate, parts.held, settings.batch_size);
      Object.assign(row, measured.row);
      confusion = measured.confusion;
    }
    progress.history.push(row);
    self.postMessage({ kind: "epoch", row, confusion, saved: await saved() });
  }
  self.postMessage({ kind: "stopped", finished: progress.epoch >= settings.epochs, saved: await saved() });
}

// The loss over all rows from those of batches, as train/means.py has it: a batch counts its rows or
// the weights of its labels, and sums are added.
class Mean {
  sums = {};
  weights = {};

  add(result, feeds, rows) {
    const total = manifest.losses[0], counted = manifest.counted.filter(({ name }) => result[name]);
    for (const term of counted) this.count(term.name, numberOf(result, term.name), weightOf(term, feeds, rows));
    if (counted.some(({ name }) => name === total)) return;
    const complete = counted.length === manifest.counted.length;
    const parts = complete ? counted.map(({ name }) => numberOf(result, name)) : [];
    const rest = numberOf(result, total) - parts.reduce((a, b) => a + b, 0);
    if (Number.isFinite(rest) || parts.every(Number.isFinite)) this.count(total, rest, rows);
  }

  count(name, value, weight) {
    this.weights[name] = (this.weights[name] ?? 0) + weight;
    this.sums[name] = (this.sums[name] ?? 0) + (weight ? value * weight : 0);
  }

  value() {
    const added = (name) => manifest.counted.some((term) => term.name === name && term.added);
    const mean = (name) => (added(name) ? this.sums[name] : this.sums[name] / this.weights[name]);
    const total = manifest.losses[0], names = manifest.counted.map(({ name }) => name);
    const complete = !names.includes(total) && names.every((name) => name in this.sums);
    return mean(total) + (complete ? names.reduce((sum, name) => sum + mean(name), 0) : 0);
  }
}

function weightOf({ added, label, ignored, weights }, feeds, rows) {
  if (added || label === null) return added ? 1 : rows;
  const labels = Array.from(feeds[label].data, Number).filter((l) => l !== ignored);
  return labels.reduce((sum, l) => sum + (weights?.[l] ?? 1), 0);
}

async function measure(evaluate, rows, size_) {
  const { label = manifest.labels[0], ignored } = manifest.prediction;
  let right = 0, judged = 0;
  const mean = new Mean(), confusion = {};
  for (let at = 0; at < rows.length; at += size_) {
    const some = rows.slice(at, at + size_);
    const feeds = withState(await batch(some), evaluate.state);
    const result = await run(evaluate.file, feeds);
    mean.add(result, feeds, some.length);
    const output = result[manifest.prediction.name];
    const labels = label && feeds[label];
    const classes = output && labels ? classesOf(output, labels) : null;
    classes?.forEach(([truth, guess]) => {
      if (truth === ignored) return;
      confusion[truth] ??= {};
      confusion[truth][guess] = (confusion[truth][guess] ?? 0) + 1;
      right += guess === truth;
      judged += 1;
    });
  }
  const row = { val_loss: mean.value() };
  if (judged) row.val_accuracy = right / judged;
  return { row, confusion: judged ? confusion : null };
}

// The class of each row and the one that is predicted; null where the model tells no classes apart.
function classesOf(output, labels) {
  const rows = output.dims[0], { threshold } = manifest.prediction;
  if (threshold !== undefined && output.size === rows && labels.size === rows)
    return Array.from(output.data, (v, i) => [Number(Number(labels.data[i]) > 0.5), Number(v > threshold)]);
  const width = output.dims[1];
  if (output.dims.length !== 2 || !(width > 1) || labels.dims.length !== 1 || !labels.type.startsWith("int")) return null;
  return Array.from(labels.data, (truth, i) => [Number(truth), argmax(output.data.subarray(i * width, (i + 1) * width))]);
}

function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

// -- state and files --------------------------------------------------------------------------------

async function plain(tensors) {
  const copies = {};
  for (const [name, t] of Object.entries(tensors)) copies[name] = { type: t.type, dims: [...t.dims], data: (await t.getData()).slice() };
  return copies;
}
const saved = async () => ({ id: manifest.model.id, state: await plain(state), progress: structuredClone(progress) });

// Buffers on the GPU are freed at once, not when the browser collects garbage.
function replaceState(next) {
  for (const [name, tensor] of Object.entries(state)) if (tensor !== next[name] && tensor.location === "gpu-buffer") tensor.dispose();
  state = next;
}

function restore(record) {
  replaceState(Object.fromEntries(Object.entries(record.state).map(([n, t]) => [n, new wasm.Tensor(t.type, t.data, t.dims)])));
  progress = record.progress;
}

// The tuned model: the file as it was, with the bytes of every state tensor replaced.
async function tuned() {
  const bytes = new Uint8Array(original.slice(0));
  for (const [name, offset] of Object.entries(manifest.model.tensors)) {
    const data = await state[name].getData();
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), offset);
  }
  return bytes;
}

// fields -- by name, the numbers or texts of one row
async function predict(fields, which) {
  const { infer } = manifest.step;
  const feeds = {};
  for (const [name, { type, shape, data }] of Object.entries(fields)) {
    const typed = type === "string" ? data : ARRAYS[type].from(data, type.includes("int64") ? BigInt : undefined);
    feeds[name] = new wasm.Tensor(type, typed, [1, ...shape]);
  }
  const result = await run(infer.file, withState(await prepared(feeds), infer.state, which === "before" ? before : state));
  const output = result[manifest.prediction.name] ?? Object.values(result)[0];
  return { data: Array.from(output.data, Number), dims: [...output.dims] };
}

async function load(content) {
  manifest = content;
  await loadRuntime(manifest.target);
  const { initialize } = manifest.step;
  const start = await run(initialize.file, {});
  for (const [name, output] of Object.entries(initialize.state)) state[name] = start[output];
  before = { ...state };
  if (manifest.data) {
    const answer = await fetched(new URL(`./${manifest.data.file}`, import.meta.url));
    const buffer = await answer.arrayBuffer();
    const fields = {};
    for (const f of manifest.data.fields) {
      const data = f.type === "string"
        ? JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, f.offset, f.bytes)))
        : new ARRAYS[f.type](buffer, f.offset, manifest.data.rows * size(f.shape));
      fields[f.name] = { type: f.type, shape: f.shape, data };
    }
    table = { rows: manifest.data.rows, fields };
  }
  original = await (await fetched(new URL(`./${manifest.model.file}`, import.meta.url))).arrayBuffer();
  const { train: step, evaluate } = manifest.step.steps[0];
  const files = [step.file, evaluate.file, manifest.step.infer.file, manifest.front?.file];
  for (const file of files.filter(Boolean)) await session(file);
}

const ANSWERS = {
  load: async ({ manifest }) => { await load(manifest); return { rows: table?.rows ?? 0, provider, threads: wasm.env.wasm.numThreads }; },
  data: async ({ rows, fields }) => { table = { rows, fields }; Object.assign(progress, NEW_EPOCH); return { rows }; },
  start: async ({ settings }) => { await train(settings); return {}; },
  stop: async () => { stopping = true; return {}; },
  reset: async () => { replaceState({ ...before }); progress = fresh(); return {}; },
  restore: async ({ record }) => { restore(record); return { progress }; },
  predict: async ({ fields }) => ({ before: await predict(fields, "before"), after: await predict(fields, "after") }),
  tuned: async () => ({ bytes: await tuned() }),
};

self.onmessage = async ({ data: { id, kind, ...rest } }) => {
  try {
    self.postMessage({ id, kind: "answer", result: await ANSWERS[kind](rest) });
  } catch (error) {
    self.postMessage({ id, kind: "failure", message: String(error?.message ?? error) });
  }
};

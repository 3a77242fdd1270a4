// Train from exported files with onnxruntime-web alone; prints one loss per step as JSON.
//
//   npm install && node train.mjs FOLDER [STATE]
//
// STATE is a file for the state at the end: by name its type, shape and numbers.
// The same code runs in a browser: only the reading of files differs.

import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as ort from "onnxruntime-web";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const folder = process.argv[2];
const json = async (file) => JSON.parse(await readFile(join(folder, file), "utf8"));
const session = async (file) =>
  ort.InferenceSession.create(new Uint8Array(await readFile(join(folder, file))), { executionProviders: ["wasm"] });

const ARRAYS = { float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array };

function tensor(type, numbers, shape) {
  const flat = [numbers].flat(Infinity);
  const data = type === "int64" ? ARRAYS.int64.from(flat, BigInt) : ARRAYS[type].from(flat);
  return new ort.Tensor(type, data, shape);
}

const step = await json("step.json");
const { train } = step.steps[0];

// The state starts as initialize.onnx gives it.
const start = await (await session(step.initialize.file)).run({});
const state = {};
for (const [name, output] of Object.entries(step.initialize.state)) state[name] = start[output];

const trainer = await session(train.file);
const hyper = {};
for (const h of train.hyperparameters) hyper[h.name] = tensor(h.type, h.default, h.shape);

const losses = [];
for (const batch of await json("batches.json")) {
  const feeds = { ...hyper };
  for (const i of train.inputs) feeds[i.name] = tensor(i.type, batch[i.name].data, batch[i.name].shape);
  for (const name of train.state) feeds[name] = state[name];
  const found = await trainer.run(feeds);
  for (const [name, output] of Object.entries(train.updates)) state[name] = found[output];
  losses.push(found.loss.data[0]);
}
if (process.argv[3]) {
  const numbers = (t) => (t.type === "int64" ? Array.from(t.data, Number) : Array.from(t.data));
  const entries = Object.entries(state).map(([name, t]) => [name, { type: t.type, shape: t.dims, data: numbers(t) }]);
  await writeFile(process.argv[3], JSON.stringify(Object.fromEntries(entries)));
}
console.log(JSON.stringify(losses));

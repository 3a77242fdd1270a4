// Train with onnxruntime-web alone, one epoch per call; prints the validation losses as JSON.
//
//   npm install && node train.mjs FOLDER
//
// The same code runs in a browser: only the reading of files differs.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as ort from "onnxruntime-web";

ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const EPOCHS = 8;
const folder = process.argv[2];
const session = await ort.InferenceSession.create(
  new Uint8Array(await readFile(join(folder, "web.onnx"))), { executionProviders: ["wasm"] });
const data = JSON.parse(await readFile(join(folder, "data.json"), "utf8"));

const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array };
const whole = (number) => new ort.Tensor("int64", BigInt64Array.of(BigInt(number)), []);
const rows = data.label.length;
const feeds = {
  x: new ort.Tensor("float32", Float32Array.from(data.x), [rows, data.x.length / rows]),
  label: new ort.Tensor("int64", BigInt64Array.from(data.label, BigInt), [rows]),
  epochs: whole(1),
  batch_size: whole(32),
  seed: whole(0),
  learning_rate: new ort.Tensor("float32", Float32Array.of(0.03), []),
  weight_decay: new ort.Tensor("float32", Float32Array.of(0.01), []),
  best_value: new ort.Tensor("float64", Float64Array.of(Infinity), []),
  waited: whole(0),
};
// A state with no elements: the training starts from what the file holds.
for (const { name, type, shape } of session.inputMetadata)
  if (!(name in feeds) && name !== "first_epoch")
    feeds[name] = new ort.Tensor(type, new ARRAYS[type](0), shape.map(() => 0));

const losses = [];
for (let epoch = 0; epoch < EPOCHS; epoch++) {
  const outputs = await session.run({ ...feeds, first_epoch: whole(epoch) });
  losses.push(outputs["history/val_loss"].data[0]);
  for (const [name, tensor] of Object.entries(outputs))
    if (name.startsWith("last/"))
      feeds[name.slice(5)] = tensor.dims.length ? tensor : new ort.Tensor(tensor.type, tensor.data, [1]);
  feeds.best_value = outputs["best_value/end"];
  feeds.waited = outputs["waited/end"];
  if (Number(outputs.stopped.data[0]) === 1) break; // out of patience
}
console.log(JSON.stringify(losses));

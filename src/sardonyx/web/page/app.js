// The interface: settings, charts, trying the model, data of one's own. The Worker does the work.

import { ARRAYS, cells, classCount, decoded, fetched, read, size, valueOf } from "./csv.js";

const $ = (id) => document.getElementById(id);
const worker = new Worker("worker.js", { type: "module" });
const waiting = new Map();
let nextId = 0, manifest, settings, losses = [], history = [], running = false, classes = [];

function ask(kind, content = {}) {
  return new Promise((resolve, reject) => {
    waiting.set(nextId, { resolve, reject });
    worker.postMessage({ id: nextId++, kind, ...content });
  });
}

worker.onmessage = ({ data }) => {
  if (data.kind === "answer") waiting.get(data.id).resolve(data.result);
  else if (data.kind === "failure") waiting.get(data.id).reject(new Error(data.message));
  else EVENTS[data.kind](data);
};
worker.onerror = (event) => problem(`the Worker failed: ${event.message || "see the console"}`);

const EVENTS = {
  step({ step, epoch, share, losses: last, total }) {
    losses.push(...last.slice(-(total - losses.length)));
    $("bar").value = (epoch + share) / settings.epochs;
    status(`epoch ${epoch + 1} of ${settings.epochs}, step ${step.toLocaleString("en")}, loss ${last.at(-1).toFixed(4)}`);
    drawSteps();
  },
  epoch({ row, confusion, saved }) {
    history.push(row);
    drawEpochs();
    if (confusion) drawConfusion(confusion);
    store({ ...saved, settings, source, classes });
  },
  stopped({ finished, saved }) {
    store({ ...saved, settings, source, classes });
    running = false;
    buttons();
    const last = history.at(-1);
    const numbers = last ? Object.entries(last).filter(([n]) => n !== "epoch").map(([n, v]) => `${n} ${v.toFixed(4)}`).join(", ") : "";
    status(`${finished ? "finished" : "stopped"} after ${counted(history.length, "epoch")}${numbers ? `: ${numbers}` : ""}`);
    if (finished) $("bar").value = 1;
    retry();
  },
};

const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
const status = (text) => { $("status").textContent = text; };
function problem(text) { $("problem").textContent = text; $("problem").hidden = !text; }

function buttons() {
  $("start").disabled = running || !rows;
  $("start").textContent = losses.length ? "Go on" : "Start";
  $("stop").disabled = !running;
  $("reset").disabled = running || !losses.length;
  $("download").disabled = running;
}

// -- settings ---------------------------------------------------------------------------------------

let rows = 0, source = ""; // what the rows come from, if not from the page itself

function showSettings() {
  const { hyperparameters } = manifest.step.steps[0].train;
  const fields = [
    ["epochs", manifest.settings.epochs, { min: 1, step: 1 }],
    ["batch_size", manifest.settings.batch_size, { min: 1, step: 1 }],
    ["validation", manifest.settings.validation, { min: 0, max: Math.max(0.9, manifest.settings.validation), step: "any" }],
    ["seed", manifest.settings.seed, { min: 0, step: 1 }],
    ...hyperparameters.filter((h) => !h.shape.length).map((h) => [h.name, Number(h.default.toPrecision(7)), { min: 0, step: "any" }]),
  ];
  for (const [name, value, limits] of fields) {
    const label = document.createElement("label");
    label.textContent = name.replaceAll("_", " ");
    const input = Object.assign(document.createElement("input"), { type: "number", id: `set-${name}`, value, ...limits });
    label.append(input);
    $("settings").append(label);
  }
}

function readSettings() {
  const read = (name) => {
    const input = $(`set-${name}`);
    if (!input.checkValidity() || input.value === "") throw new Error(`${name.replaceAll("_", " ")}: ${input.validationMessage || "a number is needed"}`);
    return Number(input.value);
  };
  const { hyperparameters } = manifest.step.steps[0].train;
  const hyper = {};
  for (const h of hyperparameters) {
    if (h.shape.length) continue;
    const value = read(h.name);
    hyper[h.name] = value === Number(h.default.toPrecision(7)) ? h.default : value;
  }
  return { epochs: read("epochs"), batch_size: read("batch_size"), validation: read("validation"), seed: read("seed"), hyper };
}

// -- charts -------------------------------------------------------------------------------------------

const BOX = { left: 60, right: 590, top: 10, bottom: 190 };

function chart(id, lines, across) {
  const points = lines.flatMap((l) => l.points);
  const svg = $(id);
  if (!points.length) { svg.replaceChildren(); return; }
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  if (y0 === y1) { y0 -= 0.5; y1 += 0.5; }
  const X = (x) => BOX.left + ((x - x0) / (x1 - x0 || 1)) * (BOX.right - BOX.left);
  const Y = (y) => BOX.bottom - ((y - y0) / (y1 - y0)) * (BOX.bottom - BOX.top);
  // as many digits as tell two lines of the grid apart
  const digits = Math.ceil(Math.log10((4 * Math.max(Math.abs(y0), Math.abs(y1))) / (y1 - y0))) + 1;
  const shown = (y) => Number(y.toPrecision(Math.min(7, Math.max(3, digits))));
  const parts = [0, 0.25, 0.5, 0.75, 1].map((t) => {
    const y = y0 + t * (y1 - y0);
    return `<path class="grid" d="M${BOX.left} ${Y(y)}H${BOX.right}"/><text x="${BOX.left - 6}" y="${Y(y) + 4}" text-anchor="end">${shown(y)}</text>`;
  });
  parts.push(`<text x="${BOX.left}" y="210">${x0}</text><text x="${BOX.right}" y="210" text-anchor="end">${across} ${x1}</text>`);
  for (const { points: some, color } of lines) {
    const path = some.map(([x, y], i) => `${i ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("");
    parts.push(`<path d="${path}" stroke="var(${color})"/>`);
    if (some.length < 30) parts.push(...some.map(([x, y]) => `<circle cx="${X(x)}" cy="${Y(y)}" r="3" fill="var(${color})"/>`));
  }
  svg.innerHTML = parts.join("");
}

let pending = false;
function drawSteps() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    const width = Math.max(1, Math.ceil(losses.length / 400));
    const points = [];
    for (let at = 0; at < losses.length; at += width) {
      const some = losses.slice(at, at + width);
      points.push([at + some.length, some.reduce((a, b) => a + b, 0) / some.length]);
    }
    chart("steps", [{ points, color: "--one" }], "step");
  });
}

function drawEpochs() {
  const line = (name) => history.filter((h) => name in h).map((h) => [h.epoch, h[name]]);
  chart("epochs", [{ points: line("loss"), color: "--one" }, { points: line("val_loss"), color: "--two" }], "epoch");
  const accuracy = history.at(-1)?.val_accuracy;
  $("legend").innerHTML = `<span style="color:var(--one)">■</span> training loss <span style="color:var(--two)">■</span> validation loss`;
  if (accuracy !== undefined) $("legend").append(`, validation accuracy ${(100 * accuracy).toFixed(1)} %`);
}

const className = (i) => classes[i] ?? String(i);

function drawConfusion(counts) {
  const numbers = [...new Set([...Object.keys(counts), ...Object.values(counts).flatMap(Object.keys)])].map(Number).sort((a, b) => a - b);
  if (numbers.length > 40) return;
  const head = document.createElement("tr");
  for (const text of ["label \\ predicted", ...numbers.map(className)]) head.append(Object.assign(document.createElement("th"), { textContent: text }));
  const body = numbers.map((truth) => {
    const line = document.createElement("tr");
    line.append(Object.assign(document.createElement("th"), { textContent: className(truth) }));
    for (const guess of numbers) {
      const count = counts[truth]?.[guess] ?? 0;
      line.append(Object.assign(document.createElement("td"), { textContent: count || "", className: truth === guess ? "right" : "" }));
    }
    return line;
  });
  $("confusion").replaceChildren(head, ...body);
  $("confusion-part").hidden = false;
}

// -- trying the model -----------------------------------------------------------------------------------

let retry = () => {}; // shows again what was tried last, after more training

// Shows what the model says about a row of one input, now and after more training.
function tryWith(row) {
  const attempted = async () => show(row());
  retry = () => attempted().then(() => problem(""), (error) => problem(error.message));
  return retry();
}

function softmax(values) {
  const top = Math.max(...values), exps = values.map((v) => Math.exp(v - top)), sum = exps.reduce((a, b) => a + b, 0);
  return exps.map((e) => e / sum);
}

const columns = () => manifest.input.columns ?? [manifest.input];

// data -- the numbers or texts of one row, by input
async function show(...data) {
  const fields = Object.fromEntries(columns().map(({ name, type, shape }, i) => [name, { type, shape, data: data[i] }]));
  const { before, after } = await ask("predict", { fields });
  const box = document.createElement("div");
  box.className = "scores";
  const { kind } = manifest.prediction;
  const scores = kind !== "numbers" && after.dims.length === 2 && after.dims[1] > 1;
  const [old, now] = [before.data, after.data].map((data) => (scores && kind === "scores" ? softmax(data) : data));
  const order = now.map((_, i) => i).sort((a, b) => (scores ? now[b] - now[a] : a - b)).slice(0, 10);
  const largest = now.reduce((most, v) => Math.max(most, Math.abs(v)), 0) || 1;
  for (const i of order) {
    const name = Object.assign(document.createElement("span"), { textContent: scores ? className(i) : `output ${i}` });
    const bars = document.createElement("div");
    const share = (v) => `${Math.max(0, Math.min(1, scores ? v : Math.abs(v) / largest)) * 100}%`;
    for (const [kind, v] of [["after", now[i]], ["before", old[i]]]) {
      const bar = Object.assign(document.createElement("i"), { className: kind });
      bar.style.width = share(v);
      bars.append(bar);
    }
    const text = (v) => (scores ? `${(100 * v).toFixed(1)} %` : v.toPrecision(4));
    box.append(name, bars, Object.assign(document.createElement("span"), { textContent: `${text(now[i])}  (before ${text(old[i])})` }));
  }
  $("result").replaceChildren(box);
}

const grey = () => manifest.input.shape.length === 1 || manifest.input.shape[0] === 1;
function side() {
  const { shape } = manifest.input;
  return shape.length === 1 ? [Math.sqrt(shape[0]), Math.sqrt(shape[0])] : [shape[1], shape[2]];
}

// The part of a picture that the model sees: left, top, width and height. It is rounded as in Python.
function part({ width, height }, { resize, center, crop }) {
  const round = (x) => (x % 1 === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));
  const shorter = Math.min(width, height), sides = [height, width];
  const [tall, wide] = resize.length === 1 ? sides.map((v) => Math.floor((v * resize[0]) / shorter)) : resize.length ? resize : sides;
  let [h, w] = center ?? [tall, wide], top = round((tall - h) / 2), left = round((wide - w) / 2);
  if (h > tall || w > wide) throw new Error(`a picture of ${width} × ${height} pixels is too small for the model`);
  if (crop) {
    const side = Math.max(round(crop * Math.min(h, w)), 1);
    [top, left, h, w] = [top + Math.floor((h - side) / 2), left + Math.floor((w - side) / 2), side, side];
  }
  return [(left * width) / wide, (top * height) / tall, (w * width) / wide, (h * height) / tall];
}

// The pixels of anything that can be drawn, channels first: as those that the model was trained on, else
// from 0 to 1, or as whole numbers to 255.
function pixels(source) {
  const isWhole = manifest.input.type.includes("int");
  const how = manifest.preprocessing ?? { scale: isWhole ? 1 : 1 / 255, mean: [], std: [], resize: [] };
  const [height, width] = side();
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(source, ...part(source, how), 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const of = (numbers, c, none) => (numbers.length ? numbers[c % numbers.length] : none);
  const value = (v, c) => { const x = (v * how.scale - of(how.mean, c, 0)) / of(how.std, c, 1); return isWhole ? Math.round(x) : x; };
  const count = width * height, out = new Array(count * (grey() ? 1 : 3));
  for (let i = 0; i < count; i++) {
    const rgb = [data[4 * i], data[4 * i + 1], data[4 * i + 2]];
    if (grey()) out[i] = value(0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2], 0);
    else (how.order === "BGR" ? rgb.reverse() : rgb).forEach((v, c) => { out[c * count + i] = value(v, c); });
  }
  return out;
}

const WAYS = {
  draw() {
    const pad = Object.assign(document.createElement("canvas"), { id: "pad", width: 240, height: 240 });
    const context = pad.getContext("2d");
    const clear = () => { context.fillStyle = "#000"; context.fillRect(0, 0, 240, 240); $("result").replaceChildren(); retry = () => {}; };
    clear();
    const place = (e) => { const r = pad.getBoundingClientRect(); return [((e.clientX - r.left) / r.width) * 240, ((e.clientY - r.top) / r.height) * 240]; };
    let last = null;
    pad.onpointerdown = (e) => { pad.setPointerCapture(e.pointerId); last = place(e); };
    pad.onpointermove = (e) => {
      if (!last) return;
      const next = place(e);
      Object.assign(context, { strokeStyle: "#fff", lineWidth: 26, lineCap: "round", lineJoin: "round" });
      context.beginPath(); context.moveTo(...last); context.lineTo(...next); context.stroke();
      last = next;
    };
    pad.onpointerup = () => { last = null; tryWith(() => pixels(pad)); };
    const button = Object.assign(document.createElement("button"), { textContent: "Clear", onclick: clear });
    $("try").append(pad, document.createElement("br"), button);
  },
  image() {
    const input = Object.assign(document.createElement("input"), { type: "file", accept: "image/*", id: "image" });
    input.onchange = async () => {
      const [file] = input.files;
      if (!file) return;
      const picture = await createImageBitmap(file).catch(() => problem(`${file.name} is no image that this browser reads`));
      if (picture) tryWith(() => pixels(picture));
    };
    $("try").append(input);
  },
  webcam() {
    const video = Object.assign(document.createElement("video"), { autoplay: true, muted: true, playsInline: true });
    const start = Object.assign(document.createElement("button"), { textContent: "Use the camera" });
    start.onclick = async () => {
      try {
        if (!navigator.mediaDevices) throw new Error("a browser offers it to pages from localhost or over https alone");
        video.srcObject = await navigator.mediaDevices.getUserMedia({ video: true });
      } catch (error) {
        problem(`there is no camera to use: ${error.message}`);
        return;
      }
      problem("");
      start.textContent = "Take a picture";
      start.onclick = async () => {
        const picture = await createImageBitmap(video).catch(() => problem("the camera shows no picture yet"));
        if (picture) tryWith(() => pixels(picture));
      };
    };
    $("try").append(video, document.createElement("br"), start);
  },
  csv() {
    const widths = columns().map((c) => size(c.shape)), count = widths.reduce((a, b) => a + b, 0);
    const numeric = columns().every((c) => c.type !== "string");
    const input = Object.assign(document.createElement("textarea"), { id: "row", rows: 3, placeholder: `${counted(count, numeric ? "number" : "value")}, separated by commas` });
    row(input, () => {
      const parts = numeric ? input.value.split(/[,;\s]+/).filter(Boolean) : (cells(input.value)[0] ?? []);
      if (parts.length !== count) throw new Error(`${counted(count, numeric ? "number" : "value")} are needed, and there are ${parts.length}`);
      let at = 0;
      return columns().map((column, i) => parts.slice(at, (at += widths[i])).map((part) => valueOf(part, column, column.name)));
    });
  },
  text() {
    const input = Object.assign(document.createElement("textarea"), { id: "text", rows: 4, placeholder: "a text" });
    row(input, () => [[input.value]]);
  },
};

// A field to write into, and a button that shows what the model says about it.
function row(input, parse) {
  const button = Object.assign(document.createElement("button"), { textContent: "Predict", id: "predict" });
  button.onclick = () => {
    const attempted = async () => { const data = parse(); retry = () => show(...data); await retry(); };
    return attempted().then(() => problem(""), (error) => problem(error.message));
  };
  $("try").append(input, button);
}

// -- data of one's own --------------------------------------------------------------------------------------

// The names of the classes that rows must have: those of the model, and once it has been trained those
// that it was trained on.
const knownClasses = () => (losses.length ? classes : manifest.classes);

async function readCsv(file) {
  const table = read(decoded(await file.arrayBuffer()), manifest, knownClasses());
  await use(table.fields, table.count, file.name);
  classes = table.classes;
  const { inputs, labels } = table.names;
  $("columns").textContent = `${counted(rows, "row")} of ${file.name}: ${inputs.slice(0, 6).join(", ")}${inputs.length > 6 ? ", …" : ""}; label ${labels.join(", ")}`;
}

// What a CSV file should hold, where that is more telling than a count of numbers.
function columnsNeeded() {
  const fields = manifest.fed.filter((f) => size(f.shape.map((d) => d ?? 2)) === 1);
  return fields.length === manifest.fed.length ? `columns: ${fields.map((f) => f.name).join(", ")}` : "";
}

async function use(fields, count, name) {
  if (running) throw new Error("stop the training before you give it other data");
  source = name;
  ({ rows } = await ask("data", { rows: count, fields }));
  buttons();
}

// A folder of images: the folder that an image is in names its class.
async function readFolder(images) {
  const input = manifest.input, label = manifest.fed.find((i) => manifest.labels.includes(i.name));
  if (!label || !label.type.startsWith("int") || label.shape.length) throw new Error("a folder of images fits a model that is trained on classes");
  const named = images.map(([path, file]) => [path.split("/").at(-2), file]);
  if (!named.length) throw new Error("it holds no images");
  const known = knownClasses(), names = known.length ? known : [...new Set(named.map(([name]) => name))].sort();
  const unknown = [...new Set(named.map(([name]) => name).filter((name) => !names.includes(name)))];
  if (unknown.length) throw new Error(`the model has no class ${unknown.join(", ")}: it has ${names.join(", ")}`);
  if (names.length > classCount(manifest)) throw new Error(`${names.length} classes, and the model tells ${classCount(manifest)} apart`);
  const width = manifest.input.shape.reduce((a, b) => a * b, 1);
  const x = new ARRAYS[input.type](named.length * width), y = new ARRAYS[label.type](named.length);
  for (const [i, [name, file]] of named.entries()) {
    const picture = await createImageBitmap(file).catch(() => { throw new Error(`${name}/${file.name} is no image that this browser reads`); });
    x.set(pixels(picture), i * width);
    y[i] = label.type === "int64" ? BigInt(names.indexOf(name)) : names.indexOf(name);
    picture.close();
  }
  await use({ [input.name]: { type: input.type, shape: input.shape, data: x }, [label.name]: { type: label.type, shape: [], data: y } }, named.length, "a folder of images");
  classes = names;
  $("columns").textContent = `${counted(rows, "image")} of ${counted(classes.length, "class")}: ${classes.slice(0, 8).join(", ")}${classes.length > 8 ? ", …" : ""}`;
}

// The images below a folder that was dropped, with their paths.
async function walk(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return file.type.startsWith("image/") ? [[entry.fullPath, file]] : [];
  }
  const reader = entry.createReader(), images = [];
  for (;;) { // a reader gives a hundred entries at a time
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return images;
    for (const inner of some) images.push(...(await walk(inner)));
  }
}

const attempt = (name, work) => work.then(() => problem(""), (error) => problem(`${name}: ${error.message}`));
const take = (file) => file && attempt(file.name, readCsv(file));
const takeImages = (name, images) => attempt(name, images.then(readFolder));
const hasPictures = () => ["draw", "image", "webcam"].includes(manifest.input?.kind);

// -- what survives a reload: IndexedDB ----------------------------------------------------------------------

function base() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("sardonyx", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("runs", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function inStore(mode, action) {
  const database = await base();
  return new Promise((resolve, reject) => {
    const request = action(database.transaction("runs", mode).objectStore("runs"));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  }).finally(() => database.close());
}

const store = (record) => inStore("readwrite", (s) => s.put(record)).catch(() => status("this browser keeps nothing: download the model before you leave"));

async function resume() {
  const record = await inStore("readonly", (s) => s.get(manifest.model.id)).catch(() => null);
  if (!record) return;
  await ask("restore", { record });
  losses = [...record.progress.losses];
  history = [...record.progress.history];
  classes = record.classes ?? classes;
  drawSteps();
  drawEpochs();
  for (const [name, value] of Object.entries({ ...record.settings, ...record.settings?.hyper }))
    if ($(`set-${name}`)) $(`set-${name}`).value = Number(value.toPrecision(7));
  const other = record.source ? `: it was trained on ${record.source}, which the browser does not keep; give it again before you go on` : "";
  status(`continued from ${counted(record.progress.step, "step")} that this browser kept${other}`);
}

// -- the beginning ----------------------------------------------------------------------------------------------

$("start").onclick = async () => {
  try {
    settings = readSettings();
    if (history.length >= settings.epochs) throw new Error(`${counted(history.length, "epoch")} are done: ask for more, or start over`);
    problem("");
    running = true;
    buttons();
    await ask("start", { settings });
  } catch (error) {
    problem(error.message);
    running = false;
    buttons();
  }
};
$("stop").onclick = () => ask("stop");
async function startOver() {
  await ask("reset");
  losses = [];
  history = [];
  await inStore("readwrite", (s) => s.delete(manifest.model.id)).catch(() => {});
  for (const id of ["steps", "epochs"]) $(id).replaceChildren();
  $("legend").textContent = "";
  $("confusion-part").hidden = true;
  $("bar").value = 0;
  status("");
  buttons();
  retry();
}
async function download() {
  const { bytes } = await ask("tuned");
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([bytes])), download: "tuned.onnx" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  $("line").textContent = 'sardonyx train tuned.onnx data.npz -o more.onnx --epochs 5';
  $("line").hidden = false;
}
$("reset").onclick = () => attempt("starting over", startOver());
$("download").onclick = () => attempt("the download", download());
$("file").onchange = () => take($("file").files[0]);
$("folder").onchange = () => {
  const images = [...$("folder").files].filter((f) => f.type.startsWith("image/")).map((f) => [f.webkitRelativePath, f]);
  takeImages("the folder", Promise.resolve(images));
};
for (const kind of ["dragenter", "dragover"]) $("drop").addEventListener(kind, (e) => { e.preventDefault(); $("drop").classList.add("over"); });
$("drop").addEventListener("dragleave", () => $("drop").classList.remove("over"));
$("drop").addEventListener("drop", (e) => { e.preventDefault(); $("drop").classList.remove("over"); dropped(e.dataTransfer); });
function dropped(transfer) {
  const entry = transfer.items[0]?.webkitGetAsEntry();
  if (entry?.isDirectory && hasPictures()) takeImages(entry.name, walk(entry));
  else take(transfer.files[0]);
}

try {
  manifest = await (await fetched(new URL("./manifest.json", import.meta.url))).json();
  document.title = $("title").textContent = manifest.title;
  classes = [...manifest.classes];
  showSettings();
  const loaded = await ask("load", { manifest });
  rows = loaded.rows;
  const data = rows ? `${counted(rows, "row")} of data` : "no data yet";
  $("facts").textContent = `${counted(manifest.parameters, "parameter")}; loss ${manifest.loss || "of the record"}; ${manifest.optimizer}; ${data}; computed here, ${loaded.provider === "webgpu" ? "on the GPU (WebGPU)" : `in WebAssembly on ${counted(loaded.threads, "thread")}`}`;
  if (manifest.target !== loaded.provider) status("this browser offers no WebGPU: WebAssembly does the work");
  if (manifest.input) WAYS[manifest.input.kind]();
  $("folder-part").hidden = !hasPictures();
  $("columns").textContent = columnsNeeded();
  await resume();
  document.body.dataset.ready = "yes";
} catch (error) {
  problem(`the page cannot start: ${error.message}`);
}
buttons();

// Files as the arrays that a model takes: those of the page, and CSV files of its users.

export const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array,
  uint16: Uint16Array, int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  bool: Uint8Array,
};
export const size = (shape) => shape.reduce((a, b) => a * b, 1);
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
const DECIMAL_COMMA = /^\s*([+-]?\d*),(\d+(?:e[+-]?\d+)?)\s*$/i;
const MISSING = ["", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-", "inf", "-inf", "infinity", "-infinity"]; // no words, and no numbers
const isNumber = (cell) => NUMBER.test(cell.trim());
const isWord = (cell) => !isNumber(cell) && !MISSING.includes(cell.trim().toLowerCase());
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

// A file of the page.
export async function fetched(url) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`the server has no file ${url.pathname.split("/").at(-1)} (${answer.status})`);
  return answer;
}

// The text of a file: UTF-8, or UTF-16 where its first bytes say so.
export function decoded(bytes) {
  const [first, second] = new Uint8Array(bytes);
  const encoding = { 0xfffe: "utf-16le", 0xfeff: "utf-16be" }[(first << 8) | second] ?? "utf-8";
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    throw new Error("it is no text in UTF-8: save it as CSV in UTF-8");
  }
}

// The cells of a text, row by row: quotes enclose those that hold separators, quotes or line ends.
// Numbers with decimal commas, as files with semicolons have them, get points.
export function cells(content) {
  const text = content.replace(/\r\n?/g, "\n"), line = text.replace(/"[^"]*"/g, "").split("\n")[0];
  const mark = [",", ";", "\t", "|"].find((c) => line.includes(c)) ?? ",";
  const rows = [];
  let row = [], cell = "", inQuotes = false;
  const endRow = () => { row.push(cell); if (row.length > 1 || cell.trim()) rows.push(row); row = []; cell = ""; };
  for (let i = text[0] === "\ufeff" ? 1 : 0; i < text.length; i++) {
    const c = text[i];
    if (inQuotes) {
      if (c !== '"') cell += c;
      else if (text[i + 1] === '"') { cell += c; i++; } else inQuotes = false;
    } else if (c === '"' && !cell.trim()) { cell = ""; inQuotes = true; }
    else if (c === mark) { row.push(cell); cell = ""; }
    else if (c === "\n") endRow();
    else cell += c;
  }
  if (inQuotes) throw new Error("a quote is not closed");
  endRow();
  return mark === ";" ? rows.map((row) => row.map((c) => c.replace(DECIMAL_COMMA, "$1.$2"))) : rows;
}

// A cell as an input takes it; `where` names the cell in a message.
export function valueOf(cell, { type }, where) {
  if (type === "string") return cell;
  if (!isNumber(cell)) throw new Error(`${where}: ${JSON.stringify(cell)} is not a number`);
  const number = Number(cell), isWhole = type.includes("int") || type === "bool";
  if (isWhole && !Number.isInteger(number)) throw new Error(`${where}: ${cell} is not a whole number`);
  const held = type.includes("float") ? Number.isFinite(ARRAYS[type].of(number)[0]) : isHeld(number, type);
  if (!held) throw new Error(`${where}: ${type} does not hold ${cell}`);
  return number;
}

function isHeld(number, type) {
  if (type === "bool") return number === 0 || number === 1;
  return type.includes("int64") ? Number.isSafeInteger(number) && (number >= 0 || type === "int64") : ARRAYS[type].of(number)[0] === number;
}

// How many classes the model tells apart, where it does.
export function classCount({ step, prediction, loss }) {
  const shape = step.steps[0].evaluate.metrics.find((m) => m.name === prediction.name)?.shape ?? [];
  return loss.includes("cross_entropy") && shape.length === 2 && Number.isInteger(shape[1]) ? shape[1] : Infinity;
}

// The inputs, then the labels, with the number of cells that each takes, and what their columns may be
// called. One free size takes what the others leave.
function layout({ fed, labels, label_names: labelNames = [] }, count) {
  const isLabel = (field) => labels.includes(field.name);
  const fields = [...fed.filter((f) => !isLabel(f)), ...fed.filter(isLabel)];
  const least = fields.map((f) => size(f.shape.map((d) => d ?? 1)));
  const free = fields.filter((f) => f.shape.includes(null));
  return fields.map((field, i) => {
    const stretches = free.length === 1 && field === free[0] && field.shape.filter((d) => d === null).length === 1;
    const length = stretches ? Math.max(1, Math.floor((count - sum(least) + least[i]) / least[i])) : 1;
    const isClass = isLabel(field) && field.type.includes("int") && least[i] === 1;
    const others = isLabel(field) && labels.length === 1 ? labelNames.filter((n) => fields.every((f) => f.name !== n)) : [];
    const names = [field.name, ...others];
    return { ...field, names, shape: field.shape.map((d) => d ?? length), width: length * least[i], isLabel: isLabel(field), isClass };
  });
}

// Whether the first row names the columns: it numbers them, as pandas does, or has words where numbers
// are needed, a label that is called like one, or a word above labels that are numbers. Where nothing
// but texts is needed, it does. A cell without a value is no word.
function isHeader(table, fields, classes) {
  const [row, ...others] = table;
  if (others.length && row.length > 2 && row.every((cell, i) => cell.trim() === String(i))) return true;
  const isNumbered = row.slice(0, -1).every((cell, i) => cell.trim() === String(i));
  let at = 0, onlyTexts = true;
  for (const field of fields) {
    const some = row.slice(at, (at += field.width));
    if (field.type === "string") continue;
    const hasWord = some.some(isWord), label = some[0]?.trim();
    if (field.isClass && hasWord && classes.includes(label)) return false;
    if (field.isClass && hasWord && (isNumbered || field.names.includes(label))) return true;
    if (field.isClass && hasWord && others.length && others.every((r) => isNumber(r[at - 1] ?? ""))) return true;
    if (field.isClass && hasWord) continue;
    if (hasWord) return true;
    onlyTexts = false;
  }
  return onlyTexts;
}

// The places of the columns: by their names where all are there and each is one cell; else labels that
// are named, behind all other columns; else as they stand.
function inOrder(header, fields) {
  if (!header) return null;
  const place = (field) => (field.width === 1 ? header.indexOf(field.names.find((name) => header.includes(name))) : -1);
  const places = fields.map(place), labels = places.filter((_, i) => fields[i].isLabel);
  if (!places.includes(-1)) return places;
  if (!labels.length || labels.includes(-1)) return null;
  return [...header.keys()].filter((i) => !labels.includes(i)).concat(labels);
}

function refuseRepeated(header) {
  const name = header?.find((h, i) => h && header.indexOf(h) !== i);
  if (name) throw new Error(`several columns are called ${name}`);
}

function refuseMisfit(width, fields) {
  const inputs = sum(fields.map((f) => (f.isLabel ? 0 : f.width))), labels = sum(fields.map((f) => f.width)) - inputs;
  if (width !== inputs + labels) {
    const kind = fields.some((f) => f.type === "string") ? "value" : "number";
    const rest = labels === 1 ? "a label in the last column" : `${labels} labels`;
    throw new Error(`${width} column${width === 1 ? "" : "s"}: the model takes ${inputs} ${kind}${inputs === 1 ? "" : "s"} and ${rest}`);
  }
}

function refuseRagged(rows, width) {
  const ragged = rows.findIndex((row) => row.length !== width);
  if (ragged >= 0) throw new Error(`row ${ragged + 1} has ${rows[ragged].length} columns, not ${width}`);
}

// The names of the classes: those that there are, or the words of the label's column, sorted.
function classesOf(rows, fields, classes) {
  if (classes.length || !fields.at(-1).isClass || rows.every((row) => isNumber(row.at(-1)))) return classes;
  const missing = rows.findIndex((row) => !isNumber(row.at(-1)) && !isWord(row.at(-1)));
  if (missing >= 0) throw new Error(`row ${missing + 1} has no label`);
  return [...new Set(rows.map((row) => row.at(-1).trim()))].sort();
}

function classNumber(cell, classes, limit, ignored, where) {
  const index = classes.indexOf(cell.trim());
  if (index < 0 && !isNumber(cell)) throw new Error(`${where}: ${JSON.stringify(cell)} is not a label of the model`);
  const number = index >= 0 ? index : Number(cell);
  if (number === ignored) return number;
  const outside = !Number.isInteger(number) || number < 0 || number >= limit;
  if (outside) throw new Error(`${where}: the model has no class ${cell}${limit < Infinity ? `: it tells ${limit} apart` : ""}`);
  return number;
}

// A CSV file as arrays by the names of inputs and labels, the names of its columns, and its classes.
export function read(text, manifest, classes) {
  let rows = cells(text);
  if (!rows.length) throw new Error("it holds no rows");
  const fields = layout(manifest, rows[0].length);
  const header = isHeader(rows, fields, classes) ? rows.shift().map((name) => name.trim()) : null;
  if (!rows.length) throw new Error("it holds no rows");
  refuseRepeated(header);
  const order = inOrder(header, fields), width = (header ?? rows[0]).length;
  refuseMisfit(order?.length ?? width, fields);
  refuseRagged(rows, width);
  if (order) rows = rows.map((row) => order.map((i) => row[i]));
  const names = order ? order.map((i) => header[i]) : header ?? rows[0].map((_, i) => `column ${i + 1}`);
  const labels = classesOf(rows, fields, classes), limit = classCount(manifest), arrays = {};
  const { ignored } = manifest.prediction;
  let at = 0;
  for (const { name, type, shape, width, isClass } of fields) {
    const data = type === "string" ? [] : new ARRAYS[type](rows.length * width);
    rows.forEach((row, i) => {
      for (let j = 0; j < width; j++) {
        const cell = row[at + j], where = `row ${i + 1}, ${names[at + j]}`;
        const text = isClass ? String(classNumber(cell, labels, limit, ignored, where)) : cell;
        const number = valueOf(text, { type }, where);
        data[i * width + j] = type.includes("int64") ? BigInt(number) : number;
      }
    });
    arrays[name] = { type, shape, data };
    at += width;
  }
  const inputs = sum(fields.map((f) => (f.isLabel ? 0 : f.width)));
  return { fields: arrays, count: rows.length, classes: labels, names: { inputs: names.slice(0, inputs), labels: names.slice(inputs) } };
}

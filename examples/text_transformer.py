"""A small transformer on text: first it learns the language from sentences without labels, then
what they mean from few labelled ones.

Sentences praise or blame something and say why: "praise the wine since it was superb and fresh".
Stage one guesses hidden words (masked language modelling). Stage two tells good from bad where the
first word is missing: the guesser is replaced by a new head, and 20 labelled sentences are enough,
since the network knows the words that they lack. Beside it, the same network learns from scratch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import sardonyx as sx

OUT = Path("out/text_transformer")
VOCABULARY = {
    "frame": "<pad> <hidden> the since it was and so praise blame",
    "things": "food staff room music wine bed view bread garden service",
    "good": """good great lovely fine superb fresh warm kind clean bright calm friendly perfect
        rich quick cosy charming generous tasty quiet""",
    "bad": """bad awful dull poor rude stale cold dirty dark noisy slow bland broken tiny dusty
        bitter greasy shabby careless loud""",
}
FRAME, THINGS, GOOD, BAD = (text.split() for text in VOCABULARY.values())
WORDS = [*FRAME, *THINGS, *GOOD, *BAD]
ID = {word: i for i, word in enumerate(WORDS)}
LENGTH, WIDTH, LAYERS = 11, 32, 2
TEXTS, EPOCHS, LABELLED = 3000, 5, 20

LAYER = """
  n{i} = LayerNormalization(x{i}, "l{i}.norm.scale", "l{i}.norm.bias")
  q{i} = MatMul(n{i}, "l{i}.query")
  k{i} = MatMul(n{i}, "l{i}.key")
  v{i} = MatMul(n{i}, "l{i}.value")
  a{i} = Attention <q_num_heads = 2, kv_num_heads = 2> (q{i}, k{i}, v{i}, seen)
  o{i} = MatMul(a{i}, "l{i}.out")
  y{i} = Add(x{i}, o{i})
  m{i} = LayerNormalization(y{i}, "l{i}.norm2.scale", "l{i}.norm2.bias")
  u{i} = MatMul(m{i}, "l{i}.up")
  g{i} = Gelu(u{i})
  d{i} = MatMul(g{i}, "l{i}.down")
  x{j} = Add(y{i}, d{i})
"""
WEIGHTS = """
 float[{w}] "l{i}.norm.scale", float[{w}] "l{i}.norm.bias", float[{w}, {w}] "l{i}.query",
 float[{w}, {w}] "l{i}.key", float[{w}, {w}] "l{i}.value", float[{w}, {w}] "l{i}.out",
 float[{w}] "l{i}.norm2.scale", float[{w}] "l{i}.norm2.bias",
 float[{w}, {w4}] "l{i}.up", float[{w4}, {w}] "l{i}.down"
"""


def encoder() -> onnx.ModelProto:
    """Words in; for every place of the sentence, a score for every word out."""
    size = {"w": WIDTH, "w4": 4 * WIDTH}
    text = f"""<ir_version: 11, opset_import: ["" : 23]>
encoder (int64[N, {LENGTH}] words) => (float[N, {LENGTH}, {len(WORDS)}] guesses)
<float[{len(WORDS)}, {WIDTH}] token, float[{LENGTH}, {WIDTH}] place,
 float[{WIDTH}, {len(WORDS)}] "guess.weight", float[{len(WORDS)}] "guess.bias",
 {",".join(WEIGHTS.format(i=i, **size) for i in range(LAYERS))}>
{{
  pad = Constant <value = int64 {{0}}> ()
  padded = Equal(words, pad)
  word = Not(padded)
  axes = Constant <value_ints = [1, 2]> ()
  keys = Unsqueeze(word, axes)
  queries = Constant <value_ints = [1, 1, {LENGTH}, 1]> ()
  seen = Expand(keys, queries)
  tokens = Gather(token, words)
  x0 = Add(tokens, place)
  {"".join(LAYER.format(i=i, j=i + 1) for i in range(LAYERS))}
  product = MatMul(x{LAYERS}, "guess.weight")
  guesses = Add(product, "guess.bias")
}}"""
    return with_weights(onnx.parser.parse_model(text))


def with_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    for value in proto.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if len(shape) == 2:
            array = rng.normal(scale=shape[0] ** -0.5, size=shape)
        else:
            array = np.full(shape, float(value.name.endswith("scale")))
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(array.astype(np.float32), value.name)
        )
    proto.graph.ClearField("value_info")
    return proto


def sentence(rng: np.random.Generator) -> tuple[list[str], int]:
    """Something praised (1) or blamed (0), for one reason or two."""
    good = int(rng.integers(0, 2))
    reasons = rng.choice(GOOD if good else BAD, 2, replace=False)
    words = ["praise" if good else "blame", "the", rng.choice(THINGS), "since", "it", "was"]
    words += ["so"] * int(rng.integers(0, 2)) + [reasons[0]]
    return words + ["and", reasons[1]] * int(rng.integers(0, 2)), good


def sentences(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows, labels = np.zeros((count, LENGTH), np.int64), np.zeros(count, np.int64)
    for row in range(count):
        words, labels[row] = sentence(rng)
        rows[row, : len(words)] = [ID[w] for w in words]
    return rows, labels


def without_verb(count: int, seed: int) -> dict[str, np.ndarray]:
    words, label = sentences(count, seed)
    words[:, 0] = ID["<hidden>"]
    return {"words": words, "label": label}


def hidden(words: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Some words hidden; the labels are the words there, and -1, which is ignored, elsewhere."""
    hide = (np.random.default_rng(seed).random(words.shape) < 0.25) & (words != ID["<pad>"])
    return {
        "words": np.where(hide, ID["<hidden>"], words),
        "label": np.where(hide, words, -1),
    }


def classifier(model: sx.Model) -> sx.Model:
    """Without the guesser: what the network makes of the first place, and a head of two classes."""
    first = sx.insert(model, f"x{LAYERS}", lambda op, x: op.Gather(x, 0, axis=1))
    return sx.replace_head(first, classes=2)


def main() -> tuple[float, float]:
    OUT.mkdir(parents=True, exist_ok=True)
    start = sx.load(encoder())
    run = sx.train(
        start,
        hidden(sentences(TEXTS, 0)[0], 0),
        epochs=EPOCHS,
        batch_size=64,
        loss=sx.loss.cross_entropy(axis=2, ignore_index=-1),
        optimizer=sx.optim.adamw(3e-3),
        metrics=[],
    )
    print(f"stage one: loss {run.history[0]['loss']:.2f} → {run.history[-1]['loss']:.2f}")
    language = run.model
    language.records.clear()

    accuracy = {}
    for name, model in {"fine-tuned": language, "from scratch": start}.items():
        run = sx.train(
            classifier(model),
            without_verb(LABELLED, 1),
            epochs=10,
            batch_size=10,
            optimizer=sx.optim.adamw(1e-3),
            loss="cross_entropy",
            output=OUT / f"{name.replace(' ', '-')}.onnx",
        )
        accuracy[name] = sx.evaluate(run.model, without_verb(1000, 2))["accuracy"]
        print(f"{name:12} on {LABELLED} labelled sentences: {accuracy[name]:.1%} right")
    return accuracy["fine-tuned"], accuracy["from scratch"]


if __name__ == "__main__":
    main()

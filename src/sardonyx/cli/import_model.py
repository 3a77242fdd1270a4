"""`sardonyx import`: a model of another framework or format becomes an ONNX file.

The format of a file is recognized by its content: `SOURCES` has one row per format, with a test of
the first bytes and a function that imports the file.
"""

from __future__ import annotations

import codecs
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.errors import ArgumentError, ImportRefused, quote

HEAD = 65_536
LINES = (
    ("sardonyx.importer", "importer"),
    ("sardonyx.imported", "imported"),
    ("sardonyx.verified", "verified"),
)
TORCH = "PyTorch"
PICKLES = (".pkl", ".pickle", ".joblib")
WARNING = (
    "warning: a pickle is a program: opening it may run anything with your rights. You asked for "
    "it with --trust-pickle"
)


@dataclass
class Options:
    """What the user said beside the source."""

    trust_pickle: bool = False
    trust: tuple[str, ...] = ()
    rows: Any = None
    raw: bool = False
    signature: str | None = None


@dataclass(frozen=True)
class Source:
    """A format: its name, how a file of it begins, and how it is imported."""

    name: str
    matches: Callable[[Path, bytes], bool]
    read: Callable[[Path, Options], Any]


def import_model(
    source: Annotated[
        Path,
        typer.Argument(
            help="A model: scikit-learn (skops or pickle), XGBoost (.json, .ubj), LightGBM (.txt), "
            "CatBoost (.cbm, .json), PMML, Keras (.keras, .h5), TensorFlow (the folder of a "
            "SavedModel, a frozen .pb), TensorFlow Lite, PyTorch (.pt2, TorchScript)."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write the ONNX model.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="Example rows, for types and for verification: .npy, .npz, .csv, .parquet.",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Add the raw scores of a booster as an output.")
    ] = False,
    trust_pickle: Annotated[
        bool,
        typer.Option(
            "--trust-pickle", help="Open a pickle, which may run any code. Only for your own files."
        ),
    ] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", help="A type in a skops file that may be loaded; repeatable."),
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option(
            "--signature", help="Which signature of a SavedModel or .tflite, where it has several."
        ),
    ] = None,
) -> None:
    """Import a model of another framework or format, and verify it against its source."""
    from sardonyx.save import save
    from sardonyx.train.setup import check_output

    check_output(source, output, overwrite=False)
    head = _head(source)
    kind = recognized(source, head)
    rows = _arrays(data) if kind.name == TORCH else _rows(data)
    options = Options(trust_pickle, tuple(trust or ()), rows, raw, signature)
    model = kind.read(source, options)
    path = save(model, output or source.with_suffix(".onnx"))
    typer.echo(f"source    {kind.name}", err=True)
    for key, label in LINES:
        if key in model.metadata:
            typer.echo(f"{label:9} {model.metadata[key]}", err=True)
    print(path)


def _head(path: Path) -> bytes:
    if path.is_dir():
        return b""
    with path.open("rb") as file:
        return file.read(HEAD)


def recognized(path: Path, head: bytes) -> Source:
    """The format of a file, by its content."""
    for source in SOURCES:
        if source.matches(path, head):
            return source
    names = ", ".join(dict.fromkeys(source.name for source in SOURCES))
    raise ImportRefused(f"{quote(path)} is none of the formats that are known: {names}")


def _rows(path: Path | None) -> Any:
    """Example rows of a file."""
    if path is None:
        return None
    import numpy as np

    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".npz":
        arrays = np.load(path, allow_pickle=False)
        names = [n for n in ("X", "x") if n in arrays.files] or arrays.files[:1]
        return arrays[names[0]]
    if path.suffix in (".csv", ".parquet"):
        import pandas

        return (pandas.read_csv if path.suffix == ".csv" else pandas.read_parquet)(path)
    raise ArgumentError(f"{quote(path)} is not a file of rows", hint=".npy, .npz, .csv or .parquet")


def _arrays(path: Path | None) -> Any:
    """Example arguments of a network: one array, or several by the names of the arguments."""
    if path is None or path.suffix not in (".npy", ".npz"):
        return _rows(path)
    import numpy as np

    arrays = np.load(path, allow_pickle=False)
    return arrays if path.suffix == ".npy" else {n: arrays[n] for n in arrays.files}


# -- the formats ----------------------------------------------------------------------------------


def _is_pickle(path: Path, head: bytes) -> bool:
    protocol = len(head) > 1 and head[0] == 0x80 and head[1] <= 5
    return protocol or path.suffix.lower() in PICKLES


def _read_pickle(path: Path, options: Options) -> Any:
    if not options.trust_pickle:
        raise ImportRefused(
            f"{quote(path)} is a pickle: opening it can run any code with your rights",
            hint="store it with skops (skops.io.dump), or open it with --trust-pickle if you made "
            "it yourself",
        )
    typer.echo(WARNING, err=True)
    import joblib

    return imported(joblib.load(path), options)


def _is_skops(path: Path, head: bytes) -> bool:
    return head.startswith(b"PK") and "schema.json" in _members(path)


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile:
        return []


def _read_skops(path: Path, options: Options) -> Any:
    try:
        import skops.io as store
    except ImportError as error:
        raise ArgumentError("skops is not installed", hint="pip install skops") from error
    unknown = [t for t in store.get_untrusted_types(file=path) if t not in options.trust]
    if unknown:
        raise ImportRefused(
            f"{quote(path)} holds {len(unknown)} types that are not trusted",
            [[name] for name in unknown],
            hint="look at them, then allow each: --trust TYPE",
        )
    return imported(store.load(path, trusted=list(options.trust)), options)


def imported(thing: Any, options: Options) -> Any:
    """The model of an object that came out of a file, by the library of its class."""
    import sardonyx as sx

    library = type(thing).__module__.partition(".")[0]
    boosters = {
        "xgboost": sx.from_xgboost,
        "lightgbm": sx.from_lightgbm,
        "catboost": sx.from_catboost,
    }
    if library in boosters:
        return boosters[library](thing, options.rows, raw=options.raw)
    return sx.from_sklearn(thing, options.rows)


def _is_xgboost(path: Path, head: bytes) -> bool:
    start = head.lstrip()[:1] == b"{"
    return start and b"learner" in head and (b'"learner"' in head or head[1:2] == b"L")


def _read_xgboost(path: Path, options: Options) -> Any:
    import sardonyx as sx

    return sx.from_xgboost(path, options.rows, raw=options.raw)


def _read_lightgbm(path: Path, options: Options) -> Any:
    import sardonyx as sx

    return sx.from_lightgbm(path, options.rows, raw=options.raw)


def _read_catboost(path: Path, options: Options) -> Any:
    import sardonyx as sx

    return sx.from_catboost(path, options.rows, raw=options.raw)


def _is_catboost(path: Path, head: bytes) -> bool:
    is_json = head.lstrip()[:1] == b"{" and b'"features_info"' in head
    return head.startswith(b"CBM1") or is_json


def _is_pmml(path: Path, head: bytes) -> bool:
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        head = head.replace(b"\0", b"")  # what is left of ASCII in UTF-16 is ASCII
    return b"<PMML" in head or b":PMML" in head


def _read_pmml(path: Path, options: Options) -> Any:
    import sardonyx as sx

    return sx.from_pmml(path)


def _read_tflite(path: Path, options: Options) -> Any:
    import sardonyx as sx

    return sx.from_tflite(path, signature=options.signature)


def _is_keras(path: Path, head: bytes) -> bool:
    is_archive = head.startswith(b"PK") and {"config.json", "metadata.json"} <= set(_members(path))
    return is_archive or (head.startswith(b"\x89HDF\r\n") and path.suffix in (".h5", ".hdf5"))


def _read_keras(path: Path, options: Options) -> Any:
    import sardonyx as sx

    return sx.from_keras(path)


def _is_torch(path: Path, head: bytes) -> bool:
    names = _members(path) if head.startswith(b"PK") else []
    is_archive = any(n.endswith("/data.pkl") for n in names)  # TorchScript, or a pickled module
    return is_archive or path.suffix.lower() == ".pt2"


def _read_torch(path: Path, options: Options) -> Any:
    import sardonyx as sx

    rows = options.rows
    if type(rows).__module__.startswith("pandas"):
        rows = rows.to_numpy("float32")
    return sx.from_torch(path, rows, trust=options.trust_pickle)


def _is_onnx(path: Path, head: bytes) -> bool:
    return path.suffix.lower() == ".onnx"


def _read_onnx(path: Path, options: Options) -> Any:
    raise ImportRefused(f"{quote(path)} is an ONNX model already", hint="sardonyx inspect shows it")


def _is_saved_model(path: Path, head: bytes) -> bool:
    folder = path if path.is_dir() else path.parent
    inside = path.is_dir() or path.name.startswith("saved_model.pb")
    return inside and any((folder / f"saved_model.{s}").is_file() for s in ("pb", "pbtxt"))


def _is_frozen_graph(path: Path, head: bytes) -> bool:
    return path.suffix.lower() == ".pb"


def _read_tensorflow(path: Path, options: Options) -> Any:
    import sardonyx as sx

    return sx.from_tensorflow(path, options.signature)


SOURCES: list[Source] = [
    Source("ONNX", _is_onnx, _read_onnx),
    Source("PMML", _is_pmml, _read_pmml),
    Source("XGBoost", _is_xgboost, _read_xgboost),
    Source("LightGBM", lambda path, head: head.startswith(b"tree\n"), _read_lightgbm),
    Source("CatBoost", _is_catboost, _read_catboost),
    Source("TensorFlow Lite", lambda path, head: head[4:8] == b"TFL3", _read_tflite),
    Source("Keras", _is_keras, _read_keras),
    Source("skops", _is_skops, _read_skops),
    Source(TORCH, _is_torch, _read_torch),
    Source("TensorFlow SavedModel", _is_saved_model, _read_tensorflow),
    Source("TensorFlow graph", _is_frozen_graph, _read_tensorflow),
    Source("pickle", _is_pickle, _read_pickle),
]

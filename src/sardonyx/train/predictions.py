"""Predictions as a file: arrays in an .npz, or a row for each row of the data in a .csv."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from sardonyx.errors import ArgumentError, SardonyxError, quote
from sardonyx.model import Model
from sardonyx.record.describe import settings_of
from sardonyx.train.evaluation import Predictions, class_names
from sardonyx.train.images import Images
from sardonyx.train.metrics import probabilities
from sardonyx.train.raw_frames import RawTable

KINDS = (".npz", ".csv")


def check_target(path: Path) -> None:
    """Refuse a file that predictions cannot be written to, before they are computed."""
    if path.suffix.lower() not in KINDS:
        raise ArgumentError(
            f"predictions are written to a {' or '.join(KINDS)} file, not to {quote(path.name)}"
        )
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise ArgumentError(f"the output {quote(str(path))} {what}")


def write_predictions(result: Predictions, model: Model, path: Path) -> None:
    """Write predictions in one piece: whoever reads the path sees the old file or the new one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        if path.suffix.lower() == ".npz":
            with os.fdopen(descriptor, "wb") as file:
                np.savez(file, **result.outputs)  # type: ignore[arg-type]
        else:
            with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as text:
                _write_csv(text, result, model)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise SardonyxError(
            f"cannot write {quote(str(path))}: {error.strerror}",
            hint="the file that was there before is unchanged",
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)


def _write_csv(file: IO[str], result: Predictions, model: Model) -> None:
    rows = {n: np.moveaxis(v, result.axes[n], 0) for n, v in result.outputs.items()}
    count = max(map(len, rows.values()))
    files = result.source.names if isinstance(result.source, Images) else None
    header: list[str] = ["file"] if files else ["row"]
    columns: list[list[Any]] = [list(files) if files else list(range(count))]
    if isinstance(result.source, RawTable):  # ids, and what else the model does not take
        header += result.source.others
        columns += [result.source.columns[n].tolist() for n in result.source.others]
    for name, values in _columns(rows, isinstance(result.source, Images), model):
        if len(values) == count:  # an output without rows has no place in a table
            header.append(name)
            columns.append(values)
    writer = csv.writer(file)
    writer.writerow(header)
    writer.writerows(zip(*columns, strict=True))


def _columns(
    outputs: dict[str, np.ndarray], of_images: bool, model: Model
) -> Iterator[tuple[str, list[Any]]]:
    """The predicted class and its probability for a classifier; other outputs number by number."""
    name, scores = _class_scores(outputs, of_images, model)
    if scores is not None:
        names = class_names(model)
        shares = probabilities(scores)
        best = shares.argmax(1)
        # the data may have had fewer classes than the model has scores: the others have no name
        classes = [names[i] if i < len(names) else int(i) for i in best]
        unclear = np.isnan(scores).any(1)  # argmax takes a NaN for the largest
        yield "class", ["" if nan else c for c, nan in zip(classes, unclear, strict=True)]
        yield "score", [f"{shares[row, i]:.6g}" for row, i in enumerate(best)]
    for output, values in outputs.items():
        flat = values.reshape(len(values), -1)
        if output == name:
            continue
        for i in range(flat.shape[1]):
            yield (output if flat.shape[1] == 1 else f"{output}_{i}"), flat[:, i].tolist()


def _class_scores(
    outputs: dict[str, np.ndarray], of_images: bool, model: Model
) -> tuple[str, np.ndarray | None]:
    """The output that scores classes: that of a record's cross entropy, or an image model's."""
    terms = settings_of(model).get("loss_terms", [])
    classifier = any(term["loss"] == "cross_entropy" for term in terms)
    if not (classifier or class_names(model) or of_images):
        return "", None
    for name, values in outputs.items():
        if values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind == "f":
            return name, values
    return "", None


def rows_without_numbers(result: Predictions) -> list[int]:
    """The rows for which some output holds a NaN."""
    rows: set[int] = set()
    for name, values in result.outputs.items():
        if values.dtype.kind == "f" and values.ndim:
            by_row = np.moveaxis(values, result.axes[name], 0).reshape(
                values.shape[result.axes[name]], -1
            )
            rows.update(np.flatnonzero(np.isnan(by_row).any(1)).tolist())
    return sorted(rows)

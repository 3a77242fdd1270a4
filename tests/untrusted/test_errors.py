"""The form of refusals, what they never say, and random damage, which ends in one of them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import sardonyx
from sardonyx.errors import ExternalDataError, LimitExceeded, ModelError

from . import test_external_data, test_names
from .bombs import BOMBS, REFUSED
from .fuzz import SEEDS, mutated, outcome
from .models import (
    PLACES,
    as_initializer,
    chain,
    doubling_calls,
    external,
    graph,
    model,
    node,
    raw,
)
from .ways_in import judged

SECRET = b"\xde\xad\xbe\xef\xca\xfe\xba\xbe"


def test_err_01_every_refused_file_is_one_error_of_ours() -> None:
    """Class, hint and length of all refusals; those of external data are judged where they are."""
    refused = [*REFUSED.values(), *(p for p, _ in test_names.MALFORMED.values())]
    for proto in refused:
        with pytest.raises(ModelError) as caught:
            sardonyx.load(proto)
        judged(caught.value)
        assert caught.value.where, "no place is named"


def test_err_01_all_culprits_are_listed_then_counted() -> None:
    bad = [raw(1, [3], bytes(4), f"t{i}") for i in range(200)]
    names = " ".join(t.name for t in bad)
    with pytest.raises(ModelError) as caught:
        sardonyx.load(model(graph([node("Sum", names, "y")], initializer=bad)))
    message = judged(caught.value)
    assert "malformed in 200 places" in message
    assert all(f'"t{i}"' in message for i in range(19)) and "… and 181 more" in message


def test_err_01_a_limit_says_its_field_and_value() -> None:
    with pytest.raises(LimitExceeded) as caught:
        sardonyx.load(doubling_calls(20))
    message = judged(caught.value)
    assert "nodes is 1,048,576" in message and "limit 1,000,000" in message
    assert "Limits(nodes=..." in caught.value.hint


@pytest.mark.parametrize("place", PLACES)
def test_err_02_no_contents_and_no_path_outside(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(SECRET)
    (folder / "w.bin").write_bytes(SECRET)
    hostile = [
        {"location": "../secret.bin"},
        {"location": str(tmp_path / "secret.bin")},
        {"location": "w.bin", "length": 5},
        {"location": "w.bin", "checksum": "0" * 40},
    ]
    for entries in hostile:
        path = folder / "m.onnx"
        path.write_bytes(PLACES[place](external(**entries)).SerializeToString())
        with pytest.raises(ExternalDataError) as caught:
            sardonyx.load(path)
        message = judged(caught.value)
        assert str(tmp_path) not in message
        assert SECRET.hex() not in message and "ca fe" not in message


def test_err_02_no_contents_of_inline_tensors() -> None:
    secret = raw(1, [3], b"SECRET12", "w")
    with pytest.raises(ModelError) as caught:
        sardonyx.load(as_initializer(secret))
    assert "SECRET" not in judged(caught.value)


def seeds() -> list[bytes]:
    """Twenty sound models, three times as likely as each of the hostile files."""
    sound = [build().SerializeToString() for build in SEEDS.values()]
    assert len(sound) == 20
    hostile = [p.SerializeToString() for p in BOMBS.values()]
    hostile += [p.SerializeToString() for p, _ in test_names.MALFORMED.values()]
    hostile += [p.SerializeToString() for p in test_names.LEGAL.values()]
    hostile += [
        build(external(**entries)).SerializeToString()
        for build in PLACES.values()
        for entries, _ in test_external_data.REFUSED.values()
    ][::7]
    return [*(sound * 3 * (len(hostile) // len(sound))), *hostile, chain(10).SerializeToString()]


def fuzz(rounds: int, seed: int, folder: Path) -> None:
    rng, files = random.Random(seed), seeds()
    passed: Counter[str] = Counter()
    for _ in range(rounds):
        passed.update(outcome(mutated(rng.choice(files), rng), folder))
    # Enough of them came through every stage: a fuzz that met only the parser would say nothing.
    for stage in ("load", "inspect", "check", "convert", "grad", "save"):
        assert passed[stage] > rounds / 20, passed


@pytest.mark.parametrize("seed", range(2))
def test_err_03_damaged_files_end_in_a_model_or_our_error(seed: int, tmp_path: Path) -> None:
    fuzz(250, seed, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10, 20))
def test_err_03_ten_thousand_damaged_files(seed: int, tmp_path: Path) -> None:
    fuzz(1000, seed, tmp_path)

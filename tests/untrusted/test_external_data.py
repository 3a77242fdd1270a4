"""External data of files nobody vouches for: what is read, what is refused, and the words."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

import sardonyx
from sardonyx import external as external_module
from sardonyx.errors import ArgumentError, ExternalDataError, LimitExceeded, ModelError
from sardonyx.external import ExternalData, tensors
from sardonyx.limits import Limits, parse, read_file, scan

from .models import PAYLOAD, PLACES, as_initializer, external, graph, model, node


def through_gate(path: Path, **options) -> None:
    limits = options.pop("limits", Limits())
    proto = parse(read_file(path, limits), limits)
    scan(proto, limits)
    ExternalData(None, path, limits=limits, **options).check_all(proto)


def through_load(path: Path, **options) -> None:
    sardonyx.load(path, **options)


@pytest.fixture(params=[through_gate, through_load], ids=["gate", "load"])
def door(request):
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with data of every kind in and beside it."""
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for place in ("model/w.bin", "model/sub/w.bin", "secret.bin", "outside/w.bin"):
        (tmp_path / place).write_bytes(PAYLOAD)
    (inside / "back\\slash.bin").write_bytes(PAYLOAD)
    (inside / "first.bin").write_bytes(PAYLOAD)
    os.link(inside / "first.bin", inside / "hard.bin")
    os.symlink("w.bin", inside / "sibling.bin")
    os.symlink("sub/w.bin", inside / "into_sub.bin")
    os.symlink("../secret.bin", inside / "out.bin")
    os.symlink("../outside", inside / "linked")
    os.symlink("sub", inside / "linked_inside")
    os.symlink("loop_b.bin", inside / "loop_a.bin")
    os.symlink("loop_a.bin", inside / "loop_b.bin")
    os.symlink("nothing.bin", inside / "broken.bin")
    os.symlink("/dev/zero", inside / "device.bin")
    os.mkfifo(inside / "pipe.bin")
    return inside


def write(folder: Path, proto: ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def values(folder: Path, tensor: TensorProto, **options) -> list[float]:
    reader = ExternalData(folder, **options)
    return reader.array(tensor, "here").view(np.float32).tolist()


GOOD = {
    "EXT-01-beside": {"location": "w.bin"},
    "EXT-01-below": {"location": "sub/w.bin"},
    "EXT-04-sibling-link": {"location": "sibling.bin"},
    "EXT-04-link-into-subfolder": {"location": "into_sub.bin"},
    "EXT-14-right-checksum": {
        "location": "w.bin",
        "checksum": hashlib.sha1(PAYLOAD).hexdigest().upper(),
    },
    "EXT-15-no-length": {"location": "w.bin", "offset": 0},
}
REFUSED = {
    "EXT-02-parent": ({"location": "../secret.bin"}, '".." component'),
    "EXT-02-parent-through-sub": ({"location": "sub/../../secret.bin"}, '".." component'),
    "EXT-02-absolute": ({"location": "/etc/passwd"}, "absolute"),
    "EXT-02-drive": ({"location": "C:w.bin"}, "absolute"),
    "EXT-03-link-out": ({"location": "out.bin"}, 'outside "model/"'),
    "EXT-03-linked-folder": ({"location": "linked/w.bin"}, "linked directory"),
    "EXT-03-linked-folder-inside": ({"location": "linked_inside/w.bin"}, "linked directory"),
    "EXT-05-hardlink": ({"location": "hard.bin"}, "2 names (hard links)"),
    "EXT-06-pipe": ({"location": "pipe.bin"}, "named pipe"),
    "EXT-07-device": ({"location": "device.bin"}, "outside"),
    "EXT-07-folder": ({"location": "sub"}, "directory"),
    "EXT-07-dot": ({"location": "."}, '"." component'),
    "EXT-07-empty": ({"location": ""}, "is empty"),
    "EXT-07-empty-component": ({"location": "sub//w.bin"}, "empty component"),
    "EXT-07-no-location": ({"offset": 0}, "no location"),
    "EXT-07-missing": ({"location": "none.bin"}, "is missing"),
    "EXT-07-through-a-file": ({"location": "w.bin/x"}, "cannot be opened"),
    "EXT-07-memory-address": ({"location": "*/_ORT_MEM_ADDR_/*"}, "is missing"),
    "EXT-08-nul": ({"location": "w.bin\0x"}, "control character"),
    "EXT-09-backslash": ({"location": "back\\slash.bin"}, "backslash"),
    "EXT-10-location-twice": ({"location": "w.bin", "location_": "w.bin"}, "location twice"),
    "EXT-11-unknown-key": ({"location": "w.bin", "__class__": "x"}, "unknown key"),
    "EXT-12-short": ({"location": "w.bin", "length": 3}, "has length 3"),
    "EXT-12-long": ({"location": "w.bin", "length": 9}, "has length 9"),
    "EXT-12-huge": ({"location": "w.bin", "length": 2**62}, "has length"),
    "EXT-13-offset-past-end": ({"location": "w.bin", "offset": 4}, "has 8 bytes"),
    "EXT-13-offset-negative": ({"location": "w.bin", "offset": -4}, "no plain number"),
    "EXT-13-offset-2^63": ({"location": "w.bin", "offset": 2**63}, "has 8 bytes"),
    "EXT-13-offset-word": ({"location": "w.bin", "offset": "abc"}, "no plain number"),
    "EXT-13-offset-endless": ({"location": "w.bin", "offset": "9" * 5000}, "no plain number"),
    "EXT-13-length-negative": ({"location": "w.bin", "length": -1}, "no plain number"),
    "EXT-14-wrong-checksum": ({"location": "w.bin", "checksum": "0" * 40}, "SHA-1"),
    "EXT-14-no-checksum": ({"location": "w.bin", "checksum": "abc"}, "SHA-1"),
    "LNK-04-loop": ({"location": "loop_a.bin"}, "link without end"),
    "LNK-04-broken": ({"location": "broken.bin"}, "broken link"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", GOOD)
def test_good_data_is_read(folder: Path, case: str, place: str) -> None:
    tensor = external(**GOOD[case])
    assert values(folder, tensor) == [1.0, 2.0]
    through_gate(write(folder, PLACES[place](tensor)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("case", REFUSED)
def test_bad_data_is_refused(folder: Path, door, case: str, place: str) -> None:
    entries, reason = REFUSED[case]
    path = write(folder, PLACES[place](external(**entries)))
    with pytest.raises(ExternalDataError) as caught:
        door(path)
    message = str(caught.value)
    assert reason in message
    assert "hint: " in message
    assert len(message.encode()) < 4096
    assert str(folder.parent) not in message and "/etc/passwd" not in message  # ERR-02
    expected = {"function": '"f"', "if-body": '"then_branch"', "training": "training record 0"}
    assert expected.get(place, '"w"' if place != "sparse-indices" else "indices") in message


@pytest.mark.parametrize("place", [p for p in PLACES if "sparse" not in p])
def test_ext_01_load_attaches_the_data(folder: Path, place: str) -> None:
    path = write(folder, PLACES[place](external(location="sub/w.bin")))
    proto = sardonyx.load(path).proto()
    data = [t.raw_data for t, _ in tensors(proto)]
    assert data == [PAYLOAD]


def test_ext_06_a_socket_is_refused(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)  # a socket's path has at most 108 characters
        try:
            server.bind("socket.bin")
        finally:
            os.chdir(here)
    with pytest.raises(ExternalDataError, match="a socket"):
        through_gate(write(folder, as_initializer(external(location="socket.bin"))))


def test_ext_16_bytes_have_no_directory(folder: Path, monkeypatch) -> None:
    monkeypatch.chdir(folder)
    for place, build in PLACES.items():
        data = build(external(location="w.bin")).SerializeToString()
        with pytest.raises(ExternalDataError, match="has no directory"):
            sardonyx.load(data)
        if place != "sparse-indices":  # whose payload, read as an index, is out of range
            sardonyx.load(data, directory=folder)


def test_ext_17_sparse_data_is_kept(folder: Path) -> None:
    path = write(folder, PLACES["sparse"](external(location="w.bin")))
    loaded = sardonyx.load(path).initializer("w").numpy()
    assert loaded.tolist() == [1.0, 2.0, 0, 0, 0, 0, 0, 0]


def test_ext_17_external_indices_are_checked(folder: Path) -> None:
    path = write(folder, PLACES["sparse-indices"](external(location="w.bin")))
    with pytest.raises(ModelError, match="index outside its dimensions"):
        sardonyx.load(path)


def test_ext_18_the_opened_file_is_the_one_read(folder: Path) -> None:
    tensor = external(location="w.bin")
    reader = ExternalData(folder)
    reader.check_all(as_initializer(tensor))
    (folder / "new.bin").write_bytes(bytes(8))
    os.replace(folder / "new.bin", folder / "w.bin")
    assert reader.array(tensor, "here").tobytes() == PAYLOAD


@pytest.mark.parametrize("name", ["w.bin", "sibling.bin"], ids=["EXT-18", "LNK-05"])
@pytest.mark.parametrize("swap", ["link", "pipe", "hardlink"])
def test_swapped_between_look_and_open(folder: Path, monkeypatch, name: str, swap: str) -> None:
    """Whoever replaces the file after it was looked at gets an error, never the other file."""
    real_open = os.open

    def swapping_open(path, flags, *rest, **options):
        if path == "w.bin":
            (folder / "w.bin").unlink()
            if swap == "link":
                os.symlink("../secret.bin", folder / "w.bin")
            elif swap == "pipe":
                os.mkfifo(folder / "w.bin")
            else:
                os.link(folder.parent / "secret.bin", folder / "w.bin")
        return real_open(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", swapping_open)
    with pytest.raises(ExternalDataError):
        ExternalData(folder).check_all(as_initializer(external(location=name)))


def test_ext_19_overlapping_tensors_count_each(folder: Path) -> None:
    both = [external("a", location="w.bin"), external("b", 1, location="w.bin", offset=4)]
    proto = model(graph([node("Add", "a b", "y")], initializer=both))
    ExternalData(folder, limits=Limits(external_bytes=12)).check_all(proto)
    with pytest.raises(LimitExceeded, match="external_bytes is 12"):
        ExternalData(folder, limits=Limits(external_bytes=11)).check_all(proto)


def test_arrays_share_one_read_only_mapping(folder: Path) -> None:
    (folder / "big.bin").write_bytes(bytes(range(256)) * 1024)
    reader = ExternalData(folder)
    one = reader.array(external(count=2, location="big.bin", offset=3), "one")
    two = reader.array(external(count=2, location="big.bin", offset=7), "two")
    assert one.tobytes() == bytes(range(3, 11))
    assert not one.flags.writeable
    assert np.shares_memory(one, two)


def test_more_files_than_may_be_mapped(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(external_module, "_MAPPED_FILES", 1)
    monkeypatch.setattr(external_module, "_READ_BELOW", 1)
    reader = ExternalData(folder)
    for name in ("w.bin", "sub/w.bin", "sibling.bin"):
        assert reader.array(external(location=name), name).tobytes() == PAYLOAD


@pytest.mark.parametrize("case", REFUSED)
def test_without_directory_handles(folder: Path, monkeypatch, case: str) -> None:
    monkeypatch.setattr(external_module, "_HANDLES", False)
    entries, reason = REFUSED[case]
    with pytest.raises(ExternalDataError) as caught:
        ExternalData(folder).check_all(as_initializer(external(**entries)))
    assert reason in str(caught.value)
    assert values(folder, external(location="sub/w.bin")) == [1.0, 2.0]


@pytest.mark.parametrize("name", ["out.bin", "linked/w.bin", "hard.bin"])
def test_trust_local_allows_links(folder: Path, name: str) -> None:
    assert values(folder, external(location=name), trust="local") == [1.0, 2.0]


@pytest.mark.parametrize("case", ["EXT-02-parent", "EXT-02-absolute", "EXT-06-pipe"])
def test_trust_local_allows_no_more_than_links(folder: Path, case: str) -> None:
    with pytest.raises(ExternalDataError):
        values(folder, external(**REFUSED[case][0]), trust="local")


def test_trust_has_two_values() -> None:
    with pytest.raises(ArgumentError, match="trust"):
        ExternalData(None, trust="yes")


def cache(root: Path, below: str = "", files: int = 2) -> Path:
    """A download cache: names in `snapshots` link into `blobs`; returns the model's name."""
    snapshot, blobs = root / "snapshots/rev" / below, root / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    weights = [external(f"w{i}", location=f"m.onnx_data_{i}") for i in range(files)]
    proto = model(graph([node("Sum", " ".join(w.name for w in weights), "y")], initializer=weights))
    content = {"m.onnx": proto.SerializeToString()}
    content |= {f"m.onnx_data_{i}": PAYLOAD for i in range(files)}
    for name, data in content.items():
        (blobs / f"hash-{name}").write_bytes(data)
        os.symlink(os.path.relpath(blobs / f"hash-{name}", snapshot), snapshot / name)
    return snapshot / "m.onnx"


@pytest.mark.parametrize("below", ["", "onnx"])
@pytest.mark.parametrize("files", [1, 3])
def test_lnk_01_cache_loads(tmp_path: Path, door, below: str, files: int) -> None:
    door(cache(tmp_path, below, files))


def test_lnk_02_regular_model_with_linked_data(tmp_path: Path, door) -> None:
    path = cache(tmp_path)
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    with pytest.raises(ExternalDataError) as caught:
        door(path)
    message = str(caught.value)
    assert "2 tensors" in message and message.count("is a link to a file outside") == 2
    assert 'trust="local"' in message and "beside the model's real file" in message
    door(path, trust="local")


def test_lnk_03_data_linked_elsewhere(tmp_path: Path, door) -> None:
    path = cache(tmp_path)
    (tmp_path / "elsewhere").write_bytes(PAYLOAD)
    link = path.parent / "m.onnx_data_1"
    link.unlink()
    os.symlink("../../elsewhere", link)
    with pytest.raises(ExternalDataError, match="outside") as caught:
        door(path)
    assert "m.onnx_data_0" not in str(caught.value)


@pytest.mark.parametrize("end, loads", [("blobs/hash-m.onnx_data_1", True), ("elsewhere", False)])
def test_lnk_04_chain_of_links(tmp_path: Path, door, end: str, loads: bool) -> None:
    path = cache(tmp_path)
    (tmp_path / "elsewhere").write_bytes(PAYLOAD)
    os.symlink(tmp_path / end, tmp_path / "middle")
    link = path.parent / "m.onnx_data_1"
    link.unlink()
    os.symlink(tmp_path / "middle", link)
    if loads:
        door(path)
    else:
        with pytest.raises(ExternalDataError, match="outside"):
            door(path)


def test_lnk_06_hard_link(folder: Path, door) -> None:
    path = write(folder, as_initializer(external(location="hard.bin")))
    with pytest.raises(ExternalDataError) as caught:
        door(path)
    assert 'cp FILE COPY; mv COPY FILE), or load(..., trust="local")' in caught.value.hint
    door(path, trust="local")
    shutil.copy(folder / "hard.bin", folder / "copy.bin")
    os.replace(folder / "copy.bin", folder / "hard.bin")
    door(path)  # the hint is exact


@pytest.mark.parametrize("name", ["w.bin", "sub/w.bin"])
def test_lnk_07_the_model_is_a_link_that_the_user_named(
    folder: Path, tmp_path: Path, door, name: str
) -> None:
    write(folder, as_initializer(external(location=name)))
    (tmp_path / "desk").mkdir()
    link = tmp_path / "desk" / "mine.onnx"
    os.symlink(folder / "m.onnx", link)
    door(link)


def test_all_problems_at_once_and_all_places_seen(folder: Path) -> None:
    bad = [external(f"t{i}", location="../x") for i in range(30)]
    proto = model(graph([node("Sum", " ".join(t.name for t in bad), "y")], initializer=bad))
    with pytest.raises(ExternalDataError) as caught:
        ExternalData(folder).check_all(proto)
    message = str(caught.value)
    assert message.startswith("30 tensors")
    assert '"t0"' in message and "… and 11 more" in message


def test_tensors_reports_every_place() -> None:
    where = {name: [w for _, w in tensors(build(external()))] for name, build in PLACES.items()}
    assert where == {
        "initializer": ['initializer "w"'],
        "constant": ['node "w" (Constant), "value"'],
        "sparse": ['sparse initializer "w", values', 'sparse initializer "w", indices'],
        "sparse-indices": ['sparse initializer "w", values', 'sparse initializer "w", indices'],
        "if-body": ['node "y" (If), "then_branch" › initializer "w"'],
        "function": ['function "f" › node "w" (Constant), "value"'],
        "training": ['training record 0, algorithm › initializer "w"'],
    }

"""How much of the official suite a compiled runtime gets: `python -m tests.sweeps.runtimes iree`.

By the runtime's own table, before anything is compiled: the cases of which it gets all nodes, some,
or none; the rest of the nodes runs on other engines.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from sardonyx.engines.loading import load_engine
from sardonyx.errors import SardonyxError
from sardonyx.model import load
from sardonyx.passes.pinning import pinned
from tests.official import Official, cases


def share(case: Official, engine: str) -> str:
    """Whether an engine gets "all", "some" or "none" of the nodes of a case."""
    try:
        runner = load_engine(engine).Runner(load(case.model))
        arrays = zip(runner.inputs, next(iter(case.sets()))[0])
        shapes = {name: a.shape for name, a in arrays if isinstance(a, np.ndarray)}
        graph = pinned(runner.model, shapes).graph
    except SardonyxError:
        return "refused"
    whole = runner.runtime.lacks_graph(graph)
    kept = [not whole and not runner.runtime.lacks(node) for node in graph]
    return "all" if kept and all(kept) else "some" if any(kept) else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=("openvino", "iree", "tract"))
    engine = parser.parse_args().engine
    counts = Counter(share(case, engine) for case in cases() if case.kind != "real")
    print(f"{engine}: {dict(counts)} of {counts.total()} cases")


if __name__ == "__main__":
    main()

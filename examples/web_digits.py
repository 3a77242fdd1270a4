"""A page that learns handwritten digits in the browser; builds it and serves it.

    python examples/web_digits.py [--no-serve] [--runtime FOLDER]

The network is the one of demo.py, untrained. npm brings onnxruntime-web, or FOLDER holds it.
"""

from __future__ import annotations

import argparse
import functools
import http.server
from pathlib import Path

import numpy as np
from demo import network
from sklearn.datasets import load_digits

import sardonyx as sx

OUT = Path("out/web")


def build(runtime: Path | None) -> Path:
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    net = sx.trainable(network(), loss="cross_entropy", optimizer=sx.optim.adamw(3e-3))
    data = {net.inputs[0].name: images, "label": digits.target.astype(np.int64)}
    return sx.export_web(net, OUT, data, title="Handwritten digits", input="draw", runtime=runtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-serve", action="store_true", help="only write the files")
    parser.add_argument("--runtime", type=Path, help="a folder that holds onnxruntime-web")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    page = build(options.runtime)
    print(f"wrote {page}")
    if options.no_serve:
        return
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=page.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
        print(f"open http://127.0.0.1:{server.server_port} (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()

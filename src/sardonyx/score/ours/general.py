"""An engine of a plug-in, or one without an adapter of its own: gradients as ONNX models."""

import os

from sardonyx import plugins
from sardonyx.engines.loading import load_engine
from sardonyx.score import ours
from sardonyx.score.ours import used  # noqa: F401  (the worker asks for it)

ENGINE = os.environ["SARDONYX_SCORE_ENGINE"]

version, run, train = ours.functions(ENGINE, plugins.engine(ENGINE).packages[0])
gradient = ours.onnx_gradient(ENGINE)
if not hasattr(load_engine(ENGINE), "prepare_training"):
    del train

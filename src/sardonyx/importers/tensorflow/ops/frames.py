"""The rule of loops as TensorFlow 1 writes them: all Exits of a loop stand for one Loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from sardonyx.importers.tensorflow.frames import EXITS, Frame, frame_of, part
from sardonyx.importers.tensorflow.ops.functional import Loop
from sardonyx.importers.tensorflow.reader import Reader, Unknown, importer, known_shape
from sardonyx.importers.tensorflow.writer import Refusal, Writer

ROUNDS = 8  # of shapes that get less certain until an iteration keeps them


@importer(*EXITS)
def exit_(op: Writer, *operands: Any, node: tf.Operation, reader: Reader) -> Any:
    frame = frame_of(node)
    if any(isinstance(v, Unknown) for v in operands):
        return Unknown()
    results = FrameLoop(op, list(operands), reader, frame).written()
    for variable, value in zip(frame.variables, results, strict=False):
        for reading in variable.outside.consumers():
            if reading.type in EXITS:
                reader.values[reading.outputs[0].name] = value
    return reader.values[node.outputs[0].name]


@dataclass
class FrameLoop(Loop):
    """A loop whose test and body are parts of the graph around it."""

    frame: Frame = None  # type: ignore[assignment]
    shapes: list[tf.TensorShape] = field(default_factory=list)
    part_of_body: Any = None

    def body(self) -> Any:
        if self.part_of_body is None:
            self.shapes = [known_shape(v) for v in self.operands]
            for _ in range(ROUNDS):
                graph = self._part_of_body()
                shapes = [
                    before.most_specific_compatible_shape(after.shape)
                    for before, after in zip(self.shapes, graph.outputs, strict=True)
                ]
                if list(map(str, shapes)) == list(map(str, self.shapes)):
                    break
                self.shapes = shapes
            else:
                raise Refusal("a loop of TensorFlow 1 whose shapes keep changing")
            self.part_of_body = graph
        return self.part_of_body

    def _part_of_body(self) -> Any:
        frame = self.frame
        inside = [v.inside for v in frame.variables] + list(frame.constants)
        outputs = [v.following for v in frame.variables] + list(frame.constants)
        return part(self._inputs(inside), outputs)

    def test(self) -> Any:
        self.body()
        merged = [v.merged for v in self.frame.variables] + list(self.frame.constants)
        return part(self._inputs(merged), [self.frame.test])

    def _inputs(self, tensors: list[tf.Tensor]) -> dict[str, tf.TensorShape]:
        return {t.name: s for t, s in zip(tensors, self.shapes, strict=True)}

"""Rules of the cells of TensorFlow 1's recurrent networks."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.importers.tensorflow.reader import importer
from sardonyx.importers.tensorflow.writer import Writer


@importer("LSTMBlockCell")
def lstm_block_cell(
    op: Writer,
    x: ir.Value,
    cs_prev: ir.Value,
    h_prev: ir.Value,
    w: ir.Value,
    wci: ir.Value,
    wcf: ir.Value,
    wco: ir.Value,
    b: ir.Value,
    *,
    forget_bias: float,
    cell_clip: float,
    use_peephole: bool,
) -> list[ir.Value]:
    gates = op.Add(op.MatMul(op.Concat(x, h_prev, axis=1), w), b)
    i, ci, f, o = op.Split(gates, None, axis=1, num_outputs=4, outputs=4)
    if use_peephole:
        i = op.Add(i, op.Mul(cs_prev, wci))
        f = op.Add(f, op.Mul(cs_prev, wcf))
    i, ci = op.Sigmoid(i), op.Tanh(ci)
    f = op.Sigmoid(op.Add(f, op.like(forget_bias, f)))
    cs = op.Add(op.Mul(ci, i), op.Mul(cs_prev, f))
    if cell_clip > 0:
        cs = op.Clip(cs, op.like(-cell_clip, cs), op.like(cell_clip, cs))
    if use_peephole:
        o = op.Add(o, op.Mul(cs, wco))
    o = op.Sigmoid(o)
    co = op.Tanh(cs)
    return [i, cs, f, o, ci, co, op.Mul(co, o)]


@importer("GRUBlockCell")
def gru_block_cell(
    op: Writer,
    x: ir.Value,
    h_prev: ir.Value,
    w_ru: ir.Value,
    w_c: ir.Value,
    b_ru: ir.Value,
    b_c: ir.Value,
) -> list[ir.Value]:
    gates = op.Sigmoid(op.Add(op.MatMul(op.Concat(x, h_prev, axis=1), w_ru), b_ru))
    r, u = op.Split(gates, None, axis=1, num_outputs=2, outputs=2)
    joined = op.Concat(x, op.Mul(h_prev, r), axis=1)
    c = op.Tanh(op.Add(op.MatMul(joined, w_c), b_c))
    h = op.Add(op.Mul(u, h_prev), op.Mul(op.Sub(op.like(1, u), u), c))
    return [r, u, c, h]

"""Functions of one variable for which onnxruntime has no kernel in double precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.build import Builder

F = np.float64


def log1p(op: Builder, x: ir.Value) -> ir.Value:
    """log(1 + x), accurate for small x: the error of 1 + x is divided out."""
    u = op.Add(x, 1.0)
    d = op.Sub(u, 1.0)
    same = op.Equal(d, F(0))
    ratio = op.Div(op.Mul(op.Log(u), x), op.Where(same, F(1), d))
    plain = op.Or(op.IsInf(x), op.LessOrEqual(u, F(0)))
    return op.Where(same, x, op.Where(plain, op.Log(u), ratio))


def expm1(op: Builder, x: ir.Value) -> ir.Value:
    """exp(x) - 1, accurate for small x."""
    u = op.Exp(x)
    d = op.Sub(u, 1.0)
    far = op.Or(op.Greater(op.Abs(x), F(1)), op.IsNaN(x))
    safe = op.Where(op.Or(far, op.Equal(d, F(0))), F(2), u)
    ratio = op.Div(op.Mul(op.Sub(safe, 1.0), x), op.Log(safe))
    return op.Where(far, d, op.Where(op.Equal(d, F(0)), x, ratio))


def softplus(op: Builder, x: ir.Value) -> ir.Value:
    """log(1 + exp(x))."""
    return op.Add(op.Relu(x), log1p(op, op.Exp(op.Neg(op.Abs(x)))))


def sigmoid(op: Builder, x: ir.Value) -> ir.Value:
    """1 / (1 + exp(-x)); onnxruntime's own kernel loses the digits of small results."""
    small = op.Exp(op.Neg(op.Abs(x)))
    share = op.Div(small, op.Add(small, F(1)))
    return op.Where(op.GreaterOrEqual(x, F(0)), op.Div(F(1), op.Add(small, F(1))), share)


def logsumexp(op: Builder, x: ir.Value, keepdims: bool = True) -> ir.Value:
    """log(sum(exp(x))) over the last axis."""
    top = op.ReduceMax(x, [-1], keepdims=1)
    top = op.Where(op.IsInf(top), F(0), top)
    out = op.Add(op.Log(op.ReduceSum(op.Exp(op.Sub(x, top)), [-1], keepdims=1)), top)
    return out if keepdims else op.Squeeze(out, [-1])


def softmax(op: Builder, x: ir.Value) -> ir.Value:
    """Softmax over the last axis."""
    e = op.Exp(op.Sub(x, op.ReduceMax(x, [-1], keepdims=1)))
    return op.Div(e, op.ReduceSum(e, [-1], keepdims=1))


def polynomial(op: Builder, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """A polynomial by Horner's rule, the highest power first."""
    out: ir.Value | None = None
    for c in coefficients[1:]:
        out = op.Mul(x, F(coefficients[0])) if out is None else op.Mul(out, x)
        out = op.Add(out, F(c))
    assert out is not None
    return out


# The rational approximations of the Cephes library, as scipy uses them.
ERF_T = [9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3,
         7.00332514112805075473e3, 5.55923013010394962768e4]  # fmt: skip
ERF_U = [1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
         2.26290000613890934246e4, 4.92673942608635921086e4]  # fmt: skip
ERFC_P = [2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
          4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
          9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2]  # fmt: skip
ERFC_Q = [1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
          9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
          1.65666309194161350182e3, 5.57535340817727675546e2]  # fmt: skip
ERFC_R = [5.64189583547755073984e-1, 1.27536670759978104416e0, 5.01905042251180477414e0,
          6.16021097993053585195e0, 7.40974269950448939160e0, 2.97886665372100240670e0]  # fmt: skip
ERFC_S = [1.0, 2.26052863220117276590e0, 9.39603524938001434673e0, 1.20489539808096656605e1,
          1.70814450747565897222e1, 9.60896809063285878198e0, 3.36907645100081516050e0]  # fmt: skip


def erf(op: Builder, x: ir.Value) -> ir.Value:
    """The error function."""
    size = op.Abs(x)
    near = op.Where(op.LessOrEqual(size, F(1)), x, F(0))
    z = op.Mul(near, near)
    inner = op.Mul(near, op.Div(polynomial(op, z, ERF_T), polynomial(op, z, ERF_U)))
    outer = op.Mul(op.Sign(x), op.Sub(F(1), _erfc_far(op, op.Max(size, F(1)))))
    return op.Where(op.IsNaN(x), x, op.Where(op.LessOrEqual(size, F(1)), inner, outer))


def erfc(op: Builder, x: ir.Value) -> ir.Value:
    """1 - erf(x), accurate where that is small."""
    far = _erfc_far(op, op.Max(op.Abs(x), F(1)))
    far = op.Where(op.Less(x, F(0)), op.Sub(F(2), far), far)
    return op.Where(op.LessOrEqual(op.Abs(x), F(1)), op.Sub(F(1), erf(op, x)), far)


def _erfc_far(op: Builder, a: ir.Value) -> ir.Value:
    """erfc for arguments from 1 on."""
    middle = op.Min(a, F(8))
    end = op.Min(op.Max(a, F(8)), F(30))
    p = op.Div(polynomial(op, middle, ERFC_P), polynomial(op, middle, ERFC_Q))
    q = op.Div(polynomial(op, end, ERFC_R), polynomial(op, end, ERFC_S))
    bounded = op.Min(a, F(30))
    gauss = op.Exp(op.Neg(op.Mul(bounded, bounded)))
    return op.Mul(gauss, op.Where(op.Less(a, F(8)), p, q))


def normal_cdf(op: Builder, x: ir.Value) -> ir.Value:
    """The distribution function of the standard normal distribution."""
    return op.Mul(F(0.5), erfc(op, op.Mul(x, F(-np.sqrt(0.5)))))


NDTRI_P0 = [-5.99633501014107895267e1, 9.80010754185999661536e1, -5.66762857469070293439e1,
            1.39312609387279679503e1, -1.23916583867381258016e0]  # fmt: skip
NDTRI_Q0 = [1.0, 1.95448858338141759834e0, 4.67627912898881538453e0, 8.63602421390890590575e1,
            -2.25462687854119370527e2, 2.00260212380060660359e2, -8.20372256168333339912e1,
            1.59056225126211695515e1, -1.18331621121330003142e0]  # fmt: skip
NDTRI_P1 = [4.05544892305962419923e0, 3.15251094599893866154e1, 5.71628192246421288162e1,
            4.40805073893200834700e1, 1.46849561928858024014e1, 2.18663306850790267539e0,
            -1.40256079171354495875e-1, -3.50424626827848203418e-2,
            -8.57456785154685413611e-4]  # fmt: skip
NDTRI_Q1 = [1.0, 1.57799883256466749731e1, 4.53907635128879210584e1, 4.13172038254672030440e1,
            1.50425385692907503408e1, 2.50464946208309415979e0, -1.42182922854787788574e-1,
            -3.80806407691578277194e-2, -9.33259480895457427372e-4]  # fmt: skip
NDTRI_P2 = [3.23774891776946035970e0, 6.91522889068984211695e0, 3.93881025292474443415e0,
            1.33303460815807542389e0, 2.01485389549179081538e-1, 1.23716634817820021358e-2,
            3.01581553508235416007e-4, 2.65806974686737550832e-6,
            6.23974539184983293730e-9]  # fmt: skip
NDTRI_Q2 = [1.0, 6.02427039364742014255e0, 3.67983563856160859403e0, 1.37702099489081330271e0,
            2.16236993594496635890e-1, 1.34204006088543189037e-2, 3.28014464682127739104e-4,
            2.89247864745380683936e-6, 6.79019408009981274425e-9]  # fmt: skip


def normal_quantile(op: Builder, p: ir.Value) -> ir.Value:
    """The inverse of `normal_cdf`, for 0 < p < 1."""
    tail = F(np.exp(-2.0))
    upper = op.Greater(p, F(1) - tail)
    y = op.Where(upper, op.Sub(F(1), p), p)
    central = op.Sub(y, F(0.5))
    y2 = op.Mul(central, central)
    inner = op.Div(op.Mul(y2, polynomial(op, y2, NDTRI_P0)), polynomial(op, y2, NDTRI_Q0))
    inner = op.Mul(op.Add(central, op.Mul(central, inner)), F(2.50662827463100050242))
    x = op.Sqrt(op.Mul(F(-2), op.Log(op.Min(y, tail))))
    x0 = op.Sub(x, op.Div(op.Log(x), x))
    z = op.Div(F(1), x)
    one = op.Div(op.Mul(z, polynomial(op, z, NDTRI_P1)), polynomial(op, z, NDTRI_Q1))
    two = op.Div(op.Mul(z, polynomial(op, z, NDTRI_P2)), polynomial(op, z, NDTRI_Q2))
    outer = op.Sub(x0, op.Where(op.Less(x, F(8)), one, two))
    outer = op.Where(upper, outer, op.Neg(outer))
    return op.Where(op.Greater(y, tail), inner, outer)

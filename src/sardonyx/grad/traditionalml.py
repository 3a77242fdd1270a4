"""ONNX's `traditionalml` family (ai.onnx.ml): what has no derivative but zero.

Trees and look-ups are constant between their thresholds; maps and strings carry no gradient. The
linear and kernel models, scalers and normalizers are not listed: they have derivatives, and asking
for one is an error.
"""

from __future__ import annotations

from sardonyx.grad.driver import no_gradient

no_gradient("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", domain="ai.onnx.ml")
no_gradient("Binarizer", "LabelEncoder", "OneHotEncoder", "CategoryMapper", domain="ai.onnx.ml")
no_gradient("CastMap", "DictVectorizer", "ZipMap", domain="ai.onnx.ml")

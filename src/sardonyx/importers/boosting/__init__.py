"""Gradient boosting libraries: XGBoost, LightGBM, CatBoost; objects and their own files.

xgboost.py, lightgbm.py, catboost.py   one library each: its trees, categories and objectives
steps.py     their wrappers inside pipelines and meta estimators of scikit-learn
columns.py   inputs: matrices and frames, categories as codes
finish.py    outputs, and the verification against the library, also on the edges of splits
"""

from __future__ import annotations

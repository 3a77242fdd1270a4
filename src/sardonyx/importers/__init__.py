"""Importers: models of other frameworks and formats become ONNX models.

Each source has a package with a driver that reads it and rules named after the source's own
operators or elements. An importer refuses what it cannot express, all at once and before it
builds anything (`ImportRefused`), and holds the result against the source before it returns it
(`ImportDiffers`). Verification runs models, so importers stand after `verify` in the flow of data;
they reach engines through it only.
"""

from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Ballast for PyTorch models."""

from ._embedding import EmbeddingBag
from ._loaded import LoadedModule
from ._optimizer import DistributedOptimizer

__all__ = ["DistributedOptimizer", "EmbeddingBag", "LoadedModule"]

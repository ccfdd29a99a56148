# SPDX-License-Identifier: Apache-2.0
"""Trained models in Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Callable, Mapping, Union

if TYPE_CHECKING:
    from ._saved.model import Model


def load(path: "Union[str, os.PathLike[str]]", *, custom: Mapping[str, Callable[..., Any]] = {}) -> "Model":
    """Returns the trained model of a run directory of `ballast launch`, or of a model.safetensors. Needs NumPy, and no
    server: the file describes the model. A model with tables also needs the folder `tables` beside the file.

    custom: for each type of the model's `custom` layers, a function of x, [n, height, width, channels], of the layer's
        numbers by name, and of its weights by name, that returns the layer's output, of four dimensions, too.

    InvalidArgument names what does not fit: a file that is damaged or not of Ballast, a kind of layer that this package
    does not know; NotFound a file that is missing, AccessDenied one that may not be read.
    """
    from ._saved.model import open_model
    return open_model(os.fsdecode(path), custom)

# SPDX-License-Identifier: Apache-2.0
"""Trained models, read from the files of a run. Needs NumPy, and neither the library nor a server."""

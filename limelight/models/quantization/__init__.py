"""Quantised safetensors (AWQ, GPTQ and others) seen as the weights that they stand for.

One file per format says what a quantised matrix is stored as and how it is expanded; `settings.py` finds the format
that a folder names, and `checkpoint.py` presents it all under the names of the unquantised model.
"""

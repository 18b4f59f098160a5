"""Which tokens an output may still take: grammars, words, lists and the bounds of a reasoning, as masks over tokens.

Grammars are llguidance's; everything else is a few lines over the bytes of the tokens. Nothing here knows of threads or
of the event loop: the actor that calls it brings its own (`actors/constraints.py`).
"""

"""What values of options may be. Each raises `argparse.ArgumentTypeError`, which says what may be given instead."""

import argparse


def seconds(text: str) -> float:
    """0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; use 0 or more")
    return number


def seconds_above_0(text: str) -> float:
    """More than 0."""
    number = seconds(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no time; use more than 0 seconds")
    return number


def at_least_one(text: str) -> int:
    """From 1 on."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number; use 1 or more")
    return int(text)


def whole_seconds(text: str) -> int:
    """0 or more, without a fraction."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of seconds; use 0 or more")
    return int(text)

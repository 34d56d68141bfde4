"""Options that benchmarks share."""

from __future__ import annotations

import argparse


def natural(text: str) -> int:
    """Parse a whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(text)


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return int(text)


def add_place(parser: argparse.ArgumentParser, dtype: str | None = None) -> None:
    """Add options for the device and number format of a model."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, xpu, mps; default: the best one")
    parser.add_argument("--dtype", default=dtype, choices=("float32", "bfloat16", "float16"))

"""Reads token files in the order llmc does without shuffling."""

from dataclasses import dataclass
import glob

import numpy as np
import torch

HEADER_BYTES = 1024
FORMATS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}


def read_tokens(path):
    """Maps the tokens of one file."""
    header = np.fromfile(path, dtype="<i4", count=HEADER_BYTES // 4)
    dtype = FORMATS.get(tuple(header[:2].tolist()))
    if len(header) != HEADER_BYTES // 4 or dtype is None:
        raise ValueError(f"{path}: expected a token file of version 1 or 7, got another header")
    tokens = np.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES)
    if len(tokens) != header[2]:
        raise ValueError(f"{path}: expected {header[2]} tokens, got {len(tokens)}")
    return tokens


@dataclass
class Batches:
    """Endless (x, y) of shape (B, T) from the files that match `pattern`, in order of their names.

    Windows of B·T tokens follow each other from the first token of a file; y is x one token later.
    When fewer than B·T + 1 tokens remain the next file begins, and after the last one the first.
    """

    pattern: str
    B: int
    T: int
    vocab_size: int

    def __post_init__(self):
        paths = sorted(glob.glob(self.pattern))
        if not paths:
            raise ValueError(f"{self.pattern}: expected token files, found none")
        self.files = [read_tokens(path) for path in paths]
        for path, tokens in zip(paths, self.files):
            if self.windows_in(tokens) < 1:
                raise ValueError(
                    f"{path}: expected at least B·T + 1 = {self.B * self.T + 1} tokens, "
                    f"got {len(tokens)}"
                )

    def windows_in(self, tokens):
        return (len(tokens) - 1) // (self.B * self.T)

    def windows_per_epoch(self):
        return sum(self.windows_in(tokens) for tokens in self.files)

    def __iter__(self):
        size = self.B * self.T
        while True:
            for tokens in self.files:
                for window in range(self.windows_in(tokens)):
                    start = window * size
                    span = torch.from_numpy(tokens[start : start + size + 1].astype(np.int64))
                    if span.max() >= self.vocab_size:
                        raise ValueError(
                            f"{self.pattern}: expected tokens below {self.vocab_size}, "
                            f"got {span.max()}"
                        )
                    yield span[:-1].view(self.B, self.T), span[1:].view(self.B, self.T)

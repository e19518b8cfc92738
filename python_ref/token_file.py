"""Reads token files in the order llmc does without shuffling."""

from dataclasses import dataclass
import glob
from itertools import islice

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

    Rows of T tokens follow each other from the first token of a file; y is x one token later. Where
    fewer than T + 1 tokens remain the next file begins, and after the last one the first.
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
        if self.batches_per_epoch() == 0:
            raise ValueError(f"{self.pattern}: expected at least B = {self.B} rows of T + 1 tokens")

    def rows_in(self, tokens):
        return max(len(tokens) - 1, 0) // self.T

    def rows_per_epoch(self):
        return sum(self.rows_in(tokens) for tokens in self.files)

    def batches_per_epoch(self):
        return self.rows_per_epoch() // self.B

    def rows(self):
        while True:
            for tokens in self.files:
                for row in range(self.rows_in(tokens)):
                    yield tokens[row * self.T : (row + 1) * self.T + 1].astype(np.int64)

    def __iter__(self):
        rows = self.rows()
        while True:
            batch = torch.from_numpy(np.stack(list(islice(rows, self.B))))
            if batch.max() >= self.vocab_size:
                raise ValueError(
                    f"{self.pattern}: expected tokens below {self.vocab_size}, got {batch.max()}"
                )
            yield batch[:, :-1], batch[:, 1:]

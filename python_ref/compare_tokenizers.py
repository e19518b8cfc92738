"""Compares llmc's tokenizers with tiktoken and Hugging Face's tokenizers on mixed text, id by id.

  python python_ref/compare_tokenizers.py --apps build/cpu-release/apps --data FOLDER [--bytes 10000000]

FOLDER holds gpt2_encoder.json, gpt2_vocab.bpe and llama3.tiktoken; without --data only training is
compared. Ends with an error at the first difference.
"""

import argparse
import itertools
import os
import pathlib
import subprocess
import tempfile

import regex
import tiktoken
import tiktoken.load
import tokenizers

from mixed_text import mixed_text, with_invalid_bytes

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def encode(apps, tokenizer, text):
    """The ids that llmc gives, after a look at what it makes of them."""
    command = [apps / "tokenizer", "encode", "--tokenizer", tokenizer]
    printed = subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True).stdout
    command[1] = "decode"
    decoded = subprocess.run(command, input=printed, stdout=subprocess.PIPE, check=True).stdout
    assert decoded == text, f"{tokenizer}: decode(encode(text)) differs from text"
    return list(map(int, printed.split()))


def expect_equal(ours, theirs, decode, what):
    for i, (a, b) in enumerate(itertools.zip_longest(ours, theirs)):
        if a != b:
            around = repr(decode(theirs[max(0, i - 8) : i + 8]))
            raise SystemExit(f"{what}: id {i} is {a}, expected {b}, in {around}")
    print(f"{what}: {len(theirs):,} ids are equal")


def encode_bytes(encoding, pattern, data):
    """What tiktoken makes of bytes where each invalid one counts as a symbol: its own way of merging
    the bytes of a piece, after a split in which surrogates stand for invalid bytes."""
    text = data.decode("utf-8", errors="surrogateescape")
    known, ids = {}, []
    for piece in regex.findall(pattern, text):
        if piece not in known:
            known[piece] = encoding._encode_single_piece(piece.encode("utf-8", "surrogateescape"))
        ids.extend(known[piece])
    return ids


def compare_with_tiktoken(apps, data, size):
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    gpt2 = tiktoken.Encoding(
        "gpt2", pat_str=GPT2_PATTERN, special_tokens={"<|endoftext|>": 50256},
        mergeable_ranks=tiktoken.load.data_gym_to_mergeable_bpe_ranks(
            str(data / "gpt2_vocab.bpe"), str(data / "gpt2_encoder.json")),
    )  # fmt: skip
    llama3 = tiktoken.Encoding(
        "llama3", pat_str=LLAMA3_PATTERN, special_tokens={"<|begin_of_text|>": 128000},
        mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(data / "llama3.tiktoken")),
    )  # fmt: skip
    text = mixed_text(size, seed=7)
    damaged = with_invalid_bytes(mixed_text(size // 5, seed=8), seed=9)
    for encoding, pattern, files in (
        (gpt2, GPT2_PATTERN, data / "gpt2_encoder.json"),
        (llama3, LLAMA3_PATTERN, data / "llama3.tiktoken"),
    ):
        name = encoding.name
        ours = encode(apps, files, text.encode())
        expect_equal(ours, encoding.encode_ordinary(text), encoding.decode, f"{name}, {size:,} bytes")
        ours = encode(apps, files, damaged)
        theirs = encode_bytes(encoding, pattern, damaged)
        what = f"{name}, {len(damaged):,} bytes, some of them invalid"
        expect_equal(ours, theirs, encoding.decode_bytes, what)


def compare_training(apps, size, vocab_size, min_frequency):
    """A vocabulary learned by llmc: equal to the one that Hugging Face learns, and Hugging Face loads
    its files and encodes alike."""
    text = mixed_text(size, seed=1)
    other = mixed_text(size // 2, seed=2)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "text").mkdir()
        (folder / "text" / "mixed.txt").write_bytes(text.encode())
        options = ["--vocab-size", str(vocab_size), "--min-frequency", str(min_frequency),
                   "--special-tokens", "<|user|>", "<|model|>"]  # fmt: skip
        for threads in ("1", "3"):
            command = [apps / "tokenizer", "train", "--input", folder / "text", *options]
            out = ["--threads", threads, "--out-dir", folder / threads]
            subprocess.run(command + out, check=True, stdout=subprocess.DEVNULL)
        files = ("vocab.json", "merges.txt", "tokenizer.json")
        for name in files:
            one, three = ((folder / threads / name).read_bytes() for threads in ("1", "3"))
            assert one == three, f"{name} depends on the number of threads"
        ours = encode(apps, folder / "1", other.encode())
        loaded = tokenizers.Tokenizer.from_file(str(folder / "1" / "tokenizer.json"))
        loaded.encode_special_tokens = True  # as plain text
        theirs = loaded.encode(other).ids
        expect_equal(ours, theirs, loaded.decode, f"trained to {vocab_size}, tokenizer.json")
        assert loaded.decode(theirs, skip_special_tokens=False) == other
        assert loaded.token_to_id("<|endoftext|>") == vocab_size - 3
        assert loaded.token_to_id("<|model|>") == vocab_size - 1
        pair = tokenizers.ByteLevelBPETokenizer(
            str(folder / "1" / "vocab.json"), str(folder / "1" / "merges.txt")
        )
        theirs = pair.encode(other).ids
        expect_equal(ours, theirs, pair.decode, f"trained to {vocab_size}, vocab.json and merges.txt")

        reference = tokenizers.Tokenizer(tokenizers.models.BPE())
        reference.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab_size - 3, min_frequency=min_frequency, show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        reference.train_from_iterator([text], trainer)
        learned = loaded.get_vocab()
        expected = reference.get_vocab()
        differing = [token for token in expected if learned.get(token) != expected[token]]
        assert not differing, sorted(differing, key=expected.get)[:20]
        print(f"trained to {vocab_size}: the same tokens as Hugging Face's trainer, in the same order")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--apps", type=pathlib.Path, required=True)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--bytes", type=int, default=10_000_000)
    options = parser.parse_args()
    if options.data:
        compare_with_tiktoken(options.apps.resolve(), options.data, options.bytes)
    compare_training(options.apps.resolve(), options.bytes // 2, vocab_size=5000, min_frequency=2)
    compare_training(options.apps.resolve(), options.bytes // 50, vocab_size=20000, min_frequency=1)


if __name__ == "__main__":
    main()

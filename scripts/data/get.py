#!/usr/bin/env python3
"""Fetches a known data set and turns it into the files that train and eval read.

Downloads go on where they were interrupted, and are checked against their SHA-256. Without a
network, --from names a folder that holds the files as they would have been downloaded. HF_ENDPOINT
names a mirror of the Hugging Face hub and HF_TOKEN an account there.
"""

import argparse
import contextlib
import csv
import gzip
import io
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib

import download
import parquet
from download import DownloadError

SHARD_TOKENS = 100_000_000
TINYSHAKESPEARE_URL = (
    "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt")
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
TINYSTORIES_FILE = "TinyStories_all_data.tar.gz"
TINYSTORIES_SHA256 = "26cf7605aca15bc4ea6fa637256400d9d01317b28ed296172b2d1dd160cd7699"
TINYSTORIES_SEED = 1337
HELLASWAG_URL = "https://raw.githubusercontent.com/rowanz/hellaswag/master/data/hellaswag_val.jsonl"
HELLASWAG_SHA256 = "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588"
GPT2_SHA256 = {
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
MMLU_SHA256 = "bec563ba4bac1d6aaf04141cd7d1605d7a5ca833e38f994051e818489592989b"


class Fetcher:
    """Where files come from, and the program that makes token files of them."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.out = pathlib.Path(arguments.out_dir)
        self.downloads = self.out / "downloads" / arguments.dataset

    def file(self, url, name, sha256, folder=None):
        """A file of this name, downloaded (into `folder`) or from the user's folder."""
        sha256 = None if self.arguments.no_checksum else sha256
        if not self.arguments.from_folder:
            return download.fetch(url, (folder or self.downloads) / name, sha256)
        path = pathlib.Path(self.arguments.from_folder) / name
        if not path.is_file():
            raise DownloadError(f"{path}: expected this file, that of {url}, in the folder, got none")
        try:
            download.check(path, sha256)
        except DownloadError as error:
            raise DownloadError(f"{error} (--no-checksum takes it all the same)") from None
        return path

    def tokenizer(self):
        """The tokenizer asked for, or GPT-2's two files."""
        if self.arguments.tokenizer:
            return self.arguments.tokenizer
        for name, sha256 in GPT2_SHA256.items():
            url = download.hub_url("openai-community/gpt2", name, kind="")
            path = self.file(url, name, sha256, self.out / "gpt2")
        return path.parent

    def program(self):
        if self.arguments.prepare:
            return self.arguments.prepare
        root = pathlib.Path(__file__).resolve().parents[2]
        found = sorted(root.glob("build/*/apps/prepare"), key=os.path.getmtime)
        program = str(found[-1]) if found else shutil.which("llmc-prepare")
        if not program:
            raise DownloadError("expected the program prepare under build/, got none; build it, or "
                                "name it with --prepare")
        return program

    def prepare(self, options, pieces=None):
        """Runs prepare; `pieces` of bytes become its standard input."""
        command = [self.program(), "--tokenizer", str(self.tokenizer()), *map(str, options)]
        stdin = None if pieces is None else subprocess.PIPE
        try:
            process = subprocess.Popen(command, stdin=stdin)
        except OSError as error:
            raise DownloadError(f"cannot run {command[0]}: {error.strerror}") from None
        try:
            for piece in pieces or ():
                process.stdin.write(piece)
            if process.stdin:
                process.stdin.close()
        except BrokenPipeError:
            pass  # prepare has said why
        except BaseException as error:
            # It must not take the end of its input for the end of the data.
            if not isinstance(error, KeyboardInterrupt):
                process.send_signal(signal.SIGINT)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            raise
        if status := process.wait():
            sys.exit(status if status > 0 else 128 - status)


def tinyshakespeare(fetcher):
    text = fetcher.file(TINYSHAKESPEARE_URL, "input.txt", TINYSHAKESPEARE_SHA256)
    fetcher.prepare(["--input", text, "--split", "blank-line", "--val-tokens", 32768,
                     "--out-dir", fetcher.out / "tinyshakespeare", "--name", "tiny_shakespeare"])


def stories_of(archive, name, number):
    """The stories of one file of the archive, in the order that its number draws."""
    try:
        stories = [entry["story"].strip() for entry in json.load(archive.extractfile(name))]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DownloadError(f"{name}: expected a JSON list of {{\"story\": text}}") from None
    random.Random(TINYSTORIES_SEED + number).shuffle(stories)
    return [story for story in stories if story]


def tinystories(fetcher):
    url = download.hub_url("roneneldan/TinyStories", TINYSTORIES_FILE)
    path = fetcher.file(url, TINYSTORIES_FILE, TINYSTORIES_SHA256)
    plain = fetcher.downloads / "TinyStories_all_data.tar"
    if fetcher.arguments.no_checksum or not plain.exists():
        # Files are read in the order of their names, which a compressed archive cannot do.
        unpack_gzip(path, plain)
    with open_tar(plain) as archive:
        names = sorted(name for name in files_in(archive) if name.endswith(".json"))
        if not names:
            raise DownloadError(f"{path}: expected JSON files in the archive, got none")
        first = stories_of(archive, names[0], 0)

        def pieces():
            for number, name in enumerate(names):
                for story in stories_of(archive, name, number) if number else first:
                    yield (json.dumps({"text": story}) + "\n").encode()

        fetcher.prepare(["--input", "-", "--format", "jsonl", "--val-documents", len(first),
                         "--out-dir", fetcher.out / "tinystories", "--name", "TinyStories"],
                        pieces())


def unpack_gzip(path, to):
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(to.name + ".part")
    try:
        with gzip.open(path) as packed, open(part, "wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DownloadError(f"{path}: expected gzip data, got others or damaged ones: {error}") from None
    part.rename(to)


def open_tar(path):
    try:
        return tarfile.open(path)
    except tarfile.TarError:
        raise DownloadError(f"{path}: expected a tar archive, got something else") from None


def files_in(archive):
    return [member.name for member in archive.getmembers() if member.isfile()]


def fineweb(fetcher, repo, name, size):
    if fetcher.arguments.from_folder:
        folder = pathlib.Path(fetcher.arguments.from_folder)
        files = sorted(folder.rglob("*.parquet"))
        if not files:
            raise DownloadError(f"{folder}: expected parquet files in the folder, got none")
        files = files[:fetcher.arguments.max_files]
    else:
        listed = [entry for entry in download.hub_files(repo, f"sample/{size}T")
                  if entry[0].endswith(".parquet")]
        if not listed:
            raise DownloadError(f"expected parquet files in sample/{size}T of {repo}, got none")
        files = []
        for number, (path, _, sha256) in enumerate(listed[:fetcher.arguments.max_files], 1):
            print(f"file {number} of {len(listed)}: {path}", file=sys.stderr)
            files.append(fetcher.file(download.hub_url(repo, path), pathlib.Path(path).name, sha256))
    pieces = (piece for path in files for piece in parquet.json_lines(path))
    fetcher.prepare(["--input", "-", "--format", "jsonl", "--val-shard",
                     "--shard-tokens", fetcher.arguments.shard_tokens,
                     "--out-dir", fetcher.out / f"{name}{size}", "--name", name], pieces)


def write_lines(path, examples):
    """Writes {ctx, endings, label} as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name("." + path.name + ".part")
    count = 0
    with open(part, "w", encoding="utf-8") as file:
        for context, endings, label in examples:
            file.write(json.dumps({"ctx": context, "endings": endings, "label": label}) + "\n")
            count += 1
    part.rename(path)
    print(f"{path}: {count:,} examples")


def hellaswag(fetcher):
    source = fetcher.file(HELLASWAG_URL, "hellaswag_val.jsonl", HELLASWAG_SHA256)

    def examples():
        with open(source, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                try:
                    example = json.loads(line)
                    yield example["ctx"], example["endings"], int(example["label"])
                except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                    raise DownloadError(f"{source}, line {number}: expected a JSON object with ctx, "
                                        "endings and label") from None

    lines = fetcher.out / "hellaswag" / "hellaswag_val.jsonl"
    write_lines(lines, examples())
    fetcher.prepare(["--choices", lines, "--out-dir", lines.parent, "--name", "hellaswag_val"])


def mmlu(fetcher):
    path = fetcher.file(download.hub_url("cais/mmlu", "data.tar"), "data.tar", MMLU_SHA256)

    def examples():
        with open_tar(path) as archive:
            names = sorted(name for name in files_in(archive)
                           if name.startswith("data/test/") and name.endswith("_test.csv"))
            if not names:
                raise DownloadError(f"{path}: expected data/test/*_test.csv in the archive, got none")
            for name in names:
                text = io.TextIOWrapper(archive.extractfile(name), encoding="utf-8", newline="")
                try:
                    rows = list(csv.reader(text))
                except (csv.Error, UnicodeDecodeError) as error:
                    raise DownloadError(f"{name}: expected CSV in UTF-8, got {error}") from None
                for number, row in enumerate(rows, 1):
                    if len(row) != 6 or row[5] not in ("A", "B", "C", "D"):
                        raise DownloadError(f"{name}, row {number}: expected a question, four answers "
                                            "and a letter A to D")
                    yield f"Question: {row[0]}\n\nAnswer:", row[1:5], "ABCD".index(row[5])

    write_lines(fetcher.out / "mmlu" / "mmlu_test.jsonl", examples())


DATASETS = {"tinyshakespeare": tinyshakespeare, "tinystories": tinystories,
            "hellaswag": hellaswag, "mmlu": mmlu}
for size in ("10B", "100B"):
    DATASETS[f"fineweb-{size}"] = (
        lambda fetcher, size=size: fineweb(fetcher, "HuggingFaceFW/fineweb", "fineweb", size))
    DATASETS[f"fineweb-edu-{size}"] = (
        lambda fetcher, size=size: fineweb(fetcher, "HuggingFaceFW/fineweb-edu", "edu_fineweb", size))


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=sorted(DATASETS), metavar="DATASET",
                        help=", ".join(sorted(DATASETS)))
    parser.add_argument("--tokenizer",
                        help="what prepare takes: byte, a folder or a file (default: GPT-2's, which is "
                             "fetched too)")
    parser.add_argument("--out-dir", default="data", help="where the data set's folder goes")
    parser.add_argument("--from", dest="from_folder", metavar="FOLDER",
                        help="take the files from here, not from the network")
    parser.add_argument("--no-checksum", action="store_true",
                        help="take files of any content, such as a newer version")
    parser.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS,
                        help="FineWeb: tokens in a shard; the first one is for validation")
    parser.add_argument("--max-files", type=int, metavar="N",
                        help="FineWeb: only the first N parquet files")
    parser.add_argument("--prepare", metavar="PROGRAM",
                        help="the program prepare (default: the newest under build/)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    try:
        DATASETS[arguments.dataset](Fetcher(arguments))
    except (DownloadError, ValueError, OSError, tarfile.TarError) as error:
        sys.exit(f"get.py: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()

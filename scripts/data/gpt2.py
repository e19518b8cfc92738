"""Fetches GPT-2's weights and tokenizer, as a folder that train, eval, sample and convert read.

Downloads go on where they were interrupted when the command is repeated, and whole files are kept.
Files are checked against their SHA-256: of the 124M model that of the published revision, of the
others what the hub tells. Without a network, --from copies a folder. HF_ENDPOINT names a mirror of
the Hugging Face hub and HF_TOKEN an account there.
"""

import argparse
import contextlib
import pathlib
import shutil
import signal
import sys

import download
from download import DownloadError

REPOSITORIES = {"124M": "gpt2", "355M": "gpt2-medium", "774M": "gpt2-large", "1558M": "gpt2-xl"}
REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"  # of 124M
SHA256 = {
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "tokenizer.json": "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6",
    "tokenizer_config.json": "5e04eb606e3a1583530a42e36c2a6b6615c86f34fe77e44d9ddeb43ff940931f",
    "generation_config.json": "ed0b32ac72c0f5f44a719abb2d7786ea5146c871f83717b7f2018065954de02b",
    "model.safetensors": "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    # Last: without it the folder is no model.
    "config.json": "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4",
}
WEIGHTS = "*.safetensors"


def fetch(size, out):
    repo = f"openai-community/{REPOSITORIES[size]}"
    known = SHA256 if size == "124M" else {
        path: sha256 for path, _, sha256 in download.hub_files(repo, "", kind="models")}
    revision = REVISION if size == "124M" else "main"
    for name in SHA256:
        path, sha256 = out / name, known.get(name)
        if path.exists() and sha256 and download.sha256_of(path) != sha256:
            path.unlink()
        print(download.fetch(download.hub_url(repo, name, "", revision), path, sha256), flush=True)


def copy(folder, out):
    """Copies the files of a model. Those of the published 124M must have its checksums; another
    model in the same format is taken as it is."""
    config = folder / "config.json"
    if not config.is_file():
        raise DownloadError(f"--from: expected config.json in {folder}, got none")
    weights = sorted(path for path in folder.glob(WEIGHTS) if path.is_file())
    if not weights:
        raise DownloadError(f"--from: expected {WEIGHTS} in {folder}, got none")
    if folder.resolve() == out.resolve():
        raise DownloadError(f"--from: expected another folder than {out}")
    is_published = download.sha256_of(config) == SHA256["config.json"]
    out.mkdir(parents=True, exist_ok=True)
    names = ["model.safetensors.index.json", *SHA256]
    # What is left of an earlier model would mix with this one.
    for name in names:
        (out / name).unlink(missing_ok=True)
    others = [folder / name for name in names]
    for path in dict.fromkeys(weights + others):
        if not path.is_file():
            continue
        if is_published:
            download.check(path, SHA256.get(path.name))
        part = out / (path.name + ".part")
        shutil.copyfile(path, part)
        part.rename(out / path.name)
        print(out / path.name, flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="gpt2.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=REPOSITORIES, default="124M",
                        help="124M, 355M, 774M or 1558M; default 124M", metavar="SIZE")
    parser.add_argument("--out-dir", metavar="FOLDER", help="default: data/gpt2-SIZE")
    parser.add_argument("--from", dest="from_folder", metavar="FOLDER",
                        help="copy from this folder in place of the network")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    out = pathlib.Path(arguments.out_dir or f"data/gpt2-{arguments.model}")
    try:
        if arguments.from_folder:
            copy(pathlib.Path(arguments.from_folder), out)
        else:
            fetch(arguments.model, out)
    except (DownloadError, OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            out.rmdir()  # where nothing has come, it would look like a model
        sys.exit(f"gpt2.sh: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()

"""Downloads that survive interruptions: what was received stays, and the next attempt goes on from there.

A file appears under its name when it is complete and its checksum, where known, is right; until
then it is called NAME.part. Used by get.py and gpt2.py, and by itself: download.py URL FILE [SHA256].
"""

import errno
import hashlib
import http.client
import json
import os
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

ATTEMPTS = 5
CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte


class DownloadError(Exception):
    """Something the user should read: one sentence."""


def hub_endpoint():
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def hub_url(repo, path, kind="datasets", revision="main"):
    """Where the Hugging Face hub, or the mirror named by HF_ENDPOINT, has a file of a repository."""
    prefix = f"{kind}/" if kind else ""
    return f"{hub_endpoint()}/{prefix}{repo}/resolve/{revision}/{urllib.parse.quote(path)}"


def open_url(url, begin=0):
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "llmc"})
    except ValueError:
        raise DownloadError(f"cannot download '{url}': expected an address; see HF_ENDPOINT") from None
    if begin:
        request.add_header("Range", f"bytes={begin}-")
    token = os.environ.get("HF_TOKEN")
    if token and any(character.isspace() for character in token):
        raise DownloadError("HF_TOKEN: expected a token without spaces and line breaks, got some")
    if token and url.startswith(hub_endpoint() + "/"):
        # Redirects lead to other hosts, which must not see the token.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return urllib.request.urlopen(request, timeout=TIMEOUT)


def explain(url, error):
    if isinstance(error, urllib.error.HTTPError):
        reason = f"{error.code} {error.reason}"
        if error.code in (401, 403):
            reason += "; set HF_TOKEN if the file needs an account"
    elif isinstance(error, http.client.IncompleteRead):
        reason = f"it ended {error.expected:,} bytes too early; run this again to go on from there"
    else:
        reason = f"{getattr(error, 'reason', None) or error}; without a network, give the files with --from"
    return f"cannot download {url}: {reason}"


def is_final(error):
    """True for errors that come again however often one tries."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < 500 and error.code != 429
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT)


def retry(url, attempt_once):
    """Calls attempt_once until it succeeds; the last of several errors ends it."""
    for attempt in range(ATTEMPTS):
        try:
            return attempt_once()
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if is_final(error) or attempt + 1 == ATTEMPTS:
                raise DownloadError(explain(url, error)) from None
            time.sleep(min(2**attempt, 10) * float(os.environ.get("LLMC_RETRY_SECONDS", "1")))


def hub_files(repo, folder, kind="datasets"):
    """[(path, size, sha256 or None)] of a folder of a dataset or model on the hub, sorted by path."""
    url = f"{hub_endpoint()}/api/{kind}/{repo}/tree/main/{urllib.parse.quote(folder)}".rstrip("/")
    files = []
    while url:
        page, following = retry(url, lambda: read_page(url))
        try:
            files += [(entry["path"], entry["size"], (entry.get("lfs") or {}).get("oid"))
                      for entry in page if entry["type"] == "file"]
        except (TypeError, KeyError, AttributeError):
            raise DownloadError(f"cannot read the list of files at {url}: it is another kind of JSON") \
                from None
        url = following
    return sorted(files)


def read_page(url):
    with open_url(url) as answer:
        following = re.search(r'<([^>]+)>;\s*rel="next"', answer.headers.get("Link", ""))
        try:
            return json.load(answer), following and following.group(1)
        except ValueError:
            raise DownloadError(f"cannot read the list of files at {url}: it is no JSON") from None


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check(path, sha256):
    if sha256 and (got := sha256_of(path)) != sha256:
        raise DownloadError(f"{path}: expected the SHA-256 {sha256}, got {got}; the file is damaged "
                            "or another version")


class Progress:
    """A line on the terminal, redrawn now and then."""

    def __init__(self, name):
        self.name, self.shown, self.began, self.first = name, 0.0, time.monotonic(), None

    def show(self, done, total):
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self.shown < 0.5:
            return
        self.shown = now
        self.first = done if self.first is None else self.first
        rate = (done - self.first) / max(now - self.began, 1e-3)
        line = f"\r\033[K{self.name}: {done / 1e6:,.0f} of {(total or 0) / 1e6:,.0f} MB | {rate / 1e6:.1f} MB/s"
        if total and rate > 0:
            line += f" | {(total - done) / rate:,.0f} s left"
        print(line, end="", file=sys.stderr, flush=True)

    def end(self):
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def receive(url, part, progress):
    """Appends to `part` what it lacks; an http.client.IncompleteRead if less comes than announced."""
    begin = part.stat().st_size if part.exists() else 0
    try:
        answer = open_url(url, begin)
    except urllib.error.HTTPError as error:
        # Nothing is left to send where `part` is complete already; otherwise it is no part of this.
        total = error.headers.get("Content-Range", "").rpartition("/")[2]
        if error.code != 416 or not begin:
            raise
        if total != str(begin):
            part.unlink()
            receive(url, part, progress)
        return
    with answer:
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            begin = 0  # the server sends all of it again
        length = answer.headers.get("Content-Length")
        total = begin + int(length) if length else None
        done = begin
        with open(part, "r+b" if begin else "wb") as file:
            file.seek(begin)
            while chunk := answer.read1(CHUNK):
                file.write(chunk)
                done += len(chunk)
                progress.show(done, total)
        if total is not None and done < total:
            raise http.client.IncompleteRead(b"", total - done)


def fetch(url, path, sha256=None):
    """Downloads to `path` unless it is there."""
    path = pathlib.Path(path)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    progress = Progress(path.name)
    try:
        retry(url, lambda: receive(url, part, progress))
    finally:
        progress.end()
    try:
        check(part, sha256)
    except DownloadError as error:
        part.unlink()
        raise DownloadError(f"cannot download {url}: {error}") from None
    part.rename(path)
    return path


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: download.py URL FILE [SHA256]")
    try:
        fetch(*sys.argv[1:])
    except (DownloadError, OSError, ValueError) as error:
        sys.exit(f"download.py: {error}")


if __name__ == "__main__":
    main()

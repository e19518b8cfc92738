"""Tests of scripts/data on made-up files and a server on this machine.

usage: data_scripts_test.py PREPARE [unittest's arguments]. Needs nothing but Python; the tests of
parquet files are skipped without pyarrow.
"""

import gzip
import hashlib
import http.server
import io
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest
import unittest.mock

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "data"
sys.path.insert(0, str(SCRIPTS))
import download  # noqa: E402

PREPARE = os.path.abspath(sys.argv.pop(1))
os.environ["LLMC_RETRY_SECONDS"] = "0"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `files`; answers of `faults`, by path, come first, one after the other."""

    files, faults, log = {}, {}, []

    def do_GET(self):
        self.log.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        fault = self.faults.get(self.path) and self.faults[self.path].pop(0)
        if isinstance(fault, int):
            return self.send_error(fault)
        body = self.files.get(self.path)
        if body is None:
            return self.send_error(404)
        if isinstance(body, str):  # a redirect
            self.send_response(302)
            self.send_header("Location", body)
            return self.end_headers()
        begin = 0
        if self.headers.get("Range") and fault != "no ranges":
            begin = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            if begin >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                return self.end_headers()
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - begin))
        if self.path.endswith("/many"):
            self.send_header("Link", f'<{self.server.url}{self.path}2>; rel="next"')
        self.end_headers()
        body = body[begin:]
        self.wfile.write(body[:len(body) // 2] if fault == "truncate" else body)

    def log_message(self, *_):
        pass


class ServerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        Handler.files, Handler.faults, Handler.log = {}, {}, []
        self.server = self.start_server()
        self.url = self.server.url
        environment = unittest.mock.patch.dict(os.environ, {"HF_ENDPOINT": self.url})
        environment.start()
        self.addCleanup(environment.stop)
        os.environ.pop("HF_TOKEN", None)

    def start_server(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server


class DownloadTest(ServerTest):
    BODY = random.Random(1).randbytes(300_000)
    SHA256 = hashlib.sha256(BODY).hexdigest()

    def fetch(self, sha256=SHA256):
        Handler.files["/file"] = self.BODY
        return download.fetch(self.url + "/file", self.folder / "sub" / "file", sha256).read_bytes()

    def ranges(self):
        return [entry[1] for entry in Handler.log]

    def test_downloads_once(self):
        self.assertEqual(self.fetch(), self.BODY)
        self.assertEqual(self.fetch(), self.BODY)
        self.assertEqual(self.ranges(), [None])

    def test_goes_on_after_interruptions(self):
        Handler.faults["/file"] = ["truncate", 503, "truncate"]
        self.assertEqual(self.fetch(), self.BODY)
        self.assertEqual(self.ranges(), [None, "bytes=150000-", "bytes=150000-", "bytes=225000-"])

    def test_takes_what_an_earlier_run_left(self):
        (self.folder / "sub").mkdir()
        part = self.folder / "sub" / "file.part"
        for left, wanted in ((self.BODY[:1000], ["bytes=1000-"]), (self.BODY, ["bytes=300000-"]),
                             (self.BODY + b"more", ["bytes=300004-", None])):
            Handler.log.clear()
            part.write_bytes(left)
            self.assertEqual(self.fetch(), self.BODY)
            self.assertEqual(self.ranges(), wanted)
            (self.folder / "sub" / "file").unlink()

    def test_begins_again_where_the_server_does(self):
        Handler.faults["/file"] = ["truncate", "no ranges"]
        self.assertEqual(self.fetch(), self.BODY)

    def test_gives_up_with_one_line(self):
        Handler.faults["/file"] = ["truncate"] * 9
        with self.assertRaisesRegex(download.DownloadError, "bytes too early; run this again"):
            self.fetch()
        self.assertEqual([path.name for path in (self.folder / "sub").iterdir()], ["file.part"])
        with self.assertRaisesRegex(download.DownloadError, "gone: 404 "):
            download.fetch(self.url + "/gone", self.folder / "gone")
        Handler.faults["/file"] = [401]
        with self.assertRaisesRegex(download.DownloadError, "401 Unauthorized; set HF_TOKEN"):
            self.fetch()
        with self.assertRaisesRegex(download.DownloadError, "cannot download http://127.0.0.1:9/x: "):
            download.fetch("http://127.0.0.1:9/x", self.folder / "x")

    def test_refuses_another_content(self):
        with self.assertRaisesRegex(download.DownloadError, "expected the SHA-256 0000"):
            self.fetch("0" * 64)
        self.assertEqual(list((self.folder / "sub").iterdir()), [])

    def test_shows_the_token_to_the_hub_alone(self):
        other = self.start_server()
        os.environ["HF_TOKEN"] = "secret"
        Handler.files["/datasets/a/b/resolve/main/c"] = other.url + "/file"
        Handler.files["/file"] = self.BODY
        download.fetch(download.hub_url("a/b", "c"), self.folder / "c")
        download.fetch(other.url + "/file", self.folder / "d")
        self.assertEqual([entry[2] for entry in Handler.log], ["Bearer secret", None, None])

    def test_refuses_settings_that_cannot_work(self):
        os.environ["HF_TOKEN"] = "secret\nline"
        with self.assertRaisesRegex(download.DownloadError, "^HF_TOKEN: expected a token without spaces"):
            download.fetch(download.hub_url("a/b", "c"), self.folder / "c")
        os.environ["HF_ENDPOINT"] = "mirror"
        with self.assertRaisesRegex(download.DownloadError, "expected an address; see HF_ENDPOINT"):
            download.fetch(download.hub_url("a/b", "c"), self.folder / "c")

    def test_refuses_lists_of_another_kind(self):
        for answer in (b'{"error": "none"}', b"[1]", b'[{"type": "file"}]'):
            Handler.files["/api/datasets/a/b/tree/main/x"] = answer
            with self.assertRaisesRegex(download.DownloadError, "another kind of JSON"):
                download.hub_files("a/b", "x")

    def test_lists_all_pages(self):
        base = "/api/datasets/a/b/tree/main/"
        entry = {"type": "file", "path": "f/2", "size": 5, "lfs": {"oid": "abc"}}
        first = [entry, {"type": "directory", "path": "f/d", "size": 0}]
        Handler.files[base + "many"] = json.dumps(first).encode()
        Handler.files[base + "many2"] = b'[{"type":"file","path":"f/1","size":3}]'
        listed = download.hub_files("a/b", "many")
        self.assertEqual(listed, [("f/1", 3, None), ("f/2", 5, "abc")])
        Handler.files[base + "x"] = b"<html>"
        with self.assertRaisesRegex(download.DownloadError, "it is no JSON"):
            download.hub_files("a/b", "x")


def read_tokens(path):
    data = path.read_bytes()
    count = struct.unpack_from("<3i", data)[2]
    return struct.unpack_from(f"<{count}H", data, 1024)


def as_text(path):
    """Tokens of the byte tokenizer, with | for end-of-text."""
    return bytes(ord("|") if token == 256 else token for token in read_tokens(path)).decode()


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class GetTest(ServerTest):
    def get(self, dataset, *options, status=0):
        process = subprocess.run(
            [sys.executable, SCRIPTS / "get.py", dataset, "--tokenizer", "byte", "--prepare", PREPARE,
             "--out-dir", self.folder / "data", "--no-checksum", *map(str, options)],
            capture_output=True, text=True, check=False)
        self.assertEqual(process.returncode, status, process.stderr)
        return process

    def test_fetches_the_tokenizer_of_gpt2(self):
        root = "/openai-community/gpt2/resolve/main/"
        tokens = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256),
                                         *range(256, 324))] + ["ab", "<|endoftext|>"]
        Handler.files[root + "vocab.json"] = json.dumps({t: i for i, t in enumerate(tokens)}).encode()
        Handler.files[root + "merges.txt"] = b"#version: 0.2\na b\n"
        text = self.folder / "from" / "input.txt"
        text.parent.mkdir()
        text.write_text("abc " * 20000)
        process = subprocess.run(
            [sys.executable, SCRIPTS / "get.py", "tinyshakespeare", "--prepare", PREPARE, "--no-checksum",
             "--out-dir", self.folder / "data", "--from", text.parent], capture_output=True, text=True,
            check=False)
        self.assertIn("vocab.json: expected this file, that of http", process.stderr)
        (self.folder / "data/downloads/tinyshakespeare").mkdir(parents=True)
        text.rename(self.folder / "data/downloads/tinyshakespeare/input.txt")
        process = subprocess.run(
            [sys.executable, SCRIPTS / "get.py", "tinyshakespeare", "--prepare", PREPARE, "--no-checksum",
             "--out-dir", self.folder / "data"], capture_output=True, text=True, check=False)
        self.assertEqual(process.returncode, 0, process.stderr)
        out = self.folder / "data" / "tinyshakespeare"
        self.assertEqual(read_tokens(out / "tiny_shakespeare_val.bin")[:2], (257, 256))
        self.assertTrue((out / "tiny_shakespeare_tokenizer").is_dir())

    def refused(self, *arguments):
        error = self.get(*arguments, status=1).stderr
        self.assertEqual(error.count("\n"), 1, error)
        return error

    def put(self, name, data):
        path = self.folder / "from" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return self.folder / "from"

    def put_tar(self, name, files, mode="w"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode=mode) as archive:
            for path, text in files.items():
                info = tarfile.TarInfo(path)
                content = text if isinstance(text, bytes) else text.encode()
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return self.put(name, buffer.getvalue())

    def test_tinyshakespeare(self):
        text = "First Citizen:\nSpeak.\n\n" * 2000 + "The end.\n"
        folder = self.put("input.txt", text.encode())
        self.get("tinyshakespeare", "--from", folder)
        out = self.folder / "data" / "tinyshakespeare"
        val, train = (as_text(out / f"tiny_shakespeare_{part}.bin") for part in ("val", "train"))
        self.assertEqual(len(val), 32768)
        self.assertEqual(val + train, "|First Citizen:\nSpeak.\n\n" * 2000 + "|The end.\n")

    def test_tinystories(self):
        stories = [[f"Story {10 * i + j}." for j in range(5)] for i in range(3)]
        files = {f"data{i:02}.json": json.dumps([{"story": f"\n {s}\n"} for s in part] + [{"story": ""}])
                 for i, part in reversed(list(enumerate(stories)))}
        folder = self.put_tar("TinyStories_all_data.tar.gz", files, "w:gz")
        self.get("tinystories", "--from", folder)
        wanted = []
        for i, part in enumerate(stories):
            part = part + [""]
            random.Random(1337 + i).shuffle(part)
            wanted.append("".join("|" + story for story in part if story))
        out = self.folder / "data" / "tinystories"
        self.assertEqual(as_text(out / "TinyStories_val.bin"), wanted[0])
        self.assertEqual(as_text(out / "TinyStories_train.bin"), wanted[1] + wanted[2])

    def test_a_bad_story_leaves_nothing(self):
        folder = self.put_tar("TinyStories_all_data.tar.gz",
                              {"data00.json": '[{"story":"a"}]', "data01.json": '[{"text":"a"}]'}, "w:gz")
        self.assertIn("data01.json: expected a JSON list", self.refused("tinystories", "--from", folder))
        self.assertEqual(list((self.folder / "data").glob("tinystories/*")), [])

    def test_damaged_archives_are_named(self):
        name = "TinyStories_all_data.tar.gz"
        for content in (b"", b"no gzip", gzip.compress(b"no tar"), gzip.compress(bytes(range(256)) * 99)[:-99],
                        gzip.compress(b"text")[:12] + b"\xff" * 20):
            folder = self.put(name, content)
            self.assertRegex(self.refused("tinystories", "--from", folder),
                             r"TinyStories_all_data.tar[.gz]*: expected (gzip data|a tar archive), got")
        for stories in ("[" * 100_000, '[{"story":null}]', "[5]"):
            # What an earlier archive was unpacked to is not taken for this one.
            folder = self.put_tar(name, {"data00.json": stories}, "w:gz")
            self.assertIn("data00.json: expected a JSON list", self.refused("tinystories", "--from", folder))

    def test_hellaswag(self):
        example = {"ind": 1, "ctx": "A man", "ctx_a": "", "endings": ["a", "b", "c", "d"], "label": "3"}
        folder = self.put("hellaswag_val.jsonl", (json.dumps(example) + "\n").encode() * 2)
        self.get("hellaswag", "--from", folder)
        out = self.folder / "data" / "hellaswag"
        self.assertEqual(read_lines(out / "hellaswag_val.jsonl"),
                         [{"ctx": "A man", "endings": ["a", "b", "c", "d"], "label": 3}] * 2)
        self.assertEqual(struct.unpack_from("<4i", (out / "hellaswag_val.bin").read_bytes()),
                         (20240522, 1, 2, 46))
        for line in (b'{"ctx": "A man"}\n', b"[" * 100_000, b'{"ctx":"","endings":[],"label":1e999}'):
            self.put("hellaswag_val.jsonl", line)
            self.assertIn("line 1: expected a JSON object", self.refused("hellaswag", "--from", folder))

    def test_mmlu(self):
        files = {"data/test/b_test.csv": '"What, ""x""?",1,2,3,4,D\n', "data/test/a_test.csv": "Q,w,x,y,z,A\n",
                 "data/dev/a_dev.csv": "no"}
        folder = self.put_tar("data.tar", files)
        self.get("mmlu", "--from", folder)
        lines = read_lines(self.folder / "data/mmlu/mmlu_test.jsonl")
        self.assertEqual(lines, [
            {"ctx": "Question: Q\n\nAnswer:", "endings": ["w", "x", "y", "z"], "label": 0},
            {"ctx": 'Question: What, "x"?\n\nAnswer:', "endings": ["1", "2", "3", "4"], "label": 3}])
        self.put_tar("data.tar", {"data/test/a_test.csv": "Q,w,x,y,z,E\n"})
        self.assertIn("a_test.csv, row 1: expected", self.refused("mmlu", "--from", folder))
        for row in (b"\xff,w,x,y,z,A\n", b'"' + b"q" * 200_000 + b'",w,x,y,z,A\n'):
            self.put_tar("data.tar", {"data/test/a_test.csv": row})
            self.assertIn("a_test.csv: expected CSV", self.refused("mmlu", "--from", folder))
        self.put("data.tar", b"no archive")
        self.assertIn("data.tar: expected a tar archive", self.refused("mmlu", "--from", folder))

    def test_says_what_is_missing(self):
        self.assertIn("input.txt: expected this file", self.refused("tinyshakespeare", "--from", self.folder))
        self.assertIn("expected parquet files", self.refused("fineweb-10B", "--from", self.folder))
        self.assertIn("404", self.refused("mmlu"))
        self.put("input.txt", b"text")
        error = self.refused("tinyshakespeare", "--from", self.folder / "from", "--prepare", "/missing")
        self.assertIn("cannot run /missing", error)
        process = subprocess.run(
            [sys.executable, SCRIPTS / "get.py", "tinyshakespeare", "--from", self.folder / "from"],
            capture_output=True, text=True, check=False)
        self.assertIn("expected the SHA-256 86c4e6aa", process.stderr)

    def fineweb_files(self):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            self.skipTest("needs pyarrow")
        parts = []
        for i in range(3):
            table = pyarrow.table({"text": [f"Page {10 * i + j} é." for j in range(4)], "id": list("abcd")})
            buffer = io.BytesIO()
            pyarrow.parquet.write_table(table, buffer)
            parts.append(buffer.getvalue())
        return parts

    def check_fineweb(self, out, name, pages):
        tokens = [token for page in pages for token in (256, *f"Page {page} é.".encode())]
        self.assertEqual(read_tokens(out / f"{name}_val_000000.bin"), tuple(tokens[:40]))
        self.assertEqual(read_tokens(out / f"{name}_train_000001.bin"), tuple(tokens[40:80]))

    def test_fineweb_from_a_folder(self):
        for i, data in enumerate(self.fineweb_files()):
            folder = self.put(f"sample/{i:03}_00000.parquet", data)
        self.get("fineweb-100B", "--from", folder, "--shard-tokens", 40)
        self.check_fineweb(self.folder / "data/fineweb100B", "fineweb", [0, 1, 2, 3, 10, 11, 12, 13])
        self.put("sample/001_00000.parquet", b"PAR1 and no more")
        error = self.refused("fineweb-100B", "--from", folder, "--shard-tokens", 40, "--out-dir",
                             self.folder / "other")
        self.assertIn("cannot read", error)
        self.assertEqual(list((self.folder / "other").glob("fineweb100B/*")), [])

    def test_fineweb_from_a_mirror(self):
        base = "HuggingFaceFW/fineweb-edu"
        entries = []
        for i, data in enumerate(self.fineweb_files()):
            path = f"sample/10BT/{i:03}_00000.parquet"
            Handler.files[f"/datasets/{base}/resolve/main/{path}"] = data
            entries.append({"type": "file", "path": path, "size": len(data),
                            "lfs": {"oid": hashlib.sha256(data).hexdigest()}})
        Handler.files[f"/api/datasets/{base}/tree/main/sample/10BT"] = json.dumps(entries).encode()
        self.get("fineweb-edu-10B", "--shard-tokens", 40, "--max-files", 2)
        self.check_fineweb(self.folder / "data/edu_fineweb10B", "edu_fineweb",
                           [0, 1, 2, 3, 10, 11, 12, 13])


if __name__ == "__main__":
    unittest.main()

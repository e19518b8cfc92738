"""scripts/data/gpt2.sh against a small server of its own, and from a folder."""

import hashlib
import http.server
import json
import os
from pathlib import Path
import re
import subprocess
import tempfile
import threading
import unittest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "data" / "gpt2.sh"
NAMES = (
    "vocab.json merges.txt tokenizer.json tokenizer_config.json generation_config.json "
    "model.safetensors config.json"
).split()
TOKEN = "hf_secret"


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves /openai-community/NAME/resolve/REVISION/FILE, large files by way of a redirect."""

    files = {}
    requests = []
    cut = None  # bytes of model.safetensors after which the connection breaks, once

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        Hub.requests.append((self.path, self.headers.get("Range")))
        # The token is for the hub alone, not for where it redirects to.
        expected = None if "/storage/" in self.path else f"Bearer {TOKEN}"
        if self.headers.get("Authorization") != expected:
            self.send_error(401)
            return
        body = Hub.files.get(name)
        if self.path == "/api/models/openai-community/gpt2-medium/tree/main":
            body = json.dumps([Hub.describe(*file) for file in Hub.files.items()]).encode()
        if body is None:
            self.send_error(404)
            return
        if name == "model.safetensors" and "/resolve/" in self.path:
            self.send_response(302)
            self.send_header("Location", f"/storage/{name}")
            self.end_headers()
            return
        begin = 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            begin = int(match[1])
            if begin >= len(body):
                self.send_error(416)
                return
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - begin))
        self.end_headers()
        if name == "model.safetensors" and Hub.cut is not None:
            self.wfile.write(body[begin : Hub.cut])
            Hub.cut = None
            self.close_connection = True
            return
        self.wfile.write(body[begin:])

    @staticmethod
    def describe(name, body):
        """As the hub lists a file; it knows the SHA-256 of large ones only."""
        large = {"lfs": {"oid": hashlib.sha256(body).hexdigest()}} if "model." in name else {}
        return {"type": "file", "path": name, "size": len(body)} | large

    def log_message(self, *arguments):
        pass


class Gpt2Download(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "data" / "out"
        Hub.files = {name: os.urandom(3000) + name.encode() for name in NAMES}
        Hub.requests, Hub.cut = [], None
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.environment = os.environ | {
            "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}/",
            "HF_TOKEN": TOKEN,
            "LLMC_RETRY_SECONDS": "0.01",
        }

    def run_script(self, *arguments):
        return subprocess.run(
            [SCRIPT, *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def fetch(self):
        return self.run_script("--model", "355M", "--out-dir", self.out)

    def assert_fails(self, result, part, status=1):
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertIn(part, result.stderr)
        self.assertRegex(result.stderr.splitlines()[-1], r"\Agpt2\.sh: ")

    def assert_complete(self):
        found = {path.name: path.read_bytes() for path in self.out.iterdir()}
        self.assertEqual(found, Hub.files)

    def test_downloads_and_keeps_what_is_there(self):
        result = self.fetch()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        self.assert_complete()
        paths = [path for path, _ in Hub.requests]
        self.assertIn("/openai-community/gpt2-medium/resolve/main/vocab.json", paths)
        Hub.requests.clear()
        self.assertEqual(self.fetch().returncode, 0)
        self.assertEqual(len(Hub.requests), 1)  # the list of files
        # What is damaged is fetched again.
        (self.out / "model.safetensors").write_bytes(b"damaged")
        self.assertEqual(self.fetch().returncode, 0)
        self.assert_complete()

    def test_goes_on_where_it_stopped(self):
        self.out.mkdir(parents=True)
        whole = Hub.files["model.safetensors"]
        (self.out / "model.safetensors.part").write_bytes(whole[:1000])
        self.assertEqual(self.fetch().returncode, 0)
        self.assert_complete()
        self.assertIn("bytes=1000-", [got for path, got in Hub.requests if "storage" in path])

    def test_a_broken_connection(self):
        Hub.cut = 1234
        result = self.fetch()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_complete()
        self.assertIn("bytes=1234-", [got for path, got in Hub.requests if "storage" in path])

    def test_damage_is_noticed(self):
        self.out.mkdir(parents=True)
        size = len(Hub.files["model.safetensors"])
        (self.out / "model.safetensors.part").write_bytes(bytes(size - 1))
        self.assert_fails(self.fetch(), "expected the SHA-256")
        self.assertFalse((self.out / "config.json").exists())
        self.assertEqual(self.fetch().returncode, 0)
        self.assert_complete()
        # Of the 124M model the checksums are known here.
        result = self.run_script("--out-dir", self.folder / "small")
        self.assert_fails(result, "expected the SHA-256 196139668be6")
        self.assertIn("/resolve/607a30d783df", result.stderr)
        self.assertFalse((self.folder / "small").exists())

    def test_what_the_server_refuses(self):
        del Hub.files["merges.txt"]
        self.assert_fails(self.fetch(), "merges.txt: 404")
        self.environment["HF_TOKEN"] = "wrong"
        self.assert_fails(self.fetch(), "401")
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
        self.assert_fails(self.fetch(), "cannot download http://127.0.0.1:1/")

    def test_from_a_folder(self):
        source = self.folder / "source"
        source.mkdir()
        for name in NAMES:
            (source / name).write_bytes(Hub.files[name])
        (source / "README.md").write_text("not part of the model")
        result = self.run_script("--from", "source", "--out-dir", "copy")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(Hub.requests, [])
        self.out = self.folder / "copy"
        self.assert_complete()
        # Another model in its place leaves nothing of it.
        other = self.folder / "other"
        other.mkdir()
        (other / "config.json").write_text("{}")
        (other / "model-00001-of-00001.safetensors").write_bytes(b"weights")
        (other / "model.safetensors.index.json").write_text("{}")
        result = self.run_script("--from", "other", "--out-dir", "copy")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual({path.name for path in self.out.iterdir()}, {path.name for path in other.iterdir()})
        self.assert_fails(self.run_script("--from", source, "--out-dir", source), "expected another folder than")
        self.assert_fails(self.run_script("--from", "gone"), "expected config.json in gone")
        (source / "model.safetensors").unlink()
        self.assert_fails(self.run_script("--from", source), "expected *.safetensors")

        # The published config: then the rest must be as published too.
        (source / "model.safetensors").write_bytes(b"damaged")
        script = SCRIPT.with_name("gpt2.py").read_text()
        digest = hashlib.sha256(Hub.files["config.json"]).hexdigest()
        changed = re.sub(r'("config.json": ")[0-9a-f]+', rf"\g<1>{digest}", script)
        (self.folder / "gpt2.py").write_text(changed)
        (self.folder / "download.py").symlink_to(SCRIPT.with_name("download.py"))
        result = subprocess.run(
            ["python3", "gpt2.py", "--from", source, "--out-dir", "strict"],
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        self.assert_fails(result, "model.safetensors: expected the SHA-256 248dfc39")
        self.assertFalse((self.folder / "strict" / "config.json").exists())

    def test_options(self):
        self.assertIn("usage: gpt2.sh", self.run_script("--help").stdout)
        self.assert_fails(self.run_script("--model", "7B"), "invalid choice: '7B'", status=2)
        self.assert_fails(self.run_script("--model"), "expected one argument", status=2)
        self.assert_fails(self.run_script("--size", "1"), "unrecognized arguments: --size", status=2)


if __name__ == "__main__":
    unittest.main()

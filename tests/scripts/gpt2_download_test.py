"""scripts/data/gpt2.sh against a small server of its own, and from a folder."""

import hashlib
import http.server
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

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        name = self.path.rsplit("/", 1)[1]
        Hub.requests.append((self.command, self.path, self.headers.get("Range")))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.send_error(401)
            return
        body = Hub.files.get(name)
        if body is None:
            self.send_error(404)
            return
        if name == "model.safetensors" and "/resolve/" in self.path:
            self.send_response(302)
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(body).hexdigest()}"')
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
        if not with_body:
            return
        if name == "model.safetensors" and Hub.cut is not None:
            self.wfile.write(body[begin : Hub.cut])
            Hub.cut = None
            self.close_connection = True
            return
        self.wfile.write(body[begin:])

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
        self.assertRegex(result.stderr, r"\Agpt2\.sh: .*\n\Z")

    def assert_complete(self):
        found = {path.name: path.read_bytes() for path in self.out.iterdir()}
        self.assertEqual(found, Hub.files)

    def test_downloads_and_keeps_what_is_there(self):
        result = self.fetch()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_complete()
        self.assertIn("is ready", result.stdout)
        self.assertIn("/openai-community/gpt2-medium/resolve/main/vocab.json", result.stdout)
        Hub.requests.clear()
        again = self.fetch()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(again.stdout.count("is there"), len(NAMES))
        self.assertEqual({method for method, *_ in Hub.requests}, {"HEAD"})

    def test_goes_on_where_it_stopped(self):
        self.out.mkdir(parents=True)
        whole = Hub.files["model.safetensors"]
        (self.out / "model.safetensors.part").write_bytes(whole[:1000])
        self.assertEqual(self.fetch().returncode, 0)
        self.assert_complete()
        self.assertIn("bytes=1000-", [got for _, path, got in Hub.requests if "storage" in path])
        # A part that is whole already.
        (self.out / "model.safetensors").rename(self.out / "model.safetensors.part")
        self.assertEqual(self.fetch().returncode, 0)
        self.assert_complete()

    def test_a_broken_connection(self):
        Hub.cut = 1234
        first = self.fetch()
        if first.returncode != 0:  # whether curl tries again depends on its version
            self.assert_fails(first, "repeat the command to go on")
            self.assertFalse((self.out / "config.json").exists())
            self.assertEqual((self.out / "model.safetensors.part").stat().st_size, 1234)
            self.assertEqual(self.fetch().returncode, 0)
        self.assert_complete()

    def test_damage_is_noticed(self):
        self.out.mkdir(parents=True)
        size = len(Hub.files["model.safetensors"])
        (self.out / "model.safetensors.part").write_bytes(bytes(size - 1))
        self.assert_fails(self.fetch(), "expected the SHA-256")
        self.assertFalse((self.out / "model.safetensors.part").exists())
        self.assertEqual(self.fetch().returncode, 0)
        self.assert_complete()
        # Of the 124M model the checksums are known here.
        result = self.run_script("--out-dir", self.folder / "small")
        self.assert_fails(result, "vocab.json: expected the SHA-256 196139668be6")
        self.assertEqual(list((self.folder / "small").iterdir()), [])

    def test_what_the_server_refuses(self):
        del Hub.files["merges.txt"]
        self.assert_fails(self.fetch(), "merges.txt")
        self.environment["HF_TOKEN"] = "wrong"
        self.assert_fails(self.fetch(), "vocab.json")
        self.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
        self.assert_fails(self.fetch(), "--from")

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
        self.assert_fails(self.run_script("--from", source, "--out-dir", source), "is the --out-dir")
        self.assert_fails(self.run_script("--from", "gone"), "expected config.json in gone")
        (source / "model.safetensors").unlink()
        self.assert_fails(self.run_script("--from", source), "expected *.safetensors")

    def test_options(self):
        self.assertIn("usage:", self.run_script("--help").stdout)
        self.assert_fails(self.run_script("--model", "7B"), "expected 124M, 355M", status=2)
        self.assert_fails(self.run_script("--model"), "expected a value", status=2)
        self.assert_fails(self.run_script("--size", "1"), "unknown option --size", status=2)


if __name__ == "__main__":
    unittest.main()

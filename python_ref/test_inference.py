"""llmc's `sample --greedy` and `eval --choices` beside inference.py: the same text, the same
endings. Needs a build of llmc (see hf_models.py) and requirements-hf.txt:

    python -m unittest discover -s python_ref -p test_inference.py -v
"""

from pathlib import Path
import json
import subprocess
import tempfile
import unittest

import numpy as np

try:
    from hf_models import program
except ImportError as missing:
    raise unittest.SkipTest(f"{missing.name} is not installed") from missing
from inference import ByteTokenizer, greedy, predict, read_examples
from model import GPT, GPTConfig
from model_file import load_model, save_model
from write_golden import random_parameters

CONFIG = GPTConfig(n_layer=2, n_head=3, n_embd=39, block_size=48, vocab_size=257)
WORDS = "Ann saw the fox and she ran to old Tom's cave, where naïve 🦊 cubs slept; then he sang.".split()


class Inference(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            program("apps", "sample")
        except FileNotFoundError as error:
            raise unittest.SkipTest(str(error)) from error

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        model = GPT(CONFIG)
        random_parameters(model, np.random.RandomState(3))
        save_model(self.folder / "model.bin", model)
        self.model = load_model(self.folder / "model.bin").double()

    def run_app(self, name, *arguments):
        command = [program("apps", name), "--checkpoint", self.folder / "model.bin"]
        command += ["--tokenizer", "byte", "--threads", "2", *arguments]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def test_greedy_text(self):
        tokenizer = ByteTokenizer()
        prompts = ["", "Ann saw", "a prompt of exactly forty-seven bytes, no more."]
        self.assertEqual(len(prompts[2]), CONFIG.block_size - 1)
        printed = self.run_app("sample", "--greedy", "--max-new-tokens", "150", "--prompt", *prompts)
        expected = []
        for prompt in prompts:
            ids = greedy(self.model, [tokenizer.end_of_text] + tokenizer.encode(prompt), 150)
            if tokenizer.end_of_text in ids:
                ids = ids[: ids.index(tokenizer.end_of_text)]
            expected.append(prompt.encode() + bytes(ids))
        self.assertEqual(printed, b"\n---\n".join(expected) + b"\n")

    def test_choices(self):
        rng = np.random.RandomState(5)

        def text(most):
            return " ".join(rng.choice(WORDS, size=rng.randint(1, most)))

        lines = []
        for i in range(60):
            endings = [text(5) for _ in range(rng.randint(1, 6))]
            context = text(9) + ["", " ", "\n"][i % 3] if i % 10 else ""
            label = int(rng.randint(len(endings)))
            lines.append(json.dumps({"ctx": context, "endings": endings, "label": label}))
        path = self.folder / "set.jsonl"
        path.write_text("\n".join(lines))
        examples = read_examples(path, ByteTokenizer())
        expected = [predict(self.model, context, endings) for context, endings, _ in examples]
        for micro_batch in ("1", "5"):
            out = self.folder / "predictions.jsonl"
            printed = self.run_app("eval", "--choices", path, "--predictions", out, "--json",
                                   "--micro-batch", micro_batch)  # fmt: skip
            got = [json.loads(line) for line in out.read_text().splitlines()]
            self.assertEqual([{k: p[k] for k in expected[0]} for p in got], expected)
            accuracy = json.loads(printed)["choices"]
            for rule in expected[0]:
                right = [p[rule] == label for p, (_, _, label) in zip(expected, examples)]
                self.assertAlmostEqual(accuracy[rule], np.mean(right), places=6)


if __name__ == "__main__":
    unittest.main()

"""llmc beside `transformers`: the same logits from the same folder, whoever wrote it.

Needs a build of llmc (see hf_models.py) and requirements-hf.txt:
    python -m unittest discover -s python_ref -p test_hf.py -v
"""

from pathlib import Path
import tempfile
import unittest

import numpy as np
import torch

try:
    from safetensors.numpy import load_file
    from safetensors.torch import load_file as load_torch_file, save_file as save_torch_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import hf_models as hf
except ImportError as missing:
    raise unittest.SkipTest(f"{missing.name} is not installed") from missing

# Nothing is a multiple of a vector's width or of the padding; one vocabulary has no padding at all.
SHAPES = [
    dict(vocab_size=97, n_positions=24, n_embd=39, n_layer=2, n_head=3),
    dict(vocab_size=128, n_positions=7, n_embd=8, n_layer=1, n_head=1),
    dict(vocab_size=1, n_positions=3, n_embd=5, n_layer=1, n_head=5),
    dict(vocab_size=1283, n_positions=33, n_embd=30, n_layer=3, n_head=2, layer_norm_epsilon=2e-4),
]
# Relative L2 error of float32 against float64.
TOLERANCE = 1e-5
PROMPTS = ["Ann saw the fox.", " two  spaces\n\n", "naïve 🦊 \x00\x7f", "<|endoftext", ""]


class HuggingFace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        try:
            hf.program("apps", "convert")
            hf.program("tests", "io", "model_logits")
        except FileNotFoundError as error:
            raise unittest.SkipTest(str(error)) from error

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def assert_same(self, got, expected, tolerance=TOLERANCE):
        self.assertEqual(got.shape, expected.shape)
        if got.shape[-1] > 1:
            self.assertLess(hf.relative_l2(got, expected), tolerance)

    def logits(self, model_path, tokens):
        return hf.llmc_logits(model_path, tokens, self.folder)

    def cases(self):
        for seed, sizes in enumerate(SHAPES, 1):
            tokens = hf.random_tokens(seed, sizes["vocab_size"], B=3, T=sizes["n_positions"])
            yield hf.random_gpt2(seed, **sizes), tokens, self.folder / str(seed)

    def test_folders_of_transformers(self):
        for model, tokens, path in self.cases():
            model.save_pretrained(path / "whole")
            model.save_pretrained(path / "sharded", max_shard_size="10KB")
            model.transformer.save_pretrained(path / "headless")
            expected = hf.exact_logits(model, tokens)
            for name in ("whole", "sharded", "headless"):
                self.assert_same(self.logits(path / name, tokens), expected)

    def test_bf16_folders_of_transformers(self):
        for model, tokens, path in self.cases():
            model.bfloat16().save_pretrained(path / "bf16")
            hf.convert(path / "bf16", path / "wide", "--precision", "fp32")
            expected = hf.exact_logits(model, tokens)
            self.assert_same(self.logits(path / "wide", tokens), expected)
            # Computed in bf16 as well: not worse than transformers is.
            with torch.no_grad():
                theirs = model.bfloat16()(torch.from_numpy(tokens).long()).logits.float().numpy()
            limit = 2 * hf.relative_l2(theirs, expected) + 1e-6
            self.assert_same(self.logits(path / "bf16", tokens), expected, limit)

    def test_folders_with_the_buffers_of_old_versions(self):
        for model, tokens, path in self.cases():
            model.save_pretrained(path)
            # As the folders on the hub are: no prefix, and each block's mask.
            tensors = {
                name.removeprefix("transformer."): tensor
                for name, tensor in load_torch_file(path / "model.safetensors").items()
            }
            T = model.config.n_positions
            for layer in range(model.config.n_layer):
                tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, T, T).tril().to(torch.uint8)
                tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
            tensors["lm_head.weight"] = tensors["wte.weight"].clone()
            save_torch_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
            self.assert_same(self.logits(path, tokens), hf.exact_logits(model, tokens))

    def test_folders_of_llmc(self):
        for model, tokens, path in self.cases():
            model.save_pretrained(path / "theirs")
            if model.config.layer_norm_epsilon == 1e-5:
                hf.convert(path / "theirs", path / "model.bin")
                hf.convert(path / "model.bin", path / "from_llmc")
            hf.convert(path / "theirs", path / "run", "--format", "native")
            hf.convert(path / "run", path / "from_native")
            hf.convert(path / "run", path / "sharded", "--max-file-mb", "1")
            expected = hf.exact_logits(model, tokens)
            weights = {n: p for n, p in model.float().named_parameters()}
            for name in ("from_llmc", "from_native", "sharded"):
                if not (path / name).exists():
                    continue
                loaded = AutoModelForCausalLM.from_pretrained(path / name)
                self.assertEqual(loaded.dtype, torch.float32)
                for key, value in loaded.named_parameters():
                    self.assertTrue(torch.equal(value, weights[key]), key)
                self.assert_same(hf.exact_logits(loaded, tokens), expected, 1e-12)
                self.assert_same(self.logits(path / name, tokens), expected)

    def test_bf16_folders_of_llmc(self):
        for model, tokens, path in self.cases():
            model.save_pretrained(path / "theirs")
            hf.convert(path / "theirs", path / "bf16", "--precision", "bf16")
            loaded = AutoModelForCausalLM.from_pretrained(path / "bf16", dtype="auto")
            self.assertEqual(loaded.dtype, torch.bfloat16)
            rounded = dict(model.bfloat16().named_parameters())
            for key, value in loaded.named_parameters():
                self.assertTrue(torch.equal(value, rounded[key]), key)

    def test_a_folder_in_several_files(self):
        model = hf.random_gpt2(9, vocab_size=4001, n_positions=65, n_embd=96, n_layer=2, n_head=4)
        model.save_pretrained(self.folder / "theirs")
        hf.convert(self.folder / "theirs", self.folder / "ours", "--max-file-mb", "1")
        self.assertTrue((self.folder / "ours" / "model.safetensors.index.json").is_file())
        tokens = hf.random_tokens(9, 4001, B=2, T=65)
        loaded = AutoModelForCausalLM.from_pretrained(self.folder / "ours")
        self.assert_same(hf.exact_logits(loaded, tokens), hf.exact_logits(model, tokens), 1e-12)

    def test_a_trained_run(self):
        """Trained, exported and sampled: tokens and greedy text are the same in transformers."""
        data, run, out = (self.folder / name for name in ("data", "run", "hf"))
        hf.run(
            hf.program("apps", "prepare"),
            *("--corpus", "tales", "--bytes", "200000", "--seed", "1"),
            *("--out-dir", data, "--name", "tales"),
        )
        hf.run(
            hf.program("apps", "train"),
            *("--n-layer", "2", "--n-head", "3", "--n-embd", "33", "--block-size", "48"),
            *("--train-data", data / "tales_train.bin", "--micro-batch", "8", "--lr", "1e-2"),
            *("--max-steps", "60", "--val-every", "0", "--sample-every", "0", "--out-dir", run),
        )
        hf.convert(run, out)
        model = AutoModelForCausalLM.from_pretrained(out).eval()
        tokenizer = AutoTokenizer.from_pretrained(out)
        tokens = hf.random_tokens(3, 257, B=2, T=48)
        self.assert_same(self.logits(run, tokens), hf.exact_logits(model, tokens))

        for prompt in PROMPTS:
            ids = tokenizer(prompt)["input_ids"]
            self.assertEqual(ids, list(prompt.encode()))
            self.assertEqual(tokenizer.decode(ids, clean_up_tokenization_spaces=False), prompt)
        self.assertEqual(tokenizer.eos_token_id, 256)
        self.assertEqual(model.generation_config.eos_token_id, 256)

        prompt, length = "Ann ", 30
        ids = torch.tensor([[256, *prompt.encode()]])
        with torch.no_grad():
            greedy = model.float().generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False
            )
        text = tokenizer.decode(greedy[0], skip_special_tokens=True)
        ours = hf.run(
            hf.program("apps", "sample"),
            *("--checkpoint", run, "--prompt", prompt),
            *("--max-new-tokens", str(length), "--temperature", "0"),
        )
        self.assertEqual(ours.strip(), text.strip())

    def test_the_golden_folders(self):
        golden = hf.ROOT / "tests" / "golden" / "hf"
        expected = load_file(golden / "logits.safetensors")
        for folder, name, tolerance in (
            ("sharded", "sharded", 1e-6),
            ("bf16", "bf16", 1e-6),
            ("llmc", "sharded", 0.02),  # the same model, rounded to bf16
        ):
            model = AutoModelForCausalLM.from_pretrained(golden / folder)
            got = hf.exact_logits(model, expected[f"{name}.tokens"])
            self.assert_same(got.astype(np.float32), expected[f"{name}.logits"], tolerance)
        tokenizer = AutoTokenizer.from_pretrained(golden / "llmc")
        for prompt in PROMPTS:
            self.assertEqual(tokenizer(prompt)["input_ids"], list(prompt.encode()))


if __name__ == "__main__":
    unittest.main()

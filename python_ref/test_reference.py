"""Checks of the reference itself: python -m unittest discover -s python_ref -v"""

import contextlib
import io
import json
from pathlib import Path
import tempfile
import unittest

import numpy as np
import torch

from compare_curves import compare
from model import GPT, GPTConfig, PRESETS
from model_file import load_model, save_model
from optim import clip_gradients, is_decayed, learning_rate, make_adamw
from run_log import Run, moving_average, read_run
from token_file import Batches
import train
from write_golden import TINY_GPT2, random_parameters

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
TINY = GPTConfig(n_layer=2, n_head=2, n_embd=10, block_size=9, vocab_size=37)


def tiny_model(attention="naive", config=TINY):
    model = GPT(config, attention).double()
    random_parameters(model, np.random.RandomState(7))
    return model


def tiny_batch(config=TINY, B=2, T=7, ignored=(3,)):
    generator = torch.Generator().manual_seed(11)
    x, y = torch.randint(0, config.vocab_size, (2, B, T), generator=generator)
    y.view(-1)[list(ignored)] = -1
    return x, y


def mean_loss(model, x, y):
    return model(x, y).sum() / (y >= 0).sum()


def relative_l2(a, b):
    a, b = (np.asarray(value, dtype=np.float64) for value in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    dtypes = {"F32": "<f4", "I32": "<i4"}
    tensors = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], dtypes[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors, metadata


def write_tokens(path, tokens, magic=20240520, version=1, dtype="<u2"):
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    path.write_bytes(header.tobytes() + np.asarray(tokens, dtype=dtype).tobytes())


class TemporaryFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)


class ModelTest(unittest.TestCase):
    def test_gradients_agree_with_central_differences(self):
        model, (x, y) = tiny_model(), tiny_batch()
        mean_loss(model, x, y).backward()
        rng = np.random.RandomState(3)
        step = 1e-5
        for name, parameter in model.named_parameters():
            values, gradient = parameter.detach().view(-1), parameter.grad.view(-1)
            for index in rng.choice(values.numel(), min(12, values.numel()), replace=False):
                kept = values[index].item()
                losses = []
                for moved in (kept + step, kept - step):
                    values[index] = moved
                    losses.append(mean_loss(model, x, y).item())
                values[index] = kept
                estimate = (losses[0] - losses[1]) / (2 * step)
                self.assertAlmostEqual(gradient[index].item(), estimate, delta=1e-8, msg=name)

    def test_sdpa_equals_naive(self):
        x, y = tiny_batch()
        outputs = []
        for attention in ("naive", "sdpa"):
            model = tiny_model(attention)
            mean_loss(model, x, y).backward()
            gradients = {name: p.grad for name, p in model.named_parameters()}
            outputs.append(gradients | {"logits": model.logits(x).detach()})
        for name, naive in outputs[0].items():
            self.assertLess(relative_l2(outputs[1][name], naive), 1e-12, name)

    def test_later_tokens_do_not_change_earlier_logits(self):
        model, (x, _) = tiny_model("sdpa"), tiny_batch()
        changed = x.clone()
        changed[:, 4:] = (x[:, 4:] + 1) % TINY.vocab_size
        difference = (model.logits(x) - model.logits(changed)).abs().amax(dim=(0, 2))
        self.assertLess(difference[:4].max().item(), 1e-12)
        self.assertGreater(difference[4:].min().item(), 1e-3)

    def test_padding_and_ignored_targets_have_no_part(self):
        model, (x, y) = tiny_model(), tiny_batch(ignored=(0, 5))
        losses = model(x, y)
        probabilities = model.logits(x).softmax(-1)
        expected = -probabilities.gather(-1, y.clamp(min=0)[..., None])[..., 0].log()
        expected[y < 0] = 0.0
        self.assertLess((losses - expected).abs().max().item(), 1e-12)
        losses.sum().backward()
        padding = model.wte.grad[TINY.vocab_size :]
        self.assertEqual(padding.shape, (128 - 37, 10))
        self.assertEqual(padding.abs().max().item(), 0.0)

    def test_too_long_a_sequence_is_refused(self):
        with self.assertRaisesRegex(ValueError, "expected at most 9, got 10"):
            tiny_model().logits(torch.zeros(1, 10, dtype=torch.long))

    def test_presets_have_the_known_sizes(self):
        with torch.device("meta"):
            sizes = {n: sum(p.numel() for p in GPT(c).parameters()) for n, c in PRESETS.items()}
        self.assertEqual(
            sizes,
            {
                "gpt2-124M": 124475904,
                "gpt2-350M": 354871296,
                "gpt2-774M": 774090240,
                "gpt2-1558M": 1557686400,
                "gpt3-125M": 125262336,
                "gpt3-350M": 355919872,
                "gpt3-760M": 760372224,
                "gpt3-1.3B": 1315819520,
                "gpt3-2.7B": 2651673600,
                "gpt3-6.7B": 6658596864,
            },
        )


class GoldenTest(unittest.TestCase):
    def test_float32_model_reproduces_the_files(self):
        for case in TINY_GPT2:
            with self.subTest(case):
                self.check(*read_safetensors(GOLDEN / f"{case}.safetensors"))

    def check(self, golden, metadata):
        config = GPTConfig(**{k: int(metadata[k]) for k in GPTConfig.__dataclass_fields__})
        model = GPT(config, "sdpa")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(torch.tensor(golden[f"param.{name}"]))
        x, y = (torch.tensor(golden[name]).long() for name in ("tokens", "targets"))
        hyper = ("lr", "beta1", "beta2", "eps", "weight_decay")
        optimizer = make_adamw(model, **{name: float(metadata[name]) for name in hyper})
        self.assertLess(relative_l2(model.logits(x).detach(), golden["logits"]), 1e-5)
        for step in range(int(metadata["steps"])):
            optimizer.zero_grad()
            loss = mean_loss(model, x, y)
            loss.backward()
            if step == 0:
                gradients = {name: p.grad for name, p in model.named_parameters()}
                self.compare_parameters(golden, "grad.", gradients)
            norm = clip_gradients(model, float(metadata["grad_clip"]))
            self.assertLess(relative_l2(loss.item(), golden["step_loss"][step]), 1e-5)
            self.assertLess(relative_l2(norm.item(), golden["step_norm"][step]), 1e-5)
            optimizer.step()
        self.compare_parameters(golden, "after.", dict(model.named_parameters()))

    def compare_parameters(self, golden, prefix, tensors):
        for name, tensor in tensors.items():
            values, expected = tensor.detach(), torch.tensor(golden[prefix + name])
            if name.endswith("qkv.bias"):  # the key bias has no gradient but rounding noise
                values, expected = (t.view(3, -1)[[0, 2]] for t in (values, expected))
            self.assertLess(relative_l2(values, expected), 1e-5, prefix + name)

    def test_initialisation_matches_the_file(self):
        golden, _ = read_safetensors(GOLDEN / "tiny_init.safetensors")
        model = GPT(TINY_GPT2["tiny_gpt2_a"]["config"])
        model.initialise(42)
        for name, parameter in model.named_parameters():
            difference = np.abs(parameter.detach().numpy() - golden[f"param.{name}"]).max()
            self.assertLess(difference, 2e-6 * 0.02 + 1e-12, name)


class ModelFileTest(TemporaryFolder):
    def test_float32_round_trip_keeps_every_bit(self):
        model = tiny_model().float()
        save_model(self.folder / "model.bin", model)
        loaded = load_model(self.folder / "model.bin")
        self.assertEqual(loaded.config, TINY)
        for (name, a), b in zip(model.named_parameters(), loaded.parameters()):
            self.assertTrue(torch.equal(a, b), name)

    def test_bfloat16_round_trip_rounds_once(self):
        model = tiny_model().float()
        path = self.folder / "model.bin"
        save_model(path, model, torch.bfloat16)
        count = sum(p.numel() for p in model.parameters())
        self.assertEqual(path.stat().st_size, 1024 + 2 * count)
        loaded = load_model(path)
        for (name, a), b in zip(model.named_parameters(), loaded.parameters()):
            self.assertTrue(torch.equal(a.bfloat16().float(), b), name)
        save_model(self.folder / "again.bin", loaded, torch.bfloat16)
        self.assertEqual(path.read_bytes(), (self.folder / "again.bin").read_bytes())

    def test_layers_lie_behind_each_other_within_a_tensor(self):
        model = tiny_model().float()
        save_model(self.folder / "model.bin", model)
        values = np.fromfile(self.folder / "model.bin", dtype="<f4", offset=1024)
        ln1 = 128 * 10 + 9 * 10
        expected = [block.ln1.weight.detach().numpy() for block in model.blocks]
        np.testing.assert_array_equal(values[ln1 : ln1 + 20], np.concatenate(expected))

    def test_bad_files_are_refused(self):
        path = self.folder / "model.bin"
        save_model(path, tiny_model().float())
        whole = path.read_bytes()
        cases = {
            "whole layers": whole[:-1],
            "to end": whole + b"\0",
            "magic": b"\0" + whole[1:],
            "version 3 or 5, got 4": whole[:4] + b"\4" + whole[5:],
            "padded to 128, got 37": whole[:28] + b"\x25" + whole[29:],
        }
        for message, data in cases.items():
            with self.subTest(message):
                path.write_bytes(data)
                with self.assertRaisesRegex(ValueError, message):
                    load_model(path)


class TokenFileTest(TemporaryFolder):
    def test_rows_follow_each_other_and_wrap(self):
        write_tokens(self.folder / "a_1.bin", np.arange(20))
        write_tokens(self.folder / "a_2.bin", np.arange(100, 107), 20240801, 7, "<u4")
        batches = Batches(str(self.folder / "a_*.bin"), B=2, T=3, vocab_size=107)
        self.assertEqual(batches.batches_per_epoch(), 4)
        starts = []
        for (x, y), _ in zip(batches, range(5)):
            self.assertEqual(x.shape, (2, 3))
            self.assertTrue(torch.equal(y, x + 1))
            starts += x[:, 0].tolist()
        self.assertEqual(starts, [0, 3, 6, 9, 12, 15, 100, 103, 0, 3])

    def test_a_row_needs_one_token_more(self):
        path = self.folder / "a.bin"
        write_tokens(path, np.arange(6))
        with self.assertRaisesRegex(ValueError, "at least B = 2 rows of T . 1 tokens"):
            Batches(str(path), B=2, T=3, vocab_size=50)

    def test_bad_files_are_refused(self):
        path = self.folder / "a.bin"
        write_tokens(path, np.arange(20), version=2)
        with self.assertRaisesRegex(ValueError, "another header"):
            Batches(str(path), B=2, T=3, vocab_size=50)
        write_tokens(path, np.arange(20))
        path.write_bytes(path.read_bytes()[:-2])
        with self.assertRaisesRegex(ValueError, "expected 20 tokens, got 19"):
            Batches(str(path), B=2, T=3, vocab_size=50)
        with self.assertRaisesRegex(ValueError, "found none"):
            Batches(str(self.folder / "b*.bin"), B=2, T=3, vocab_size=50)

    def test_tokens_outside_the_vocabulary_are_refused(self):
        write_tokens(self.folder / "a.bin", np.arange(20))
        batches = Batches(str(self.folder / "a.bin"), B=2, T=3, vocab_size=10)
        with self.assertRaisesRegex(ValueError, "below 10, got 12"):
            list(zip(batches, range(2)))


class OptimTest(unittest.TestCase):
    def test_decay_applies_to_matrices(self):
        for name, parameter in tiny_model().named_parameters():
            self.assertEqual(is_decayed(name), parameter.dim() == 2, name)

    def test_clipping_scales_to_the_norm_and_not_below(self):
        model, (x, y) = tiny_model(), tiny_batch()
        mean_loss(model, x, y).backward()
        norm = clip_gradients(model, 0.0)
        self.assertEqual(clip_gradients(model, 2.0 * norm.item()), norm)
        self.assertAlmostEqual(clip_gradients(model, 0.5 * norm.item()), norm)
        self.assertAlmostEqual(clip_gradients(model, 0.0).item(), 0.5 * norm.item(), places=12)

    def test_schedules(self):
        def rate(step, schedule, warmup_steps=4):
            return learning_rate(
                step,
                peak=2.0,
                schedule=schedule,
                warmup_steps=warmup_steps,
                max_steps=24,
                final_fraction=0.1,
                decay_fraction=0.25,
            )

        for schedule in ("constant", "linear", "cosine", "wsd"):
            self.assertEqual([rate(s, schedule) for s in range(4)], [0.5, 1.0, 1.5, 2.0])
            self.assertAlmostEqual(rate(4, schedule), 2.0)
        self.assertAlmostEqual(rate(14, "linear"), 1.1)
        self.assertAlmostEqual(rate(14, "cosine"), 1.1)
        self.assertAlmostEqual(rate(9, "cosine"), 0.2 + 0.9 * (1 + np.cos(np.pi / 4)))
        self.assertEqual([rate(s, "constant") for s in (14, 23)], [2.0, 2.0])
        self.assertEqual([rate(s, "wsd") for s in (17, 18)], [2.0, 2.0])
        self.assertAlmostEqual(rate(21, "wsd"), 0.2 + (1 - np.sqrt(0.5)) * 1.8)


class TrainTest(TemporaryFolder):
    def setUp(self):
        super().setUp()
        write_tokens(self.folder / "data.bin", np.arange(200) * 7 % 37)

    def train(self, name, *options):
        arguments = [
            "--train-data",
            str(self.folder / "data.bin"),
            "--out-dir",
            str(self.folder / name),
            *"--n-layer 2 --n-head 2 --n-embd 10 --block-size 9 --vocab-size 37".split(),
            *"--seq-len 8 --max-steps 6 --lr 1e-2".split(),
            *options,
        ]
        trainer = train.Trainer(train.parse_arguments(arguments))
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.run()
        trainer.log.close()
        return read_run(self.folder / name)

    def test_micro_batches_add_up_to_the_batch(self):
        whole = self.train("whole", "--micro-batch", "4")
        parts = self.train("parts", "--micro-batch", "1", "--tokens-per-step", "32")
        smoothed, raw, steps = compare(whole, parts, window=2)
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6])
        self.assertLess(raw[0], 1e-4)
        self.assertLess(smoothed[0], 1e-4)
        self.assertLess(whole.train[6], whole.train[1] - 0.1)

    def test_validation_at_the_start_the_interval_and_the_end(self):
        data = str(self.folder / "data.bin")
        run = self.train("val", "--val-data", data, "--val-every", "4", "--micro-batch", "2")
        self.assertEqual(sorted(run.val), [0, 4, 6])
        self.assertLess(run.val[6], run.val[0])

    def test_an_existing_log_is_kept(self):
        self.train("run")
        with self.assertRaises(FileExistsError):
            self.train("run")
        self.train("run", "--overwrite")


class RunLogTest(TemporaryFolder):
    def test_main_log_counts_from_one_and_keeps_the_last(self):
        path = self.folder / "main.log"
        path.write_text(
            "s:0 tel:4.5000\ns:0 trl:4.4000 lr:0.000100 norm:1.00\ns:1 trl:4.0 lr:0 norm:2\n"
            "s:1 trl:3.9000 lr:0.000100 norm:1.00\ns:2 eval:0.2500\ns:2 tel:3.8000\n"
        )
        run = read_run(self.folder)
        self.assertEqual(run.train, {1: 4.4, 2: 3.9})
        self.assertEqual(run.val, {0: 4.5, 2: 3.8})

    def test_jsonl_ignores_other_events(self):
        path = self.folder / "log.jsonl"
        events = [
            {"event": "config", "seed": 1},
            {"event": "step", "step": 1, "loss": 4.25},
            {"event": "val", "step": 1, "loss": 4.0},
        ]
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        run = read_run(path)
        self.assertEqual((run.train, run.val), ({1: 4.25}, {1: 4.0}))

    def test_comparison_finds_the_largest_differences(self):
        a = Run("a", {step: 2.0 for step in range(1, 11)})
        b = Run("b", dict(a.train) | {7: 2.5, 11: 9.0})
        smoothed, raw, steps = compare(a, b, window=2)
        self.assertEqual(steps, list(range(1, 11)))
        self.assertEqual(raw, (0.2, 7))
        self.assertAlmostEqual(smoothed[0], 0.25 / 2.25)
        self.assertEqual(smoothed[1], 6)
        a.train[3] = float("nan")
        with self.assertRaisesRegex(ValueError, "finite"):
            compare(a, b, window=2)

    def test_moving_average(self):
        np.testing.assert_allclose(moving_average([1.0, 2.0, 6.0, 7.0], 3), [3.0, 5.0])


if __name__ == "__main__":
    unittest.main()

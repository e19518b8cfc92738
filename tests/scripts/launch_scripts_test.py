"""Tests of scripts/launch with small scripts in the place of train, mpirun and srun."""

import os
from pathlib import Path
import shlex
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "launch"
CONFIGS = "gpt2-124M gpt2-350M gpt2-774M gpt2-1558M gpt3-125M gpt3-350M gpt3-760M gpt3-1.3B gpt3-2.7B gpt3-6.7B"

# Writes its words and environment to a file of its own, then does what the file `plan` says on its
# first line, which it removes: an exit status, or "sleep", which ends at a signal. A run has begun
# unless the status is from before it: 2, or written as "early 1".
RECORD = r"""#!/bin/bash
folder=$PWD
cd "$(dirname "$0")"
number=$(ls | grep -c '^call')
{ printf '%s\n' "$@"; echo "---"; env; } >"call-$number"
plan=$(head -n 1 plan 2>/dev/null)
sed -i 1d plan 2>/dev/null
if [ "$plan" = sleep ]; then
  trap 'echo INT >>signals; exit 130' INT
  trap 'echo TERM >>signals; exit 143' TERM
  trap 'echo USR2 >>signals; exit 140' USR2
  touch ready
  while :; do sleep 0.01; done
fi
while [ $# -gt 0 ]; do
  case $1 in --out-dir) out=$2 ;; esac
  shift
done
case $plan in
  2) ;;
  early*) plan=${plan#early } ;;
  *) cd "$folder" && mkdir -p "$out" && mktemp "$out/XXXXXX" | { read -r new && mv "$new" "$out/config.toml"; } ;;
esac
exit "${plan:-0}"
"""

# The loss of a run is (lr − 3)², or as the environment says.
TRAIN = r"""#!/bin/bash
while [ $# -gt 0 ]; do
  case $1 in --lr) lr=$2; shift ;; --out-dir) out=$2; shift ;; esac
  shift
done
mkdir -p "$out"
[ -z "$HANG" ] || { trap 'touch "$out/stopped"; exit 143' TERM; touch "$out/ready"; while :; do sleep 0.01; done; }
echo "$CUDA_VISIBLE_DEVICES" >"$out/gpu"
[ "$lr" != 9 ] || { echo "train: [cuda] out of memory" >&2; exit 1; }
loss=$(awk "BEGIN { print ($lr - 3) ^ 2 }")
[ "$lr" != 8 ] || loss=null
if [ -n "$NO_VALIDATION" ]; then
  for step in $(seq 1 40); do
    [ $step -le 20 ] && echo "{\"event\":\"step\",\"step\":$step,\"loss\":$lr,\"grad_norm\":1.0}"
    [ $step -gt 20 ] && echo "{\"event\":\"step\",\"step\":$step,\"loss\":$loss,\"grad_norm\":1.0}"
  done >"$out/log.jsonl"
else
  echo "{\"event\":\"val\",\"step\":0,\"loss\":$lr}" >"$out/log.jsonl"
  echo "{\"event\":\"val\",\"step\":9,\"loss\":$loss,\"tokens\":5}" >>"$out/log.jsonl"
fi
"""


class LaunchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        drop = ("NCCL_", "LLMC_", "SLURM_", "CUDA_VISIBLE", "OMP_NUM")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        self.record = self.program("record/program", RECORD)
        self.train = self.program("train", TRAIN)

    def program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run_script(self, name, *words, cwd=None, **environment):
        return subprocess.run(
            ["bash", SCRIPTS / name, *map(str, words)],
            cwd=cwd or self.folder,
            env=self.environment | {key: str(value) for key, value in environment.items()},
            capture_output=True,
            text=True,
            timeout=20,
        )

    def passes(self, *words, **environment):
        result = self.run_script(*words, **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def fails(self, part, *words, status=2, **environment):
        result = self.run_script(*words, **environment)
        self.assertEqual(result.returncode, status, result.stderr)
        last = result.stderr.splitlines()[-1]
        self.assertTrue(last.startswith(words[0] + ": "), last)
        self.assertIn(part, last)
        if status == 2:
            self.assertEqual(len(result.stderr.splitlines()), 1)

    def calls(self):
        """Words and environment of each call of the recording program."""
        found = []
        for i in range(len(list(self.record.parent.glob("call-*")))):
            words, _, environment = (self.record.parent / f"call-{i}").read_text().partition("---\n")
            found.append((words.splitlines(), environment.splitlines()))
        return found

    def plan(self, *steps):
        (self.record.parent / "plan").write_text("".join(f"{step}\n" for step in steps))

    def wait_for(self, *paths):
        deadline = time.monotonic() + 10
        while not all(path.exists() for path in paths):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)


class All(LaunchTest):
    def test_usage(self):
        for name in ("mpirun.sh", "slurm.sbatch", "retry.sh", "sweep_lr.sh"):
            self.assertTrue(self.passes(name, "--help", cwd=ROOT).startswith("usage: "))
        for name in ("mpirun.sh", "slurm.sbatch", "sweep_lr.sh"):
            job = {"cwd": ROOT, "SLURM_JOB_ID": 7}
            self.fails("expected the name of a configuration", name, **job)
            self.fails("or one of gpt2-124M-cpu", name, "gpt9", "1", **job)
            self.fails("LLMC_TRAIN: expected a program, got '/no'", name, "gpt2-124M", "1", LLMC_TRAIN="/no", **job)

    def test_every_size(self):
        for config in CONFIGS.split():
            command = self.passes("mpirun.sh", "--dry-run", "--ranks", 8, config, LLMC_TRAIN=self.train)
            self.assertIn(f"--config {ROOT}/configs/{config}.toml --out-dir runs/{config}", command)


class Mpirun(LaunchTest):
    def start(self, *words, **environment):
        return self.passes("mpirun.sh", *words, LLMC_TRAIN=self.train,
                           LLMC_MPIRUN=f"{self.record} --oversubscribe", **environment)

    def test_on_one_machine(self):
        self.start("--ranks", 4, "gpt2-124M", "--lr", "1e-4", NCCL_DEBUG="WARN", OMP_NUM_THREADS=2)
        (words, environment), = self.calls()
        config = f"{ROOT}/configs/gpt2-124M.toml"
        self.assertEqual(words, [
            "--oversubscribe", "-np", "4", "--bind-to", "none", "-x", "NCCL_DEBUG", "-x",
            "NCCL_NVLS_ENABLE", "-x", "OMP_NUM_THREADS", str(self.train), "--config", config,
            "--out-dir", "runs/gpt2-124M", "--lr", "1e-4"])
        self.assertIn("NCCL_NVLS_ENABLE=0", environment)

    def test_with_a_host_file(self):
        hosts = self.folder / "hosts"
        hosts.write_text("a slots=8\nb slots=8\n")
        config = self.folder / "own.toml"
        config.write_text("")
        self.start("--hosts", hosts, config, "--out_dir=x y", NCCL_NVLS_ENABLE=1)
        (words, environment), = self.calls()
        self.assertEqual(words, ["--oversubscribe", "--hostfile", str(hosts), "--bind-to", "none", "-x",
                                 "NCCL_NVLS_ENABLE", str(self.train), "--config", str(config), "--out_dir=x y"])
        self.assertIn("NCCL_NVLS_ENABLE=1", environment)

    def test_counts_gpus(self):
        smi = self.program("bin/nvidia-smi", "#!/bin/sh\nprintf 'GPU 0: a\\nGPU 1: b\\n'\n")
        self.start("gpt2-124M", PATH=f"{smi.parent}:{os.environ['PATH']}")
        self.assertEqual(self.calls()[0][0][1:3], ["-np", "2"])
        smi.write_text("#!/bin/sh\nexit 9\n")
        self.fails("expected --ranks, as no GPU", "mpirun.sh", "gpt2-124M", LLMC_TRAIN=self.train,
                   PATH=f"{smi.parent}:{os.environ['PATH']}")

    def test_retries(self):
        options = ("--ranks", 2, "--retries", 2, "--pause", 0, "gpt2-124M", "--seed", "a b")
        with self.subTest("prints the command that it would run"):
            line = self.start("--dry-run", *options)
            self.assertEqual(self.calls(), [])
            self.assertEqual(shlex.split(line)[-2:], ["--seed", "a b"])
        self.plan(1)
        self.start(*options)
        first, second = (call[0] for call in self.calls())
        self.assertEqual(second, [*first, "--resume", "auto"])

    def test_a_failure_is_not_tried_again_by_itself(self):
        self.plan(7)
        result = self.run_script("mpirun.sh", "--ranks", 2, "gpt2-124M", LLMC_TRAIN=self.train, LLMC_MPIRUN=self.record)
        self.assertEqual((result.returncode, result.stderr), (7, ""))
        self.assertEqual(len(self.calls()), 1)

    def test_signals_reach_mpirun_as_one_that_it_passes_on(self):
        for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            (self.record.parent / "ready").unlink(missing_ok=True)
            (self.record.parent / "signals").unlink(missing_ok=True)
            self.plan("sleep", 0)
            process = subprocess.Popen(
                ["bash", SCRIPTS / "mpirun.sh", "--ranks", "2", "--retries", "3", "gpt2-124M"], cwd=self.folder,
                env=self.environment | {"LLMC_TRAIN": str(self.train), "LLMC_MPIRUN": str(self.record)},
                start_new_session=True, stderr=subprocess.DEVNULL)
            self.wait_for(self.record.parent / "ready")
            os.killpg(process.pid, sent)
            self.assertEqual(process.wait(10), 140)
            self.assertEqual((self.record.parent / "signals").read_text(), "USR2\n")
        self.assertEqual(len(self.calls()), 5)

    def test_refuses(self):
        self.fails("expected /no/mpirun in PATH: install Open MPI", "mpirun.sh", "--ranks", 2, "gpt2-124M",
                   LLMC_TRAIN=self.train, LLMC_MPIRUN="/no/mpirun --oversubscribe")
        self.fails("--ranks: expected a whole number from 1 on, got '0'", "mpirun.sh", "--ranks", 0)
        self.fails("--hosts: expected a file, got '/no'", "mpirun.sh", "--hosts", "/no")
        self.fails("unknown option --gpus", "mpirun.sh", "--gpus", 2)


class Slurm(LaunchTest):
    def start(self, *words, **environment):
        return self.passes("slurm.sbatch", *words, cwd=ROOT, LLMC_TRAIN=self.train, SLURM_JOB_ID=77,
                           SLURM_SUBMIT_DIR=ROOT, LLMC_SRUN=self.record, **environment)

    def test_by_tcp(self):
        self.start("gpt2-350M", "--out-dir", self.folder / "runs" / "a")
        (words, environment), = self.calls()
        self.assertEqual(words, [
            "--mpi=none", str(self.train), "--config", f"{ROOT}/configs/gpt2-350M.toml", "--comm-init",
            "tcp", "--resume", "auto", "--out-dir", f"{self.folder}/runs/a"])
        self.assertIn("NCCL_NVLS_ENABLE=0", environment)
        token, = (line for line in environment if line.startswith("LLMC_COMM_TOKEN="))
        self.assertRegex(token, "=[0-9a-f]{32}$")
        self.assertTrue((self.folder / "runs").is_dir())

    def test_by_file(self):
        self.start("gpt2-350M", f"--out-dir={self.folder}/a/", "--overwrite", LLMC_START="file", LLMC_COMM_TOKEN="t")
        (words, environment), = self.calls()
        self.assertEqual(words[4:8], ["--comm-init", "file", "--comm-file", f"{self.folder}/a.start-77"])
        self.assertNotIn("--resume", words)
        self.assertIn("LLMC_COMM_TOKEN=t", environment)

    def test_by_mpi(self):
        self.start("gpt2-350M", "--out-dir", self.folder / "a", LLMC_START="mpi")
        self.assertEqual(self.calls()[0][0][0], str(self.train))

    def test_refuses(self):
        self.fails("LLMC_START: expected tcp, file or mpi, got 'udp'", "slurm.sbatch", "--dry-run", "gpt2-124M",
                   cwd=ROOT, LLMC_TRAIN=self.train, LLMC_START="udp")
        self.fails("expected a SLURM job", "slurm.sbatch", "gpt2-124M", cwd=ROOT, LLMC_TRAIN=self.train)
        self.fails("from the project's folder", "slurm.sbatch", "gpt2-124M")
        line = self.passes("slurm.sbatch", "--dry-run", "gpt2-124M", cwd=ROOT, LLMC_TRAIN=self.train)
        self.assertIn(f"-- srun --kill-on-bad-exit=1 --mpi=none {self.train} ", line)


class Retry(LaunchTest):
    WORDS = ("--pause", "0.01", "--")

    def test_goes_on_until_it_succeeds(self):
        self.plan(1, 137, 2, 0)
        self.passes("retry.sh", *self.WORDS, self.record, "--out-dir", "a b", "--overwrite")
        self.assertEqual([call[0] for call in self.calls()], [
            ["--out-dir", "a b", "--overwrite"]] + 3 * [["--out-dir", "a b", "--resume", "auto"]])

    def test_does_not_go_on_with_an_older_run(self):
        (self.folder / "a").mkdir()
        (self.folder / "a" / "config.toml").write_text("seed = 1\n")
        self.plan("early 1", "early 1", 1, 0)
        words = ["--out_dir=b", "--out-dir", "a", "--overwrite"]
        self.passes("retry.sh", *self.WORDS, self.record, *words)
        self.assertEqual([call[0] for call in self.calls()], 3 * [words] + [[*words[:3], "--resume", "auto"]])

    def test_gives_up(self):
        self.plan(*6 * [7])
        self.fails("status 7 after 2 retries", "retry.sh", "--retries", 2, *self.WORDS, self.record,
                   "--out-dir", "a", "--resume", "auto", status=7)
        self.assertEqual([call[0] for call in self.calls()], 3 * [["--out-dir", "a", "--resume", "auto"]])

    def test_does_not_repeat_what_cannot_work(self):
        self.plan(2, 0)
        self.fails("options, files or devices are wrong", "retry.sh", *self.WORDS, self.record, "--out-dir", "a")
        self.assertEqual(len(self.calls()), 1)
        self.fails("the command could not be started", "retry.sh", *self.WORDS, "/no/train", "--out-dir", "a", status=127)

    def test_a_stopped_run_stays_stopped(self):
        for status in (129, 130, 138, 140, 143):
            self.plan(status, 0)
            result = self.run_script("retry.sh", *self.WORDS, self.record, "--out-dir", "a")
            self.assertEqual(result.returncode, status)
        self.assertEqual(len(self.calls()), 5)

    def test_passes_signals_on_once(self):
        for sent, got in ((signal.SIGINT, "INT"), (signal.SIGTERM, "TERM"), (signal.SIGHUP, "TERM")):
            (self.record.parent / "ready").unlink(missing_ok=True)
            (self.record.parent / "signals").unlink(missing_ok=True)
            self.plan("sleep", 0)
            process = subprocess.Popen(
                ["bash", SCRIPTS / "retry.sh", *self.WORDS, self.record, "--out-dir", "a"],
                cwd=self.folder, env=self.environment, start_new_session=True, stderr=subprocess.DEVNULL)
            self.wait_for(self.record.parent / "ready")
            os.killpg(process.pid, sent)  # as a terminal does
            self.assertEqual(process.wait(10), 130 if got == "INT" else 143)
            self.assertEqual((self.record.parent / "signals").read_text(), got + "\n")
        self.assertEqual(len(self.calls()), 3)

    def test_a_signal_during_the_pause(self):
        self.plan(1, 0)
        process = subprocess.Popen(
            ["bash", SCRIPTS / "retry.sh", "--pause", "60", "--", self.record, "--out-dir", "a"],
            cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True)
        self.assertIn("retry 1 of 3 in 60 s", process.stderr.readline())
        # The pause begins a moment after the message.
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            process.terminate()
            time.sleep(0.05)
        self.assertEqual(process.wait(1), 143)
        process.stderr.close()
        self.assertEqual(len(self.calls()), 1)

    def test_options(self):
        line = self.passes("retry.sh", "--dry-run", "--", "train", "--out-dir", "a", "--overwrite")
        self.assertEqual(line, "train --out-dir a --overwrite\ntrain --out-dir a --resume auto\n")
        self.fails("expected --out-dir in the command", "retry.sh", "--", "train")
        self.fails("expected -- before the command, got train", "retry.sh", "train")
        self.fails("expected a command after --", "retry.sh", "--retries", 1, "--")
        self.fails("--pause: expected seconds, got 'long'", "retry.sh", "--pause", "long")
        self.fails("--pass-as: expected a signal, got 'usr1'", "retry.sh", "--pass-as", "usr1")


class Sweep(LaunchTest):
    def start(self, *words, **environment):
        return self.run_script("sweep_lr.sh", "--gpus", "4,6", "--out", "s", "quickstart", *words,
                               LLMC_TRAIN=self.train, **environment)

    def test_finds_the_best(self):
        result = self.start("1", "2.5", "4", "5", "0", "--", "--max-steps", "10")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.splitlines()[5:], [
            "lr 2.5: validation loss 0.25", "lr 4: validation loss 1", "lr 1: validation loss 4",
            "lr 5: validation loss 4", "lr 0: validation loss 9", "best: lr 2.5"])
        used = {(self.folder / f"s/lr-{rate}/gpu").read_text() for rate in (1, 4, 5, 0)}
        self.assertLessEqual(used, {"4\n", "6\n"})
        self.assertEqual((self.folder / "s/lr-1/gpu").read_text(), "4\n")
        self.assertEqual((self.folder / "s/lr-2.5/gpu").read_text(), "6\n")

    def test_goes_by_the_training_loss(self):
        result = self.start("2", "4e0", "2.9", NO_VALIDATION="1")
        self.assertIn("lr 2.9: training loss 0.010000\n", result.stdout)
        self.assertTrue(result.stdout.endswith("best: lr 2.9\n"), result.stdout)

    def test_failures_and_losses_that_are_no_numbers(self):
        result = self.start("9", "8", "5")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "sweep_lr.sh: lr 9 has status 1: train: [cuda] out of memory\n")
        self.assertEqual(result.stdout.splitlines()[3:], ["lr 5: validation loss 4", "best: lr 5"])
        result = self.start("8")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "sweep_lr.sh: no run has a loss\n")

    def test_a_signal_ends_all(self):
        process = subprocess.Popen(
            ["bash", SCRIPTS / "sweep_lr.sh", "--gpus", "0,0", "--out", "s", "quickstart", "1", "2", "3"],
            cwd=self.folder, env=self.environment | {"LLMC_TRAIN": str(self.train), "HANG": "1"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for(self.folder / "s/lr-1/ready", self.folder / "s/lr-2/ready")
        process.terminate()
        self.assertEqual(process.wait(10), 143)
        self.assertTrue((self.folder / "s/lr-1/stopped").exists())
        self.assertTrue((self.folder / "s/lr-2/stopped").exists())
        self.assertFalse((self.folder / "s/lr-3").exists())

    def test_options(self):
        result = self.start("--dry-run")
        self.assertIn("expected a learning rate, got '--dry-run'", result.stderr)
        line = self.passes("sweep_lr.sh", "--gpus", "1", "--dry-run", "gpt2-124M", "1e-4", "--", "--seed", "7",
                           LLMC_TRAIN=self.train)
        self.assertEqual(line, f"env CUDA_VISIBLE_DEVICES=1 {self.train} --config {ROOT}/configs/gpt2-124M.toml"
                         " --lr 1e-4 --out-dir runs/sweep-gpt2-124M/lr-1e-4 --seed 7\n")
        self.fails("each learning rate once", "sweep_lr.sh", "--gpus", "0", "gpt2-124M", "1", "1")
        self.fails("expected learning rates after", "sweep_lr.sh", "gpt2-124M")
        self.fails("--gpus: expected numbers", "sweep_lr.sh", "--gpus", "all")


if __name__ == "__main__":
    unittest.main()

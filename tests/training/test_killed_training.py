"""Training by the command in a process of its own: killed, terminated, and resumed."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_attention.training.run.run_folder import RunFolder

FLAGS = (
    "--d-model 16 --heads 2 --layers 1 --mlp-dim 24 --dropout 0.2 --vocab-size 40 --max-length 24 --no-tensorboard "
    "--tokens-per-batch 512 --validation-share 0.1 --test-share 0.1 --warmup 5 --epochs 3 --checkpoint-every 1"
)


def start(*arguments):
    command = [sys.executable, "-m", "keras_attention.training.translation", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def newest(out):
    return max((int(path.stem[5:]) for path in (out / "checkpoints").glob("step-*.npz")), default=-1)


def wait_for_step(step, out, process, seconds=240):
    end = time.monotonic() + seconds
    while newest(out) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, f"step {step} did not come"
        time.sleep(0.002)


@pytest.mark.slow
def test_kill_9_at_any_moment_and_resume(tmp_path):
    choose = random.Random(7)
    data = tmp_path / "digits.tsv"
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    numbers = [[choose.randrange(10) for _ in range(choose.randint(1, 6))] for _ in range(800)]
    data.write_text("".join(f"{' '.join(words[d] for d in n)}\t{' '.join(map(str, n))}\n" for n in numbers))
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    undisturbed = start("--out", str(whole), "--data", str(data), *FLAGS.split())

    # A checkpoint after every step: most of the time some file is being written. Killed in both epochs, in writes and,
    # since 16 steps are an epoch, in the first validation.
    process = start("--out", str(broken), "--data", str(data), *FLAGS.split())
    for step, delay in ((3, 0.0), (9, 0.006), (16, 0.3), (21, 0.003)):
        wait_for_step(step, broken, process)
        time.sleep(delay)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process = start("--out", str(broken), "--resume")
    assert process.wait() == 0, process.communicate()[0]
    assert undisturbed.wait() == 0, undisturbed.communicate()[0]
    for a, b in zip(RunFolder(broken).load_model().variables, RunFolder(whole).load_model().variables, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-6, rtol=0)

    # SIGTERM is an orderly end with the shell's exit code, and a lock does not outlive its process.
    process = start("--out", str(broken), "--resume", "--epochs", "50")
    wait_for_step(newest(broken) + 2, broken, process)
    os.kill(process.pid, signal.SIGTERM)
    printed = process.communicate()[0]
    assert process.returncode == 143 and "(saved); continue with: --resume" in printed

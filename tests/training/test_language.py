"""Training a language model on bytes: the pieces, the command, the folder, and runs that are interrupted."""

import gzip
import math
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention import cli
from keras_attention.errors import UsageError
from keras_attention.generation import continue_greedily
from keras_attention.text import ByteTokenizer
from keras_attention.training.language import task
from keras_attention.training.language.byte_windows import ByteWindows, read_bytes, split_tail
from keras_attention.training.language.options import LanguageOptions
from keras_attention.training.run.run_folder import RunFolder

# A text in which each byte follows from the two before it.
TEXT = b"abcabdaceabcabdace" * 40


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_bytes(TEXT)
    with gzip.open(folder / "b.bin.gz", "wb") as file:
        file.write(bytes(range(256)) * 2)
    return [str(folder / "a.txt"), str(folder / "b.bin.gz")]


def options(files, out, **changes):
    tiny = {
        "length": 32,
        "batch_size": 4,
        "d_model": 16,
        "heads": 2,
        "layers": 1,
        "mlp_dim": 24,
        "dropout": 0.1,
        "warmup": 5,
        "learning_rate": 0.02,
        "steps": 12,
        "checkpoint_every": 4,
        "tensorboard": False,
    }
    return LanguageOptions(out=str(out), data=files, **{**tiny, **changes})


# --- pieces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("whole_batches", [False, True])
def test_every_id_is_predicted_once_from_its_own_document(shuffle, whole_batches):
    documents = [np.arange(10, 10 + n, dtype=np.int32) for n in (23, 4, 11)]  # 22, 3 and 10 ids to predict
    documents[1] += 100
    documents[2] += 200
    windows = ByteWindows(documents, length=5, batch_size=3, seed=1, shuffle=shuffle, whole_batches=whole_batches)
    counts = [4, 1, 2] if shuffle else [5, 1, 2]
    assert len(windows) == math.ceil(sum(counts) / 3)
    for epoch in range(3):
        batches = list(windows.dataset(epoch).take(len(windows)))
        assert len(batches) == len(windows)
        if whole_batches:
            assert all(ids.shape == (3, 5) for ids, _ in batches)
        told = []
        for ids, labels in batches:
            for row, after in zip(ids.numpy(), labels.numpy(), strict=True):
                real = after != 0
                assert np.array_equal(after[real], row[real] + 1) and not row[~real].any()  # the next of its document
                told += after[real].tolist()
        assert len(told) == len(set(told)) == windows.tokens == (20 + 3 + 10 if shuffle else 22 + 3 + 10)
    orders = [windows.planned(epoch)[0].tolist() for epoch in range(9)]
    assert (orders[0] != orders[1]) == shuffle and orders[0] == windows.planned(0)[0].tolist()
    if shuffle:  # pieces begin elsewhere in every epoch
        assert len({min(order) for order in orders}) > 1


def test_a_dataset_goes_on_in_the_middle():
    windows = ByteWindows([np.arange(1, 42)], length=4, batch_size=3, seed=2)
    whole = [ids.numpy().tolist() for epoch in range(2) for ids, _ in windows.dataset(epoch).take(len(windows))]
    rest = [ids.numpy().tolist() for ids, _ in windows.dataset(0, 2)]
    assert rest == whole[2 : len(windows)]


def test_the_end_of_each_document_is_held_out():
    beginnings, ends = split_tail([bytes(range(100, 120)), b"ab"], 0.25)
    assert beginnings[0].tolist() == [2, *range(104, 119)] and beginnings[1].tolist() == [2, 101, 102]
    assert len(ends) == 1 and ends[0].tolist() == list(range(118, 124))  # the first of them told from the last kept


# --- the command --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def undisturbed(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    return out, task.train(options(files, out))


class Dies(keras.callbacks.Callback):
    """Ends the process' work at a step, as a kill would: nothing is saved."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            raise MemoryError


def test_a_run_learns_and_resumes_to_the_same_weights(files, undisturbed, tmp_path):
    out, metrics = undisturbed
    folder = RunFolder(out)
    assert metrics == folder.read_metrics()
    assert metrics["validation/bits_per_byte"] == pytest.approx(metrics["validation/loss"] / math.log(2))
    history = folder.read_history()
    held_out = split_tail([read_bytes(path) for path in files], 0.05)[1]
    kept, told, count = folder.load_model(), 0.0, 0
    for ids, labels in ByteWindows(held_out, length=32, batch_size=4, shuffle=False).dataset():
        real = labels != 0
        log_probs = tf.gather(tf.nn.log_softmax(kept(ids)), labels, batch_dims=2)
        told, count = told - tf.reduce_sum(log_probs[real]), count + tf.reduce_sum(tf.cast(real, tf.float32))
    assert metrics["validation/loss"] == pytest.approx(float(told / count), rel=1e-4)  # of the model that is kept
    assert (
        1 < metrics["validation/bits_per_byte"] < 8
        and history[-1]["val_bits_per_byte"] >= metrics["validation/bits_per_byte"]
    )
    assert metrics["steps"] == 12 and metrics["train_rate"] > 0 and 100 < metrics["peak_memory_mb"] < 1e5
    config = folder.read_config()
    assert config["tokenizer"] == {"kind": "bytes", "offset": 4}
    assert config["data"]["validation"] == len(TEXT) // 20 + 512 // 20

    again = tmp_path / "run"
    with pytest.raises(MemoryError):
        task.train(options(files, again), callbacks=[Dies(7)])
    # Checkpointing changes no number, so that a run may go on with it.
    task.train(options(files, again, resume=True, remat=True))
    for a, b in zip(*(RunFolder(run).load_model().variables for run in (out, again)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    with pytest.raises(UsageError, match=r"--length \(was 32, is 16\)"):
        task.train(options(files, again, resume=True, length=16))
    with pytest.raises(UsageError, match="The data are not those that the run in"):
        task.train(options(files[:1], again, resume=True, steps=20))


def test_a_finished_model_continues_a_prompt(undisturbed, tmp_path, capsysbinary):
    run = undisturbed[0]
    model, tokenizer = RunFolder(run).load_model(), ByteTokenizer()
    ids = tokenizer.encode_batch(["abcabd"])
    result = continue_greedily(model, ids, max_new_tokens=3, forbidden=range(4))
    cli_main("generate", "--model", str(run), "abcabd", "--tokens", "3")
    assert capsysbinary.readouterr().out == b"abcabd" + tokenizer.decode(result.tokens[0]) + b"\n"
    with pytest.raises(SystemExit) as end:
        cli.main(["generate", "--model", str(tmp_path), "a"])
    said = capsysbinary.readouterr().err
    assert end.value.code == 2 and b"holds no model. Expected a language model: a run folder" in said


@pytest.mark.slow
def test_a_finished_model_is_exported(undisturbed, tmp_path):
    run = undisturbed[0]
    model, ids = RunFolder(run).load_model(), ByteTokenizer().encode_batch(["abcabd"])
    cli_main("export", "saved-model", str(run), str(tmp_path / "served"), "--max-length", "9")
    served = tf.saved_model.load(str(tmp_path / "served" / "1")).signatures
    state = dict(served["prefill"](input_ids=tf.constant(ids), input_lengths=tf.constant([7])))
    np.testing.assert_allclose(state["logits"], model(ids), atol=1e-5)


def cli_main(*arguments):
    """The command, which ends by returning or by `SystemExit(0)`."""
    try:
        cli.main(arguments)
    except SystemExit as end:
        assert not end.code


@pytest.mark.slow
def test_half_precision_compiled_in_fixed_shapes(files, tmp_path):
    metrics = task.train(
        options(files, tmp_path / "run", precision="mixed_bfloat16", jit_compile=True, steps=3, mechanism="retention")
    )
    assert np.isfinite(metrics["validation/loss"])


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (b"", [], "is empty: give a file with something to learn"),
        (None, [], "does not exist. What --data takes"),
        (b"x" * 50, ["--length", "64"], "the longest file has 48 bytes to train on, less than one piece of 64"),
        (TEXT, ["--heads", "3"], "--d-model must be divisible by --heads. Got 256 and 3"),
        (TEXT, ["--mechanism", "nystrom", "--length", "64"], "--mechanism nystrom cannot decode token by token. Give"),
        (TEXT, ["--mechanism", "lsh:num_buckets=2", "--length", "64"], "--mechanism lsh cannot decode token by token."),
        (TEXT, ["--mechanism", "auto:x=1", "--length", "64"], "'auto' chooses by itself and takes no options."),
        (TEXT, ["--length", "1"], "--length must be at least 2. Got 1."),
        (TEXT, ["--cooldown", "9", "--steps", "4"], "--cooldown=9 needs --steps of at least as many"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, content, flags, message):
    path, out = tmp_path / "text.txt", tmp_path / "run"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "lm", "--data", str(path), "--out", str(out), "--no-tensorboard", *flags])
    error = capsys.readouterr().err.strip()
    assert end.value.code == 2 and message in error and len(error.splitlines()) == 1
    assert not out.exists()


def test_a_file_whose_name_is_no_utf8_is_learnt(files, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    shutil.copy(files[0], path)
    run = tmp_path / "run"
    task.train(options([path], run, steps=2))
    assert RunFolder(run).read_config()["options"]["data"] == [path]


def test_a_model_with_a_rolling_cache_generates(files, tmp_path, capfd):
    """Its cache keeps as many bytes as a piece of training has: here fewer than the answer."""
    run = tmp_path / "run"
    task.train(options(files, run, mechanism="softmax:cache=rolling", length=8, steps=60))
    with pytest.raises(SystemExit) as end:
        cli.main(["generate", "--model", str(run), "abc", "--tokens", "20"])
    assert end.value.code == 0
    model, tokenizer = RunFolder(run).load_model(), ByteTokenizer()
    assert model.max_length == 8
    state = model.init_state(1, max_length=8)
    want, ids = [], tokenizer.encode_batch(["abc"])[0]
    for id in ids:
        logits, state = model.step(tf.constant([id]), state)
    for _ in range(20):
        id = 4 + int(tf.argmax(logits[0, 4:]))
        want.append(id)
        logits, state = model.step(tf.constant([id]), state)
    assert capfd.readouterr().out.encode().rstrip(b"\n").endswith(b"abc" + tokenizer.decode(want).rstrip(b"\n"))


def test_broken_gzip_and_missing_data(tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(TEXT)[:-9])
    with pytest.raises(UsageError, match="is not a complete gzip file"):
        read_bytes(tmp_path / "cut.gz")
    with pytest.raises(UsageError, match="--data needs at least one file to learn"):
        LanguageOptions(out="run")

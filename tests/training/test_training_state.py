"""Checkpoints and the run folder: what is written comes back, what is damaged is recognised, nothing is overwritten."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_attention.errors import UsageError
from keras_attention.training.optimization.weight_averages import average_checkpoints
from keras_attention.training.run.run_folder import RunFolder, write_atomically
from keras_attention.training.run.training_state import (
    CheckpointFolder,
    DamagedCheckpoint,
    assign_variables,
    read_checkpoint,
    read_variables,
    write_checkpoint,
)


def make_groups(rng, scale=1.0):
    import ml_dtypes

    return {
        "model": [
            (scale * rng.normal(size=(3, 5))).astype("float32"),
            rng.integers(0, 2**32, 2, dtype="uint32"),
            rng.normal(size=7).astype(ml_dtypes.bfloat16),
            np.float16(2.5).reshape(()),
        ],
        "optimizer": [np.int64(12).reshape(()), rng.normal(size=(2, 1, 4))],
    }


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        for x, y in zip(a[name], b[name], strict=True):
            assert x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


INFO = {"epoch": 2, "loss": 0.1 + 0.2, "best": None, "history": [{"epoch": 1, "läuft": float("nan")}]}


def test_every_bit_comes_back(rng, tmp_path):
    groups = make_groups(rng)
    write_checkpoint(tmp_path / "c.npz", groups, INFO)
    got, info = read_checkpoint(tmp_path / "c.npz")
    same(got, groups)
    assert repr(info) == repr(INFO)
    assert [p.name for p in tmp_path.iterdir()] == ["c.npz"]


def test_a_file_cut_anywhere_is_damaged(rng, tmp_path):
    path = tmp_path / "c.npz"
    write_checkpoint(path, make_groups(rng), INFO)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedCheckpoint, match=r"c\.npz"):
            read_checkpoint(path)
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(tmp_path / "none.npz")


def test_an_altered_byte_of_a_weight_is_damage(rng, tmp_path):
    path = tmp_path / "c.npz"
    groups = make_groups(rng)
    write_checkpoint(path, groups, INFO)
    whole = bytearray(path.read_bytes())
    whole[whole.index(groups["model"][0].tobytes()) + 11] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(path)


def test_pickles_are_not_opened(tmp_path):
    np.savez(tmp_path / "c.npz", info=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(tmp_path / "c.npz")


def test_the_newest_readable_one_is_loaded(rng, tmp_path, capsys):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=3)
    assert folder.load_newest() is None and folder.empty()
    for step in (0, 10, 20, 30):
        folder.save(step, make_groups(rng), {"step": step})
    folder.save(34, make_groups(rng), {"step": 34}, regular=False)
    assert not folder.empty()
    assert sorted(p.name for p in folder.path.iterdir()) == [
        "step-00000010.npz",
        "step-00000020.npz",
        "step-00000030.npz",
        "stop-00000034.npz",
    ]
    assert folder.load_newest()[1] == {"step": 34}
    for name in ("stop-00000034", "step-00000030"):
        path = folder.path / f"{name}.npz"
        path.write_bytes(path.read_bytes()[:300])
    assert folder.load_newest()[1] == {"step": 20}
    printed = capsys.readouterr().out
    assert "stop-00000034.npz is damaged (truncated or altered); falling back to step-00000030.npz" in printed
    assert "step-00000030.npz is damaged (truncated or altered); falling back to step-00000020.npz" in printed
    assert folder.load_newest()[1] == {"step": 20} and not capsys.readouterr().out
    assert [p.name for p in folder.regular()] == ["step-00000010.npz", "step-00000020.npz"]


def test_no_readable_checkpoint_is_one_clear_error(rng, tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (10, 20):
        folder.save(step, make_groups(rng), {})
        (tmp_path / f"step-{step:08d}.npz").write_bytes(b"PK")
    with pytest.raises(UsageError, match=r"None of the checkpoints in .* can be read: all are truncated or altered"):
        folder.load_newest()
    assert (tmp_path / "step-00000010.npz").exists()


def test_a_regular_checkpoint_replaces_older_stops_and_leftovers(rng, tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save(10, make_groups(rng), {})
    folder.save(13, make_groups(rng), {}, regular=False)
    (tmp_path / ".step-00000015.77.tmp.npz").write_bytes(b"half")
    folder.save(20, make_groups(rng), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000010.npz", "step-00000020.npz"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")

    def fails(temporary):
        temporary.write_text("ne")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, fails)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_killed_while_writing(tmp_path):
    """kill -9 with half of the new content on disk: the old content is there."""
    path = tmp_path / "a.txt"
    path.write_text("old")
    import keras_attention.training.run.run_folder as module

    # The function alone, from its source: a child that imported the package would load TensorFlow.
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "source = Path(sys.argv[1]).read_text().split('class RunFolder')[0]\n"
        "exec(source.replace('from keras_attention.errors import UsageError', ''))\n"
        "def write(temporary):\n"
        "    temporary.write_text('half of the n')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomically(Path(sys.argv[2]), write)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, module.__file__, path])
    assert done.returncode == -9
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2  # and the half one under a hidden name


def make_model():
    return keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5, seed=3), keras.layers.Dense(2)])


def test_variables_with_generators_and_their_assignment(rng):
    model, other = make_model(), make_model()
    x = rng.normal(size=(6, 3)).astype("float32")
    model(x, training=True), other(x)
    assert len(model.variables) == len(model.weights) + 1  # the dropout's generator belongs to the state
    assign_variables(other.variables, read_variables(model.variables), "model")
    np.testing.assert_array_equal(model(x, training=True), other(x, training=True))
    with pytest.raises(UsageError, match=r"another model: its model holds 4 arrays for 5 variables, and at number 4"):
        assign_variables(other.variables, read_variables(model.variables)[:-1], "model")
    narrow = [*read_variables(model.variables)]
    narrow[0] = narrow[0][:2]
    with pytest.raises(UsageError, match=r"at number 0 shape \(2, 4\) where the model has .*kernel of shape \(3, 4\)"):
        assign_variables(other.variables, narrow, "model")


def test_average(rng, tmp_path):
    groups = [make_groups(rng, scale) for scale in (1, 50, 3)]
    paths = [tmp_path / f"{i}.npz" for i in range(3)]
    for path, group in zip(paths, groups):
        write_checkpoint(path, group, {})
    got = average_checkpoints(paths)
    expected = sum(group["model"][0].astype("float64") for group in groups) / 3
    assert got[0].dtype == np.float32
    np.testing.assert_allclose(got[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(got[1], groups[2]["model"][1])  # a generator's state is no number to average
    np.testing.assert_allclose(
        got[2].astype("float32"), sum(g["model"][2].astype("float32") for g in groups) / 3, atol=0.02
    )
    same({"model": average_checkpoints(paths[:1])}, {"model": groups[0]["model"]})
    with pytest.raises(ValueError, match="at least one checkpoint"):
        average_checkpoints([])
    write_checkpoint(tmp_path / "other.npz", {"model": groups[0]["model"][:2]}, {})
    with pytest.raises(ValueError, match=r"other.npz holds other arrays than .*0.npz"):
        average_checkpoints([paths[0], tmp_path / "other.npz"])


# ---- the run folder ----------------------------------------------------------------------------------------------


def test_a_second_run_does_not_start_in_a_taken_folder(tmp_path):
    run = RunFolder(tmp_path / "a" / "run")
    with run.claimed(resume=False):
        with pytest.raises(UsageError, match="Another process is training in"), RunFolder(run.path).claimed(False):
            pass
        run.write_json(run.config_path, {"options": {}})
    before = run.config_path.read_bytes()
    with pytest.raises(UsageError, match=r"already holds a training run. Use --resume"), run.claimed(resume=False):
        pass
    assert run.config_path.read_bytes() == before
    with run.claimed(resume=True):
        pass


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match=r"is not empty \(it holds thesis.tex\)"), RunFolder(tmp_path).claimed(False):
        pass
    with pytest.raises(UsageError, match=r"has no config\.json"), RunFolder(tmp_path).claimed(True):
        pass
    with pytest.raises(UsageError, match="is a file"), RunFolder(tmp_path / "thesis.tex").claimed(False):
        pass
    with pytest.raises(UsageError, match="There is no run to resume"), RunFolder(tmp_path / "none").claimed(True):
        pass
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"] and (tmp_path / "thesis.tex").read_text() == "x"


def test_a_run_that_was_killed_before_its_config_is_to_be_started_again(tmp_path):
    """Case 112."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    (run.path / ".lock").touch()
    with pytest.raises(UsageError, match=r"run has no config.json: no run has begun there. Start it again without"):
        run.config_to_resume()
    with run.claimed(resume=False):
        pass
    # Of a run that had begun, the file is what is missing.
    run.checkpoints_path.mkdir(parents=True)
    with pytest.raises(UsageError, match=r"has no config.json. .*restore the file from a copy"):
        run.config_to_resume()


def test_an_error_before_the_run_begins_leaves_no_folder(tmp_path):
    """Case 116: neither the run's own nor parents that were made for it."""
    for path in ("run", "a/b/run"):
        with pytest.raises(UsageError, match="bad data"), RunFolder(tmp_path / path).claimed(False):
            raise UsageError("bad data")
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be written"), RunFolder(tmp_path / "file" / "run").claimed(False):
        pass
    (tmp_path / "file").unlink()
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError), RunFolder(tmp_path / "mine").claimed(False):
        raise UsageError("bad data")
    assert [p.name for p in tmp_path.rglob("*")] == ["mine"]


def test_reading_says_what_is_missing_or_damaged(tmp_path):
    run = RunFolder(tmp_path)
    run.write_json(run.metrics_path, {"test/bleu": 31.5, "test/exact_match/date": 1})
    assert (
        run.read_metrics()
        == json.loads(run.metrics_path.read_text())
        == {"test/bleu": 31.5, "test/exact_match/date": 1}
    )
    with pytest.raises(UsageError, match=r"has no config.json. Expected a run folder.* restore the file from a copy"):
        run.read_config()
    run.write_json(run.config_path, {})
    with pytest.raises(UsageError, match=r"has no history.json.* let the run finish \(--resume\)"):
        run.read_history()
    for content in (b"", b"{", b"[1, 2]", b"\xff\xfe{}", b"null"):
        run.config_path.write_bytes(content)
        with pytest.raises(UsageError, match=r"config.json is damaged"):
            run.read_config()
    run.model_path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(UsageError, match=r"model.keras is damaged: it is empty, cut short"):
        run.load_model()
    with pytest.raises(UsageError, match=r"does not exist. Expected a run folder"):
        RunFolder(tmp_path / "none").read_metrics()

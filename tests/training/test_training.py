"""Training a translator end to end on a toy language: the command, the folder, and runs that are interrupted."""

import os
import random
import shutil
import signal
import sys

import keras
import numpy as np
import pytest

from keras_attention.errors import UsageError
from keras_attention.inference.translator import Translator
from keras_attention.layers import RelativePositionBias
from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.run.callbacks import Terminated
from keras_attention.training.run.run_folder import RunFolder
from keras_attention.training.run.training_state import CheckpointFolder, read_checkpoint
from keras_attention.training.translation import program, task
from keras_attention.training.translation.options import TranslationOptions

WORDS = {"red": "rot", "green": "grün", "blue": "blau", "cat": "katze", "dog": "hund", "house": "haus", "sun": "sonne"}
STEPS_PER_EPOCH = 11  # what the options below make of the corpus below


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """600 pairs of one to six words, translated word by word."""
    choose = random.Random(3)
    path = tmp_path_factory.mktemp("corpus") / "toy.tsv"
    sentences = [choose.choices(list(WORDS), k=choose.randint(1, 6)) for _ in range(600)]
    path.write_text("".join(f"{' '.join(s)}\t{' '.join(WORDS[w] for w in s)}\n" for s in sentences), encoding="utf-8")
    return path


def options(corpus, out, **changes):
    tiny = {
        "d_model": 16,
        "heads": 2,
        "layers": 1,
        "mlp_dim": 24,
        "dropout": 0.2,
        "vocab_size": 40,
        "max_length": 24,
        "tokens_per_batch": 320,
        "validation_share": 0.1,
        "test_share": 0.1,
        "warmup": 5,
        "learning_rate": 0.01,
        "epochs": 2,
        "checkpoint_every": 4,
        "tensorboard": False,
    }
    return TranslationOptions(out=str(out), data=str(corpus), **{**tiny, **changes})


def arguments(chosen):
    """The same options as command-line arguments."""
    given = []
    for name, value in {"out": chosen.out, **chosen.as_dict()}.items():
        flag = "--" + name.replace("_", "-")
        default = TranslationOptions.__dataclass_fields__[name].default
        if isinstance(value, bool):
            given += [] if value == default else [flag if value else flag.replace("--", "--no-", 1)]
        elif value is not None:
            given += [flag, str(value)]
    return given


def no_translator(model, tokenizer):
    """Scores without the time it takes to translate: validation then ranks by its loss among equal BLEU."""
    return lambda texts: ["rot"] * len(texts)


def train(chosen, callbacks=(), translator=no_translator):
    return task.train(chosen, callbacks=callbacks, translator=translator)


def weights(out):
    return [np.asarray(v) for v in RunFolder(out).load_model().variables]


def assert_same_run(out, other):
    """Weights to 1e-6, and every number of the history and of the scores that is not the machine's."""
    for a, b in zip(weights(out), weights(other), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=0)

    def timeless(record):
        of_the_machine = {"train_seconds", "train_rate", "seconds", "peak_memory_mb"}
        return {name: value for name, value in record.items() if name not in of_the_machine}

    for a, b in zip(RunFolder(out).read_history(), RunFolder(other).read_history(), strict=True):
        assert timeless(a) == pytest.approx(timeless(b), rel=1e-6)
    assert timeless(RunFolder(out).read_metrics()) == pytest.approx(timeless(RunFolder(other).read_metrics()), rel=1e-6)


@pytest.fixture(scope="module")
def undisturbed(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    train(options(corpus, out))
    return out


class At(keras.callbacks.Callback):
    """Does something when the run reaches a step, before that step or after it."""

    def __init__(self, step, action, before=False):
        super().__init__()
        self.step, self.action, self.before = step, action, before

    def _count(self):
        return int(self.model.optimizer.iterations)

    def on_train_batch_begin(self, batch, logs=None):
        if self.before and self._count() == self.step - 1:
            self.action()

    def on_train_batch_end(self, batch, logs=None):
        if not self.before and self._count() == self.step:
            self.action()


def raises(error):
    def action():
        raise error

    return action


# ---- interruptions -----------------------------------------------------------------------------------------------


def test_a_run_that_is_stopped_in_a_step_equals_an_undisturbed_one(corpus, undisturbed, tmp_path, capsys):
    """Ctrl-C while step 7 runs, which is finished and saved: the least of what the next test does."""
    out = tmp_path / "run"
    stop = At(7, lambda: os.kill(os.getpid(), signal.SIGINT), before=True)
    with pytest.raises(KeyboardInterrupt):
        train(options(corpus, out), [stop])
    assert f"interrupted at step 7 (saved); continue with: --resume --out {out}" in capsys.readouterr().out
    train(options(corpus, out, resume=True))
    assert "continuing after step 7" in capsys.readouterr().out
    assert_same_run(out, undisturbed)


@pytest.mark.slow
def test_a_run_that_is_interrupted_in_every_way_equals_an_undisturbed_one(corpus, undisturbed, tmp_path, capsys):
    out = tmp_path / "run"
    checkpoints = CheckpointFolder(RunFolder(out).checkpoints_path)

    def session(*callbacks, expect, translator=no_translator):
        chosen = options(corpus, out, resume=out.exists())
        with pytest.raises(expect):
            train(chosen, callbacks, translator)
        return capsys.readouterr().out

    # It dies at once, without a chance to save: the next session begins at the checkpoint of step 4.
    session(At(6, raises(MemoryError())), expect=MemoryError)
    assert not (out / "model.keras").exists()
    assert checkpoints.load_newest()[1]["steps"] == 4

    # Ctrl-C while step 7 runs: that step is finished and saved.
    printed = session(At(7, lambda: os.kill(os.getpid(), signal.SIGINT), before=True), expect=KeyboardInterrupt)
    assert "continuing after step 4" in printed and "stopping after this step" in printed
    assert f"interrupted at step 7 (saved); continue with: --resume --out {out}" in printed
    assert checkpoints.load_newest()[1]["step"] == 7

    # The checkpoint of the interruption is cut short on disk; then KeyboardInterrupt comes from anywhere.
    path = out / "checkpoints" / "stop-00000007.npz"
    path.write_bytes(path.read_bytes()[:-400])
    printed = session(At(10, raises(KeyboardInterrupt())), expect=KeyboardInterrupt)
    assert "stop-00000007.npz is damaged (truncated or altered); falling back to step-00000004.npz" in printed
    assert checkpoints.load_newest()[1]["step"] == 10

    # In the middle of the first validation: it is done again.
    def interrupted_translator(model, tokenizer):
        return lambda texts: raises(KeyboardInterrupt())()

    printed = session(translator=interrupted_translator, expect=KeyboardInterrupt)
    info = checkpoints.load_newest()[1]
    assert (info["epoch"], info["step"], info["validated"]) == (0, STEPS_PER_EPOCH, -1)
    assert not (out / "history.json").exists()

    # SIGTERM in the second epoch.
    printed = session(
        At(STEPS_PER_EPOCH + 2, lambda: os.kill(os.getpid(), signal.SIGTERM), before=True),
        expect=Terminated,
    )
    assert len(RunFolder(out).read_history()) == 1

    train(options(corpus, out, resume=True))
    assert_same_run(out, undisturbed)


def test_interrupted_in_the_last_validation(corpus, undisturbed, tmp_path):
    """Copies the state of an undisturbed run as it was before its last validation, and resumes it."""
    out = tmp_path / "run"
    shutil.copytree(undisturbed, out)
    for name in ("model.keras", "metrics.json", "history.json"):
        (out / name).unlink()
    checkpoints = CheckpointFolder(out / "checkpoints")
    groups, info = checkpoints.load_newest()
    assert (info["epoch"], info["step"], info["validated"]) == (2, 0, 2 * STEPS_PER_EPOCH)
    older = read_checkpoint(out / "checkpoints" / "step-00000020.npz")[1]
    # What stood there between the last step and the validation: as the saved state, but with the epoch still open.
    info = {**info, "epoch": 1, "step": STEPS_PER_EPOCH, "validated": STEPS_PER_EPOCH}
    info |= {"history": older["history"], "best": older["best"]}
    checkpoints.save(info["steps"], groups, info)
    train(options(corpus, out, resume=True))
    assert_same_run(out, undisturbed)


@pytest.mark.slow
def test_an_average_does_not_depend_on_an_interruption(corpus, tmp_path):
    out = tmp_path / "run"
    chosen = {"average": 3, "steps": 13, "epochs": None, "bleu_every": 0}
    with pytest.raises(KeyboardInterrupt):
        train(options(corpus, out, **chosen), [At(10, raises(KeyboardInterrupt()))])
    assert (out / "checkpoints" / "stop-00000010.npz").exists()
    train(options(corpus, out, resume=True, **chosen))
    names = [path.name for path in CheckpointFolder(out / "checkpoints").regular()]
    assert names == ["step-00000011.npz", "step-00000012.npz", "step-00000013.npz"]
    files = [read_checkpoint(out / "checkpoints" / name)[0]["model"] for name in names]
    got = weights(out)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(files[-1], got))  # it is not just the last one
    for i, array in enumerate(got):
        if np.issubdtype(array.dtype, np.floating):
            np.testing.assert_allclose(array, np.mean([f[i].astype("float64") for f in files], axis=0), atol=1e-6)
    # The budget ended inside the second epoch: the run is evaluated all the same, and says so of its epochs.
    metrics = RunFolder(out).read_metrics()
    assert metrics["steps"] == 13 and metrics["epochs"] == 1 and metrics["validation/loss"] > 0
    # A damaged older checkpoint, seen only when the mean is taken again.
    (out / "metrics.json").unlink()
    older = out / "checkpoints" / names[0]
    older.write_bytes(older.read_bytes()[:1000])
    with pytest.raises(UsageError, match=rf"the last 3 checkpoints cannot be taken.*{names[0]}"):
        train(options(corpus, out, resume=True, **chosen))


class Begun(keras.callbacks.Callback, Exception):
    """Ends a run before its first step."""

    def on_train_begin(self, logs=None):
        raise self


def begun(chosen):
    """The model of a run that ended before its first step, with its folder written."""
    callback = Begun()
    with pytest.raises(Begun):
        train(chosen, [callback])
    return callback.model


def test_a_callback_can_end_training_in_the_middle_of_an_epoch(corpus, tmp_path):
    stops = At(3, lambda: setattr(stops.model, "stop_training", True))
    train(options(corpus, tmp_path / "run"), [stops])
    assert RunFolder(tmp_path / "run").read_metrics()["steps"] == 3


@pytest.mark.parametrize(
    ("given", "in_encoder", "in_decoder", "said"),
    [
        ({"mechanism": "linformer"}, ("linformer", {"rank": 128}), ("auto", {}), True),
        ({"mechanism": "retention"}, ("retention", {"decay": "multi_scale"}), ("retention", {}), False),
        (
            {"mechanism": "linformer:max_length=24,rank=3", "decoder_mechanism": "local:radius=2"},
            ("linformer", {"max_length": 24, "rank": 3}),
            ("local", {"radius": 2}),
            False,
        ),
        ({"decoder_mechanism": "softmax:cache=rolling"}, ("auto", {"dense_bytes": 2**24}), ("softmax", {}), False),
    ],
    ids=str,
)
def test_which_mechanism_is_used_in_which_stack(corpus, tmp_path, capsys, given, in_encoder, in_decoder, said):
    model = begun(options(corpus, tmp_path / "run", **given))
    for stack, (name, attributes) in ((model.encoder_blocks, in_encoder), (model.decoder_blocks, in_decoder)):
        mechanism = stack[0].attention.mechanism
        assert mechanism.registered_name == name
        assert {key: getattr(mechanism, key) for key in attributes} == attributes
    line = "mechanism 'linformer' cannot decode token by token: it is used in the encoder, and 'auto' in the decoder"
    assert (line in capsys.readouterr().out) == said
    stored = RunFolder(tmp_path / "run").read_config()["options"]
    assert {name: stored[name] for name in given} == given


def test_positions_and_carried_scores_reach_the_model_and_are_kept(corpus, tmp_path):
    given = {"positions": "relative", "residual_attention_layers": 1, "layers": 2}
    model = begun(options(corpus, tmp_path / "run", **given))
    assert isinstance(model.decoder_blocks[1].attention.positions, RelativePositionBias)
    config = RunFolder(tmp_path / "run").read_config()
    assert {name: config["options"][name] for name in given} == given
    assert model.get_config()["residual_attention_layers"] == 1
    with pytest.raises(UsageError, match=r"positions \(was relative, is rotary\)"):
        train(options(corpus, tmp_path / "run", **{**given, "positions": "rotary"}, resume=True))


def test_a_mechanism_that_ends_before_the_longest_source_is_refused(corpus, tmp_path):
    with pytest.raises(UsageError, match="2048"):
        train(options(corpus, tmp_path / "run", mechanism="linformer", max_length=2049))
    assert list(tmp_path.iterdir()) == []


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def commanded(corpus, tmp_path_factory):
    """A run by the command line, long enough to learn something, with TensorBoard and real translations."""
    out = tmp_path_factory.mktemp("commanded") / "run"
    changes = {"d_model": 32, "dropout": 0.0, "epochs": 6, "bleu_every": 3, "validation_sentences": 9}
    chosen = options(corpus, out, **changes, tensorboard=True)
    program.main(arguments(chosen))
    return out, chosen


def test_the_loss_falls_and_every_piece_reads_alone(commanded, corpus):
    out, chosen = commanded
    run = RunFolder(out)
    history = run.read_history()
    assert [record["epoch"] for record in history] == [1, 2, 3, 4, 5, 6]
    losses = [record["loss"] for record in history]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.6 * losses[0]
    assert [("val_bleu" in record) for record in history] == [False, False, True, False, False, True]
    metrics = run.read_metrics()
    assert all(isinstance(value, (int, float)) for value in metrics.values())
    for name in ("loss", "accuracy", "bleu", "chrf", "exact_match"):
        assert np.isfinite(metrics[f"test/{name}"]) and np.isfinite(metrics[f"validation/{name}"])
    assert metrics["test/accuracy"] > 0.5 and metrics["train_rate"] > 0
    config = run.read_config()
    assert config["options"] == chosen.as_dict()
    assert set(config["versions"]) == {"keras_attention", "keras", "tensorflow", "python"}
    model = run.load_model()
    assert metrics["parameters"] == model.count_params() and not model.compiled
    assert type(model).from_config(config["model"]).get_config() == model.get_config()
    assert SentencePieceTokenizer.load(run.tokenizer_path).vocab_size == model.target_vocab_size

    assert all(list((run.logs_path / split).glob("events.*")) for split in ("train", "validation"))

    # The model on disk is the one whose scores stand in metrics.json.
    splits = task.load_corpus(chosen).splits
    answers = Translator.load(out)(splits["test"].sources)
    right = [a == b for a, b in zip(answers, splits["test"].targets)]
    assert metrics["test/exact_match"] == pytest.approx(np.mean(right))


def test_a_finished_run_says_so(commanded, capsys):
    out, _ = commanded
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    program.main(["--out", str(out), "--resume"])
    assert f"{out} is finished: 66 steps, as its options say." in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_more_test_sentences_of_a_finished_run_are_translated(commanded, tmp_path):
    out, _ = commanded
    shutil.copytree(out, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    before, weights = run.read_metrics(), run.load_model().get_weights()
    program.main(["--out", str(run), "--resume", "--test-sentences", "2"])
    after = run.read_metrics()
    assert run.read_config()["options"]["test_sentences"] == 2
    assert after["test/exact_match"] in (0, 0.5, 1) and after["test/exact_match"] != before["test/exact_match"]
    assert after["steps"] == before["steps"] and after["validation/loss"] == pytest.approx(before["validation/loss"])
    for one, other in zip(weights, run.load_model().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pair_beyond_the_budget_is_told_for_every_split(tmp_path, capsys):
    """Not that the split is empty: without it there would be no validation."""
    rng, path = np.random.default_rng(0), tmp_path / "long.tsv"
    words = ["ab", "cd", "ef", "gh"]
    short = [" ".join(rng.choice(words, 5)) for _ in range(300)]
    path.write_text("".join(f"{text} {i}\t{text} {i}\n" for i, text in enumerate(short)), encoding="utf-8")
    splits = task.load_corpus(TranslationOptions(out="x", data=str(path), validation_share=0.1)).splits
    held_out = splits["validation"].sources[0]
    long = path.read_text(encoding="utf-8").replace(f"\t{held_out}\n", f"\t{held_out}{' ab' * 200}\n")
    path.write_text(long, encoding="utf-8")
    flags = ["--validation-share", "0.1", "--max-length", "900", "--tokens-per-batch", "60", "--vocab-size", "40"]
    message = exits(["--out", str(tmp_path / "run"), "--data", str(path), *flags], capsys)
    assert "the longest pair has" in message and "more than tokens_per_batch=60" in message


def exits(argv, capsys):
    """The one line that a command with exit code 2 prints."""
    with pytest.raises(SystemExit) as end:
        program.main(argv)
    assert end.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    return lines[0]


def test_a_taken_folder_and_changed_options_are_refused(commanded, corpus, capsys, tmp_path):
    out, chosen = commanded
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    assert "already holds a training run. Use --resume" in exits(arguments(chosen), capsys)
    changed = exits(["--out", str(out), "--resume", "--d-model", "64", "--seed", "3", "--epochs", "9"], capsys)
    assert "--seed (was 0, is 3), --d-model (was 32, is 64)" in changed and "epochs" not in changed
    other = tmp_path / "other.tsv"
    other.write_text(corpus.read_text(encoding="utf-8").replace("cat", "cats"), encoding="utf-8")
    message = exits(["--out", str(out), "--resume", "--data", str(other), "--epochs", "9"], capsys)
    assert "The data are not those that the run" in message
    assert before == {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_what_is_missing_or_damaged_is_named(commanded, capsys, tmp_path):
    out, _ = commanded
    resume = ["--out", str(tmp_path / "run"), "--resume", "--epochs", "9"]
    assert "does not exist" in exits(resume, capsys)

    def damaged(name, content=None):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(out, tmp_path / "run")
        for path in (tmp_path / "run").glob(name):
            path.unlink() if content is None else path.write_bytes(content)
        return exits(resume, capsys)

    assert "has no config.json" in damaged("config.json")
    assert "config.json is damaged" in damaged("config.json", b"{")
    assert "has no tokenizer.model" in damaged("tokenizer.model")
    assert "has no checkpoints left to resume from" in damaged("checkpoints/*.npz")
    assert "None of the checkpoints in" in damaged("checkpoints/s*.npz", b"PK\x03\x04")


def test_bad_input_is_one_line_and_leaves_nothing(capsys, tmp_path, corpus):
    out = str(tmp_path / "run")
    empty, one_column = tmp_path / "empty.tsv", tmp_path / "one.tsv"
    empty.write_text("")
    one_column.write_text("a\nb\n")
    for data, message in [
        (empty, "is empty"),
        (one_column, "no column 2"),
        (tmp_path / "none.tsv", "does not exist"),
    ]:
        assert message in exits(["--out", out, "--data", str(data)], capsys)
    for flags, message in [
        (["--d-model", "30", "--heads", "4"], "--d-model must be divisible by --heads. Got 30 and 4"),
        (["--precision", "float8"], "--precision must be one of float32, mixed_float16, mixed_bfloat16. Got float8"),
        (["--label-smoothing", "1"], "--label-smoothing must be at least 0 and below 1. Got 1.0"),
        (["--mechanism", "magic"], "magic"),
        (["--mechanism", "local:radius"], "options are written NAME:KEY=VALUE,KEY=VALUE. Got 'local:radius'"),
        (["--mechanism", "auto:radius=3"], "'auto' chooses by itself and takes no options. Got 'auto:radius=3'"),
        (["--decoder-mechanism", "lsh"], "--decoder-mechanism lsh cannot decode token by token. Give auto or one of s"),
        (
            ["--positions", "rope"],
            "--positions must be one of sinusoidal, learned, none, alibi, relative, rotary. Got r",
        ),
        (["--positions", "alibi", "--mechanism", "linear"], "'linear' does not support positions='alibi'; use mech"),
        (["--residual-attention-layers", "4"], "Got residual_attention_layers=4, num_encoder_layers=3"),
        (["--mechanism", "axial"], "--mechanism axial attends over a grid, which a sentence does not have"),
        (["--bleu-tokenizer", "13b"], "--bleu-tokenizer must be one of auto, 13a, zh, char, intl, none. Got 13b"),
        (["--source", "1"], "--source and --target are both column 1"),
        (["--source-file", "x"], "--source-file and --target-file belong together"),
        (["--locales", "en"], "--locales must be two locales with a comma between"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (
            ["--cooldown", "9", "--steps", "50", "--epochs", "1"],
            "--cooldown is counted back from --steps, and --epochs",
        ),
        (["--cooldown", "9", "--steps", "50", "--minutes", "1"], "and --minutes could end the run before it"),
        (["--validation-share", "0", "--bleu-every", "3"], "--bleu-every would have no effect: --validation-share 0"),
        (["--phrases", "99"], "--phrases would have no effect: the sentences come from --data"),
    ]:
        assert message in exits(["--out", out, "--data", str(corpus), *flags], capsys)
    assert "cannot be reached (File name too long). Give another --out" in exits(["--out", "x" * 300], capsys)
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbf\n")
    both = ["--source-file", str(tmp_path / "mark.txt"), "--target-file", str(tmp_path / "mark.txt")]
    assert "mark.txt: no line has text in it; give files with sentence" in exits(["--out", out, *both], capsys)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty.tsv", "mark.txt", "one.tsv"]
    with pytest.raises(UsageError, match="--out needs the name of a folder"):
        TranslationOptions(out="")


# ---- other precisions, compiled steps ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"precision": "mixed_float16"}, {"jit_compile": True}], ids=str)
def test_interrupted_in_half_precision_or_compiled(corpus, tmp_path, changes):
    chosen = {"steps": 9, "epochs": None, **changes}
    train(options(corpus, tmp_path / "whole", **chosen))
    with pytest.raises(KeyboardInterrupt):
        train(options(corpus, tmp_path / "broken", **chosen), [At(6, raises(KeyboardInterrupt()))])
    train(options(corpus, tmp_path / "broken", resume=True, **chosen))
    assert_same_run(tmp_path / "whole", tmp_path / "broken")
    policy = RunFolder(tmp_path / "whole").load_model().dtype_policy.name
    assert policy == changes.get("precision", "float32") and keras.config.dtype_policy().name == "float32"


def test_embedded_phrases_and_a_budget_of_time(tmp_path, capsys):
    out = tmp_path / "run"
    share = TranslationOptions(out="unused").test_share  # of a file; the phrases bring their own split
    limits = {"minutes": 1e-3, "epochs": None, "tokens_per_batch": 4096, "test_sentences": 50, "remat": True}
    chosen = options("embedded", out, phrases=300, vocab_size=300, validation_share=share, test_share=share, **limits)
    metrics = train(chosen)
    assert metrics["steps"] == 1 and metrics["epochs"] in (0, 1)  # the first step uses it up; scores come all the same
    assert metrics == RunFolder(out).read_metrics()
    assert RunFolder(out).load_model().encoder_blocks[0].remat
    kinds = [name for name in metrics if name.startswith("test/exact_match/")]
    assert len(kinds) >= 8


@pytest.mark.slow
def test_a_finished_run_can_be_made_longer(corpus, undisturbed, tmp_path):
    train(options(corpus, tmp_path / "long", epochs=3))
    shutil.copytree(undisturbed, tmp_path / "longer")
    train(options(corpus, tmp_path / "longer", resume=True, epochs=3))
    assert_same_run(tmp_path / "long", tmp_path / "longer")
    assert RunFolder(tmp_path / "longer").read_config()["options"]["epochs"] == 3  # the next --resume goes by it


def test_without_sacrebleu_the_loss_decides_and_one_line_says_so(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    found = train(options(corpus, tmp_path / "run", epochs=1))
    printed = capsys.readouterr().out
    assert printed.count("pip install 'keras-attention[translation]'") == 1 and "no BLEU" in printed
    assert "validation/loss" in found and "test/exact_match" in found
    assert not any("bleu" in name or "chrf" in name for name in found)
    assert "val_loss" in RunFolder(tmp_path / "run").read_history()[-1]

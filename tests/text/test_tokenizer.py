"""The tokenizer: its two doors agree, odd text is safe, and a served graph carries its own model."""

import copy
import subprocess
import sys
import unicodedata
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.text import BOS_ID, EOS_ID, PAD_ID, UNK_ID, SentencePieceTokenizer
from keras_attention.text.learning import _sample

WORDS = "der die das école straße année ÉCOLE the cat sat on a hat where 1984 2024 17:30 naïve ünïcode"
ODD_TEXTS = [
    "",
    " \t ",
    "a\u00a0cat",
    "\ufeffthe cat",
    "e\u0301cole",
    "the\ncat\r\nsat",
    "日本 😀 ∑",
    "<s> </s> <pad> \u2581",
    "\0the",
    "cat" * 34,
    "1234567890",
    "ﬁne ½ №",
    "STRAẞE ᾼ İ",
]


def corpus(rng, count=400):
    return [" ".join(rng.choice(WORDS.split(), size=rng.integers(1, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer.train(corpus(np.random.default_rng(5)), 46)


@pytest.fixture(scope="module")
def folding():
    return SentencePieceTokenizer.train(corpus(np.random.default_rng(5)), 46, normalization="nmt_nfkc_cf")


def rows(ids):
    """Lists of ids without padding."""
    return [[int(id) for id in row if id != PAD_ID] for row in np.asarray(ids)]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("byte_fallback", [False, True], ids=["unknown", "bytes"])
@pytest.mark.parametrize("normalization", ["nmt_nfkc", "nmt_nfkc_cf"])
def test_python_and_graph_agree(rng, model_type, byte_fallback, normalization):
    size = 46 + 256 * byte_fallback
    tokenizer = SentencePieceTokenizer.train(
        corpus(rng), size, model_type=model_type, byte_fallback=byte_fallback, normalization=normalization
    )
    texts = corpus(rng, 30) + ODD_TEXTS
    ids = tokenizer.encode(texts)
    assert tokenizer.vocab_size == size
    assert rows(tokenizer.tokenize(texts)) == [[BOS_ID, *row, EOS_ID] for row in ids]
    assert rows(tokenizer.tokenize(texts, add_bos=False)) == [[*row, EOS_ID] for row in ids]
    assert rows(tokenizer.tokenize(texts, add_eos=False, add_bos=False)) == ids
    in_graph = tokenizer.detokenize(tokenizer.tokenize(texts)).numpy()
    assert [text.decode() for text in in_graph] == tokenizer.decode(ids)
    if byte_fallback:
        assert not any(UNK_ID in row for row in ids)
        assert tokenizer.decode(tokenizer.encode(["日本 😀"])) == ["日本 😀"]


def test_known_text_survives_the_round_trip(rng, tokenizer):
    texts = corpus(rng, 50)
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


def test_digits_are_single_ids(tokenizer):
    (ids,) = tokenizer.encode(["1984 2024 17:30"])
    pieces = [tokenizer.piece(id).replace("\u2581", "") for id in ids]
    assert [piece for piece in pieces if piece.isdigit()] == list("1984202417") + list("30")


# The next tests, to that of wrong arguments, hold public report case 50: spellings, white space, empty and long texts.


def test_two_spellings_of_a_letter_are_one(tokenizer):
    for text in ("école", "naïve année", "ünïcode"):
        decomposed = unicodedata.normalize("NFD", text)
        assert decomposed != text
        assert tokenizer.encode([decomposed]) == tokenizer.encode([text])


def test_white_space_and_byte_order_mark_do_not_matter(tokenizer):
    plain = tokenizer.encode(["the cat"])[0]
    assert UNK_ID not in plain
    for text in ("the\u00a0cat", "\ufeffthe cat", "the \t cat ", "\u3000the\ncat"):
        assert tokenizer.encode([text]) == [plain]


def test_case_folding_agrees_with_unicode(folding):
    for text in ("ÉCOLE", "Straße", "THE Cat", "E\u0301COLE", "ﬁne", "STRAẞE", "ᾼ"):
        folded = unicodedata.normalize("NFKC", text).casefold()
        assert folding.encode([text]) == folding.encode([folded])
        assert rows(folding.tokenize([text])) == rows(folding.tokenize([folded]))
    assert folding.encode(["STRASSE"]) == folding.encode(["straße"])


def test_case_is_kept_by_default(tokenizer):
    assert tokenizer.encode(["ÉCOLE"]) != tokenizer.encode(["école"])


@pytest.mark.parametrize("text", ["", " \t "], ids=repr)
def test_empty_text_still_has_begin_and_end(tokenizer, text):
    assert tokenizer.tokenize([text]).numpy().tolist() == [[BOS_ID, EOS_ID]]
    assert tokenizer.encode([text]) == [[]]
    assert tokenizer.detokenize([[BOS_ID, EOS_ID]]).numpy().tolist() == [b""]


def test_an_empty_batch_stays_empty(tokenizer):
    assert tokenizer.tokenize(tf.constant([], tf.string)).shape[0] == 0
    assert tokenizer.detokenize(tf.zeros([0, 4], tf.int32)).shape == (0,)


def test_a_scalar_gives_one_row(tokenizer):
    row = tokenizer.tokenize("the cat")
    assert row.shape.rank == 1
    assert row.numpy().tolist() == [BOS_ID, *tokenizer.encode(["the cat"])[0], EOS_ID]
    assert tokenizer.detokenize(row).numpy() == b"the cat"


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_ids_outside_of_the_vocabulary_count_as_unknown(tokenizer, dtype):
    (word,) = tokenizer.encode(["cat"])
    ids = [
        [*word, tokenizer.vocab_size, -1, 2**31 - 1, EOS_ID, 7, 7],
        [BOS_ID, *word, *[PAD_ID] * (7 - len(word)), 99999],
    ]
    ids = [row[:8] + [PAD_ID] * (8 - len(row)) for row in ids]
    got = [text.decode() for text in tokenizer.detokenize(tf.constant(ids, dtype)).numpy()]
    assert got == tokenizer.decode(ids)
    assert got[0].startswith("cat") and got[0].count("\u2047") == 3
    assert got[1].startswith("cat")


def test_text_after_the_end_of_sentence_is_left_out(tokenizer):
    (cat,), (hat,) = (tokenizer.encode([word]) for word in ("cat", "hat"))
    assert tokenizer.decode([[*cat, EOS_ID, *hat]]) == ["cat"]
    assert tokenizer.detokenize([[*cat, EOS_ID, *hat]]).numpy().tolist() == [b"cat"]


def test_long_text_and_long_words(tokenizer):
    long = ("the cat sat " * 900)[:10_000]
    word = "h" + "at" * 50
    ids = tokenizer.encode([long, word])
    assert rows(tokenizer.tokenize([long, word])) == [[BOS_ID, *row, EOS_ID] for row in ids]
    assert tokenizer.decode(ids) == [long.strip(), word]
    assert UNK_ID not in ids[1]


@pytest.mark.parametrize("truncate", [3, 5, 400])
def test_truncation_keeps_the_end_of_sentence(tokenizer, truncate):
    texts = ["where the cat sat on a hat", "the", ""]
    expected = [[BOS_ID, *row[: truncate - 2], EOS_ID] for row in tokenizer.encode(texts)]
    assert rows(tokenizer.tokenize(texts, truncate=truncate)) == expected
    with pytest.raises(ValueError, match=r"truncate must leave room .* Got truncate=2; use 3 or more"):
        tokenizer.tokenize(texts, truncate=2)


def test_wrong_arguments_are_explained(tokenizer):
    with pytest.raises(TypeError, match=r"takes a list of texts. Got str; write encode\(\[text\]\)"):
        tokenizer.encode("the cat")
    with pytest.raises(TypeError, match=r"ids must be integers. Got dtype float32"):
        tokenizer.detokenize(tf.zeros([2, 3]))
    with pytest.raises(ValueError, match=r"of shape \[B\]. Got shape \(1, 2\)"):
        tokenizer.tokenize([["a", "b"]])
    with pytest.raises(ValueError, match=r"shape \[B, N\] or \[N\]. Got shape \(\)"):
        tokenizer.detokenize(3)


def test_invalid_utf8_and_lone_surrogates_do_not_crash(tokenizer):
    assert tokenizer.tokenize([b"\xff\xfe the cat \xc3"]).shape[0] == 1
    (ids,) = tokenizer.encode(["the \ud800 cat"])
    assert tokenizer.decode([ids])[0].startswith("the") and tokenizer.decode([ids])[0].endswith("cat")


def test_works_inside_a_traced_function_with_unknown_batch_size(tokenizer):
    fresh = SentencePieceTokenizer(tokenizer.model)  # without an eager call before
    echo = tf.function(
        lambda texts: fresh.detokenize(fresh.tokenize(texts)), input_signature=[tf.TensorSpec([None], tf.string)]
    )
    assert echo(tf.constant(["the cat"])).numpy().tolist() == [b"the cat"]
    assert echo(tf.constant(["a", "", "on a hat"])).numpy().tolist() == [b"a", b"", b"on a hat"]
    # What was made while tracing serves outside of the traced function too.
    assert rows(fresh.tokenize(["the cat"])) == rows(tokenizer.tokenize(["the cat"]))


@pytest.mark.parametrize("drop_kernels", [lambda: keras.utils.set_random_seed(3), keras.utils.clear_session])
def test_it_outlives_the_kernels_that_keras_throws_away(tmp_path, tokenizer, drop_kernels):
    texts = tf.constant(["the cat", "", "on a hat"])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def echo(texts):
        return tokenizer.detokenize(tokenizer.tokenize(texts))

    holder = tf.Module()
    holder.echo = echo
    tf.saved_model.save(holder, tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved")
    data = tf.data.Dataset.from_tensor_slices(texts).batch(2).map(tokenizer.tokenize)
    ways = {
        "eager": lambda: tokenizer.detokenize(tokenizer.tokenize(texts)),
        "function": lambda: echo(texts),
        "loaded": lambda: loaded.echo(texts),
        "dataset": lambda: tf.concat([tokenizer.detokenize(ids) for ids in data], axis=0),
    }
    batches = iter(data)
    next(batches)
    for when in ("before", "after"):
        for name, way in ways.items():
            assert way().numpy().tolist() == [b"the cat", b"", b"on a hat"], (when, name)
        if when == "before":
            drop_kernels()
    assert rows(next(batches)) == rows(tokenizer.tokenize(["on a hat"]))  # an iterator goes on, too


def test_saved_model_carries_the_tokenizer(tmp_path, tokenizer):
    """A new process, without this package and with the tokenizer's file deleted, reads strings and writes strings."""
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    module = tf.Module()
    module.tokenizer = SentencePieceTokenizer.load(path)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def echo(text):
        ids = module.tokenizer.tokenize(text)
        return {"ids": ids, "text": module.tokenizer.detokenize(ids)}

    tf.saved_model.save(module, tmp_path / "saved", signatures={"serving_default": echo})
    path.unlink()
    code = (
        "import sys, tensorflow as tf, tensorflow_text\n"
        "sys.modules['keras_attention'] = None\n"
        "out = tf.saved_model.load(sys.argv[1]).signatures['serving_default'](text=tf.constant(['the cat', '']))\n"
        "print(out['ids'].numpy().tolist(), [t.decode() for t in out['text'].numpy()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "saved"], capture_output=True, text=True, cwd=tmp_path
    )
    expected = tokenizer.tokenize(["the cat", ""]).numpy().tolist()
    assert done.stdout.strip() == f"{expected} {['the cat', '']}", done.stderr[-2000:]


def test_save_load_and_copy(tmp_path, tokenizer):
    path = tmp_path / "tokenizer.model"
    tokenizer.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.model"]
    for other in (SentencePieceTokenizer.load(path), copy.deepcopy(tokenizer)):
        assert other.model == tokenizer.model
        assert other.encode(["the cat"]) == tokenizer.encode(["the cat"])
    with pytest.raises(UsageError, match=r"tokenizer file .*no/tokenizer.model cannot be written: No such file"):
        tokenizer.save(tmp_path / "no" / "tokenizer.model")


def test_a_bad_tokenizer_file_is_one_clear_error(tmp_path, tokenizer):
    path = tmp_path / "tokenizer.model"
    with pytest.raises(UsageError, match=f"tokenizer file {path} does not exist"):
        SentencePieceTokenizer.load(path)
    with pytest.raises(UsageError, match=f"tokenizer file {tmp_path} cannot be read: Is a directory"):
        SentencePieceTokenizer.load(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(UsageError, match=f"tokenizer file {path} is empty"):
        SentencePieceTokenizer.load(path)
    for bad in (b"the cat\n" * 9, bytes(range(256)) * 20, b"\0" * 100):
        path.write_bytes(bad)
        with pytest.raises(UsageError, match=f"tokenizer file {path} is not a complete SentencePiece model"):
            SentencePieceTokenizer.load(path)


def test_a_truncated_file_is_refused_wherever_it_ends(tokenizer):
    """Also where it ends between two fields, which the file format itself cannot see."""
    size = len(tokenizer.model)
    for end in [*range(1, 2500), *range(2500, size, 4001), *range(size - 40, size)]:
        with pytest.raises(UsageError):
            SentencePieceTokenizer(tokenizer.model[:end])


def test_a_foreign_model_is_refused(data_dir):
    with pytest.raises(UsageError, match="expected pad=0, unk=1, bos=2, eos=3"):
        SentencePieceTokenizer.load(data_dir / "tokenizers" / "sentencepiece_test_model.model")


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_too_large_a_vocabulary_is_reduced_and_said(model_type):
    with pytest.warns(UserWarning, match="too small for a vocabulary of 5000: the tokenizer has") as caught:
        tokenizer = SentencePieceTokenizer.train(["the cat sat", "on a hat"] * 20, 5000, model_type=model_type)
    assert f"has {tokenizer.vocab_size} entries" in str(caught[0].message)
    assert tokenizer.decode(tokenizer.encode(["the cat sat"])) == ["the cat sat"]


def test_training_options_are_checked():
    train = SentencePieceTokenizer.train
    with pytest.raises(UsageError, match="unknown tokenizer model type 'word': use one of unigram, bpe"):
        train(["a"], 10, model_type="word")
    with pytest.raises(UsageError, match=r"unknown normalization 'nfd': use one of nmt_nfkc, nmt_nfkc_cf"):
        train(["a"], 10, normalization="nfd")
    with pytest.raises(UsageError, match=r"vocab_size must be a positive whole number. Got 0"):
        train(["a"], 0)
    with pytest.raises(UsageError, match=r"character_coverage must be from 0.98 to 1. Got 2"):
        train(["a"], 10, character_coverage=2)
    with pytest.raises(UsageError, match="vocab_size=8 is too small: the characters of the corpus alone need 31"):
        train(["the quick brown fox jumps over the lazy dog"], 8)
    for empty in ([], ["", " \t"]):
        with pytest.raises(UsageError, match="no text to train a tokenizer on"):
            train(empty, 100)


def test_training_is_deterministic_and_quiet(rng, capfd):
    sentences = corpus(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        models = {SentencePieceTokenizer.train(sentences, 46, max_sentences=300, seed=3).model for _ in range(3)}
    assert len(models) == 1
    assert models != {SentencePieceTokenizer.train(sentences, 46, max_sentences=300, seed=4).model}
    assert capfd.readouterr() == ("", "")


def test_training_text_may_hold_anything():
    sentences = ["tab\there", "line\nend\r\n", "nul\0byte", "\ud800", "x" * 9000, "<s> </s> \u2581", ""] * 3
    with pytest.warns(UserWarning, match="the tokenizer has 21 entries"):
        tokenizer = SentencePieceTokenizer.train(sentences, 60)
    assert tokenizer.decode(tokenizer.encode(["tab\there", "line end"])) == ["tab here", "line end"]


def test_many_characters_lower_the_coverage():
    """A few thousand rare characters must not take the whole vocabulary; with coverage 1 they would not even fit."""
    rare = "".join(chr(0x4E00 + index) for index in range(200))
    sentences = ["the cat sat on a hat " * 40] * 600 + [rare]
    with pytest.warns(UserWarning, match="the tokenizer has 15 entries"):
        tokenizer = SentencePieceTokenizer.train(sentences, 100)
    assert UNK_ID not in tokenizer.encode(["the cat sat on a hat"])[0]
    assert tokenizer.encode([rare[5]])[0][-1] == UNK_ID


def test_sample_is_fair_and_bounded():
    """Each of 40 items is kept with chance 10/40: over 2,000 draws within five standard deviations."""
    counts = np.zeros(40)
    for seed in range(2000):
        kept = _sample(iter(range(40)), 10, seed)
        assert len(set(kept)) == 10
        counts[kept] += 1
    assert np.all(np.abs(counts - 500) < 5 * np.sqrt(2000 * 0.25 * 0.75))
    assert _sample(range(7), 10, 0) == list(range(7))

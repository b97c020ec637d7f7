import json

import pytest

from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer


@pytest.fixture(scope="package")
def run_folder(tmp_path_factory):
    """What training leaves: a small random model, its tokenizer and its config."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    folder.mkdir()
    tokenizer = SentencePieceTokenizer.train(["one two three", "four five six", "seven eight"] * 4, vocab_size=32)
    size = tokenizer.vocab_size
    model = Transformer(
        size, size, d_model=16, num_heads=2, num_encoder_layers=1, num_decoder_layers=1, mlp_dim=24, max_length=12
    )
    model.build()
    model.save(folder / "model.keras")
    tokenizer.save(folder / "tokenizer.model")
    (folder / "config.json").write_text(json.dumps({"options": {}}), encoding="utf-8")
    return folder

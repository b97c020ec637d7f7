"""Models that earlier releases saved load today, and answer as they did."""

import json
import zipfile

import keras
import numpy as np
import pytest
import save_release

import keras_attention
import keras_attention.models  # registers what the files name

FILES = sorted(save_release.FOLDER.glob("*/*.keras"))


def test_this_release_is_stored():
    stored = {(path.parent.name, path.stem) for path in FILES}
    wanted = {(keras_attention.__version__, name) for name in save_release.MODELS}
    assert wanted <= stored, "run `python tests/support/save_release.py` and commit the folder"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_stored_models_answer_as_they_did(path):
    with np.load(path.with_suffix(".npz")) as numbers:
        inputs = {name: numbers[name] for name in numbers.files if name != "output"}
        want = numbers["output"]
    model = keras.models.load_model(path)
    absolute = relative = 1e-5
    if "bfloat16" in zipfile.ZipFile(path).read("config.json").decode():
        # Eight bits a number, and processors with products of bfloat16 round in other places than those without. What
        # a layer adds up has the size of its largest numbers, and so have the differences, in small results too.
        absolute, relative = 2e-2 * np.abs(want).max(), 0
    np.testing.assert_allclose(save_release.call(model, inputs), want, rtol=relative, atol=absolute)
    assert path.stat().st_size < 500_000
    # What a file says of our classes must stay findable under the registered names.
    config = json.loads(zipfile.ZipFile(path).read("config.json"))
    assert "keras_attention>" in json.dumps(config)

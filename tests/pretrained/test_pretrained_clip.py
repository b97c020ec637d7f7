"""CLIP with the weights of a Hugging Face CLIPModel, against what that gives in every stage."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.pretrained import load_clip
from keras_attention.pretrained.hugging_face import read_tensors

FOLDER = Path(__file__).parents[1] / "fixtures" / "hf_clip"  # written by make_hf_clip.py


@pytest.fixture(scope="module")
def stages():
    return dict(np.load(FOLDER / "reference.npz"))


@pytest.fixture(scope="module")
def model():
    return load_clip(FOLDER)


def close(got, want):
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-5)


def test_every_stage_of_the_image_tower(model, stages):
    images = stages["images"].transpose(0, 2, 3, 1)
    states = model.image_tower.hidden_states(images)
    assert len(states) == 3
    for i, state in enumerate(states):
        close(state, stages[f"vision/{i}"])
    close(model.image_tower(images), stages["vision/pooled"])
    close(model.encode_image(images), stages["image_embeds"])


@pytest.mark.parametrize("masked", [True, False])
def test_every_stage_of_the_text_tower(model, stages, masked):
    """Without the mask too: what stands after the end of a text has no influence."""
    mask = stages["mask"] if masked else None
    states = model.text_tower.hidden_states(stages["text"], mask)
    assert len(states) == 4
    real = stages["mask"][:, :, None] != 0
    for i, state in enumerate(states):
        close(np.where(real, state, 0), np.where(real, stages[f"text/{i}"], 0))
    close(model.text_tower(stages["text"], mask), stages["text/pooled"])
    close(model.encode_text(stages["text"], mask), stages["text_embeds"])


def test_the_similarities(model, stages):
    logits = model.similarities(stages["image_embeds"], stages["text_embeds"])
    close(logits, stages["logits_per_image"])
    close(tf.transpose(logits), stages["logits_per_text"])


def test_an_older_config_and_precision(stages, tmp_path):
    """Configs of the first years leave out what is usual, and say 2 for the end of a text: the largest id."""
    shutil.copytree(FOLDER, tmp_path / "old")
    config = json.loads((FOLDER / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 2
    config["text_config"].pop("hidden_act")
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    model = load_clip(tmp_path / "old", dtype="mixed_bfloat16", name="old")
    assert model.text_tower.eos_id is None and model.name == "old"
    assert model.text_tower.blocks[0].compute_dtype == "bfloat16"
    got = model.encode_image(stages["images"].transpose(0, 2, 3, 1))
    assert np.sum(got * stages["image_embeds"], axis=1).min() > 0.999


def test_the_largest_id_ends_a_text_whatever_the_vocabulary_grew_to(tmp_path):
    """Case 55: a config of the first years (end of text 2, ten ids) whose vocabulary was grown by two."""
    shutil.copytree(FOLDER, tmp_path / "old")
    config = json.loads((FOLDER / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 2
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    tower = load_clip(tmp_path / "old").text_tower
    assert tower.vocab_size > 12  # ids 10 and more were added and are in no text
    texts = np.array([[8, 5, 6, 9, 9, 9], [3, 9, 4, 4, 4, 4], [7, 7, 2, 1, 0, 0]])
    states = tower.features(texts).numpy()
    close(tower(texts), states[np.arange(3), [3, 1, 0]])
    mask = np.array([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1] * 6])
    states = tower.features(texts, mask).numpy()
    close(tower(texts, text_mask=mask), states[np.arange(3), [3, 2, 0]])
    again = type(tower).from_config(tower.get_config())
    assert again.eos_id is None


def test_arguments_that_the_folder_decides():
    for name in ("image_tower", "projection_dim", "eos_id"):
        with pytest.raises(UsageError, match=rf"^{name}= cannot be given: the files of .*Known are name, dtype\.$"):
            load_clip(FOLDER, **{name: 3})


def rewritten(folder, change):
    """A copy of the fixture whose header of tensors has been changed."""
    shutil.copytree(FOLDER, folder)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return folder


def test_all_that_does_not_match_is_listed(tmp_path):
    def change(header):
        header["something.else"] = header.pop("logit_scale")
        header["visual_projection.weight"]["shape"].reverse()
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        header["vision_model.embeddings.position_ids"] = {"dtype": "I64", "shape": [0], "data_offsets": [end, end]}

    with pytest.raises(UsageError) as error:
        load_clip(rewritten(tmp_path / "other", change))
    for fault in (
        "logit_scale is missing",
        "something.else has no place in the model",
        "visual_projection.weight has shape (16, 10) where (10, 16) is expected",
    ):
        assert fault in str(error.value)
    assert "position_ids" not in str(error.value)


def test_bad_folders_are_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere/config.json does not exist"):
        load_clip(tmp_path / "nowhere")
    shutil.copytree(FOLDER, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    content = weights.read_bytes()
    for broken in (content[:-8], content[:100], b"", b"\xff" * 64):
        weights.write_bytes(broken)
        with pytest.raises(UsageError, match=r"model.safetensors is no complete safetensors file"):
            load_clip(tmp_path / "model")
    # Case 113: a header that is shorter or longer than it says, negative and overlapping places, none at all.
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for header, length in (
        ({"a": entry}, 12),
        ({"a": entry}, 10**6),
        ({"a": entry}, 2**63),
        ({"a": {**entry, "data_offsets": [-8, 0]}}, None),
        ({"a": {**entry, "data_offsets": [8, 0]}}, None),
        ({"a": {**entry, "shape": [3]}}, None),
        ({"a": {**entry, "dtype": "F7"}}, None),
        ({"a": 5}, None),
        ([1], None),
    ):
        text = json.dumps(header).encode()
        weights.write_bytes((length or len(text)).to_bytes(8, "little") + text + bytes(8))
        with pytest.raises(UsageError, match=r"model.safetensors is no complete safetensors file") as error:
            load_clip(tmp_path / "model")
        assert "\n" not in str(error.value)
    index = weights.with_name("model.safetensors.index.json")
    for content in ({"weight_map": {"a": 5}}, {"weight_map": ["a"]}, {"weight_map": {"a": ""}}, {}, [], "x"):
        index.write_text(json.dumps(content))
        with pytest.raises(UsageError, match=r"^\S*index.json is damaged: [^\n]*$"):
            load_clip(tmp_path / "model")
    index.unlink()
    weights.unlink()
    with pytest.raises(UsageError, match=r"model.safetensors does not exist"):
        load_clip(tmp_path / "model")
    config = json.loads((FOLDER / "config.json").read_text())
    for changes, message in (
        ({"model_type": "siglip"}, r"must describe a model of type 'clip'. Got 'siglip'"),
        (
            {"text_config": {**config["text_config"], "hidden_act": "swish"}},
            r"hidden_act must be one of .* Got 'swish'",
        ),
        (
            {"text_config": {**config["text_config"], "max_position_embeddings": 10**12}},
            r"No model can be made of \S*config.json and these arguments: ",
        ),
    ):
        (tmp_path / "model" / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(UsageError, match=message):
            load_clip(tmp_path / "model")


def written(path, parts):
    """A safetensors file of (name, dtype, array) parts."""
    entries, data = {"__metadata__": {"format": "pt"}}, b""
    for name, dtype, x in parts:
        entries[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), len(data) + x.nbytes]}
        data += x.tobytes()
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def test_safetensors_of_every_kind_in_several_files(tmp_path):
    double, half = np.arange(6, dtype=np.float64).reshape(2, 3), np.array([1.5, -2], np.float16)
    brain = np.array([1.0, -3.25], np.float32)
    upper = (brain.view(np.uint32) >> 16).astype(np.uint16)
    written(tmp_path / "one.safetensors", [("a", "F64", double), ("b", "F16", half)])
    written(tmp_path / "two.safetensors", [("c", "BF16", upper), ("d", "I64", np.array(7))])
    index = {
        "weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors", "d": "two.safetensors"}
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    read = read_tensors(tmp_path)
    assert {name: x.dtype.name for name, x in read.items()} == {
        "a": "float64",
        "b": "float32",
        "c": "float32",
        "d": "int64",
    }
    for name, want in (("a", double), ("b", half), ("c", brain), ("d", 7)):
        np.testing.assert_array_equal(read[name], want)
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(UsageError, match=r"two.safetensors does not exist"):
        read_tensors(tmp_path)

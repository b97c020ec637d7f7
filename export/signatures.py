"""The signatures of a model that decodes, derived from its own state."""

import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.export.boundary import Endpoint, inward, outward, outward_spec, real_ids
from keras_attention.export.state_names import named, packed
from keras_attention.layers import PositionalEncoding
from keras_attention.ops.basics import checks
from keras_attention.scalars import is_whole

_MEMORY_LENGTHS = "memory_lengths"


def decodes(model):
    """Whether a model offers what `prefill` and `decode_step` are made of."""
    return all(callable(getattr(model, name, None)) for name in ("init_state", "prefill", "step"))


def has_encoder(model):
    """Whether decoding starts from a source sequence: the model then offers `encode`."""
    return decodes(model) and callable(getattr(model, "encode", None))


def capacity_of(model, max_length, texts=False):
    """The size of exported decoding states: the option, or the model's own `max_length`; `texts`: also of sources."""
    capacity = getattr(model, "max_length", None) if max_length is None else max_length
    if not is_whole(capacity, 1):
        raise UsageError(
            f"The decoding state of an export has a fixed size. Got max_length={capacity!r}; give max_length=, the "
            "most positions that a sequence may have."
        )
    if texts and capacity < 3:
        raise UsageError(
            f"The source of a text is its begin, at least one subword, and its end. Got max_length={capacity}; give 3 "
            "or more."
        )
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, PositionalEncoding) and layer.beyond == "error" and layer.max_len < capacity:
            raise UsageError(
                f"The model's learned positions end at {layer.max_len}. Got max_length={capacity}; give "
                f"{layer.max_len} or less."
            )
    return int(capacity)


def decoding_endpoints(model, capacity):
    """`prefill` and `decode_step`, and `encode` for a model with an encoder.

    Every tensor of the state is an input and an output under its dotted name ("layers.0.self.key"); a client feeds the
    outputs back as they came. Its sizes are fixed but for the batch, or belong to the source sequence.

    Args:
        model: offers `init_state(source ids or batch size, max_length=)`, `prefill(tokens, state)` and
            `step(tokens, state)`; with `encode(source ids)` the first argument of `init_state` is the source.
        capacity: positions that a state holds.

    Returns:
        list of `Endpoint`.
    """
    boundary = _StateBoundary()

    def prefill_source(input_ids, input_lengths, target_ids, target_lengths):
        source = real_ids(input_ids, input_lengths)
        logits, state = model.prefill(
            real_ids(target_ids, target_lengths), model.init_state(source, max_length=capacity)
        )
        return {"logits": logits, **boundary.first(state)}

    def prefill_prompt(input_ids, input_lengths):
        ids = real_ids(input_ids, input_lengths)
        logits, state = model.prefill(ids, model.init_state(tf.shape(ids)[0], max_length=capacity))
        return {"logits": logits, **boundary.first(state)}

    def decode_step(token, *tensors):
        logits, state = model.step(token, boundary.inside(tensors))
        return {"logits": logits, **boundary.again(state)}

    endpoints = []
    if has_encoder(model):
        endpoints.append(Endpoint("encode", _encode(model), [*ids_and_lengths("input")]))
        prefill = Endpoint("prefill", prefill_source, [*ids_and_lengths("input"), *ids_and_lengths("target")])
    else:
        prefill = Endpoint("prefill", prefill_prompt, [*ids_and_lengths("input")])
    boundary.fix(prefill.outputs)
    step = Endpoint("decode_step", decode_step, [tf.TensorSpec([None], tf.int32, "token"), *boundary.specs.values()])
    boundary.check_sizes(step.outputs)
    return [*endpoints, prefill, step]


def ids_and_lengths(name):
    """Specs of integer [B, S] ids and of [B], how many of each row are real."""
    return (
        tf.TensorSpec([None, None], tf.int32, f"{name}_ids"),
        tf.TensorSpec([None], tf.int32, f"{name}_lengths"),
    )


def _encode(model):
    def encode(input_ids, input_lengths):
        source = real_ids(input_ids, input_lengths)
        return {"memory": model.encode(source), "mask": tf.not_equal(source, 0)}

    return encode


class _StateBoundary:
    """Takes a model's state apart into named tensors for clients, and puts it together again.

    A state with "memory_valid" [B, S] gets "memory_lengths" [B] beside it, the width that this mask had when it was
    made: a server that joins requests of different widths pads the mask with its first element, which is 1.

    Attributes:
        specs: dict of name -> `TensorSpec` that clients see.
    """

    def __init__(self):
        self.structure, self.dtypes, self.specs = None, {}, {}

    def first(self, state):
        """Named tensors of the state of a prefill, whose structure and dtypes all later ones have."""
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        if isinstance(state, dict) and "memory_valid" in state and _MEMORY_LENGTHS not in state:
            batch, width = checks.sizes(state["memory_valid"])
            state = {**state, _MEMORY_LENGTHS: tf.fill([batch], width)}
        self.structure = state
        tensors = named(state)
        taken = sorted({"logits", "token"} & set(tensors))
        if taken:
            raise UsageError(
                f"The state's tensor {taken[0]!r} has the name of another tensor of decode_step: rename it."
            )
        self.dtypes = {name: x.dtype for name, x in tensors.items()}
        return tensors

    def fix(self, outputs):
        """Takes the clients' view of the state from the outputs of the traced prefill."""
        self.specs = {name: outward_spec(outputs[name], name) for name in self.dtypes}

    def inside(self, tensors):
        """The model's own state from clients' tensors, in the order of `specs`."""
        leaves = {name: inward(x, self.dtypes[name]) for name, x in zip(self.specs, tensors, strict=True)}
        if _MEMORY_LENGTHS in leaves:
            valid = leaves["memory_valid"]
            columns = tf.range(checks.sizes(valid)[1])
            leaves["memory_valid"] = tf.where(columns < leaves[_MEMORY_LENGTHS][:, None], valid, tf.zeros_like(valid))
        state = packed(self.structure, leaves)
        self._memory_lengths = leaves.get(_MEMORY_LENGTHS)
        if self._memory_lengths is not None:
            state.pop(_MEMORY_LENGTHS)
        return state

    def again(self, state):
        """Named tensors of the state after a step, which must be as they were."""
        if self._memory_lengths is not None:
            state = {**state, _MEMORY_LENGTHS: self._memory_lengths}
        tensors = {name: outward(x) for name, x in named(state).items()}
        if set(tensors) != set(self.specs):
            odd = sorted(set(tensors) ^ set(self.specs))[0]
            raise UsageError(f"step must return a state with the tensors it was given: {odd!r} is in one of them only.")
        return tensors

    def check_sizes(self, outputs):
        """Raises where a step changes a size: no server and no loop could feed the state back."""
        for name, spec in self.specs.items():
            before, after = spec.shape, outputs[name].shape
            if before.rank != after.rank or not before.is_compatible_with(after) or spec.dtype != outputs[name].dtype:
                raise UsageError(
                    f"The state's tensor {name!r} is {spec.dtype.name}{before} before a step and "
                    f"{outputs[name].dtype.name}{after} after it. An exported state has a fixed size: init_state must "
                    "honour max_length."
                )

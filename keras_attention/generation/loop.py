"""A while loop whose values may grow."""

import tensorflow as tf


def run_loop(condition, body, values):
    """Call `body` while `condition` holds, as Python does in eager code and as one `tf.while_loop` in a graph.

    A graph's loop insists that every value keeps its shape unless it is told which axes change. A decode state that
    grows by one position a step, a batch size that is known outside and not inside: which axes those are depends on
    the model, so the body is traced once on its own and each axis that comes out different from how it went in is
    left open.

    Args:
        condition: function of the values, returns a boolean scalar.
        body: function of the values, returns the next values, with the same structure and dtypes.
        values: tuple of nested structures of tensors.

    Returns:
        The values after the last turn.

    Raises:
        ValueError: in a graph, when the body returns another structure, or a value of another dtype or rank.
    """
    values = tf.nest.map_structure(tf.convert_to_tensor, values)
    if tf.executing_eagerly():
        while condition(*values):
            values = body(*values)
        return values
    turn = _traced(body, values)
    shapes = tf.nest.map_structure(lambda spec: spec.shape, turn.structured_input_signature[0])
    results = tf.while_loop(
        lambda *flat: condition(*tf.nest.pack_sequence_as(values, flat)),
        lambda *flat: tuple(tf.nest.flatten(turn(*flat))),
        tuple(tf.nest.flatten(values)),
        shape_invariants=shapes,
    )
    return tf.nest.pack_sequence_as(values, results)


def _traced(body, values):
    """`body` as a function of flat values, traced for shapes in which every axis that it changes is left open."""

    # Flat arguments: a state's key may be no valid name for an argument of a graph.
    @tf.function(autograph=False)
    def one_turn(*flat):
        return tf.nest.map_structure(tf.convert_to_tensor, tuple(body(*tf.nest.pack_sequence_as(values, flat))))

    specs = [tf.TensorSpec(value.shape, value.dtype) for value in tf.nest.flatten(values)]
    while True:
        turn = one_turn.get_concrete_function(*specs)
        after = turn.structured_outputs
        try:
            tf.nest.assert_same_structure(values, after)
        except (TypeError, ValueError) as error:
            raise ValueError(f"step must return a state of the structure it was given. {error}") from error
        opened = [_common(before, now) for before, now in zip(specs, tf.nest.flatten(after), strict=True)]
        if opened == specs:
            return turn
        specs = opened


def _common(before, after):
    """The narrowest spec that allows both; each call can only open axes, so repeating it comes to an end."""
    if before.dtype != after.dtype or before.shape.rank != after.shape.rank:
        raise ValueError(
            "step must return every state tensor with the dtype and rank it was given. "
            f"Got {after.dtype.name}{after.shape} for {before.dtype.name}{before.shape}."
        )
    return tf.TensorSpec(before.shape.most_specific_common_supertype([after.shape]), before.dtype)

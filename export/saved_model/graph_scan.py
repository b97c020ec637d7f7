"""What may not be in a served graph, looked for in the file that was written."""

from keras_attention.errors import UsageError

_REMEDY = {
    "compiled": "a server without XLA cannot run it: leave jit_compile=True to compile() or to the training step",
    "random": "an answer would change from call to call: let dropout follow the training argument",
    "assertion": "one bad row would fail the whole batch: take the assertion out of call()",
}
_RANDOM = (
    "Random",
    "StatelessRandom",
    "Multinomial",
    "StatelessMultinomial",
    "TruncatedNormal",
    "ParameterizedTruncated",
)


def findings(path):
    """Yields (kind, operation, function) for each thing in `path`/saved_model.pb that a server cannot run.

    Args:
        path: the folder of one SavedModel.

    Returns:
        pairs of kind ("compiled", "random" or "assertion"), the operation's type, and the function it stands in.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    for meta_graph in saved.meta_graphs:
        graph = meta_graph.graph_def
        yield from _scan(graph.node, "the main graph")
        for function in graph.library.function:
            if function.attr["_XlaMustCompile"].b:
                yield "compiled", "function", function.signature.name
            yield from _scan(function.node_def, function.signature.name)


def _scan(nodes, where):
    for node in nodes:
        if node.op.startswith("Xla") or node.attr["_XlaMustCompile"].b:
            yield "compiled", node.op, where
        elif node.op.startswith(_RANDOM):
            yield "random", node.op, where
        elif node.op == "Assert":
            yield "assertion", node.op, where


def check(path):
    """Raises for the first finding."""
    for kind, operation, where in findings(path):
        raise UsageError(
            f"The exported graph holds {operation} ({kind}) in {where}: {_REMEDY[kind]}. Nothing was written."
        )

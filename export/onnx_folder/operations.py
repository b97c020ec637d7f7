"""TensorFlow operations that tf2onnx does not know, written with those of ONNX."""


def handlers():
    """What tf2onnx takes as `custom_op_handlers`: operation -> (function, arguments)."""
    return {"Erfc": (_erfc, [])}


def _erfc(context, node, name, args):
    """erfc(x) = 1 - erf(x): what Keras' exact GELU is made of."""
    import numpy as np
    from tf2onnx.utils import map_onnx_to_numpy_type

    (given,), output = node.input, node.output[0]
    shape, dtype = context.get_shape(output), context.get_dtype(output)
    context.remove_node(node.name)
    one = context.make_const(f"{name}_one", np.ones([], map_onnx_to_numpy_type(dtype))).output[0]
    erf = context.make_node("Erf", [given], shapes=[shape], dtypes=[dtype]).output[0]
    context.make_node("Sub", [one, erf], outputs=[output], name=node.name, shapes=[shape], dtypes=[dtype])

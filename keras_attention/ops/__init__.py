"""Pure functions of tensors: no weights, no Keras layers, one idea a file."""

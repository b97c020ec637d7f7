"""Writing ONNX folders."""

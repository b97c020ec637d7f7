"""SavedModel and ONNX exports; imported as keras_attention.export."""

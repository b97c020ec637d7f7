"""SavedModel and ONNX exports; imported as keras_attention.export."""

from keras_attention.export.onnx_folder.writer import export_onnx
from keras_attention.export.report import ExportReport
from keras_attention.export.saved_model.writer import export_saved_model

__all__ = ["ExportReport", "export_onnx", "export_saved_model"]

"""Which kind a model is of."""

from keras_attention.export.kinds.clip import ClipPlan
from keras_attention.export.kinds.images import ImageClassifierPlan
from keras_attention.export.kinds.language import LanguagePlan
from keras_attention.export.kinds.own import OwnModelPlan
from keras_attention.export.kinds.translation import TranslationPlan

# The first that takes a model plans its export; the last one takes any.
KINDS = (ClipPlan, ImageClassifierPlan, TranslationPlan, LanguagePlan, OwnModelPlan)


def plan_for(model, given, *, onnx):
    """The `ExportPlan` of a model. Args: see there."""
    kind = next(kind for kind in KINDS if kind.takes(model, given.images, onnx))
    return kind(model, given, onnx=onnx)

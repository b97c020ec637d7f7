"""ONNX folders: an encoder-decoder in the layout of `optimum`, any other Keras model as one file."""

import contextlib

from keras_attention.errors import UsageError, reason_of
from keras_attention.export import folders
from keras_attention.export.kinds.choice import plan_for
from keras_attention.export.onnx_folder import graph
from keras_attention.export.plan import Given
from keras_attention.export.precision import check_finite
from keras_attention.export.report import ExportReport, write_description
from keras_attention.inference.onnx_session import OnnxSession


def export_onnx(
    model,
    path,
    *,
    tokenizer=None,
    beams=None,
    length_penalty=None,
    max_length=None,
    input_signature=None,
    samples=None,
    images=None,
    external_data_over=graph.EXTERNAL_DATA_OVER,
):
    """Writes a folder that ONNX Runtime runs, and for an encoder-decoder `optimum`'s ORTModelForSeq2SeqLM unmodified.

    Every graph is loaded in ONNX Runtime and compared with Keras at three lengths and two batch sizes before the folder
    gets its name; operations that ONNX does not have are an error that names them.

    A `keras_attention.models.Transformer` becomes encoder_model.onnx, decoder_model.onnx (the first tokens) and
    decoder_with_past_model.onnx (one token more), with their keys and values as inputs and outputs, config.json,
    generation_config.json and tokenizer.model. Ids and masks are int64, numbers float32: a model of mixed precision is
    written in float32, in which its weights are kept anyway. Where keys and values have fewer heads than queries they
    are repeated, as the layout cannot say it. Decoders whose state is not growing keys and values are refused.

    A `keras_attention.models.CLIP` becomes model.onnx, from input_ids, pixel_values and attention_mask to
    logits_per_image, logits_per_text, text_embeds and image_embeds, and its towers alone: text_model.onnx and
    vision_model.onnx; `pixel_values` are normalized, and all vectors have length one.

    A classifier of images, which is any `keras.Model` given with `images`, becomes model.onnx from `pixel_values`
    float32 [B, 3, H, W], normalized, to `logits` float32 [B, N], with config.json and preprocessor_config.json: with
    them `optimum`'s ORTModelForImageClassification and AutoImageProcessor load the folder unmodified. Grey models take
    three channels too.

    Any other `keras.Model` becomes model.onnx, with the names of its own inputs and outputs. One that decodes without
    an encoder, such as `keras_attention.models.DecoderLM`, also becomes prefill.onnx and decode_step.onnx, with the
    inputs, the fixed-size state and the behaviour past its end that `export_saved_model` describes. No two tensors of a
    graph can have one name: the state's "layers.0.key" comes out as "present.layers.0.key" and goes in again as
    "past.layers.0.key".

    Args:
        model: a built `keras.Model`.
        path: a folder that does not exist.
        tokenizer: `keras_attention.text.SentencePieceTokenizer`, saved beside the graphs. Of a language model on bytes
            its `ByteTokenizer`, noted in export.json for `TextGenerator`.
        beams, length_penalty: of the search, 1 and 0.6 by default, for clients: noted in export.json, and the beams in
            generation_config.json.
        max_length: size of the decoding state of a model without an encoder; its own `max_length` by default.
        input_signature: for another model that is subclassed, nested `tf.TensorSpec` of its argument.
        samples: for another model, a list of its inputs to compare with; random ones by default.
        images: for CLIP, the `keras_attention.images.ImageInput` of its images, for preprocessor_config.json; for a
            classifier of images, the `keras_attention.images.ImageTask` it was trained for.
        external_data_over: bytes of weights from which on a graph keeps them in a file beside it (a protobuf ends at
            2 GiB); move the two together.

    Returns:
        `ExportReport`.

    Raises:
        UsageError: a folder that exists, a missing package, what cannot be expressed, an option that has no effect on
            this model, and a comparison that failed; nothing is left behind then.

    Example:
        >>> report = export_onnx(model, "exports/en_de_onnx", tokenizer=tokenizer)
        >>> Translator.load(report.path)(["Good morning"])
    """
    graph.require_packages()
    folders.check_new(path)
    check_finite(model)
    given = Given(tokenizer, beams, length_penalty, max_length, input_signature, samples, images)
    plan = plan_for(model, given, onnx=True)
    graphs = plan.graphs()
    with folders.beside(path) as temporary:
        for name, (function, inputs, outputs) in graphs.items():
            graph.write(temporary / name, function, inputs, outputs, plan.model.variables, external_data_over)
        plan.write_companions(temporary)
        comparison = plan.compare_onnx({name: CheckedSession(temporary / name) for name in graphs})
        files = {
            name: {"inputs": [port.name for port in inputs], "outputs": [port.name for port in outputs]}
            for name, (_, inputs, outputs) in graphs.items()
        }
        write_description(
            temporary / "export.json", "onnx", plan.described(), comparison, opset=graph.OPSET, files=files
        )
        folder = folders.move_new(temporary, path)
    return ExportReport(folder, comparison.largest, comparison.differences, tuple(graphs))


class CheckedSession:
    """A written graph in ONNX Runtime: a function of a dict of arrays; what it does not load or run is no export."""

    def __init__(self, path):
        self.name = path.name
        with self._refusals("load"):
            self._session = OnnxSession(path, ["CPUExecutionProvider"])

    def __call__(self, given):
        with self._refusals("run"):
            return self._session(given)

    @contextlib.contextmanager
    def _refusals(self, act):
        try:
            yield
        except UsageError as error:
            reason = reason_of(error.__cause__ or error, 300)
            raise UsageError(
                f"The export failed its check: ONNX Runtime does not {act} {self.name} ({reason}); nothing was written."
            ) from error

"""ONNX folders: an encoder-decoder in the layout of `optimum`, any other Keras model as one file."""

import datetime
import json

import keras
import tensorflow as tf

import keras_attention
from keras_attention.errors import UsageError
from keras_attention.export import folders
from keras_attention.export.kinds import clip
from keras_attention.export.kinds import images as classifier
from keras_attention.export.kinds.own import own_endpoint
from keras_attention.export.kinds.translation_config import write_configs
from keras_attention.export.kinds.translation_graphs import TransformerGraphs
from keras_attention.export.onnx_folder import check, graph
from keras_attention.export.onnx_folder.check import PAST, PRESENT
from keras_attention.export.report import ExportReport, is_graph_of_layers, precision_of
from keras_attention.export.search_options import refuse_unused, search_options
from keras_attention.export.signatures import capacity_of, decodes, decoding_endpoints, has_encoder, is_on_bytes
from keras_attention.models.clip import CLIP
from keras_attention.models.text.decoder_lm import DecoderLM
from keras_attention.models.text.transformer import Transformer
from keras_attention.text import ByteTokenizer


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
    vision_model.onnx; `pixel_values` are normalised, and all vectors have length one.

    A classifier of images, which is any `keras.Model` given with `images`, becomes model.onnx from `pixel_values`
    float32 [B, 3, H, W], normalised, to `logits` float32 [B, N], with config.json and preprocessor_config.json: with
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
    if isinstance(model, CLIP):
        why = "CLIP has no search, and what it takes is known"
        given = {"beams": beams, "length_penalty": length_penalty, "max_length": max_length}
        refuse_unused(why, **given, input_signature=input_signature, samples=samples)
        return _export_clip(model, path, tokenizer, images, external_data_over)
    if images is not None:
        why = "a classifier of images has no search, and what it takes is known"
        given = {"tokenizer": tokenizer, "beams": beams, "length_penalty": length_penalty, "max_length": max_length}
        refuse_unused(why, **given, input_signature=input_signature, samples=samples)
        return _export_classifier(model, path, images, external_data_over)
    if isinstance(model, Transformer):
        why = "what a Transformer takes, and is compared on, is known"
        refuse_unused(why, input_signature=input_signature, samples=samples)
        refuse_unused("the state of a Transformer's ONNX folder grows", max_length=max_length)
    else:
        why = "only the ONNX folder of a Transformer holds texts and a search"
        noted = is_on_bytes(model, tokenizer)
        refuse_unused(why, tokenizer=None if noted else tokenizer, beams=beams, length_penalty=length_penalty)
    decoder = decodes(model) and not has_encoder(model)
    if not decoder:
        refuse_unused("the model has no decoding state of its own", max_length=max_length)
    capacity = capacity_of(model, max_length) if decoder else None
    options = search_options(beams, length_penalty)
    with folders.beside(path) as temporary:
        if isinstance(model, Transformer):
            model = in_float32(model)
            graphs = TransformerGraphs(model).graphs()
            _write(temporary, graphs, model, external_data_over)
            write_configs(temporary, model, options["beams"])
            if tokenizer is not None:
                tokenizer.save(temporary / "tokenizer.model")
            comparison = check.compare_transformer(model, temporary, **options)
        else:
            # A user's own model is taken as it is: how to make one in another precision is not known.
            model = in_float32(model) if isinstance(model, DecoderLM) else model
            graphs, own = _own_graph(model, input_signature)
            if decoder:
                graphs |= _decoding_graphs(model, capacity)
            _write(temporary, graphs, model, external_data_over)
            comparison = check.compare_own(model, temporary / "model.onnx", own, samples)
            if decoder:
                check.compare_decoder(model, temporary, capacity, comparison)
        described = options if isinstance(model, Transformer) else {"max_length": capacity} if decoder else {}
        described |= {"tokenizer": tokenizer.as_dict()} if isinstance(tokenizer, ByteTokenizer) else {}
        _describe(temporary, graphs, comparison, described)
        folder = folders.move_new(temporary, path)
    return ExportReport(folder, comparison.largest, comparison.differences, tuple(graphs))


def _export_clip(model, path, tokenizer, images, external_data_over):
    model = clip.in_float32(model)
    graphs = clip.onnx_graphs(model, images)
    with folders.beside(path) as temporary:
        _write(temporary, graphs, model, external_data_over)
        clip.write_configs(temporary, model, images)
        if tokenizer is not None:
            tokenizer.save(temporary / "tokenizer.model")
        opened = {name: check.Graph(temporary / name) for name in graphs}
        comparison = clip.compare_onnx(model, opened, images)
        _describe(temporary, graphs, comparison, {} if images is None else {"images": images.as_dict()})
        folder = folders.move_new(temporary, path)
    return ExportReport(folder, comparison.largest, comparison.differences, tuple(graphs))


def _export_classifier(model, path, images, external_data_over):
    classifier.check(model, images)
    model = in_float32(model)
    graphs = classifier.onnx_graphs(model, images)
    with folders.beside(path) as temporary:
        _write(temporary, graphs, model, external_data_over)
        classifier.write_configs(temporary, model, images)
        comparison = classifier.compare_onnx(model, check.Graph(temporary / "model.onnx"), images)
        _describe(temporary, graphs, comparison, {"images": images.as_dict()})
        folder = folders.move_new(temporary, path)
    return ExportReport(folder, comparison.largest, comparison.differences, tuple(graphs))


def _write(folder, graphs, model, external_data_over):
    for name, (function, inputs, outputs) in graphs.items():
        graph.write(folder / name, function, inputs, outputs, model.variables, external_data_over)


def _describe(folder, graphs, comparison, options):
    """Writes export.json, for people and for our own loader."""
    content = {
        "kind": "onnx",
        "keras_attention": keras_attention.__version__,
        "opset": graph.OPSET,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "options": options,
        "files": {
            name: {"inputs": [port.name for port in inputs], "outputs": [port.name for port in outputs]}
            for name, (_, inputs, outputs) in graphs.items()
        },
        "differences_from_keras": comparison.differences,
    }
    (folder / "export.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def in_float32(model):
    """The model itself, or one with its weights that computes in float32: CPUs have no kernels for half precision."""
    if precision_of(model) == "float32":
        return model
    copy = _layer_in_float32(model)
    if not is_graph_of_layers(model):  # which is built as soon as it is made
        copy.build()
    copy.set_weights(model.get_weights())
    return copy


def _layer_in_float32(layer):
    if is_graph_of_layers(layer):
        return keras.models.clone_model(layer, clone_function=_layer_in_float32)
    return type(layer).from_config({**layer.get_config(), "dtype": "float32"})


def _own_graph(model, input_signature):
    """`(graphs, (endpoint, structure))` of another model: one function, traced as a signature is."""
    own = own_endpoint(model, input_signature)
    return {"model.onnx": _graph_of(own[0])}, own


def _decoding_graphs(model, capacity):
    """prefill.onnx and decode_step.onnx: the signatures of those names, with a state that enters and leaves as such."""
    prefill, step = decoding_endpoints(model, capacity)
    state = {spec.name for spec in step.inputs} - {"token"}
    return {f"{endpoint.name}.onnx": _graph_of(endpoint, state) for endpoint in (prefill, step)}


def _graph_of(endpoint, state=()):
    """`(function, inputs, outputs)` of a signature; the tensors named in `state` are past.NAME and present.NAME."""
    wrong = [spec.name for spec in [*endpoint.inputs, *endpoint.outputs.values()] if spec.dtype == tf.string]
    if wrong:
        raise UsageError(f"{wrong[0]!r} holds text, which ONNX Runtime has no operations for. Export a SavedModel.")
    names = list(endpoint.outputs)
    both = sorted({spec.name for spec in endpoint.inputs} & set(names) - set(state))
    if both:
        raise UsageError(
            f"{both[0]!r} is the name of an input and of an output, which ONNX cannot hold. Rename one of the two."
        )

    def function(*tensors):
        results = endpoint.function(*tensors)
        return [results[name] for name in names]

    def port(spec, prefix):
        return graph.Port((prefix if spec.name in state else "") + spec.name, _axes(spec), spec.dtype)

    inputs = [port(spec, PAST) for spec in endpoint.inputs]
    outputs = [port(endpoint.outputs[name], PRESENT) for name in names]
    return function, inputs, outputs


def _axes(spec):
    """Names for open axes. Two tensors share the name of the batch only: nothing says that their lengths are one."""
    if spec.shape.rank is None:
        raise UsageError(f"The rank of {spec.name!r} is unknown: ONNX needs to know it. Give input_signature=")
    return tuple(
        "batch_size" if i == 0 and size is None else f"{spec.name}_axis_{i}" if size is None else size
        for i, size in enumerate(spec.shape)
    )

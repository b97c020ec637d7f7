"""Translation by an ONNX folder: three graphs run by onnxruntime, searched on NumPy arrays."""

import math

import numpy as np

from keras_attention.errors import UsageError
from keras_attention.generation.arguments import check_penalty
from keras_attention.generation.array_beam import array_beam_search
from keras_attention.generation.limits import answer_limits
from keras_attention.inference.folder_files import read_json_object, require_files, unreadable
from keras_attention.inference.source_ids import source_ids
from keras_attention.text import BOS_ID, EOS_ID, PAD_ID, SentencePieceTokenizer

_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


class OnnxBackend:
    """encoder_model.onnx, decoder_model.onnx and decoder_with_past_model.onnx, with the tensor names of `optimum`.

    The encoder runs once, decoder_model once for the first token (it also projects the memory's keys and values), and
    decoder_with_past_model for every further one.

    Args:
        folder: `pathlib.Path` with the three graphs, config.json and tokenizer.model; generation_config.json, when
            there, has the last word on the special ids and the width of the search. The length penalty is that of
            export.json (in clients' configs a number of that name means another thing), 0.6 where there is none.
        providers: execution providers of onnxruntime, most wanted first; CUDA where the installed one has it, and the
            CPU, by default.

    Raises:
        UsageError: a file is missing or damaged, or onnxruntime is not installed.
    """

    graphs = ("encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx")
    files = (*graphs, "config.json", "tokenizer.model")

    def __init__(self, folder, providers=None):
        require_files(folder, self.files, "an ONNX folder")
        config = read_json_object(folder / "config.json")
        if (folder / "generation_config.json").is_file():
            config |= read_json_object(folder / "generation_config.json")
        self._start, self._end, self._pad, self._max_length, self._beams = (
            _whole_number(config, name, default, least, folder)
            for name, default, least in (
                ("decoder_start_token_id", BOS_ID, 0),
                ("eos_token_id", EOS_ID, 0),
                ("pad_token_id", PAD_ID, 0),
                ("max_position_embeddings", None, 2),
                ("num_beams", 1, 1),
            )
        )
        self._length_penalty = _exported_penalty(folder)
        self.tokenizer = SentencePieceTokenizer.load(folder / "tokenizer.model")
        self._encoder, self._decoder, self._decoder_with_past = (
            _Graph(folder / name, providers) for name in self.graphs
        )

    def translate(self, texts, *, beams=None, length_penalty=None):
        """The translations of one batch of texts, a list of `str`.

        Args:
            texts: list of `str`.
            beams: width of the search; the exported one by default.
            length_penalty: of the beam search; the exported one by default.
        """
        beams = beams or self._beams
        check_penalty(beams, length_penalty)
        length_penalty = self._length_penalty if length_penalty is None else length_penalty
        ids = source_ids(self.tokenizer, texts, self._max_length)
        mask = ids != PAD_ID
        memory = self._encoder({"input_ids": ids, "attention_mask": mask})["last_hidden_state"]
        repeated_mask = mask.repeat(beams, axis=0)
        first = {"encoder_hidden_states": memory.repeat(beams, axis=0)}

        def step(tokens, past):
            given = {"input_ids": tokens[:, None], "encoder_attention_mask": repeated_mask}
            if past is None:
                outputs = self._decoder(given | first)
                past = {}
            else:
                outputs = self._decoder_with_past(given | past)
            present = {name.replace("present", "past_key_values", 1): x for name, x in outputs.items()}
            logits = present.pop("logits")[:, -1]
            return logits, past | present  # the memory's keys and values come once and stay

        def reorder(past, parents):
            # A parent is of the same sentence, whose memory all its hypotheses share.
            return {name: x if ".encoder." in name else x[parents] for name, x in past.items()}

        result = array_beam_search(
            step,
            reorder,
            None,
            np.full(len(ids), self._start, np.int32),
            beams=beams,
            end_id=self._end,
            pad_id=self._pad,
            max_new_tokens=answer_limits(mask.sum(axis=1, dtype=np.int32), self._max_length),
            length_penalty=length_penalty,
            forbidden=(self._pad, self._start),
        )
        return self.tokenizer.decode(result.tokens[:, 0])


class _Graph:
    """One ONNX file: names to arrays, names to arrays."""

    def __init__(self, path, providers):
        try:
            import onnxruntime
        except ImportError as error:
            raise UsageError(
                f"An ONNX folder needs onnxruntime, which cannot be imported ({error}): "
                "pip install 'keras-attention[onnx]'."
            ) from None
        if providers is None:
            wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
            providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors: they are raised as well
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:
            # onnxruntime has a class for each kind of damage and no common one.
            raise unreadable(path, error) from error
        self._inputs = {value.name: value.type for value in self._session.get_inputs()}
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._path = path

    def __call__(self, given):
        """Runs on those of the given arrays that the graph takes; integers in the width that it declares."""
        feeds = {}
        for name, kind in self._inputs.items():
            if name not in given:
                raise UsageError(
                    f"{self._path} takes an input {name!r} that a translation does not have. Expected the names of "
                    "optimum's encoder-decoder models: export the model again."
                )
            feeds[name] = given[name].astype(_INTEGERS.get(kind, given[name].dtype), copy=False)
        return dict(zip(self._outputs, self._session.run(self._outputs, feeds), strict=True))


def _whole_number(config, name, default, least, folder):
    value = config.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(
            f"{folder} must say {name!r} in its config.json, a whole number of at least {least}. Got {value!r}; "
            "export the model again."
        )
    return value


def _exported_penalty(folder):
    if not (folder / "export.json").is_file():
        return 0.6
    options = read_json_object(folder / "export.json").get("options")
    penalty = options.get("length_penalty", 0.6) if isinstance(options, dict) else 0.6
    if isinstance(penalty, bool) or not isinstance(penalty, (int, float)) or not math.isfinite(penalty):
        raise UsageError(
            f"{folder / 'export.json'} must give a finite number as length_penalty. Got {penalty!r}; export the model "
            "again."
        )
    return penalty

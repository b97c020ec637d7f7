"""Training a translation model: from sentence pairs to a run folder that holds a finished model.

    python -m keras_attention.training.translation --data pairs.tsv --out runs/first

and the same from Python: `train(TranslationOptions(out="runs/first", data="pairs.tsv"))`.
"""

from dataclasses import dataclass

import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.optimization.compiling import compile_model
from keras_attention.training.optimization.weight_averages import average_checkpoints
from keras_attention.training.run.fitting import fit_in_folder
from keras_attention.training.run.mechanism_options import stack_mechanisms
from keras_attention.training.run.task import Task, TaskData
from keras_attention.training.run.training_state import DamagedCheckpoint, assign_variables
from keras_attention.training.run.validation import Validation
from keras_attention.training.translation.batches import BatchPlan, NothingFits
from keras_attention.training.translation.corpus import SPLITS, load_corpus, sample
from keras_attention.training.translation.decoding import greedy_translator
from keras_attention.training.translation.scoring import has_bleu, score


def train(options, *, callbacks=(), translator=greedy_translator):
    """Train a translation model and leave it in a run folder; see `fit_in_folder`.

    The model with the best BLEU on the validation pairs is kept (without sacrebleu the one of lowest loss), or with
    `options.average` the mean of the last checkpoints.

    Args:
        options: `TranslationOptions`.
        callbacks: more Keras callbacks for `model.fit`.
        translator: function `(model, tokenizer)` that returns a function `list[str] -> list[str]`, for the scores.

    Returns:
        dict, the content of metrics.json: "test/loss", "test/accuracy", "test/bleu", "test/chrf", "test/exact_match"
        (and "test/exact_match/<kind>" for the embedded phrases), the same under "validation/", and what
        `fit_in_folder` says of the run; "train_rate" counts real target tokens.

    Raises:
        UsageError, KeyboardInterrupt: see `fit_in_folder`.
    """
    return fit_in_folder(TranslationTask(options, translator), callbacks=callbacks)


@dataclass(frozen=True, kw_only=True)
class TranslationData(TaskData):
    """Sentence pairs: the `Corpus`, and split -> `BatchPlan` for each split that has pairs short enough."""

    corpus: object
    plans: dict


class TranslationTask(Task):
    """A Transformer on sentence pairs."""

    def __init__(self, options, translator=greedy_translator):
        super().__init__(options)
        self.translator = translator
        self.checkpoints_kept = options.average

    def read(self, folder):
        options = self.options
        corpus = load_corpus(options)
        pairs = corpus.splits["train"]
        if folder is not None:
            tokenizer = SentencePieceTokenizer.load(folder.require(folder.tokenizer_path))
        else:
            tokenizer = SentencePieceTokenizer.train(
                [*pairs.sources, *pairs.targets],
                options.vocab_size,
                model_type=options.tokenizer_type,
                seed=options.seed,
            )
        plans = self._plans(corpus, tokenizer)
        return TranslationData(
            batches=plans["train"],
            fingerprint=corpus.fingerprint(),
            origin=corpus.origin,
            sizes={split: len(corpus.splits[split].sources) for split in SPLITS},
            tokenizer=tokenizer,
            corpus=corpus,
            plans=plans,
        )

    def _plans(self, corpus, tokenizer):
        """One `BatchPlan` for each split that has pairs short enough."""
        plans = {}
        for split in SPLITS:
            pairs = corpus.splits[split]
            training = split == "train"
            try:
                plan = BatchPlan(
                    tokenizer.encode(pairs.sources),
                    tokenizer.encode(pairs.targets),
                    tokens_per_batch=self.options.tokens_per_batch,
                    max_length=self.options.max_length,
                    seed=self.options.seed,
                    shuffle=training,
                    static_shapes=self.options.jit_compile,
                )
            except NothingFits:
                if training:
                    raise
                print(f"the {split} split has no pair to score")
                continue
            dropped = f", {plan.dropped} longer than --max-length left out" if plan.dropped else ""
            print(f"{split}: {len(pairs.sources)} pairs in {len(plan)} batches{dropped}")
            plans[split] = plan
        return plans

    def build(self, data):
        options, vocab_size = self.options, data.tokenizer.vocab_size
        encoder_mechanism, decoder_mechanism, note = stack_mechanisms(options)
        model = Transformer(
            vocab_size,
            vocab_size,
            d_model=options.d_model,
            num_heads=options.heads,
            num_encoder_layers=options.layers,
            num_decoder_layers=options.layers,
            mlp_dim=options.mlp_dim,
            mechanism=encoder_mechanism,
            decoder_mechanism=decoder_mechanism,
            dropout_rate=options.dropout,
            positions=options.positions,
            residual_attention_layers=options.residual_attention_layers,
            max_length=options.max_length,
            share_embeddings=options.share_embeddings,
            remat=options.remat,
            seed=options.seed,
        )
        model.build()
        # Of the longest source, which a mechanism may be unable to take, and the ways of training and of decoding.
        source = tf.ones([1, options.max_length], tf.int32)
        model({"source": source, "target": tf.ones([1, 2], tf.int32)})
        model.init_state(source, max_length=4)
        if note is not None:
            print(note)
        return model, compile_model(model, options)

    def validation(self, data, model, best_path):
        plan, options = data.plans.get("validation"), self.options
        translate = self.translator(model, data.tokenizer)
        sources, references, _ = sample(data.corpus.splits["validation"], options.validation_sentences)
        batches = None if plan is None else plan.dataset()
        every = options.bleu_every if sources else 0
        if every and not has_bleu():
            print("no BLEU, the lowest loss is kept: BLEU needs pip install 'keras-attention[translation]'")
            every = 0

        def measure(epoch, last):
            if batches is None:
                return {}
            found = model.evaluate(batches, verbose=0, return_dict=True)
            if every and (last or epoch % every == 0):
                found |= score(translate(sources), references, tokenize=options.bleu_tokenizer)
            return found

        return Validation(model, best_path, measure, "bleu" if every else None)

    def choose_weights(self, model, validation, progress, checkpoints):
        average = self.options.average
        recent = checkpoints.regular()[-average:] if average else []
        if not recent:
            return super().choose_weights(model, validation, progress, checkpoints)
        try:
            mean = average_checkpoints(recent)
        except DamagedCheckpoint as error:
            raise UsageError(
                f"The mean of the last {len(recent)} checkpoints cannot be taken: {error} Restore the file from a "
                "copy and resume, or train again."
            ) from error
        assign_variables(model.variables, mean, "average")
        print(f"using the mean of the last {len(recent)} checkpoints")
        return None

    def score(self, data, model, folder, kept):
        options, scores = self.options, {}
        translate = self.translator(model, data.tokenizer)
        for split, count in (("validation", options.validation_sentences), ("test", options.test_sentences)):
            if split in data.plans:
                found = model.evaluate(data.plans[split].dataset(), verbose=0, return_dict=True)
                sources, references, kinds = sample(data.corpus.splits[split], count)
                scores[split] = found | score(translate(sources), references, kinds, options.bleu_tokenizer)
        return scores

"""Training a translation model: from sentence pairs to a run folder that holds a finished model.

    python -m keras_attention.training.translation --data pairs.tsv --out runs/first

and the same from Python: `train(TrainOptions(out="runs/first", data="pairs.tsv"))`.
"""

import tensorflow as tf

from keras_attention.errors import UsageError
from keras_attention.models import Transformer
from keras_attention.text import SentencePieceTokenizer
from keras_attention.training.optimization.compiling import compile_model
from keras_attention.training.optimization.weight_averages import average_checkpoints
from keras_attention.training.run.command_arguments import run_alone, typer_command
from keras_attention.training.run.mechanism_options import stack_mechanisms
from keras_attention.training.run.model_run import ModelRun, given_options, print_metrics, run_in_folder
from keras_attention.training.run.run_folder import write_atomically
from keras_attention.training.run.training_state import DamagedCheckpoint, assign_variables
from keras_attention.training.translation.batches import BatchPlan, NothingFits
from keras_attention.training.translation.corpus import SPLITS, load_corpus, sample
from keras_attention.training.translation.decoding import greedy_translator
from keras_attention.training.translation.options import TrainOptions
from keras_attention.training.translation.scoring import score
from keras_attention.training.translation.validation import Validation


def train(options, *, callbacks=(), translator=greedy_translator):
    """Train a translation model and leave it in a run folder.

    With equal options and data the weights are the same in every run on one machine, however often a run was
    interrupted (Ctrl-C, kill -9, power cut) and resumed.

    Args:
        options: `TrainOptions`.
        callbacks: more Keras callbacks for `model.fit`.
        translator: function `(model, tokenizer)` that returns a function `list[str] -> list[str]`, for the scores.

    Returns:
        dict, the content of metrics.json: "loss", "accuracy", "BLEU", "chrF", "exact_match" (and "exact_match/<kind>"
        for the embedded phrases) on the test split, the same under "validation/..." on the validation split,
        "train_seconds" (training steps alone), "target_tokens_per_second" (real tokens in that time), "seconds" (with
        validation and checkpoints), "steps", "epochs" (whole ones), "parameters".

    Raises:
        UsageError: bad options or data, a folder that is taken, a run that cannot be resumed.
        KeyboardInterrupt: Ctrl-C; the state is saved.
    """

    def make(folder, state):
        return _Run(options, folder, state, callbacks, translator)

    return run_in_folder(options, make, checkpoints_kept=options.average)


class _Run(ModelRun):
    """A run that trains a translation model."""

    def __init__(self, options, folder, state, callbacks, translator):
        self.translator = translator
        self.checkpoints_kept = options.average
        super().__init__(options, folder, state, callbacks)

    def load_data(self, state):
        self.corpus = load_corpus(self.options)
        self.tokenizer = self._make_tokenizer(state)
        self.plans = self._make_plans()
        return self.corpus.fingerprint()

    def _make_tokenizer(self, state):
        path = self.folder.tokenizer_path
        if state is not None:
            return SentencePieceTokenizer.load(self.folder.require(path))
        pairs = self.corpus.splits["train"]
        return SentencePieceTokenizer.train(
            [*pairs.sources, *pairs.targets],
            self.options.vocab_size,
            model_type=self.options.tokenizer_type,
            seed=self.options.seed,
        )

    def _make_plans(self):
        """One `BatchPlan` for each split that has pairs short enough."""
        plans = {}
        for split in SPLITS:
            pairs = self.corpus.splits[split]
            training = split == "train"
            try:
                plan = BatchPlan(
                    self.tokenizer.encode(pairs.sources),
                    self.tokenizer.encode(pairs.targets),
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

    def make_model(self):
        """The compiled model and its metrics; what its mechanism cannot do is an error here, not after an epoch."""
        options = self.options
        try:
            encoder_mechanism, decoder_mechanism, note = stack_mechanisms(options)
            model = Transformer(
                self.tokenizer.vocab_size,
                self.tokenizer.vocab_size,
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
        except (ValueError, TypeError) as error:
            raise UsageError(" ".join(str(error).split())) from error
        if note is not None:
            print(note)
        metrics = compile_model(model, options)
        return model, metrics

    def make_validation(self):
        self.translate = self.translator(self.model, self.tokenizer)
        plan = self.plans.get("validation")
        pairs = self.corpus.splits["validation"]
        sources, references, _ = sample(pairs, self.options.validation_sentences)
        return Validation(
            self.model,
            None if plan is None else plan.dataset(),
            self.translate,
            sources,
            references,
            every=self.options.bleu_every,
            best_path=self.folder.checkpoints_path / "best.npz",
            tokenize=self.options.bleu_tokenizer,
        )

    def steps_per_epoch(self):
        return len(self.plans["train"])

    def dataset(self, epoch, step):
        return self.plans["train"].dataset(epoch, step)

    def described(self):
        counts = {split: len(self.corpus.splits[split].sources) for split in SPLITS}
        return {"data": {"origin": self.corpus.origin, **counts}}

    def write_files(self):
        write_atomically(self.folder.tokenizer_path, self.tokenizer.save)

    def choose_weights(self):
        average = self.options.average
        recent = self.checkpoints.regular()[-average:] if average else []
        if not recent:
            super().choose_weights()
            return
        try:
            mean = average_checkpoints(recent)
        except DamagedCheckpoint as error:
            raise UsageError(
                f"The mean of the last {len(recent)} checkpoints cannot be taken: {error} Restore the file from a "
                "copy and resume, or train again."
            ) from error
        assign_variables(self.model.variables, mean, "average")
        print(f"using the mean of the last {len(recent)} checkpoints")

    def scores(self):
        return {
            prefix + name: value
            for split, prefix in (("validation", "validation/"), ("test", ""))
            for name, value in self._split_scores(split).items()
        }

    def _split_scores(self, split):
        pairs = self.corpus.splits[split]
        if split not in self.plans:
            return {}
        scores = self.model.evaluate(self.plans[split].dataset(), verbose=0, return_dict=True)
        count = self.options.validation_sentences if split == "validation" else self.options.test_sentences
        sources, references, kinds = sample(pairs, count)
        return scores | score(self.translate(sources), references, kinds, self.options.bleu_tokenizer)


def _run_command(given):
    print_metrics(train(given_options(TrainOptions, given)))


command = typer_command(
    TrainOptions,
    _run_command,
    "Train a translation model with model.fit and write a run folder: model, tokenizer, config, history, metrics.",
)


def main(argv=None):
    """`python -m keras_attention.training.translation`; `argv` is that of the process by default."""
    run_alone(command, argv, "keras_attention.training.translation.task")

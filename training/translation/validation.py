"""Validation between epochs, and the best model so far."""

from keras_attention.training.run.best_weights import BestWeights
from keras_attention.training.translation.scoring import score


class Validation:
    """Loss and accuracy of the validation pairs, BLEU and chrF of some of them, and the best model on disk.

    The best model is the one with the highest BLEU among the epochs that were scored (of equals the one with the lower
    loss); where translations are never scored, the one with the lowest loss.

    Args:
        model: compiled model.
        batches: `tf.data.Dataset` of the validation batches, or None where there are no validation pairs.
        translate: function `list[str] -> list[str]`.
        sources, references: lists of strings, the pairs that are translated.
        every: translate after every so many epochs, and when training ends; 0 never.
        best_path: the file for the best model's variables.
        tokenize: sacrebleu's tokenizer, or "auto".
    """

    def __init__(self, model, batches, translate, sources, references, *, every, best_path, tokenize="auto"):
        self.model = model
        self.batches = batches
        self.translate = translate
        self.sources = sources
        self.references = references
        self.every = every if len(sources) else 0
        self.best = BestWeights(model, best_path)
        self.tokenize = tokenize

    def __call__(self, record, last, progress):
        """Add `val_...` values to the epoch's record, and replace `progress.best` by it where it is better."""
        if self.batches is None:
            return
        for name, value in self.evaluate().items():
            record[f"val_{name}"] = value
        if self.every and (last or record["epoch"] % self.every == 0):
            for name, value in self.score().items():
                record[f"val_{name}"] = value
        self.best.offer(record, progress, self._rank)

    def evaluate(self):
        """Loss and accuracy, means over all real tokens."""
        return self.model.evaluate(self.batches, verbose=0, return_dict=True)

    def score(self):
        """BLEU, chrF and exact match of the translated pairs."""
        return score(self.translate(self.sources), self.references, tokenize=self.tokenize)

    def restore_best(self, best):
        """Give the model the variables of the best validation; False, with a printed line, where they are lost."""
        return self.best.restore(best)

    def _rank(self, record):
        """What makes one record better than another, larger is better; None for one that cannot be compared."""
        loss = record["val_loss"]
        if loss != loss:  # NaN
            return None
        if not self.every:
            return (-loss,)
        return (record["val_BLEU"], -loss) if "val_BLEU" in record else None

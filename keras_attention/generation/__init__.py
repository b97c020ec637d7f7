"""Searches over any `step(tokens, state) -> (logits, state)`."""

from keras_attention.generation.beam import beam_search
from keras_attention.generation.best_search import best_answer
from keras_attention.generation.continuation import continue_greedily
from keras_attention.generation.greedy_search import greedy
from keras_attention.generation.limits import answer_limits
from keras_attention.generation.result import GenerationResult
from keras_attention.generation.uncached import greedy_uncached
from keras_attention.lazy_names import lazy_names

__all__ = [
    "GenerationResult",
    "Translator",
    "answer_limits",
    "beam_search",
    "best_answer",
    "continue_greedily",
    "greedy",
    "greedy_uncached",
]

# It lived here before `keras_attention.inference` was there.
__getattr__, __dir__ = lazy_names(__name__, Translator="keras_attention.inference.translator")

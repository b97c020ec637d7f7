"""Searches over any `step(tokens, state) -> (logits, state)`."""

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

# Searches on arrays do without TensorFlow, which the others load.
__getattr__, __dir__ = lazy_names(
    __name__,
    GenerationResult="keras_attention.generation.result",
    Translator="keras_attention.inference.translator",  # it lived here before `keras_attention.inference` was there
    answer_limits="keras_attention.generation.limits",
    beam_search="keras_attention.generation.beam",
    best_answer="keras_attention.generation.best_search",
    continue_greedily="keras_attention.generation.continuation",
    greedy="keras_attention.generation.greedy_search",
    greedy_uncached="keras_attention.generation.uncached",
)

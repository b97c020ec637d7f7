"""Searches over any `step(tokens, state) -> (logits, state)`."""

from keras_attention.generation.beam import beam_search
from keras_attention.generation.greedy import greedy
from keras_attention.generation.result import GenerationResult
from keras_attention.generation.uncached import greedy_uncached

__all__ = ["GenerationResult", "beam_search", "greedy", "greedy_uncached"]

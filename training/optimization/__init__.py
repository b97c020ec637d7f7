"""Losses, optimizers, learning rates and averages of weights."""

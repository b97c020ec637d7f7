"""`python -m keras_attention.training.vision`."""

from keras_attention.training.vision.program import main

main()

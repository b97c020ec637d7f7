"""`python -m keras_attention.training.vision`."""

from keras_attention.training.vision.task import main

main()

"""`python -m keras_attention.training.translation`."""

from keras_attention.training.translation.task import main

main()

"""`python -m keras_attention.training.translation`."""

from keras_attention.training.translation.program import main

main()

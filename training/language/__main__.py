"""`python -m keras_attention.training.language`."""

from keras_attention.training.language.program import main

main()

"""`python -m keras_attention.training.language`."""

from keras_attention.training.language.task import main

main()

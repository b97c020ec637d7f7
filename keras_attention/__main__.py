"""`python -m keras_attention` is `keras-attention`."""

from keras_attention.cli import main

main()

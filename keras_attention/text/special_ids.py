"""The four ids that mean the same in every model of this package, whatever its vocabulary."""

PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3

"""Train a small language model on the bytes of a file, let it go on with a text, and export it.

python examples/language_model.py book.txt.gz
"""

import sys
from pathlib import Path

from keras_attention.export import export_saved_model
from keras_attention.generation import continue_greedily
from keras_attention.text import ByteTokenizer
from keras_attention.training.language.options import LanguageOptions
from keras_attention.training.language.task import train
from keras_attention.training.run.run_folder import RunFolder

OUT = Path("runs/language")


def main():
    # Pieces of 8,192 bytes: attention by tiles holds no scores of all pairs, and remat one block at a time.
    options = LanguageOptions(
        out=str(OUT / "run"),
        data=sys.argv[1:],
        length=8192,
        batch_size=1,
        mechanism="blockwise",
        layers=2,
        d_model=128,
        remat=True,
        minutes=3,
    )
    metrics = train(options)
    print(f"{metrics['validation/bits_per_byte']:.2f} bits per byte, {metrics['peak_memory_mb']:,.0f} MB")

    model, tokenizer = RunFolder(OUT / "run").load_model(), ByteTokenizer()
    result = continue_greedily(model, tokenizer.encode_batch(["It was the "]), max_new_tokens=80)
    print(tokenizer.decode(result.tokens[0]).decode(errors="replace"))
    print(export_saved_model(model, OUT / "saved_model", max_length=1024))


if __name__ == "__main__":
    main()

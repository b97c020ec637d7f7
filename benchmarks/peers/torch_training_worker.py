"""A training step of PyTorch's nn.Transformer as a `harness.Worker`: runs in .venv-peers and times itself."""

import math

from benchmarks.peers.serving import serve


def training_step(
    vocab_size, d_model, heads, layers, mlp_dim, batch, length, dropout, label_smoothing, learning_rate, threads=None
):
    """A callable that does one step of Adam on one batch of random ids and returns the loss."""
    import torch
    from torch import nn

    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)

    class Translation(nn.Module):
        """Embeddings with sinusoidal positions around nn.Transformer, and an output projection."""

        def __init__(self):
            super().__init__()
            self.source = nn.Embedding(vocab_size, d_model)
            self.target = nn.Embedding(vocab_size, d_model)
            self.dropout = nn.Dropout(dropout)
            self.transformer = nn.Transformer(
                d_model, heads, layers, layers, mlp_dim, dropout, batch_first=True, norm_first=True
            )
            self.output = nn.Linear(d_model, vocab_size)
            rates = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
            angles = torch.arange(length)[:, None] * rates
            self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).reshape(length, d_model))
            self.register_buffer("future", nn.Transformer.generate_square_subsequent_mask(length) < 0)

        def embed(self, table, ids):
            return self.dropout(table(ids) * math.sqrt(d_model) + self.positions)

        def forward(self, source, target):
            x = self.transformer(
                self.embed(self.source, source),
                self.embed(self.target, target),
                tgt_mask=self.future,
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
                tgt_is_causal=True,
            )
            return self.output(x)

    model = Translation().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), eps=1e-9, fused=True)
    source, target, labels = (torch.randint(1, vocab_size, (batch, length)) for _ in range(3))

    def step():
        optimizer.zero_grad(set_to_none=True)
        logits = model(source, target)
        loss = nn.functional.cross_entropy(
            logits.reshape(-1, vocab_size), labels.reshape(-1), ignore_index=0, label_smoothing=label_smoothing
        )
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


if __name__ == "__main__":
    import torch

    serve(f"PyTorch {torch.__version__}", training_step)

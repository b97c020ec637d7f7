"""PyTorch's scaled_dot_product_attention as a `harness.Worker`: runs in .venv-peers and times itself."""

from benchmarks.peers.serving import serve


def attention(length, heads=8, depth=64, mask="full", backward=False, dtype="float32", threads=None):
    """A callable that attends once (and takes the gradient), on random inputs.

    Args:
        mask: "full", "causal", or "padded" (a boolean mask of keys, the last quarter blocked).
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    shape = (1, heads, length, depth)
    q, k, v = (torch.randn(shape, dtype=getattr(torch, dtype), requires_grad=backward) for _ in range(3))
    upstream = torch.randn(shape, dtype=getattr(torch, dtype))
    options = {"is_causal": mask == "causal"}
    if mask == "padded":
        options["attn_mask"] = (torch.arange(length) < length - length // 4).reshape(1, 1, 1, length)

    def forward():
        with torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    def both():
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        return [out.detach(), *torch.autograd.grad(out, [q, k, v], upstream)]

    return both if backward else forward


if __name__ == "__main__":
    import torch

    serve(f"PyTorch {torch.__version__}", attention)

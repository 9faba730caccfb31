"""Greedy decoding of a small transformer: every step takes the token with the largest logit.

The step works on a key-value cache of fixed size in buffers and leaves the token on the device, so
`torch.compile(mode="reduce-overhead")` replays it as one CUDA graph. The tokens are those of
torch.argmax, or it raises.

    python -m compile_examples.greedy_decoding

The milliseconds are those of a step.
"""

import argparse
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import customops
from customops.bench import report

from .timing import HEADER, Row, add_device, default_device, describe


class Block(nn.Module):
    def __init__(self, width: int, heads: int, batch: int, context: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("cache", torch.zeros(2, batch, heads, context, width // heads))

    def forward(self, x: Tensor, position: Tensor, visible: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        self.cache.index_copy_(3, position, torch.stack([k, v]).unsqueeze(3))
        keys, values = self.cache
        y = F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=visible)
        x = x + self.out(y.flatten(1))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """One step: the tokens (batch,) at `position` (1,) to the next tokens (batch,)."""

    def __init__(self, argmax, vocabulary, layers, width, heads, batch, context):
        super().__init__()
        self.argmax = argmax
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, batch, context) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("range", torch.arange(context))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.tokens(token) + self.places(position)
        for block in self.blocks:
            x = block(x, position, (self.range <= position).unsqueeze(0))
        return self.argmax(self.head(self.norm(x)), -1)


@torch.no_grad()
def decode(step, first: Tensor, count: int) -> tuple[Tensor, float]:
    """`count` tokens after `first`, as (batch, count), and the milliseconds of a step."""
    positions = torch.arange(count, device=first.device).split(1)
    tokens = [first]
    start = time.perf_counter()
    for position in positions:
        torch.compiler.cudagraph_mark_step_begin()
        # The next replay of a CUDA graph overwrites its result.
        tokens.append(step(tokens[-1], position).clone())
    result = torch.stack(tokens[1:], 1).cpu()  # waits for the device
    return result, (time.perf_counter() - start) * 1e3 / count


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_device(parser)
    parser.add_argument("--batch", type=report.count, default=8)
    parser.add_argument("--tokens", type=report.count, default=16)
    parser.add_argument("--vocabulary", type=report.count, default=32_000)
    parser.add_argument("--layers", type=report.count, default=2)
    options = parser.parse_args(arguments)
    device = options.device or default_device()
    mode = "reduce-overhead" if torch.device(device).type == "cuda" else "default"
    sizes = (options.vocabulary, options.layers, 256, 4, options.batch, options.tokens)

    print(describe(device), HEADER, sep="\n")
    decoders = {}
    for name, argmax in (("torch", torch.argmax), ("ours", customops.argmax)):
        torch.manual_seed(0)
        with torch.device(device):
            decoders[name] = Decoder(argmax, *sizes).eval()
    first = torch.arange(options.batch, device=device) % options.vocabulary
    modes = {
        "eager": lambda step: step,
        "compile": lambda step: torch.compile(step, mode=mode, fullgraph=True),
    }
    for name, prepare in modes.items():
        steps, tokens, times = {}, {}, {}
        for who, decoder in decoders.items():
            steps[who] = prepare(decoder)
            decode(steps[who], first, min(4, options.tokens))  # compiles
        for who in [*steps] * 3:  # in turns, and the fastest counts
            tokens[who], milliseconds = decode(steps[who], first, options.tokens)
            times[who] = min(milliseconds, times.get(who, milliseconds))
        equal = torch.equal(tokens["ours"], tokens["torch"])
        shape = (options.batch, options.vocabulary)
        print(Row("greedy_decoding", shape, device, name, times["torch"], times["ours"], equal))
        if not equal:
            raise AssertionError(f"{name}: the tokens are not those of torch.argmax")


if __name__ == "__main__":
    sys.exit(main())

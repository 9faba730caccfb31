"""Greedy decoding with a vocabulary-parallel head: a rank has the logits of a part of the tokens.

The vocabulary is padded, so that all ranks have heads of one size; the padding has no logits. Ranks
exchange the largest of their logits and its token, instead of the logits. The tokens are those of
one process that has the whole head, or it raises.

    torchrun --nproc-per-node 2 -m compile_examples.sharded_decoding

With gloo on the CPU, or with NCCL on a GPU for each rank. The milliseconds are those of a step.
"""

import argparse
import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from customops import distributed
from customops.bench import report

from .greedy_decoding import Decoder, decode
from .timing import HEADER, Row, describe

PADDING = 64  # the vocabulary is padded to a multiple of this, on every rank


class VocabularyParallelHead(nn.Module):
    """The rows of a head's weight that are this rank's, padded with zeros."""

    def __init__(self, whole: Tensor, rank: int, world: int):
        super().__init__()
        vocabulary = whole.size(0)
        rows = -(-vocabulary // (world * PADDING)) * PADDING
        self.begin = min(rank * rows, vocabulary)
        own = whole[self.begin : self.begin + rows]
        self.tokens = own.size(0)  # the other rows are padding
        self.weight = nn.Parameter(F.pad(own, (0, 0, 0, rows - self.tokens)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)[:, : self.tokens]


def sharded(decoder: Decoder, rank: int, world: int) -> Decoder:
    """Makes this rank's part of a decoder."""
    decoder.head = VocabularyParallelHead(decoder.head.weight.detach(), rank, world)
    decoder.argmax = partial(distributed.argmax, offset=decoder.head.begin)
    return decoder


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default=None)
    parser.add_argument("--batch", type=report.count, default=8)
    parser.add_argument("--tokens", type=report.count, default=16)
    parser.add_argument("--vocabulary", type=report.count, default=32_003)
    parser.add_argument("--layers", type=report.count, default=2)
    options = parser.parse_args(arguments)
    if "RANK" not in os.environ:
        parser.error(f"start it by torchrun, as in {__doc__.splitlines()[6].strip()}")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    kind = options.device or ("cuda" if torch.cuda.device_count() >= here else "cpu")
    if kind == "cuda" and torch.cuda.device_count() < here:
        parser.error(f"--device cuda: {torch.cuda.device_count()} GPUs for {here} processes")
    device = torch.device(kind)
    if kind == "cuda":
        device = torch.device(kind, int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        run(options, device, rank, world)
    finally:
        dist.destroy_process_group()


def run(options: argparse.Namespace, device: torch.device, rank: int, world: int) -> None:
    if rank == 0:
        print(describe(str(device)), HEADER, sep="\n")
    sizes = (options.vocabulary, options.layers, 256, 4, options.batch, options.tokens)
    decoders = {}
    for name in ("torch", "ours"):
        torch.manual_seed(0)
        with device:
            decoders[name] = Decoder(torch.argmax, *sizes).eval()
    sharded(decoders["ours"], rank, world)
    first = torch.arange(options.batch, device=device) % options.vocabulary
    modes = {
        "eager": lambda step: step,
        "compile": lambda step: torch.compile(step, fullgraph=True),
    }
    for name, prepare in modes.items():
        tokens, times = {}, {}
        for who, decoder in decoders.items():
            step = prepare(decoder)
            decode(step, first, min(4, options.tokens))  # compiles
            dist.barrier()
            tokens[who], times[who] = decode(step, first, options.tokens)
        equal = torch.equal(tokens["ours"], tokens["torch"])
        shape = (options.batch, options.vocabulary)
        if rank == 0:
            where = device.type
            row = Row("sharded_decoding", shape, where, name, times["torch"], times["ours"], equal)
            print(row, flush=True)
        if not equal:
            raise AssertionError(f"{name}: rank {rank} has other tokens than one process")


if __name__ == "__main__":
    sys.exit(main())

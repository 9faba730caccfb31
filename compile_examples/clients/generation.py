"""Greedy generation by transformers, with a tiny model of random weights."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import customops

TOKENS = 16


@torch.no_grad()
def run() -> str:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=4096, num_attention_heads=4, num_key_value_heads=2, **sizes)
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(4096, (2, 8))
    options = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    options |= {"attention_mask": torch.ones_like(prompt)}

    expected = model.generate(prompt, **options)
    with customops.enable():
        found = model.generate(prompt, **options)
    if not torch.equal(found, expected):
        raise AssertionError("the tokens differ from torch's")

    model.forward = torch.compile(model.forward, options=customops.inductor_options())
    with customops.enable():
        compiled = model.generate(prompt, **options)
    if not torch.equal(compiled, expected):
        raise AssertionError("compiled, the tokens differ from torch's")
    return f"{expected.shape[0]} x {TOKENS} tokens, eager and compiled, equal to torch's"

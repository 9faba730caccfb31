"""softmax_max under autocast on a GPU is computed in float32, as torch.softmax is there."""

import torch

torch.library.register_autocast("reduceops::softmax_max", "cuda", torch.float32)

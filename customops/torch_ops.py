"""`torch.ops.reduceops` with types: ``from customops.torch_ops import reduceops``.

It is the same object. Type checkers know nothing of what `torch.ops` has; of this they know every
operator with its overloads, from torch_ops.pyi.
"""

import torch

reduceops = torch.ops.reduceops

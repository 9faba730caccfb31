"""What torch is told of the operators beside their kernels; each module registers its part."""

from . import overloads

overloads.check()
from . import autocast, autograd, conv2d, fake, scale, unsupported, vmap  # noqa: E402, F401

"""The operators in Inductor: as parts of its loops, and in place of torch's reductions."""

from .rewrite import RewriteReductions, inductor_options, left_alone, rewrites

__all__ = ["RewriteReductions", "inductor_options", "left_alone", "rewrites"]

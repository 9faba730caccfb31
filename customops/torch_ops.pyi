"""The operators as their schemas have them (csrc/library.cpp)."""

from collections.abc import Callable, Sequence
from typing import Protocol, overload

from torch import Tensor, dtype

class _Arg(Protocol):
    default: Callable[..., Tensor]
    dims: Callable[..., Tensor]
    options: Callable[..., Tensor]
    dims_options: Callable[..., Tensor]
    @overload
    def __call__(
        self, self_: Tensor, /, dim: int | None = None, keepdim: bool = False
    ) -> Tensor: ...
    @overload
    def __call__(self, self_: Tensor, /, dim: Sequence[int], keepdim: bool = False) -> Tensor: ...
    @overload
    def __call__(
        self,
        self_: Tensor,
        /,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        mask: Tensor | None = None,
        index_dtype: dtype | None = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        self_: Tensor,
        /,
        dim: Sequence[int],
        keepdim: bool = False,
        *,
        mask: Tensor | None = None,
        index_dtype: dtype | None = None,
    ) -> Tensor: ...

class _Extreme(Protocol):
    default: Callable[..., tuple[Tensor, Tensor]]
    options: Callable[..., tuple[Tensor, Tensor]]
    @overload
    def __call__(
        self, self_: Tensor, /, dim: int, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        self_: Tensor,
        /,
        dim: int,
        keepdim: bool = False,
        *,
        mask: Tensor | None = None,
        index_dtype: dtype | None = None,
    ) -> tuple[Tensor, Tensor]: ...

class _SoftmaxMax(Protocol):
    default: Callable[..., tuple[Tensor, Tensor]]
    def __call__(
        self, self_: Tensor, /, dim: int, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]: ...

class _Scaled(Protocol):
    default: Callable[..., Tensor]
    def __call__(
        self, self_: Tensor, /, scale: float | Tensor, dim: int = 1, keepdim: bool = True
    ) -> Tensor: ...

class _Convolved(Protocol):
    default: Callable[..., Tensor]
    def __call__(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scale: float | Tensor,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        dim: int = 1,
        keepdim: bool = True,
    ) -> Tensor: ...

class _Operators(Protocol):
    argmin: _Arg
    argmax: _Arg
    min: _Extreme
    max: _Extreme
    softmax_max: _SoftmaxMax
    scale_min: _Scaled
    scale_max: _Scaled
    conv2d_scale_min: _Convolved
    conv2d_scale_max: _Convolved

reduceops: _Operators

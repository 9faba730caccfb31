"""The operators as their schemas have them (csrc/library.cpp), with their `self`."""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from torch import Tensor, dtype
from torch._ops import OpOverload

_Result = TypeVar("_Result")

class _Overload(OpOverload, Generic[_Result]):
    def __call__(self, /, *args: Any, **keywords: Any) -> _Result: ...

class _Packet(Protocol):
    def overloads(self) -> list[str]: ...

class _Arg(_Packet, Protocol):
    default: _Overload[Tensor]
    dims: _Overload[Tensor]
    options: _Overload[Tensor]
    dims_options: _Overload[Tensor]
    @overload
    def __call__(_, /, self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
    @overload
    def __call__(_, /, self: Tensor, dim: Sequence[int], keepdim: bool = False) -> Tensor: ...
    @overload
    def __call__(
        _,
        /,
        self: Tensor,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        mask: Tensor | None = None,
        index_dtype: dtype | None = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        _,
        /,
        self: Tensor,
        dim: Sequence[int],
        keepdim: bool = False,
        *,
        mask: Tensor | None = None,
        index_dtype: dtype | None = None,
    ) -> Tensor: ...

class _Extreme(_Packet, Protocol):
    default: _Overload[tuple[Tensor, Tensor]]
    options: _Overload[tuple[Tensor, Tensor]]
    @overload
    def __call__(_, /, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        _,
        /,
        self: Tensor,
        dim: int,
        keepdim: bool = False,
        *,
        mask: Tensor | None = None,
        index_dtype: dtype | None = None,
    ) -> tuple[Tensor, Tensor]: ...

class _SoftmaxMax(_Packet, Protocol):
    default: _Overload[tuple[Tensor, Tensor]]
    def __call__(_, /, self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]: ...

class _Scaled(_Packet, Protocol):
    default: _Overload[Tensor]
    def __call__(
        _, /, self: Tensor, scale: float | Tensor, dim: int = 1, keepdim: bool = True
    ) -> Tensor: ...

class _Convolved(_Packet, Protocol):
    default: _Overload[Tensor]
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

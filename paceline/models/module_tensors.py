"""Walk the tensors of a module in place: move, list or temporarily replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

Table = dict[str, Tensor | None]


@torch.no_grad()
def move_tensor_by_tensor(
    root: nn.Module,
    device: torch.device | None,
    dtype: torch.dtype,
    low: frozenset[int] = frozenset(),
    compute_dtype: torch.dtype = torch.float32,
) -> None:
    """Move all parameters and buffers of ``root`` to ``device`` (None: each stays where it is), one by one.
    The host memory of one tensor is free before the next one moves. Ties hold.

    Floating tensors become ``dtype``, parameters in ``low`` (their ids) ``compute_dtype``. Layers already
    packed in 4 bits are not cast, since that would read their bytes as numbers. Trained weights on the host
    are copied out of the file that they are mapped from (``_of_its_own``).
    """
    # Moved whole and cast afterwards, 8 B frozen parameters that stay in 16 GB of bf16 would need 32 GB.
    places: dict[int, list[tuple[Table, str]]] = {}
    for module in root.modules():
        if not hasattr(module, "quant_state"):
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        places.setdefault(id(tensor), []).append((table, name))  # type: ignore[arg-type]
    for key, entries in places.items():
        table, name = entries[0]
        moved = _moved(table[name], device, compute_dtype if key in low else dtype)
        for table, name in entries:
            table[name] = moved


def _moved(tensor: Tensor | None, device: torch.device | None, dtype: torch.dtype) -> Tensor:
    # Module.to keeps a parameter the same object, with its attributes
    holder = nn.Module()
    if isinstance(tensor, nn.Parameter):
        holder.register_parameter("held", tensor)
    else:
        holder.register_buffer("held", tensor)
    held = holder.to(device=device, dtype=dtype).held
    assert isinstance(held, Tensor)
    same = tensor is not None and held.data_ptr() == tensor.data_ptr()
    return _of_its_own(held) if same else held


def _of_its_own(tensor: Tensor) -> Tensor:
    """Return ``tensor``; copy a trained weight on the host, since it may be mapped from a file.

    The last bits of matrix products depend on alignment, and a file is aligned differently from torch's
    memory. So a run that loaded its weights would differ from one resumed from its checkpoint, and so would
    two folders with headers of different length. A mapped weight would also need its memory only in the first
    step, not now.
    """
    if tensor.device.type == "cpu" and tensor.requires_grad:
        tensor.data = tensor.data.clone()
    return tensor


def tensors_of(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters, buffers, and tensors kept as plain attributes (some models keep rotary frequencies
    so); tied parameters once.
    """
    yield from root.named_parameters()
    yield from root.named_buffers()
    for prefix, module in root.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{name}", value


def replace_tensors(root: nn.Module, made: Mapping[int, Tensor]) -> None:
    """Replace each old tensor by the new one (keyed by the old one's id) wherever it is registered."""
    for module in root.modules():
        for table in (module._parameters, module._buffers, vars(module)):
            for name, old in list(table.items()):
                if isinstance(old, Tensor) and id(old) in made:
                    table[name] = made[id(old)]  # type: ignore[assignment]


@contextmanager
def replaced(owner: object, **values: object) -> Iterator[None]:
    """Inside the context these attributes of ``owner`` have these values."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextmanager
def _replaced_data(parameters: Iterable[nn.Parameter], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the context the data of ``parameters`` is replaced by ``change`` of it."""
    kept = [(parameter, parameter.data) for parameter in parameters]
    for parameter, data in kept:
        parameter.data = change(data)
    try:
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data


def standing_in(root: nn.Module, dtype: torch.dtype) -> AbstractContextManager[None]:
    """Inside the context every floating parameter reports ``dtype``, through a value without storage.

    peft casts new adapters to the dtype of the layer under them: bf16 would round their first values.
    """
    others = (p for p in root.parameters() if p.is_floating_point() and p.dtype != dtype and not p.is_meta)
    return _replaced_data(
        others, lambda data: torch.zeros((), dtype=dtype, device=data.device).expand(data.shape)
    )


@contextmanager
def shapes_standing_in(root: nn.Module, on: bool) -> Iterator[None]:
    """Inside the context a parameter on meta appears as one on the host, without storage. Afterwards the meta
    parameter keeps the new ``requires_grad``.

    peft puts new adapters where the layer under them is: on meta they would have no values.
    """
    # by table, not by ``named_parameters``: a tied parameter lies in several
    kept = [
        (module._parameters, name, parameter)
        for module in root.modules()
        for name, parameter in module._parameters.items()
        if on and parameter is not None and parameter.is_meta
    ]
    stand_ins = {
        id(p): nn.Parameter(torch.zeros((), dtype=p.dtype).expand(p.shape), p.requires_grad)
        for _, _, p in kept
    }
    for table, name, parameter in kept:
        table[name] = stand_ins[id(parameter)]
    try:
        yield
    finally:
        for table, name, parameter in kept:
            parameter.requires_grad = stand_ins[id(parameter)].requires_grad
            table[name] = parameter


def widened(module: nn.Module) -> AbstractContextManager[None]:
    """Inside the context the parameters of ``module`` that are narrower than fp32 are fp32: probes compare to
    fp32's tolerance.
    """
    narrow = (p for p in module.parameters() if p.is_floating_point() and p.dtype.itemsize < 4)
    return _replaced_data(narrow, torch.Tensor.float)


def persistent_buffers(hf: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers that a state dict holds, under their plain names: a router's load-balancing bias."""
    for prefix, module in hf.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


_STEPS = 251  # a prime: neighbouring rows and columns differ


@contextmanager
def stand_in_values(
    module: nn.Module, on: bool = True, rows: int | None = None, every: bool = False
) -> Iterator[None]:
    """Inside the context the parameters of ``module`` that are on meta (``every``: all) have values on the
    host, with the usual spread of weights. Each has at most ``rows`` rows. Does nothing unless ``on``.
    """
    kept = [
        (part._parameters, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if on and parameter is not None and (every or parameter.is_meta)
    ]
    for table, name, parameter in kept:
        table[name] = nn.Parameter(_values(parameter[:rows]), requires_grad=False)
    try:
        yield
    finally:
        for table, name, parameter in kept:
            table[name] = parameter


def _values(like: Tensor) -> Tensor:
    """Return values in [-1, 1), divided by the square root of the inputs. Not random: that takes seconds for
    a large layer.
    """
    steps = torch.arange(like.numel(), dtype=torch.int32).remainder_(_STEPS).to(torch.float32)
    inputs = like.shape[-1] if like.ndim > 1 else 1
    return steps.div_(_STEPS / 2).sub_(1.0).mul_(inputs**-0.5).view(like.shape).to(like.dtype)


def ties(hf: nn.Module) -> dict[str, str]:
    """Map the other names of tied parameters to their own (``lm_head.weight`` ->
    ``model.embed_tokens.weight``).
    """
    names = {id(p): name for name, p in hf.named_parameters()}
    every = hf.named_parameters(remove_duplicate=False)
    return {name: names[id(p)] for name, p in every if names[id(p)] != name}

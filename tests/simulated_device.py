"""A GPU for tests on machines without one: torch behaves as if CUDA were there, as far as devices go.

All numbers stay on the CPU. A storage has a place: CPU by default, GPU, or EITHER for what C++ made without saying
where, as in a backward pass, until it meets something on the GPU. One mode answers what Python asks (`x.device`,
`x.to("cuda")`, `zeros(device=...)`), the other checks all inputs of every operation, in backward passes too. What
CUDA refuses raises a :class:`Mistake`, and so does pickling a tensor on the GPU: a checkpoint or a message has to be
readable where there is none. Not seen: kernels that CUDA lacks, rounding, memory, time, and what Python asks
inside a call of torch.
"""

import contextlib
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU, EITHER, CPU = "cuda", "either", "cpu"
Tensor, aten = torch.Tensor, torch.ops.aten
# The values of a sparse tensor have its place.
VALUES = {torch.sparse_coo: Tensor._values, torch.sparse_csr: Tensor.values, torch.sparse_csc: Tensor.values}
BETWEEN = (aten.copy_.default, aten.is_same_size.default)  # take tensors of two devices
INDEXED = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index")
ANSWERS = {Tensor.device.__get__: torch.device(GPU, 0), Tensor.is_cuda.__get__: True, Tensor.is_cpu.__get__: False}
CUDA = {
    "is_available": True, "is_initialized": True, "device_count": 1, "manual_seed": None, "manual_seed_all": None,
    "get_rng_state_all": [], "set_rng_state_all": None,
}  # fmt: skip
reduced = Tensor._reduce_ex_internal


class Mistake(Exception):
    """What CUDA would have refused."""


def tensors(*values):
    return [one for one in tree_leaves(values) if isinstance(one, Tensor)]


def storage(tensor):
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return VALUES.get(tensor.layout, Tensor.detach)(tensor).untyped_storage()


def place(tensor):
    return getattr(storage(tensor), "simulated_place", CPU)


def put(tensor, where):
    if where == GPU and not torch.cuda.is_available():
        raise Mistake("this process has no GPU")
    storage(tensor).simulated_place = where
    return tensor


class Move(torch.autograd.Function):
    """A copy in another place; its gradient comes back."""

    @staticmethod
    def forward(ctx, tensor, where):
        ctx.back = place(tensor)
        return put(tensor.clone(), where)

    @staticmethod
    def backward(ctx, gradient):
        return put(gradient.clone(), ctx.back), None


class Answers(TorchFunctionMode):
    """Answers what Python asks of tensors; ``to_host`` are the sizes of tensors that left the GPU."""

    def __init__(self):
        super().__init__()
        self.to_host = []
        self.made_of_nothing = CPU  # the place of tensors that the current call makes without an input

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        given = tensors(args, kwargs)
        places = [place(one) for one in given]
        if GPU in places[:1] and (func in ANSWERS or name in ("numpy", "__array__")):
            if func in ANSWERS:
                return ANSWERS[func]
            raise Mistake(f"{name} of a tensor on the GPU")
        if name in ("to", CPU, GPU):
            return self.to(*args, **kwargs) if name == "to" else self.moved(args[0], name)
        where = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        kwargs |= {} if where is None else {"device": CPU}
        outer = self.made_of_nothing
        self.made_of_nothing = where or (EITHER if GPU in places or name in ("backward", "grad") else CPU)
        try:
            made = func(*args, **kwargs)
        finally:
            self.made_of_nothing = outer
        if where is not None:
            return self.moved(made, where) if given else put(made, where)
        for one in tensors(made) if GPU in places else ():
            if place(one) == EITHER or name == "__deepcopy__" or name.startswith("new_"):
                put(one, GPU)
        return made

    def to(self, tensor, *args, copy=False, **kwargs):
        if args and isinstance(args[0], Tensor):
            dtype, where = args[0].dtype, place(args[0])
        else:
            device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
            where = place(tensor) if device is None else device.type
        return self.moved(tensor.to(dtype=dtype or tensor.dtype, copy=copy), where)

    def moved(self, tensor, where):
        if where == place(tensor):
            return tensor
        self.to_host += [tensor.numel()] if where == CPU else []
        return Move.apply(tensor, where)


class Checks(TorchDispatchMode):
    """Refuses operations on tensors of two devices, and says where results are."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = tensors(args, kwargs)
        places, held = [place(one) for one in inputs], [storage(one) for one in inputs]
        if GPU in places and func not in BETWEEN:
            indexes = tensors(args[1]) if func._schema.name in INDEXED and places[0] == GPU else ()  # may be anywhere
            free = {id(one) for one in [*indexes, *(one for one in inputs if one.dim() == 0)]}
            wrong = any(at == CPU and id(one) not in free for one, at in zip(inputs, places, strict=True))
            if wrong or (func._schema.is_mutable and places[0] == CPU) or kwargs.get("generator") is not None:
                raise Mistake(f"two devices in {func}: {[(*one.shape,) for one in inputs]} on {places}")
        made = func(*args, **kwargs)
        where = next((one for one in (GPU, EITHER, CPU) if one in places), self.answers.made_of_nothing)
        known = {id(one) for one in held}
        for one in [*held, *map(storage, tensors(made))] if where != CPU else ():
            if getattr(one, "simulated_place", CPU if id(one) in known else EITHER) == EITHER:
                one.simulated_place = where
        return made


def pickled(tensor, protocol):
    if place(tensor) == GPU:
        raise Mistake("a tensor on the GPU is pickled")
    return reduced(tensor, protocol)


@contextlib.contextmanager
def simulated_gpu():
    """In the block RecBole finds a GPU and uses it."""
    with contextlib.ExitStack() as stack:
        for name, answer in CUDA.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, mock.Mock(return_value=answer)))
        # Optimizers of a build of torch for CUDA ask it whether a graph is being captured.
        stack.enter_context(mock.patch.object(torch.accelerator, "current_accelerator", mock.Mock(return_value=None)))
        stack.enter_context(mock.patch.object(Tensor, "_reduce_ex_internal", pickled))
        answers = Answers()
        stack.enter_context(Checks(answers))
        yield stack.enter_context(answers)

"""The models of a training: found once by the optimizer's parameters, then watched where called.

Hooks lie on the root of a model alone, so that a forward of a thousand modules costs two calls; where
the root itself is never called, on the modules below it that are. Models that are called and not
trained (a teacher, a reference, a network that judges) are watched, too: they are part of the step.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

from computeflow.recorder.frames import Record
from computeflow.recorder.process_recorder import Recorder
from computeflow.recorder.steps import EVALUATION, FORWARD, Span

_MAX_HOOKED = 64
"""Modules of one level that are tried for being the ones that are called."""
_MAX_DEPTH = 5
_MAX_FROZEN = 16
"""Models that are watched and not trained."""
_TRIAL_STEPS = 2
"""Steps after which a level that was never called is left for the next one."""
_MAX_SEARCHES = 8
"""Searches of the heap for models; one takes tenths of a second where objects are many."""
_CONFIG = (
    "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim vocab_size num_local_experts num_experts num_experts_per_tok "
    "moe_intermediate_size n_embd n_layer n_head n_positions d_model d_ff num_layers num_heads "
    "max_position_embeddings tie_word_embeddings torch_dtype image_size patch_size"
).split()


@dataclass(slots=True)
class _Frozen:
    """A model or a part of one without a parameter that is trained, and how often it is called."""

    since: int
    calls: int = 0
    """Steps in which it was called."""
    last: int = -1

    def is_usual(self, step: int) -> bool:
        """Whether most steps have such a call; one that few have evaluates, say averaged weights."""
        if step != self.last:
            self.last = step
            self.calls += 1
        return 2 * self.calls >= step - self.since


@dataclass(slots=True)
class _Root:
    """A model, and the level of it that is hooked. Nothing here keeps a model alive."""

    reference: Callable[[], Any]
    parameters: int
    level: list[Callable[[], Any]]
    since: int
    trained: frozenset[int]
    """Ids of the parameters that are trained; empty for a model that is only called."""
    depth: int = 0
    called: bool = False
    handles: list[Any] = field(default_factory=list)

    @property
    def modules(self) -> list[Any]:
        """Those of the level that are still there."""
        return [module for each in self.level if (module := each()) is not None]


class _Hook:
    """A hook on a module. Copied or pickled with its module, it becomes one that does nothing: what a
    user saves is loaded without the recorder.
    """

    __slots__ = ("_act", "_recorder", "_torch")

    def __init__(self, torch: Any, recorder: Recorder, act: Callable[[Any], None]) -> None:
        self._torch, self._recorder, self._act = torch, recorder, act

    def __call__(self, module: Any, *_: Any) -> None:
        if not self._torch.compiler.is_compiling():
            self._recorder.guarded("forward", self._act, module)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Models:
    def __init__(self, torch: Any, recorder: Recorder) -> None:
        self._torch, self._recorder = torch, recorder
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._roots: list[_Root] = []
        self._frozen: list[_Root] = []
        self._searches = 0
        self._searching = False
        self._inside = 0
        self._span: Span | None = None
        self.trains: Callable[[], None] = lambda: None
        """Called when a model that is in `train()` is called."""
        self.evaluated: Callable[[], None] = lambda: None
        """Called when the trained model is called without gradients."""

    def see(self, optimizer: Any) -> None:
        """After a step of an optimizer: find its model, if it is a new one."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
            known = {id(p) for root in self._alive() for p in root.parameters()}
            if not parameters <= known and self._searches < _MAX_SEARCHES:
                self._searches += 1
                self._find(lambda p: id(p) in parameters, type(optimizer).__name__)
        elif self._searching:
            self._deepen()

    def see_gradients(self) -> None:
        """After a backward of code without an optimizer: find what has gradients."""
        self._find(lambda p: p.grad is not None, "")

    def see_root(self, root: Any, optimizer: str) -> None:
        """After a step of an engine that holds the model itself."""
        if not self._is_root(root):
            self._add(root, optimizer, _needs_gradient)
        elif self._searching:
            self._deepen()

    def is_trained(self, module: Any) -> bool:
        """Whether a module has all the parameters of a model that is trained."""
        inside = set(map(id, module.modules()))
        count = sum(1 for _ in module.parameters())
        return any(
            id(root) in inside
            or (count == each.parameters and any(part is module for part in root.modules()))
            for each in self._roots
            if (root := each.reference()) is not None
        )

    def in_training(self) -> bool:
        """Whether any root is in `train()`."""
        return any(root.training for root in self._alive())

    def _alive(self) -> list[Any]:
        return [root for each in self._roots if (root := each.reference()) is not None]

    def _is_root(self, module: Any) -> bool:
        return any(root is module for root in self._alive())

    def _find(self, is_trained: Callable[[Any], bool], optimizer: str) -> None:
        objects = gc.get_objects()
        kinds = {k for k in set(map(type, objects)) if issubclass(k, self._torch.nn.Module)}
        modules = [each for each in objects if type(each) in kinds]
        held = {id(child) for each in modules for child in _children(each)}
        own = {id(each) for each in modules if any(map(is_trained, _parameters(each)))}
        for root in modules:
            if id(root) in held or self._is_root(root):
                continue
            if any(id(each) in own for each in root.modules()):
                self._add(root, optimizer, is_trained)
            elif next(root.parameters(), None) is not None:
                self._watch_frozen(root)

    def _add(self, module: Any, optimizer: str, is_trained: Callable[[Any], bool]) -> None:
        parameters = list(module.parameters())
        for frozen in [each for each in self._frozen if each.reference() is module]:
            _unhook(frozen)  # another optimizer trains it
            self._frozen.remove(frozen)
        root = self._root(module, frozenset(id(p) for p in parameters if is_trained(p)))
        self._roots = [each for each in self._roots if each.reference() is not None] + [root]
        self._searching = True
        self._hook(root)
        if self._recorder.tape is not None:
            self._recorder.tape.put(_described(module, parameters, optimizer))

    def _watch_frozen(self, module: Any) -> None:
        if len(self._frozen) < _MAX_FROZEN and all(
            r.reference() is not module for r in self._frozen
        ):
            root = self._root(module, frozenset())
            self._frozen.append(root)
            self._hook(root)

    def _root(self, module: Any, trained: frozenset[int]) -> _Root:
        reference, count = weakref.ref(module), sum(1 for _ in module.parameters())
        return _Root(reference, count, [reference], self._recorder.watch.steps, trained)

    def _deepen(self) -> None:
        """Where a level has not been called in whole steps, what lies below it is."""
        steps = self._recorder.watch.steps
        waiting = [r for r in self._roots if not r.called and r.depth < _MAX_DEPTH]
        for root in waiting:
            if steps - root.since < _TRIAL_STEPS:
                continue
            _unhook(root)
            below = [c for each in root.modules if not _is_compiled(each) for c in _children(each)]
            root.level = [weakref.ref(each) for each in below[:_MAX_HOOKED]]
            root.since, root.depth = steps, root.depth + 1
            self._hook(root)
        self._searching = bool(waiting)

    def _hook(self, root: _Root) -> None:
        after = _Hook(self._torch, self._recorder, self._after)
        for module in root.modules:
            parameters = [*map(id, module.parameters())]
            is_frozen = bool(parameters) and root.trained.isdisjoint(parameters)
            frozen = _Frozen(self._recorder.watch.steps) if is_frozen else None
            act = functools.partial(self._before, root, frozen)
            before = _Hook(self._torch, self._recorder, act)
            if getattr(module, "_compiled_call_impl", None) is None:  # else it would be compiled
                root.handles += [
                    module.register_forward_pre_hook(before, prepend=True),
                    module.register_forward_hook(after, always_call=True),
                ]

    @contextlib.contextmanager
    def without_hooks(self) -> Any:
        """For a compiler of TorchScript, which takes hooks for a part of the model."""
        for root in (*self._roots, *self._frozen):
            _unhook(root)
        try:
            yield
        finally:
            for root in (*self._roots, *self._frozen):
                self._hook(root)

    def _before(self, root: _Root, frozen: _Frozen | None, module: Any) -> None:
        watch = self._recorder.watch
        if get_ident() != watch.thread:
            return
        self._inside += 1
        if self._inside > 1 and watch.is_in(FORWARD, EVALUATION):
            return
        self._inside = 1
        root.called = True
        if module.training and frozen is None:
            self.trains()
        trains = self._torch.is_grad_enabled()
        usual = frozen is not None and frozen.is_usual(watch.steps)
        self._span = watch.begin(FORWARD if trains or usual else EVALUATION)
        if not trains and frozen is None and self._span is not None:
            self.evaluated()

    def _after(self, _: Any) -> None:
        if get_ident() != self._recorder.watch.thread:
            return
        self._inside = max(0, self._inside - 1)
        if self._inside == 0 and self._span is not None:
            span, self._span = self._span, None
            self._recorder.watch.end(span)
            if span[0] == EVALUATION:
                self._recorder.watch.join(span)


def _needs_gradient(parameter: Any) -> bool:
    return bool(parameter.requires_grad)


def _unhook(root: _Root) -> None:
    for handle in root.handles:
        handle.remove()
    root.handles.clear()


def _children(module: Any) -> list[Any]:
    return [child for child in vars(module).get("_modules", {}).values() if child is not None]


def _parameters(module: Any) -> list[Any]:
    return [each for each in vars(module).get("_parameters", {}).values() if each is not None]


def _is_compiled(module: Any) -> bool:
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or type(module).__name__ in ("OptimizedModule", "ScriptModule", "GraphModule")


def _described(root: Any, parameters: list[Any], optimizer: str) -> Record:
    config = next(
        (c for m in root.modules() if (c := getattr(m, "config", None)) is not None), None
    )
    shapes = {
        name: value
        for name in _CONFIG
        if isinstance(value := getattr(config, name, None), (int, float, str, bool))
    }
    return {
        "k": "model",
        "parameters": sum(map(_size, parameters)),
        "trainable": sum(_size(p) for p in parameters if p.requires_grad),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
        "class": type(root).__name__,
        "optimizers": optimizer,
        "config": shapes,
    }


def _size(parameter: Any) -> int:
    """Elements of a parameter; DeepSpeed's ZeRO leaves an empty one where it is elsewhere."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())

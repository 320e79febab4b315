"""TensorFlow, loaded when something of it is used first: that takes seconds and 300 MB, and many a run needs none."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

_NAME = "tensorflow"


class _TensorFlow:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__version__":  # pytest asks every object for such names
            raise AttributeError(name)
        import tensorflow

        return getattr(tensorflow, name)


tf: Any = _TensorFlow()


def is_loaded() -> bool:
    """Return whether something has loaded TensorFlow in this process."""
    return _NAME in sys.modules


def when_loaded(action: Callable[[], None]) -> None:
    """Call `action` now if TensorFlow is loaded, else right after it will have been, whoever imports it."""
    if is_loaded():
        action()
    else:
        _watch().actions.append(action)


def load_within(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Let TensorFlow be loaded within a context manager that `context` makes, whoever imports it."""
    if not is_loaded():
        _watch().contexts.append(context)


class _Watch(importlib.abc.MetaPathFinder):
    """Find TensorFlow where it is, and do what was asked for when it is loaded."""

    def __init__(self) -> None:
        self.contexts: list[Callable[[], AbstractContextManager[None]]] = []
        self.actions: list[Callable[[], None]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _NAME:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _ModuleLoader(spec.loader, self)
                return spec
        return None


class _ModuleLoader(importlib.abc.Loader):
    """Load as `inner` does, which the module then has as its loader."""

    def __init__(self, inner: Any, watch: _Watch) -> None:
        self._inner = inner
        self._watch = watch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._inner.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        with ExitStack() as stack:
            for context in self._watch.contexts:
                stack.enter_context(context())
            self._inner.exec_module(module)
        for action in self._watch.actions:
            action()


def _watch() -> _Watch:
    watch = next((finder for finder in sys.meta_path if isinstance(finder, _Watch)), None)
    if watch is None:
        watch = _Watch()
        sys.meta_path.insert(0, watch)
    return watch

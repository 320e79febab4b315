"""Lazy loading of TensorFlow at its first use. Loading takes seconds and 300 MB, and many runs do not need it."""

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
        if name.startswith("_") and name != "__version__":  # pytest looks up such names on every object
            raise AttributeError(name)
        import tensorflow

        return getattr(tensorflow, name)


tf: Any = _TensorFlow()


def is_loaded() -> bool:
    """Return whether TensorFlow is loaded in this process."""
    return _NAME in sys.modules


def when_loaded(action: Callable[[], None]) -> None:
    """Call `action` right after TensorFlow is loaded by any import, or now if it is loaded already."""
    if is_loaded():
        action()
    else:
        _import_hook().actions.append(action)


def load_within(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Load TensorFlow, by any import, inside the context manager that `context` returns. No effect if it is loaded."""
    if not is_loaded():
        _import_hook().contexts.append(context)


class _ImportHook(importlib.abc.MetaPathFinder):
    """An import hook that finds TensorFlow by the other hooks, loads it within `contexts`, and then calls `actions`."""

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
    """A loader that delegates to `inner`. The loaded module has `inner` as its loader."""

    def __init__(self, inner: Any, hook: _ImportHook) -> None:
        self._inner = inner
        self._import_hook = hook

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._inner.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        with ExitStack() as stack:
            for context in self._import_hook.contexts:
                stack.enter_context(context())
            self._inner.exec_module(module)
        for action in self._import_hook.actions:
            action()


def _import_hook() -> _ImportHook:
    hook = next((finder for finder in sys.meta_path if isinstance(finder, _ImportHook)), None)
    if hook is None:
        hook = _ImportHook()
        sys.meta_path.insert(0, hook)
    return hook

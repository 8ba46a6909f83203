"""Random numbers of a session's own, for worlds that draw from global generators: Python's, numpy's and torch's.

    with own.drawn():       the global generators are the session's: seeded by the task's index, or where its last call left them
        world.start(…)

So one seed is one world, whatever other sessions of the worker do between. numpy and torch are not imported for it: where a world
imports one within the block, it is seeded as it is loaded. A generator that a world makes of numpy without a seed
(`numpy.random.default_rng()`, Gymnasium's before a reset) gets the session's entropy; `random.Random()` and `random.SystemRandom`
are the world's own. Standard library only, as workers are.
"""

import hashlib
import secrets
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

WORD = 32  # bits; numpy's generator takes its seed in such words


@dataclass(frozen=True, slots=True)
class _Generator:
    """One package's. `state`: bytes and numbers, which are compared and take little memory."""

    seed: Callable[[Any, int], None]
    state: Callable[[Any], Any]
    restore: Callable[[Any, Any], None]


def _python_state(module: Any) -> Any:
    version, words, gauss = module.getstate()
    return version, array("I", words).tobytes(), gauss


def _restore_python(module: Any, state: Any) -> None:
    version, words, gauss = state
    numbers = array("I")
    numbers.frombytes(words)
    module.setstate((version, tuple(numbers), gauss))


def _seed_numpy(module: Any, seed: int) -> None:
    words = [seed >> at & (1 << WORD) - 1 for at in range(0, max(1, seed.bit_length()), WORD)]
    module.seed(words if len(words) > 1 else words[0])
    module.bit_generator.randbits = _entropy  # of generators that are made without a seed


def _numpy_state(module: Any) -> Any:
    name, words, *rest = module.get_state()
    return name, words.tobytes(), *rest


def _restore_numpy(module: Any, state: Any) -> None:
    name, words, *rest = state
    numbers = array("I")
    numbers.frombytes(words)
    module.set_state((name, numbers, *rest))


def _restore_torch(module: Any, state: bytes) -> None:
    module.set_rng_state(module.frombuffer(bytearray(state), dtype=module.uint8))


# By the module whose presence says that the package is loaded.
GENERATORS: Mapping[str, _Generator] = {
    "random": _Generator(lambda module, seed: module.seed(seed), _python_state, _restore_python),
    "numpy.random": _Generator(_seed_numpy, _numpy_state, _restore_numpy),
    "torch": _Generator(
        lambda module, seed: module.default_generator.manual_seed(seed % 2**63),
        lambda module: module.get_rng_state().numpy().tobytes(),
        _restore_torch,
    ),
}


class OwnRandom:
    """The same seed gives the same numbers. A text is a seed by its hash."""

    def __init__(self, seed: int | str) -> None:
        self._seed = seed if isinstance(seed, int) and seed >= 0 else _hashed(str(seed))
        self._num_drawn = 0  # times that entropy was asked for
        self._states: dict[str, Any] = {}  # of those that the session has drawn from

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Within the block the global generators are the session's; after it, they are nobody's."""
        begun = {name: self._take(name, module) for name, module in _loaded().items()}
        _within.append(self)
        try:
            yield
        finally:
            _within.remove(self)
            for name, module in _loaded().items():
                state = GENERATORS[name].state(module)
                if state != begun.get(name):
                    self._states[name] = state

    def _take(self, name: str, module: Any) -> Any:
        """The state with which the generator begins; a session that never draws holds none."""
        if name in self._states:
            GENERATORS[name].restore(module, self._states[name])
            return self._states[name]
        self.seed(name, module)
        return GENERATORS[name].state(module)

    def entropy(self, num_bits: int) -> int:
        """Other bits at each call; the same ones in each session of the seed."""
        self._num_drawn += 1
        digest = hashlib.shake_128(f"{self._seed} {self._num_drawn}".encode()).digest(num_bits // 8 + 1)
        return int.from_bytes(digest, "big") & (1 << num_bits) - 1

    def seed(self, name: str, module: Any) -> None:
        GENERATORS[name].seed(module, self._seed)


def _entropy(num_bits: int) -> int:
    return _within[-1].entropy(num_bits) if _within else secrets.randbits(num_bits)


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:7], "big")


def _loaded() -> dict[str, ModuleType]:
    """A package that is being loaded, or was replaced, has not all of its module yet."""
    modules = {name: sys.modules.get(name) for name in GENERATORS}
    return {name: module for name, module in modules.items() if module is not None and _is_whole(module)}


def _is_whole(module: ModuleType) -> bool:
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


_within: list[OwnRandom] = []  # the session whose call runs


class _SeedsAsItLoads:
    """Finds the modules of `GENERATORS` as Python does; one that is loaded within a session's call gets its seed."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in GENERATORS or not _within:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_seed(module: ModuleType) -> None:
            load(module)
            if _within:
                _within[-1].seed(name, module)

        spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]  # of the loader that PathFinder has made for this one load
        return spec


sys.meta_path.insert(0, _SeedsAsItLoads)

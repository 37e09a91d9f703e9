"""Options of the operations by name, as the native library numbers them, and the checks that need no arrays."""

from collections.abc import Iterable
from typing import Literal, TypeVar

from ._library import Error

DecayForm = Literal["log", "linear", "neg_log", "gate"]
HeadMap = Literal["grouped", "tiled"]
Rounding = Literal["f32", "io"]
Activation = Literal["silu", "none"]
GateActivation = Literal["silu", "sigmoid"]
Capture = Literal["delta_log", "per_token"]

DECAY = {"log": 0, "linear": 1, "neg_log": 2, "gate": 3}
HEAD_MAP = {"grouped": 0, "tiled": 1}
ROUNDING = {"f32": 0, "io": 1}
ACTIVATION = {"silu": True, "none": False}
GATE_ACTIVATION = {"silu": True, "sigmoid": False}
_CAPTURE = ("delta_log", "per_token")
_T = TypeVar("_T")


def _unknown(arg: str, got: object, known: Iterable[str]) -> Error:
    return Error(f"`{arg}` is {got!r}, expected one of {', '.join(repr(name) for name in known)}")


def choice(arg: str, got: str, known: dict[str, _T]) -> _T:
    """What the library knows an option's value as."""
    if got not in known:
        raise _unknown(arg, got, known)
    return known[got]


def _given(**args: object) -> str:
    names = [f"`{name}`" for name, value in args.items() if value is not None]
    return " and ".join(names) or "neither of " + " and ".join(f"`{name}`" for name in args)


def check_together(**args: object) -> None:
    """Of these arguments come all or none."""
    if len({value is None for value in args.values()}) > 1:
        both = " and ".join(f"`{name}`" for name in args)
        raise Error(f"{_given(**args)} came alone, expected both {both}, or neither")


def check_capture(capture: str, log: object, captured: object) -> None:
    """A capture goes with the memory that it fills."""
    if capture not in _CAPTURE:
        raise _unknown("capture", capture, _CAPTURE)
    if (log is None) != (capture == "per_token") or (captured is None) != (capture == "delta_log"):
        expected = "`log` alone" if capture == "delta_log" else "`captured` alone"
        raise Error(f"capture `{capture}` came with {_given(log=log, captured=captured)}, expected {expected}")


def check_checkpoints(checkpoints: object, checkpoint_every: int) -> None:
    """Checkpoints have a distance."""
    if (checkpoints is None) != (checkpoint_every == 0):
        came = "no `checkpoints`" if checkpoints is None else "`checkpoints`"
        raise Error(f"`checkpoint_every` is {checkpoint_every} and {came} came, expected both or neither")

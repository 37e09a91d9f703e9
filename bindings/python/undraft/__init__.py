"""undraft: Gated DeltaNet kernels whose rejected drafts are taken back exactly.

Here: the operations on NumPy arrays and whatever exports DLPack (:mod:`undraft.ops`), and :class:`StatePool` with its
rounds. Needs no torch. :mod:`undraft.torch` has the operations on torch tensors, on the CPU and on CUDA; import it by
itself.
"""

from ._library import Error, set_num_threads
from .ops import *  # noqa: F403
from .ops import __all__ as _ops_all
from .pool import GdnLayer, LayerDims, Round, Snapshot, StatePool, devices

__all__ = [*_ops_all, "Error", "GdnLayer", "LayerDims", "Round", "Snapshot", "StatePool", "devices", "set_num_threads"]
__version__ = "0.1.0"

"""undraft: Gated DeltaNet kernels with exact rollback.

:mod:`undraft.torch` has the operations on torch tensors; it is imported by itself, so that nothing here needs torch.
"""

from ._library import Error, set_num_threads

__all__ = ["Error", "set_num_threads"]
__version__ = "0.1.0"

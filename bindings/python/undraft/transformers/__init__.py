"""Qwen3-Next and Qwen3.5 models of Hugging Face transformers on undraft: exact rollback, and with it speculative `generate`.

`patch` replaces the forward pass of the Gated DeltaNet layers of one model object. Then

    model.generate(**prompt, prompt_lookup_num_tokens=5)
    model.generate(**prompt, assistant_model=smaller)
    model.generate(**prompt, use_mtp=True)

give the tokens of plain greedy `generate`. transformers itself refuses them for these models, whose recurrent states it cannot
take back.

The import fails with `UnsupportedVersionError` where transformers is none of `TESTED_VERSIONS`.
"""

from ._versions import TESTED_VERSIONS, UnsupportedVersionError, check_version

check_version()  # before anything is taken from a transformers that may not have it

from ._cache import GdnCacheLayer  # noqa: E402
from ._patch import Patched, is_patched, patch, unpatch  # noqa: E402

__all__ = ["TESTED_VERSIONS", "GdnCacheLayer", "Patched", "UnsupportedVersionError", "is_patched", "patch", "unpatch"]

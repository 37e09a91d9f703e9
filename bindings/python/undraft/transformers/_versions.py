"""Versions of transformers that this package was run with."""

from __future__ import annotations

import transformers

TESTED_VERSIONS: tuple[str, ...] = ("5.17.0", "5.20.0", "5.22.0", "5.24.0")
"""The versions of transformers with which all tests of `undraft.transformers` were run."""


class UnsupportedVersionError(ImportError):
    """The installed transformers is not one of `TESTED_VERSIONS`."""


def check_version(version: str | None = None) -> None:
    """Refuses a version of transformers with which the tests were not run.

    Args:
        version: what to check; None is the installed one.

    Raises:
        UnsupportedVersionError: the version is not in `TESTED_VERSIONS`.

    >>> check_version("4.57.0")
    Traceback (most recent call last):
        ...
    undraft.transformers._versions.UnsupportedVersionError: undraft.transformers was run with transformers 5.17.0, \
5.20.0, 5.22.0, 5.24.0; found 4.57.0, whose caches and generation loop may differ
    """
    version = transformers.__version__ if version is None else version
    if version not in TESTED_VERSIONS:
        tested = ", ".join(TESTED_VERSIONS)
        raise UnsupportedVersionError(
            f"undraft.transformers was run with transformers {tested}; found {version}, whose caches and generation "
            "loop may differ"
        )

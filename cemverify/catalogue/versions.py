"""The catalogue's versions: the one that introduced each property. Needs no torch.

A version is a year and a month, "2026.11". CI pins one (`cemverify check --catalogue 2026.11`): properties that came
later are tested and reported, but fail no run until the pin is moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from cemverify.catalogue.index import recorded
from cemverify.console.errors import UsageError

# versions that a release of the package made final; a release adds its own
RELEASED: Sequence[str] = ("2026.11", "2026.12")


@cache
def introduced() -> Mapping[str, str]:
    """The version that introduced each property, by id; the oldest version first, sorted within each."""
    pairs = sorted((property_.since, property_.id) for property_ in recorded())
    return MappingProxyType({id_: since for since, id_ in pairs})


def versions() -> Sequence[str]:
    """Every version, the oldest first; the last one is that of this installation."""
    return list(dict.fromkeys(introduced().values()))


def current() -> str:
    """The version of this installation's catalogue."""
    return versions()[-1]


def check_version(version: str) -> str:
    """Returns a version, if it can be pinned.

    Raises:
        UsageError: this installation does not know it.
    """
    if version not in versions():
        names = ", ".join(versions())
        raise UsageError(f"there is no catalogue {version!r} here, but {names}; update cemverify if yours is later")
    return version


def is_newer(property_id: str, pinned: str | None) -> bool:
    """Whether a property came after the pinned version; never without a pin, and never for the user's own."""
    since = introduced().get(property_id)
    if pinned is None or since is None:
        return False
    order = versions()
    return order.index(since) > order.index(pinned)

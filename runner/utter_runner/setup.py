"""What a daemon is started with, and started anew with when its configuration changes.

Rules here: plain data; who reads it from the disk is `main`, at the start as for a reload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from utter_runner.config import Config
    from utter_runner.supervision.spec import PluginSpec


class Setup(NamedTuple):
    """A configuration and what follows from it.

    Attributes:
        config: checked.
        specs: the plugins that can be run, in the order of the configuration.
        problems: a sentence for everything for which another plugin cannot be.
    """

    config: Config
    specs: list[PluginSpec]
    problems: list[str]

    @property
    def left_out(self) -> frozenset[str]:
        """The ids of the plugins that are to run and cannot."""
        wanted = frozenset(one.id for one in self.config.plugin if one.enabled)
        return wanted - {spec.id for spec in self.specs}

"""Registry of the available integrations, and switching them on and off.

Each integration waits for the import of its framework. A failure affects only the integration in
which it occurs: the failure is counted and logged once, and the program continues. The DataLoader
integration is on in each run, even if the program reports its steps itself, because no program can
report what happens inside a loader.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import ConfigError
from otel_mlperf.integrations.after_import import after_import
from otel_mlperf.integrations.data_loader import DataLoaders
from otel_mlperf.integrations.integration import report_integration_failure
from otel_mlperf.integrations.keras_fit import KerasFit
from otel_mlperf.integrations.torch_loop import TorchLoop
from otel_mlperf.recorder.api.start import at_begin
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.core.recording import unreplaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set
    from importlib.metadata import EntryPoint

    from otel_mlperf.integrations.integration import Integration
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.settings.config import Config

GROUP: Final = "otel_mlperf.integrations"
"""Entry point group: each entry names an integration class, constructed without arguments."""
_LOADERS: Final = DataLoaders()
BUILT_IN: Final[tuple[Integration, ...]] = (TorchLoop(), _LOADERS, KerasFit())
_FAILURES: Final = (Exception, SystemExit)
"""Exceptions of third-party code; a ``SystemExit`` of such code must not end the program."""
_METADATA: Final = (".dist-info", ".egg-info")
_awaited: dict[str, Integration] = {}
"""Integrations that were switched on, by name, including those whose framework is not imported."""
_on: list[Integration] = []
"""Switched-on integrations whose framework is imported."""
_requested: set[str] = set()
"""Names of built-in integrations that the program itself requested, regardless of the settings."""


def integrate(name: str) -> None:
    """Record the loop of a framework: ``om.integrate("torch")``.

    May be called before or after the framework is imported and the run starts; a second call has no
    effect. Under ``otel-mlperf run`` all integrations are on until the program starts a run itself;
    ``dataloader`` is on in each run. Integrations named in the setting ``disabled_integrations``
    stay off.

    Args:
        name: an integration of this package (``torch``: steps and their parts, validations and
            checkpoints of a loop written by hand, or run by a library on top of torch;
            ``dataloader``: waits and workers inside torch's DataLoader; ``keras``: ``fit`` of Keras
            3, on any backend) or an installed one (entry point ``otel_mlperf.integrations``).

    Raises:
        ConfigError: there is no integration of that name, or it cannot be loaded.
    """
    for integration in BUILT_IN:
        if integration.name == name:
            _requested.add(name)
            _await(integration)
            return
    offered = {entry.name: entry for entry in offered_by(sys.path)}
    if name not in offered:
        known = sorted({*offered, *(integration.name for integration in BUILT_IN)})
        raise ConfigError(
            f"integrate(): unknown integration {name!r:.80}; known: {', '.join(known)}"
        )
    try:
        integration = offered[name].load()()
    except Exception as error:
        raise ConfigError(
            f"integrate(): {name!r} ({offered[name].value}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
    _await(integration)


def integrate_all(but: Set[str] = frozenset()) -> None:
    """Switch on all available integrations, except those named in ``but``; never raises."""
    for integration in _on:  # hooks inherited by a forked child are off
        _switch_on_again(integration)
    for integration in BUILT_IN:
        if integration.name not in but:
            _await(integration)
    for entry in offered_by(sys.path):
        try:
            if entry.name not in but:
                _await(entry.load()())
        except _FAILURES as error:
            report_integration_failure(
                f"the integration {entry.name!r} ({entry.value}) cannot be loaded", error
            )


def named_off(config: Config) -> set[str]:
    """Return the names of the integrations that a run's settings disable."""
    return set(filter(None, config.disabled_integrations.split(",")))


def _warn_unknown(off: Set[str]) -> None:
    known = {one.name for one in BUILT_IN}
    if off <= known:
        return  # avoids a scan of installed packages
    known |= {entry.name for entry in offered_by(sys.path)}
    for name in sorted(off - known):
        warn_once(
            f"disabled_integrations: unknown integration {name!r:.80}; "
            f"known: {', '.join(sorted(known))}"
        )


def give_way() -> None:
    """Switch off all integrations but ``dataloader``, because the program starts a run itself."""
    for integration in list(_awaited.values()):
        if integration is not _LOADERS:
            _drop(integration)


def offered_by(paths: Sequence[str]) -> list[EntryPoint]:
    """Return the entry points of integrations that are installed in the folders ``paths``."""
    # Entry points are first searched as text, in 1 ms: importing ``importlib.metadata`` costs 25 to
    # 100 ms in each recorded process, and most installations have no integration.
    if not any(GROUP.encode() in text for text in _entry_point_files(paths)):
        return []
    from importlib.metadata import distributions

    groups = (package.entry_points for package in distributions(path=list(paths)))
    return [entry for group in groups for entry in group.select(group=GROUP)]


def _entry_point_files(paths: Sequence[str]) -> Iterator[bytes]:
    for folder in paths:
        try:
            packages = [name for name in os.listdir(folder or ".") if name.endswith(_METADATA)]
        except OSError:  # an archive, or a missing folder
            continue
        for package in packages:
            try:
                with open(os.path.join(folder, package, "entry_points.txt"), "rb") as file:
                    yield file.read()
            except OSError:
                continue  # most packages have none


def _await(integration: Integration) -> None:
    if integration.name not in _awaited:
        _awaited[integration.name] = integration
        if isinstance(integration, TorchLoop):
            integration.await_libraries()
        after_import(integration.module, partial(_switch_on, integration))


def _drop(integration: Integration) -> None:
    # Must come first: otherwise a framework imported from now on would switch the integration on.
    _awaited.pop(integration.name, None)
    if integration not in _on:
        return
    _on.remove(integration)
    try:
        integration.switch_off()
    except _FAILURES as error:
        report_integration_failure(
            f"the integration {integration.name!r} cannot be switched off", error
        )
    _note()


def _switch_on_again(integration: Integration) -> None:
    try:
        integration.switch_on(sys.modules[integration.module])
    except _FAILURES as error:
        report_integration_failure(
            f"the integration {integration.name!r} cannot be switched on", error
        )


def _switch_on(integration: Integration) -> None:
    """Switch on an integration whose framework is imported; never raises into the import."""
    if _awaited.get(integration.name) is not integration or integration in _on:
        return  # dropped since then, because the program started a run itself; or already on
    try:
        framework = sys.modules[integration.module]
        missing = [name for name in integration.needs if not _has(framework, name)]
        if missing:
            warn_once(
                f"the integration {integration.name!r} does not support this version of "
                f"{integration.module}, which lacks {', '.join(missing)}: the training loop is "
                "recorded without the integration"
            )
            return
        integration.switch_on(framework)
    except _FAILURES as error:
        report_integration_failure(
            f"the integration {integration.name!r} cannot be switched on", error
        )
        return
    _on.append(integration)
    _note()


def _begin(run: Run) -> None:
    if _on:
        _note()
    if run._recorder is not None:
        off = named_off(run._recorder.config)
        _warn_unknown(off)
        _look_into_loaders(off)


def _look_into_loaders(off: Set[str]) -> None:
    if _LOADERS.name in _requested:
        return
    if _LOADERS.name in off:
        _drop(_LOADERS)  # still on from the previous run
    elif _LOADERS in _on:  # hooks inherited by a forked child are off
        _switch_on_again(_LOADERS)
    else:
        _await(_LOADERS)


at_begin.append(_begin)


def _note() -> None:
    """Store the active integrations' names in the run's folder; never raises.

    The names show users why a run has no steps.
    """
    recorder = unreplaced()
    if recorder is None or recorder.meta.is_child or recorder.meta.rank:
        return
    try:
        # Imported lazily: the module loads msgspec, which only a run needs.
        from otel_mlperf.run_files.run_file import write_integrations

        write_integrations(recorder.meta.run_folder, [integration.name for integration in _on])
    except OSError:
        pass  # a folder that cannot be written was reported when the run started
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def _has(framework: object, name: str) -> bool:
    try:
        attrgetter(name)(framework)
    except AttributeError:
        return False
    return True

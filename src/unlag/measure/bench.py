"""The bench: conditions that are identical for every contender of a case, whatever contest it takes part in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from unlag.errors import Missing, UsageError
from unlag.measure.contest import Contest
from unlag.measure.host import Host, read_host
from unlag.measure.progress import Progress, section, silent
from unlag.measure.schedule import Protocol
from unlag.model.case import Case
from unlag.model.variant import Variant
from unlag.model.workload import Shape, Workload, WorkloadRequest
from unlag.runtimes.contract import Inspection, find_runtime
from unlag.workloads.contract import load_workload


@dataclass(frozen=True)
class Bench:
    """Machine, cores, threads and workload of one case at one shape."""

    case: Case
    host: Host
    workload: Workload
    cores: tuple[int, ...]
    threads: int
    progress: Progress

    @property
    def protocol(self) -> Protocol:
        """The contest's rules as the case wants them."""
        case = self.case
        return Protocol(
            rounds=case.rounds, max_rounds=max(case.rounds, case.max_rounds), patience_s=case.patience_s, seed=case.seed
        )

    def within(self, begin: float, end: float) -> Bench:
        """The same bench for a part of the work."""
        return replace(self, progress=section(self.progress, begin, end))

    def contest(self, contenders: Mapping[str, Variant], protocol: Protocol | None = None) -> Contest:
        """A contest of these contenders under this bench's conditions."""
        return Contest(
            contenders,
            self.workload.feed,
            cores=self.cores,
            threads=self.threads,
            protocol=protocol or self.protocol,
            progress=self.progress,
        )


def open_bench(case: Case, shape: Shape, progress: Progress = silent) -> Bench:
    """Read the machine and make the workload for the standard's inputs.

    Raises:
        UsageError: the standard or the workload can't be used, or more threads are wanted than there are cores.
    """
    host = read_host()
    allowed = host.allowance.affinity
    cores = tuple(range(host.usable_cores)) if isinstance(allowed, Missing) else allowed[: host.usable_cores]
    progress("preparing the workload")
    inspection = inspect(case.standard)
    _check_dims(case, inspection)
    request = WorkloadRequest(
        argument="",
        signature=inspection.signature,
        shape=shape,
        dims=case.dims,
        seed=case.seed,
        limits=inspection.limits,
    )
    return Bench(
        case=case,
        host=host,
        workload=load_workload(case.workload, request),
        cores=cores,
        threads=case.threads or len(cores),
        progress=progress,
    )


def _check_dims(case: Case, inspection: Inspection) -> None:
    """Refuse a --dim that fixes nothing: it is mistyped, or the model has other dimensions than was thought."""
    known: dict[str, None] = {}
    for info in (*inspection.signature.inputs, *inspect(case.variant).signature.inputs):
        for axis, size in enumerate(info.shape or ()):
            known |= {size: None} if isinstance(size, str) else {}
            known[f"{info.name}.{axis}"] = None
    wrong = sorted(set(case.dims) - set(known))
    if wrong:
        names = [name for name in known if "." not in name] or list(known)
        raise UsageError(f"no input has a dimension {wrong[0]!r}", hint=f"dimensions: {', '.join(names) or 'none'}")


def inspect(variant: Variant) -> Inspection:
    """Check a variant's options and look at its file.

    Raises:
        UsageError: an unknown option, an absent runtime or provider, or a file that can't be read.
    """
    runtime = find_runtime(variant.runtime)
    runtime.check(variant)
    return runtime.inspect(variant)


def first_shape(case: Case) -> Shape:
    """The shape that explanations and fixes are made for.

    Raises:
        UsageError: the case names none.
    """
    if not case.shapes:
        raise UsageError("no shape to measure at", hint="--shapes 1x128")
    return case.shapes[0]


def quick(protocol: Protocol, rounds: int) -> Protocol:
    """A protocol for many contenders at once: a fixed number of undisturbed rounds, at most twice as many in all."""
    return msgspec.structs.replace(protocol, rounds=rounds, max_rounds=2 * rounds)

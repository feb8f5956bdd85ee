"""Session options that causes look at: which belong together, where two specs differ, taking over the standard's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from unlag.model.draft import OnnxDraft
from unlag.observe.passes import OPTION as LEVEL

PROVIDER = "provider"
DISABLE = "disable"

THREADS = frozenset({"threads", "inter_threads", "execution", "config.session.intra_op_thread_affinities"})
SPINNING = frozenset({
    "spinning", "config.session.intra_op.allow_spinning", "config.session.inter_op.allow_spinning",
    "config.session.force_spinning_stop", "config.session.intra_op.spin_duration_us",
})  # fmt: skip
MEMORY = frozenset(
    {"arena", "memory_pattern", "config.session.use_env_allocators", "config.session.disable_prepacking"}
)
PASSES = frozenset({
    DISABLE, "config.optimization.disable_specified_optimizers", "config.session.disable_quant_qdq",
    "config.session.disable_qdq_constant_folding", "config.session.disable_double_qdq_remover",
    "config.session.enable_quant_qdq_cleanup", "config.optimization.enable_cast_chain_elimination",
    "config.optimization.constant_folding_max_output_size_in_bytes",
})  # fmt: skip

_OF_ONE_CAUSE = THREADS | SPINNING | MEMORY | PASSES | {LEVEL, PROVIDER}


def remaining(*options: Mapping[str, str]) -> frozenset[str]:
    """Names in these options that no cause of its own looks at."""
    return frozenset(name for given in options for name in given) - _OF_ONE_CAUSE


def differing(ours: Mapping[str, str], theirs: Mapping[str, str], names: Iterable[str]) -> list[str]:
    """Those of the names whose texts differ, sorted."""
    return sorted(name for name in names if ours.get(name) != theirs.get(name))


def said(ours: Mapping[str, str], theirs: Mapping[str, str], names: Iterable[str]) -> str:
    """Both sides' values of these options, for a reason."""
    return ", ".join(f"{n}={ours.get(n, 'default')} (standard: {theirs.get(n, 'default')})" for n in names)


def passes_off(options: Mapping[str, str]) -> frozenset[str]:
    """The passes that the option ``disable`` names."""
    return frozenset(name for name in options.get(DISABLE, "").split("+") if name)


def adopt(draft: OnnxDraft, names: Iterable[str]) -> int:
    """Give the draft the standard's values of these options; the number of options that change."""
    changed = differing(draft.options, draft.standard_options, names)
    for name in changed:
        draft.options.pop(name, None)
        if name in draft.standard_options:
            draft.options[name] = draft.standard_options[name]
    return len(changed)

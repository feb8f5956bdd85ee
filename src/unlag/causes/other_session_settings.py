"""A session that is opened with other configuration entries than the standard's.

What it is: the variant's spec sets a session configuration entry that the standard's does not have, or has with
another value. Threads, spinning, memory, single passes, the level of optimization and the provider have causes of
their own and are not meant here.

Why it costs: such entries choose kernels and how work is cut into pieces. Limits that are set for another machine
stay in a script, and the model is not what differs.

How it is seen: the options of the two specs differ.

Remedy: open the session with the standard's entries.

Safety: exact, up to the order in which sums are taken.

Source: onnxruntime#10538 (a setting made for another machine); onnxruntime's list of session configuration keys.
"""

from __future__ import annotations

from unlag.causes.contract import Cause, Finding, Remedy, Step
from unlag.model.draft import OnnxDraft
from unlag.observe.evidence import Evidence
from unlag.observe.session_options import adopt, differing, remaining, said


def _detect(evidence: Evidence) -> Finding:
    ours, theirs = (side.variant.options for side in (evidence.variant, evidence.standard))
    names = remaining(ours, theirs)
    found = differing(ours, theirs, names)
    if not found:
        return Finding("ruled_out", f"0 of {len(names)} other session settings differ from the standard's")
    return Finding("found", f"{len(found)} session settings differ: {said(ours, theirs, found)}", tuple(found))


def _adopt(draft: OnnxDraft) -> int:
    return adopt(draft, remaining(draft.options, draft.standard_options))


CAUSE = Cause(
    id="other_session_settings",
    title="session opened with other settings",
    dimension="parallel",
    affects=frozenset({"speed"}),
    needs=frozenset({"graph"}),
    detect=_detect,
    remedies=(
        Remedy(
            id="adopt_session_settings",
            title="open the session with the standard's settings",
            safety="EXACT",
            step=Step.SESSION,
            apply=_adopt,
        ),
    ),
)

"""What a backend or operator does not do, and which choices meet that."""

from __future__ import annotations

from rlt_core.contract.capabilities import Word
from rlt_core.contract.specs import AttentionSpec, ModelShape, OpSpec
from rlt_core.plugins.plan import Choice

# A page lies inside one attention chunk of 128 keys, but for backends that say otherwise.
CHUNK_PAGES = (1, 2, 4, 8, 16, 32, 64, 128)
PAGE_SIZES = (*CHUNK_PAGES, 256)


def limit_faults(
    spec: AttentionSpec | OpSpec, choice: Choice, dtype: str, head_dims: tuple[int, ...]
) -> list[tuple[str, str]]:
    """Which limits of a backend or operator the choice breaks: (other side, reason) pairs.

    float16 is refused by itself (conflicts), not once more by every operator.
    """
    faults = []
    if lack := lack_of(spec):
        faults.append(("this machine", lack))
    device = choice.device.partition(":")[0]
    if device not in spec.devices:
        faults.append((f"option --device {device}", f"it runs on {', '.join(spec.devices)}"))
    if dtype not in spec.dtypes and dtype != "float16":
        faults.append((f"dtype {dtype}", f"it computes in {', '.join(spec.dtypes)}"))
    exact = spec.exact if isinstance(spec, OpSpec) else Word.EXACT in spec.provides
    if choice.exact and not exact:
        faults.append(("option --exact on", "its bits may change with the rows beside them"))
    if isinstance(spec, AttentionSpec):
        faults += _attention_faults(spec, choice, head_dims)
    return faults


def lack_of(spec: AttentionSpec | OpSpec) -> str | None:
    """What is missing for a spec on this machine, and the command that gets it."""
    if spec.extra is None or spec.extra.found is not None:
        return None
    return f"{spec.extra.lack} ({spec.extra.fix})"


def _attention_faults(
    spec: AttentionSpec, choice: Choice, head_dims: tuple[int, ...]
) -> list[tuple[str, str]]:
    faults = []
    wrong = [str(dim) for dim in head_dims if spec.head_dims and dim not in spec.head_dims]
    if wrong:
        allowed = ", ".join(map(str, spec.head_dims))
        faults.append((f"head size {', '.join(wrong)}", f"it allows head sizes {allowed}"))
    size, sizes = choice.kv_page_size, spec.page_sizes or CHUNK_PAGES
    # What no pool has is refused by itself (conflicts), not once more by every backend.
    if size in PAGE_SIZES and size not in sizes:
        allowed = ", ".join(map(str, sizes))
        faults.append((f"option --page-size {size}", f"it allows {allowed}"))
    return faults


def head_dims(shape: ModelShape) -> tuple[int, ...]:
    """The head sizes of all tracks, each once."""
    return tuple(sorted({track.head_dim for track in shape.tracks}))

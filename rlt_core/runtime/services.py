"""What launches share for the life of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlt_core.contract.protocols import Attention, PagedAttention
from rlt_core.contract.steps import RandomBits
from rlt_core.kv.plan import KVPlan, TrackPlaces
from rlt_core.kv.pool import DevicePool
from rlt_core.runtime.operators import OperatorSet
from rlt_core.runtime.rope import RopeTables


@dataclass(frozen=True, slots=True)
class Services:
    """What stays the same from launch to launch. `paged` is the attention backend where it walks
    page tables itself."""

    ops: OperatorSet
    attention: Attention
    paged: PagedAttention | None
    pool: DevicePool
    rope: RopeTables
    kv: KVPlan
    tracks: Mapping[str, TrackPlaces]
    random_bits: RandomBits

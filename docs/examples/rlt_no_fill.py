"""A plugin that adds only a KV layout: `no_fill`, in which an exit leaves nothing behind.

`last_exited` copies the last keys and values of a token that leaves to the deeper planes, so that
later tokens see it at every depth. Here they do not see it there at all: the deeper a later token
goes, the fewer of the tokens that left early are still in its context. Huginn's authors generate
so by default.

To try it, give a package this module and the entry point `no_fill = "rlt_no_fill"` of the group
`rlt`, then `rlt run --kv-layout no_fill`.
"""

from __future__ import annotations

from rlt_core import KVLayoutSpec, LayoutTables, PlaneRule, Word, hookimpl


@hookimpl
def rlt_kv_layouts() -> list[KVLayoutSpec]:
    return [
        KVLayoutSpec(
            id="no_fill",
            summary="one plane per depth; deeper loops do not see what left before them",
            factory=f"{__name__}:NoFill",
            provides=frozenset(
                {Word.VARIABLE_DEPTH, Word.FULL_DEPTH_KV, Word.DEPTHS_APART, Word.PROMPT_BY_DEPTH}
            ),
            needs=frozenset({Word.HIDDEN_KEYS}),
        )
    ]


class NoFill:
    """Loop d writes and reads plane d - 1; planes that an exit left unwritten are hidden."""

    def tables(self, loops: int) -> LayoutTables:
        """D planes, all kept, for prompts and generated tokens alike."""
        own = tuple(range(loops))
        rule = PlaneRule(write=own, read=own, fill=((),) * loops)
        return LayoutTables(
            num_planes=loops,
            prompt=rule,
            decode=rule,
            prompt_order="depth",
            kept=own,
            missing="hidden",
        )

"""Capability words: what a plugin promises or needs, one sentence of promise each.

Compatibility is decided by these words and never by ids. A plugin may coin words of its own
(`name.word`, any string with a dot); they take part in the same checks.
"""

from __future__ import annotations

from enum import Enum


class Word(str, Enum):
    """A capability word; `Word.GATE.promise` is its sentence."""

    promise: str

    def __new__(cls, value: str, promise: str) -> Word:
        word = str.__new__(cls, value)
        word._value_ = value
        word.promise = promise
        return word

    # What a model can tell an exit policy after a loop.
    GATE = "gate", "The model gives a raw gate logit for every row after each loop."
    STATE = "state", "The model shows its state before and after each loop."
    LOGITS = "logits", "Coda without storing, then head, may run on the state after any loop."
    # What else a model promises.
    ROW_COMPACTION = (
        "row_compaction",
        "A row's result depends on no other row, so rows may be added, removed and moved.",
    )
    LOOPS_OVERRIDE = "loops_override", "A request may ask for another number of loops."
    KEYED_STATE = "keyed_state", "The start state is random, keyed by seed and position."
    GRAPH_SAFE = "graph_safe", "Its methods read nothing back to the host."
    # What a layout promises.
    VARIABLE_DEPTH = "variable_depth", "Rows of one request may leave at different depths."
    FULL_DEPTH_KV = "full_depth_kv", "The true KV of every depth of every position is kept."
    DEPTHS_APART = (
        "depths_apart",
        "A loop never overwrites what a shallower loop of a later position still reads.",
    )
    PROMPT_BY_DEPTH = "prompt_by_depth", "A prompt may run depth by depth, in chunks or waves."
    # What an attention backend or operator promises.
    EXACT = "exact", "A row's bits depend on no neighbour, on its place or on the row count."
    SPLIT_PLANES = "split_planes", "Rows of one launch may read different planes."
    STORE_FALSE = "store_false", "It can attend without writing the pool."
    HIDDEN_KEYS = "hidden_keys", "Keys that a layout hides count as absent: they weigh nothing."
    NUM_ROWS = (
        "num_rows",
        "It takes the number of leading rows that matter, and leaves the others unwritten.",
    )


def promise(word: str) -> str:
    """The sentence of a word; a plugin's own word answers with itself."""
    try:
        return Word(word).promise  # type: ignore[call-arg]  # Enum's value look-up
    except ValueError:
        return word

"""Makes the constraints of requests: grammars are compiled once, whatever asks for them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlt_core.api.constraint import Constraint, next_masks
from rlt_core.api.grammar_text import fault_text, grammar_text
from rlt_core.api.reasoning import OPEN
from rlt_core.api.structured import Structured
from rlt_core.api.token_trie import TokenTrie
from rlt_core.api.tokenizer import Tokenizer
from rlt_core.api.turn import Turn
from rlt_core.contract.errors import RequestError
from rlt_core.runtime.batch import I32

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_GRAMMARS = 128


class Constraints:
    """For one vocabulary. Any thread may call; the ones that were used last are kept."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._tries: list[tuple[Tokenizer, TokenTrie]] = []
        self._compiled: OrderedDict[tuple[int, Structured], LLMatcher] = OrderedDict()

    def start(
        self,
        structured: Structured,
        tokenizer: Tokenizer | None,
        stop_ids: Sequence[int],
        turn: Turn | None = None,
    ) -> tuple[Constraint, I32]:
        """An answer's constraint and the mask of its first token; RequestError naming the kind of
        constraint when the grammar cannot be read, or nothing can be written by it."""
        if tokenizer is None:
            reason = "an answer of a given form needs a tokenizer (--tokenizer, tokenizer=)"
            raise RequestError("structured", reason)
        trie = self._trie(tokenizer)
        matcher = self._matcher(structured, trie).deep_copy()
        thinks = turn is not None and turn.inside
        open_id = None if turn is None or thinks else trie.single(OPEN)
        constraint = Constraint(matcher, trie, stop_ids, thinks=thinks, open_id=open_id)
        (words,) = next_masks([constraint])
        if constraint.complete:
            raise RequestError(structured.kind, "allows no answer but the empty one")
        if constraint.error:
            raise RequestError(structured.kind, constraint.error)
        return constraint, words

    def _trie(self, tokenizer: Tokenizer) -> TokenTrie:
        # Large vocabularies take a moment: made once, while the others wait.
        with self._building:
            for known, trie in self._tries:
                if known is tokenizer:
                    return trie
            try:
                trie = TokenTrie(tokenizer, self._vocab_size)
            except RequestError:
                raise
            except Exception as error:  # a user's tokenizer
                reason = f"the tokenizer cannot tell its tokens' bytes ({error!r})"
                raise RequestError("structured", reason) from error
            self._tries.append((tokenizer, trie))
            return trie

    def _matcher(self, structured: Structured, trie: TokenTrie) -> LLMatcher:
        key = (id(trie), structured)
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
        found = _compile(structured, trie)
        with self._lock:
            self._compiled[key] = found
            if len(self._compiled) > MAX_GRAMMARS:
                self._compiled.popitem(last=False)
        return found


def _compile(structured: Structured, trie: TokenTrie) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    # Verbose errors quote the grammar, which is the user's, at length.
    limits = LLParserLimits(verbose_errors=False)
    try:
        text = grammar_text(structured, trie.special)
        wrong, messages = LLMatcher.validate_grammar_with_warnings(text, trie.lib, limits=limits)
    except Exception as error:  # of the GBNF reader, or a schema that is no JSON to the library
        raise RequestError(structured.kind, fault_text(str(error))) from error
    if wrong:
        raise RequestError(structured.kind, fault_text(messages[0]))
    matcher = LLMatcher(trie.lib, text, log_level=0, limits=limits)
    if matcher.is_error():
        raise RequestError(structured.kind, fault_text(matcher.get_error()))
    return matcher

"""Text to token ids and back, as the completions routes read and write it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.chat import ChatFormat, Conversation
from rlt_core.api.chat_templates import ChatTemplate
from rlt_core.api.tokenizer import Tokenizer
from rlt_core.contract.errors import RequestError
from rlt_core.server.context import ServerContext, context_of
from rlt_core.server.errors import responses
from rlt_core.server.models import check_model
from rlt_core.server.openai.logprobs import token_texts
from rlt_core.server.openai.messages import Message, template_messages
from rlt_core.server.openai.schema import Body, JsonTable, Text, TokenId
from rlt_core.server.openai.tools import Tools

router = APIRouter(tags=["tokens"])
Context = Annotated[ServerContext, Depends(context_of)]


class TokenizeRequest(Body):
    """A text, or a conversation with the options of /v1/chat/completions that make its text."""

    model: Text | None = None
    prompt: Text | None = None
    add_special_tokens: Annotated[
        bool | None, Field(description="Those that the tokenizer adds to a prompt; of texts only.")
    ] = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    tools: Tools | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonTable | None = None
    return_token_strs: bool | None = None

    def conversation(self, chat: ChatFormat, template: ChatTemplate | None) -> Conversation:
        """As the chats of this server are written; RequestError for what a chat could not be made
        of either."""
        if self.add_special_tokens is not None:
            raise RequestError("add_special_tokens", "a chat template writes its own")
        goes_on, begins = bool(self.continue_final_message), self.add_generation_prompt
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return chat.conversation(
            template_messages(self.messages or []),
            add_generation_prompt=not goes_on if begins is None else begins,
            continue_final_message=goes_on,
            chat_template=template,
            chat_template_kwargs=self.chat_template_kwargs,
            tools=tools or None,
        )

    def check_text(self) -> None:
        """RequestError for options that a text has not."""
        for name in ("tools", "add_generation_prompt", "continue_final_message"):
            if getattr(self, name) is not None:
                raise RequestError(name, "is for messages")
        if self.chat_template_kwargs is not None:
            raise RequestError("chat_template_kwargs", "is for messages")


class Tokenized(BaseModel):
    """token_strs: the texts of the tokens, where they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Body):
    """Token ids."""

    model: Text | None = None
    tokens: list[TokenId]


class Detokenized(BaseModel):
    """Their text, special tokens included."""

    prompt: str


@router.post("/tokenize", responses=responses(400, 404, 503), response_model_exclude_none=True)
async def tokenize(body: TokenizeRequest, context: Context) -> Tokenized:
    """Token ids of a text or of a conversation."""
    if body.model is not None:
        check_model(context, body.model)
    tokenizer = _tokenizer(context.llm)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("prompt", "give either prompt or messages")
    # In a thread: a long text would hold up every stream.
    tokens = await asyncio.to_thread(_encode, body, context, tokenizer)
    strings = token_texts(tokenizer, None, tokens) if body.return_token_strs else None
    return Tokenized(
        count=len(tokens),
        max_model_len=context.llm.report.max_len,
        tokens=tokens,
        token_strs=strings,
    )


@router.post("/detokenize", responses=responses(400, 404, 503))
async def detokenize(body: DetokenizeRequest, context: Context) -> Detokenized:
    """The text of token ids."""
    if body.model is not None:
        check_model(context, body.model)
    _tokenizer(context.llm)
    vocab = context.llm.report.vocab_size
    for i, token in enumerate(body.tokens):
        if token >= vocab:
            reason = f"{token} is outside the vocabulary (0 to {vocab - 1})"
            raise RequestError(f"tokens[{i}]", reason)
    return Detokenized(prompt=await context.llm.decode(body.tokens))


def _tokenizer(llm: AsyncLLM) -> Tokenizer:
    if llm.tokenizer is None:
        raise RequestError("model", "the checkpoint has no tokenizer")
    return llm.tokenizer


def _encode(body: TokenizeRequest, context: ServerContext, tokenizer: Tokenizer) -> list[int]:
    if body.prompt is None:
        return body.conversation(context.llm.chat, context.chat_template).rendered.tokens
    body.check_text()
    encode = tokenizer.encode
    if body.add_special_tokens is False:
        plain = getattr(tokenizer, "encode_rendered", None)
        if plain is None:
            raise RequestError("add_special_tokens", "this tokenizer cannot leave them out")
        encode = plain
    try:
        return [int(token) for token in encode(body.prompt)]
    except (UnicodeError, TypeError, ValueError) as error:
        raise RequestError("prompt", f"the tokenizer cannot read it ({error})") from error

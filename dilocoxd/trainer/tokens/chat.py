"""Conversations to tokens, and which of them are answers: the only ones whose prediction is trained.

The tokenizer's own chat template writes the text. Where a template marks what the assistant generates, transformers
says which tokens that is; elsewhere an answer is what the template adds to the conversation before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2 import TemplateError

from dilocoxd.errors import ConfigError, reason_of
from dilocoxd.store.installed_models import require_transformers
from dilocoxd.trainer.tokens import limits
from dilocoxd.trainer.tokens.folders import DOCUMENT_BYTES_MAX
from dilocoxd.trainer.tokens.inputs import encodable
from dilocoxd.trainer.tokens.limits import TakesTooLongError, bounded_time

ASSISTANT: Final = "assistant"
_NO_LIMIT: Final = 1 << 40
_MARKED: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
CONVERSATION_CHARS_MAX: Final = 4 << 20
"""A conversation is encoded in one piece, for which the library takes 300 times its memory and more; what no model
could read at once is no conversation."""
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The token ids of a conversation; `answered`: 1 for each token of an answer, else 0."""

    ids: Sequence[int]
    answered: Sequence[int]


class ChatEncoder:
    """Encodes conversations with the tokenizer in a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises ConfigError for a tokenizer without a chat template, and without transformers."""
        require_transformers("--chat")
        # Only here: text is packed without it, and it takes seconds to import.
        from transformers import AutoTokenizer

        library: Any = AutoTokenizer
        try:
            # A conversation may be longer than the model's window, and is cut into windows later.
            # Unless told not to, it asks on the terminal whether code of that folder shall run, and takes a "y".
            self._tokenizer = library.from_pretrained(folder, model_max_length=_NO_LIMIT, trust_remote_code=False)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = " ".join(reason_of(error).split())
            raise ConfigError(f"{folder}: transformers cannot load this tokenizer ({said}); give another") from error
        template = self._tokenizer.chat_template
        if not isinstance(template, str):
            raise ConfigError(
                f"{folder}: this tokenizer has no chat template; give the folder of a chat model's tokenizer, or put a"
                " chat_template.jinja into it"
            )
        self._is_marked = _MARKED.search(template) is not None

    def encode(self, messages: Sequence[Message], where: str) -> Conversation:
        """One conversation. Raises ConfigError, naming `where` it stands, for one that is too long, or that the
        template refuses or makes too much of."""
        num_chars = sum(len(message["content"]) for message in messages)
        if num_chars > CONVERSATION_CHARS_MAX:
            raise ConfigError(
                f"{where}: this conversation has {num_chars:,} characters, of {CONVERSATION_CHARS_MAX:,} that one may"
                " have; split it into several"
            )
        try:
            with bounded_time():
                return self._marked(messages) if self._is_marked else self._by_prefix(messages, where)
        except (TakesTooLongError, MemoryError) as error:
            what = "all memory" if isinstance(error, MemoryError) else f"more than {limits.SECONDS_MAX} s of CPU time"
            raise ConfigError(
                f"{where}: the chat template takes {what} for this conversation; split the conversation, or give the"
                " tokenizer another template"
            ) from error
        except (TemplateError, TypeError, KeyError, ValueError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{where}: the chat template refuses this conversation ({error}); correct or remove it"
            ) from error

    def _marked(self, messages: Sequence[Message]) -> Conversation:
        found = self._tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        return Conversation(found["input_ids"], found["assistant_masks"])

    def _by_prefix(self, messages: Sequence[Message], where: str) -> Conversation:
        text = self._text(messages)
        answers: list[tuple[int, int]] = []
        for number, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before = self._text(messages[:number], is_asked=True)
            behind = self._text(messages[: number + 1])
            if not behind.startswith(before) or not text.startswith(behind):
                raise ConfigError(
                    f"{where}: the chat template writes earlier messages differently once later ones are there, so"
                    " answers cannot be found; use a template with {% generation %} marks"
                )
            answers.append((len(before), len(behind)))
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        answered = [
            int(any(start < stop and first <= start < last for first, last in answers))
            for start, stop in found["offset_mapping"]
        ]
        return Conversation(found["input_ids"], answered)

    def _text(self, messages: Sequence[Message], *, is_asked: bool = False) -> str:
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=is_asked)
        if len(text) > DOCUMENT_BYTES_MAX:
            raise MemoryError
        return text


def messages_of(row: object, field: str, where: str) -> list[Message]:
    """The messages of a row of JSON. Raises ConfigError for what is no conversation."""
    messages = row.get(field) if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ConfigError(
            f"{where}: field {field!r} is no list of messages with role and content; correct that line, or choose"
            " another with --field"
        )
    for number, message in enumerate(messages, 1):
        said = message if isinstance(message, dict) else {}
        missing = [f"no {key}" for key in ("role", "content") if not isinstance(said.get(key), str)]
        if missing:
            raise ConfigError(
                f"{where}: message {number} of {len(messages)} in field {field!r} has {' and '.join(missing)} that is"
                " text; correct or remove that line"
            )
    return [{**message, "content": encodable(message["content"])} for message in messages]


def has_answer(messages: Sequence[Message]) -> bool:
    """Whether there is anything to learn: an answer of no words teaches a model to say nothing, unless it calls
    a tool or the like."""
    return any(
        message["role"] == ASSISTANT and (message["content"].strip() or message.keys() - {"role", "content"})
        for message in messages
    )


def canonical(messages: Sequence[Message]) -> str:
    """The conversation as one text, by whose hash it is held out or not."""
    return json.dumps(messages, sort_keys=True, ensure_ascii=True)

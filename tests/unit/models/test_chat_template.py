"""Chat templates: the text is that of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from taslak.models.chat_template import ChatTemplate
from taslak.models.tokenizer import Tokenizer

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " Be <brief> & kind, ünïcode\n", "name": None},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [{"type": "text", "text": "b"}], "tool_calls": ()},
]
TEMPLATES = {
    "names and the prompt": "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}",
    "blocks on lines of their own": """
    {%- for m in messages %}
        {% if loop.first %}
    first
        {% endif %}
      {{- m.content }}
    {% endfor %}
    end""",
    "tojson": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}"
    "{{ messages[0] | tojson(sort_keys=true, separators=(',', ':')) }}{{ 'é<' | tojson(ensure_ascii=true) }}",
    "a namespace": "{% set ns = namespace(n=0, self=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}{{ ns.self }}",
    "loop controls": "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.role }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{% set x = 1 %}{{ m.content }}{{ loop.index }}"
    "{% endgeneration %}{{ x is defined }}{% endfor %}",
    "a dict": "{{ dict(a=1)['a'] }}{{ dict.fromkeys(['b'], 2)['b'] }}",
    "the year": "{{ strftime_now('%Y') }}",
    "what is undefined": "{{ tools is none }}{{ documents is none }}{{ nothing is defined }}{{ pad_token }}",
    "None is absent": "{% for m in messages %}{{ m.name is defined }}{% endfor %}",
    "string methods": "{{ messages[0].content.strip().split(',')[0] | upper }}"
    "{{ messages[0].content | trim }}",
    "kinds": "{{ messages[2].content is string }}{{ messages[2].content[0] is mapping }}"
    "{{ messages[2].tool_calls is iterable }}{{ messages[2].tool_calls | length }}",
    "a macro": "{% macro turn(m) %}<{{ m.role }}>{% endmacro %}{% for m in messages %}{{ turn(m) }}"
    "{% endfor %}",
}
REFUSED = {
    "an exception of its own": "{{ raise_exception('no') }}",
    "a change of what was given": "{{ messages.append(1) }}",
    "a way into the interpreter": "{{ messages.__class__.__mro__ }}",
    "the same by a namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns }}",
    "and at its making": "{{ namespace(__class__=1) }}",
    "syntax": "{% for %}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_text_is_that_of_transformers(name: str, prompt: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    given = [{key: value for key, value in message.items() if value is not None} for message in MESSAGES]
    theirs, _ = render_jinja_template([given], None, None, TEMPLATES[name], False, False, prompt, **NAMES)
    ours = ChatTemplate(TEMPLATES[name], NAMES).render(MESSAGES, add_generation_prompt=prompt)
    assert ours == theirs[0]


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_refuses_is_refused(name: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    errors = []
    for render in (
        lambda: render_jinja_template([MESSAGES], None, None, REFUSED[name], False, False, False),
        lambda: ChatTemplate(REFUSED[name], {}).render(MESSAGES, add_generation_prompt=False),
    ):
        with pytest.raises(Exception) as caught:
            render()
        errors.append(type(caught.value))
    assert errors[0] is errors[1]


def test_objects_are_out_of_reach() -> None:
    class Loud(str):
        def shout(self) -> str:
            return "reached"

    class Other:
        pass

    with pytest.raises(Exception, match="has no attribute 'shout'"):
        ChatTemplate("{{ messages[0].content.shout() }}", {}).render(
            [{"content": Loud("a")}], add_generation_prompt=False
        )
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert template.render([{"content": Other()}], add_generation_prompt=False) == "<Other>"
    assert template.render([{"content": Loud("a")}], add_generation_prompt=False) == "a"
    with pytest.raises(SecurityError):
        ChatTemplate("{{ messages[0].content.__class__() }}", {}).render(
            [{"content": "a"}], add_generation_prompt=False
        )


def test_a_conversation_has_messages() -> None:
    with pytest.raises(ValueError, match="expected at least one"):
        ChatTemplate("", {}).render([], add_generation_prompt=True)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "one"}}, "one"),
        ({"tokenizer_config.json": {"chat_template": ""}}, None),
        ({"tokenizer_config.json": {"chat_template": [{"name": "default", "template": "one"}]}}, "one"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": n, "template": n} for n in ("rag", "default")]
                }
            },
            "default",
        ),
        ({"tokenizer_config.json": {"chat_template": "one"}, "chat_template.jinja": "two"}, "two"),
        ({"chat_template.jinja": "two", "additional_chat_templates/rag.jinja": "three"}, "two"),
    ],
)
def test_which_template_is_used(files: dict[str, Any], expected: str | None, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Fast
    from tokenizers import models
    from transformers import PreTrainedTokenizerFast

    Fast(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    ours = Tokenizer.from_folder(tmp_path)
    assert ours._files.template == expected
    assert ours.has_chat_template == (expected is not None)
    theirs = PreTrainedTokenizerFast.from_pretrained(str(tmp_path), local_files_only=True)
    assert (theirs.get_chat_template() if theirs.chat_template else None) == expected

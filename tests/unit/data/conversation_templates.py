"""Chat templates written for the tests, after the manners of published families."""

from __future__ import annotations

#: Tools in the system turn, arguments as JSON, reasoning in the answers after the last question only.
THINKS = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}"
    "{%- set last = namespace(at=0) %}"
    "{%- for message in messages %}{% if message.role == 'user' %}{% set last.at = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}<|im_start|>user\n<tool_response>{{ message.content }}</tool_response>"
    "{%- else %}<|im_start|>{{ message.role }}\n"
    "{%- if message.role == 'assistant' and loop.index0 > last.at %}<think>\n"
    "{{ message.reasoning_content or '' }}\n</think>\n{% endif %}"
    "{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }} "
    "{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}{% endif %}"
)
#: Arguments as text, content None beside calls, ids needed, results written in the turn that called.
STRINGS = (
    "{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{% elif m.role == 'assistant' %}<|im_start|>"
    "{% if m.content is none %}{% for call in m.tool_calls %}"
    "{% if not call['id'] %}{{ raise_exception('calls need ids') }}{% endif %}CALL {{ call['id'] | upper }} "
    "{{ call.function.name + call.function.arguments }}{% endfor %}<|end|>"
    "{% for r in messages[loop.index0 + 1:] %}"
    "{% if r.role == 'tool' and r.tool_call_id == m.tool_calls[0]['id'] %}"
    "RESULT {{ r.content }};{% endif %}{% endfor %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}"
    "{% else %}{{ m.role }}:{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
#: Roles one after the other; nothing but role and content; unknown roles are left out.
PLAIN = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Contents are lists of parts.
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for part in m.content %}{{ part.text }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

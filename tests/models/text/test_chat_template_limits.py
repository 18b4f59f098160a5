"""What a chat template may cost: it is refused by a limit that it is told, and nothing keeps the interpreter's lock."""

from datetime import UTC, datetime

import pytest

from limelight.models.text import template_meter
from limelight.models.text.chat_messages import Arguments
from limelight.models.text.chat_template import ChatTemplate, TemplateRefusal, TemplateSyntax
from limelight.models.text.template_meter import MAX_CHARACTERS, MAX_SECONDS, Meter, TemplateLimit
from limelight.models.text.template_texts import MAX_WORKED_CHARACTERS


def render(source, **variables):
    return ChatTemplate(source, now=lambda: datetime(2031, 5, 6, tzinfo=UTC)).render(variables)


DOUBLED = "{% set ns = namespace(x=[0], y=[0]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"

ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that pass nothing": "{% for a in range(9999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for x in l recursive %}{{ loop(range(9)) }}{{ loop(range(9)) }}{% endfor %}",
    "a macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a block": "{% for a in range(99999) %}{% for b in range(99999) %}{{ self.x() }}{% endfor %}{% endfor %}"
    "{% block x %}{% endblock %}",
    "lazy filters": "{% for a in range(99999) %}{{ range(99999)|map('string')|list|length }}{% endfor %}",
    "a sum": "{{ range(99999)|map('string')|map('list')|sum(start=[]) }}",
}
LARGE = {
    "times": "{{ 'x' * 10**9 }}",
    "times from the left": "{{ 10**9 * 'x' }}",
    "a list": "{{ [0] * 10**9 }}",
    "a power": "{{ 7 ** (10**9) }}",
    "squares": "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "sums of texts": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "a tilde": "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "captured": "{% set x %}xxxxxxxx{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 40,
    "lists": "{% set ns = namespace(x=[0]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "slices": "{% set l = long * 60 %}{% for i in range(999) %}{% set x = l[i:] %}{% endfor %}",
    "center": "{{ 'x'|center(10**9) }}",
    "center as a method": "{{ 'x'.center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "expandtabs": "{{ ('\t' * 9999).expandtabs(99999) }}",
    "indent": "{{ ('\n' * 9999)|indent(99999) }}",
    "indent by a text": "{{ ('\n' * 99999)|indent('x' * 999) }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "round": "{{ 5|round(-10**9) }}",
    "a width": "{{ '%1000000000d' % 1 }}",
    "a width of two places": "{{ '%*d' % (10**9, 1) }}",
    "a precision": "{{ '%.1000000000f' % 1.0 }}",
    "a format": "{{ '{:>1000000000}'.format(1) }}",
    "a format in a format": "{{ '{:{}}'.format(1, 10**9) }}",
    "a mapped format": "{{ '{x:>1000000000}'.format_map({'x': 1}) }}",
    "a format filter": "{{ '%1000000000d'|format(1) }}",
    "a mapped format filter": "{{ ['%1000000000d']|map('format', 1)|list }}",
    "many fields": "{{ ('%s' * 9999) % ((long,) * 9999) }}",
    "bytes": "{{ (5).to_bytes(10**9, 'big') }}",
    "join": "{{ ([long] * 9999)|join }}",
    "join as a method": "{{ ''.join([long] * 9999) }}",
    "replace": "{{ ('x' * 9999)|replace('x', long) }}",
    "replace as a method": "{{ ('x' * 9999).replace('x', long) }}",
    "pieces": "{{ (long * 9).split('x')|length }}",
    "replaced pieces": "{{ (long * 9).replace('x', 'yy')|length }}",
    "tojson": "{{ ([long] * 9999)|tojson }}",
    "an indented tojson": "{{ [1, 2]|tojson(indent=10**9) }}",
    "pprint": "{{ ([long] * 9999)|pprint }}",
    "printed": "{{ [long] * 9999 }}",
    "a date": "{{ strftime_now('%c' * 999) }}",
    "doubled lists compared": DOUBLED + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "doubled lists looked for": DOUBLED + "{% endfor %}{{ ns.x in [ns.x[0], 1] }}",
    "doubled lists printed": DOUBLED + "{% endfor %}{{ ns.x }}",
    "doubled tuples as keys": DOUBLED.replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{% endfor %}{{ {ns.x: 1} }}",
    "doubled tuples looked up": DOUBLED.replace("[ns.x, ns.x]", "(ns.x, ns.x)") + "{% endfor %}{{ {}.get(ns.x) }}",
    "markup": "{{ (long * 9)|striptags }}",
    "links": "{{ long|urlize }}",
    "wrapped": "{{ long|wordwrap }}",
    "from the end": "{{ (long * 99).rfind(long) }}",
    "capitals": f"{{{{ ('x' * {MAX_WORKED_CHARACTERS + 1})|upper }}}}",
    "letters": f"{{{{ ('x' * {MAX_WORKED_CHARACTERS + 1})|list|length }}}}",
    "output": "{% for i in range(999) %}{{ long }}{% endfor %}",
}


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_what_does_not_end_is_ended(source, monkeypatch):
    monkeypatch.setattr(template_meter, "MAX_STEPS", 50_000)
    with pytest.raises(TemplateRefusal, match=r"more than 50,000 rounds|characters together|RecursionError"):
        render(source, l=[1, 2])


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_what_is_too_large_is_refused_before_it_is_made(source):
    with pytest.raises(TemplateRefusal, match=r"\bit \w+|its (output|texts)"):
        render(source, long="x" * 65_536)


def test_the_time_is_limited():
    times = iter([0.0, MAX_SECONDS - 1, MAX_SECONDS + 1])
    meter = Meter(clock=lambda: next(times))
    meter.step(64)
    with pytest.raises(TemplateLimit, match="longer than 5 seconds"):
        meter.step(64)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ long|trim|length }}", "10000000"),
        ("{{ (long ~ 'b').split('b')[0]|length }}", "10000000"),
        ("{{ long.strip().startswith('a') and long in [long] and long[1:] != long }}", "True"),
        ("{{ long[:3] + 'b' * 3 }}", "aaabbb"),
        ("{{ long.replace('b', 'c')|length }}", "10000000"),
        ("{{ [{'content': long}]|map(attribute='content')|first|length }}", "10000000"),
    ],
)
def test_a_long_conversation_passes(source, expected):
    assert render(source, long="a" * 10**7) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a %s %05.1f %%' % ('b', 2.5) }}", "a b 002.5 %"),
        ("{{ '{0:>4}|{x}'.format(7, x='y') }}", "   7|y"),
        ("{{ 'a b  c'.split() }}", "['a', 'b', 'c']"),
        ("{{ 'a,b,c'.rsplit(',', 1) }}", "['a,b', 'c']"),
        ("{{ 'a,b,c'.split(',', maxsplit=1) }}", "['a', 'b,c']"),
        ("{{ ['a', 1]|join('-') }}{{ [{'x': 1}, {'x': 2}]|join(', ', attribute='x') }}", "a-11, 2"),
        ("{{ [1, 2]|sum }}{{ [{'x': 1}, {'x': 2}]|sum(attribute='x') }}", "33"),
        ("{{ 'aaa'|replace('a', 'b', 2) }}{{ 'aaa'.replace('a', 'b') }}", "bbabbb"),
        ("{{ 2 ** 10 + 7 % 4 * 3 }}{{ 1 ~ 'x' ~ [1] }}", "10331x[1]"),
        ("{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ loop.length }}{{ x }};{% endfor %}", "122;223;"),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% macro m(a, b=2) %}{{ a + b }}{{ varargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}", "3()3(3,)"),
        ("{{ (5).bit_length() }}{{ 2.0.is_integer() }}", "3True"),
        ("{{ {'b': 1, 'a': 2}|dictsort }}{{ {'a': {'b': 1}}|items|list }}", "[('a', 2), ('b', 1)][('a', {'b': 1})]"),
        ("{{ call ~ '|' ~ (call + '') }}", '{"a":1}|{"a":1}'),
    ],
)
def test_what_is_small_is_done_as_ever(source, expected):
    assert render(source, call=Arguments({"a": 1}, '{"a":1}')) == expected


@pytest.mark.parametrize("source", ["{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}"])
def test_no_other_template_can_be_read(source):
    with pytest.raises(TemplateRefusal, match="no loader"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in b %}" * 40 + "{% endfor %}" * 40,
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ " + "a+" * 9000 + "a }}",
        "{% if a %}" * 120 + "{% endif %}" * 120,
        "{% autoescape true %}{% endautoescape %}",
    ],
    ids=["loops", "brackets", "a number", "a sum", "conditions", "escaping"],
)
def test_what_cannot_be_compiled_is_refused(source):
    with pytest.raises(TemplateSyntax):
        ChatTemplate(source, now=lambda: datetime.now(UTC))


def test_a_template_may_be_bounded_by_the_program_that_it_becomes():
    source = "{{ a }}{% if b %}é{% endif %}" * 200
    assert render(source, a="x", b=True) == "xé" * 200
    with pytest.raises(TemplateSyntax, match="as a program it has"):
        ChatTemplate(source, now=lambda: datetime.now(UTC), max_code_characters=8192)


def test_texts_folded_by_the_compiler_are_bounded_too():
    with pytest.raises(TemplateRefusal, match="width or a count"):
        render("{{ 'x'|center(99999999) }}")
    assert MAX_CHARACTERS < 99_999_999

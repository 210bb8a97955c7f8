"""What the reference makes of small templates: tests/goldens/template/expressions.json.

    pip install jinja2==3.1.6 transformers
    python tools/goldens/templates.py tests/goldens/template/expressions.json

The reference is `transformers`' own way of compiling a chat template. Where it fails, the case has no text.
"""

import json
import sys
from pathlib import Path

import jinja2
import transformers
from transformers.utils.chat_template_utils import _compile_jinja_template

# Shown as they are in {{ }}.
EXPRESSIONS = r"""
'a-b-c'.find('b')
'a-b-c'.find('-', 2)
'a-b-c'.find('-', 2, 3)
'a-b-c'.find('-', -2)
'éa你a'.find('a', 2)
'abc'.find('', 3)
'abc'.find('', 4)
'abc'.find('c', 1, -1)
'a-b-c'.rfind('-')
'a-b-c'.rfind('-', 0, 3)
'abc'.rfind('', 0, 2)
'abc'.index('c', 1)
'abc'.index('a', 1)
'abcabc'.rindex('a', 0, 3)
'banana'.count('a')
'banana'.count('a', 2)
'banana'.count('a', 2, 4)
'banana'.count('', 5)
'banana'.count('', 7)
'banana'.count('ana')
'hello'.startswith('l', 2)
'hello'.startswith('h', 1)
'hello'.startswith('', 5)
'hello'.startswith('', 6)
'hello'.startswith(('x', 'e'), 1)
'hello'.endswith('l', 0, 4)
'hello'.endswith('lo', 3)
'hello'.endswith('lo', 4)
'hello'.startswith('he', -9)
'Straße'.casefold()
'ΣΑΣ ς'.casefold()
'İıſŉǰẞ'.casefold()
'Ꭰꭰᏸ'.casefold()
'ǅﬁ'.casefold()
'12'.isdigit()
'²'.isdigit()
'²'.isdecimal()
'½'.isdigit()
'½'.isnumeric()
'١٢'.isdecimal()
'一'.isnumeric()
'一'.isdigit()
'①'.isdigit()
''.isdigit()
'ⅷ'.isalpha()
'ⅷ'.isalnum()
'²a'.isalnum()
'a b'.isalnum()
'abc'.isidentifier()
'1abc'.isidentifier()
'_a1'.isidentifier()
'a-b'.isidentifier()
'äß'.isidentifier()
''.isidentifier()
'a b'.isprintable()
'a\tb'.isprintable()
'\u00a0'.isprintable()
''.isprintable()
'a\tbc\td'.expandtabs()
'a\tbc\td'.expandtabs(4)
'a\n\tb'.expandtabs(3)
'a\tb'.expandtabs(0)
'ǆ'.title()
'ǆ ǆa'.capitalize()
'ﬁn straße ßa'.title()
'ßa'.capitalize()
"they're bill's".title()
'aあb 1c'.title()
'ŉa ᾳ ᾲ ა'.title()
'hello world'.title()
'Hello World'.istitle()
'١٢'|int
'१२३'|int + 1
'1_000'|int
'1__0'|int
'_1'|int
' -12 '|int
'+7'|int
'12.9'|int
'abc'|int(5)
'0x1f'|int(0, 16)
'-0x1f'|int(0, 16)
'0b11'|int(0, 2)
'zz'|int(0, 36)
'1e3'|int
1e20|int
'nan'|int(3)
'{:.3f}'.format(3.14159)
'{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c')
'{:*^7}'.format('ab')
'{!r}'.format('a\n')
'{!r:>6}'.format('a')
'{!a}'.format('é')
'{!s}'.format(1.5)
'{:05d}|{:+d}|{: d}'.format(7, 7, 7)
'{:05}'.format(-3)
'{:,}'.format(1234567)
'{:_}'.format(1234567)
'{:,.2f}'.format(1234567.891)
'{:x}|{:X}|{:o}|{:b}'.format(255, 255, 8, 5)
'{:#x}|{:#o}|{:#b}'.format(255, 8, 5)
'{:08b}|{:#010x}'.format(5, 255)
'{:_x}'.format(123456789)
'{:e}|{:.2e}|{:E}'.format(12345.678, 12345.678, 0.00012)
'{:g}|{:g}|{:g}|{:g}'.format(1234567.0, 0.00001, 100.0, 0.5)
'{:.3}|{:.3}|{:.3}'.format(100.0, 10.0, 1234.5)
'{:.1}'.format(0.0)
'{:%}|{:.1%}'.format(0.25, 0.256)
'{:5}|{:<5}|'.format(1.5, 1.5)
'{:c}'.format(65)
'{:s}|{:.2}'.format('abc', 'abc')
'{:d}'.format(True)
'{}'.format(True)
'{:>{}}'.format('a', 4)
'{:{fill}{align}{width}}'.format('a', fill='-', align='^', width=5)
'{0}{1}{0}'.format('a', 'b')
'{a.b}|{a[b]}|{c[1]}'.format(a={'b': 1}, c=[1, 2])
'{{}}{}'.format(1)
'{:=+6d}'.format(5)
'{:-^8}'.format(5)
'{:d}'.format('a')
'{:.2d}'.format(5)
'{:5}'.format(none)
'{:q}'.format(1)
'{'.format(1)
'{}'.format()
'%e|%.2e|%E' % (12345.678, 0.5, 1.5)
'%c%c' % ('a', 66)
'%a|%r' % ('é', 'é')
'%o|%x|%X' % (8, -255, 255)
'%#x|%#o' % (255, 8)
'%g|%g|%.3g' % (1234567.0, 0.00001, 3.14159)
'%5.1f|%-8s|%08.3f' % (2.25, 'ab', -3.5)
'%.3d|%5.3d' % (7, 7)
'%i|%u' % (3.9, 4)
'%d' % 1e20
'%s' % none
'%x' % 1.5
'%c' % 'ab'
'%05s' % 'a'
[{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}, {'a': 1, 'b': 'z'}]|groupby('a')|list
[{'a': 'B', 'b': 1}, {'a': 'b', 'b': 2}, {'a': 'a', 'b': 3}]|groupby('a')|map('first')|list
[{'a': 'B'}, {'a': 'b'}]|groupby('a', case_sensitive=true)|map(attribute='grouper')|list
[{'a': 1}, {}]|groupby('a', default=0)|map(attribute='list')|list
[{'a': {'b': 2}}, {'a': {'b': 1}}]|groupby('a.b')|map('first')|list
[1, 2, 3, 4, 5, 6, 7]|slice(3)|list
[1, 2, 3, 4, 5, 6, 7]|slice(3, 'x')|list
[1, 2]|slice(4)|list
[]|slice(2)|list
'<p>a &amp; <b>b</b></p>  c'|striptags
'a<!-- x <y> -->b &lt;i&gt; &#233; &#x41;'|striptags
'a < b'|striptags
1|filesizeformat
500|filesizeformat
1500|filesizeformat
'1500000'|filesizeformat
2048|filesizeformat(true)
(10**30)|filesizeformat
{'class': 'a b', 'id': none, 'x': '<"'}|xmlattr
{'a': 1}|xmlattr(false)
{'a b': 1}|xmlattr
{}|xmlattr
'trim' is filter
'nope' is filter
'even' is test
'nope' is test
'a' is escaped
('a'|escape) is escaped
[{'a': 2, 'b': 1}, {'a': 1, 'b': 2}, {'a': 1, 'b': 1}]|sort(attribute='a,b')
[{'a': 'x', 'b': 'B'}, {'a': 'X', 'b': 'a'}]|sort(attribute='a,b')|map(attribute='b')|list
[{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]|sort(attribute='a,b', reverse=true)|map(attribute='b')|list
['b', 'A', 'c']|sort
['b', 'A', 'c']|sort(case_sensitive=true)
[3, 1, 2]|sort(reverse=true)
170141183460469231731687303715884105727 + 0
[1, 2, 3]|sum
'a b'|urlencode
'x'|center(5) ~ '|'
"a'b"|tojson
'%s-%s' % (1, 2)
(1, 2) + (3,)
'abc'[::-1]
'a,b'.split(',')
{'b': 1, 'a': 2}|dictsort
'hello'|capitalize
'ab'|list
'a  b'|wordcount
[1, 2, 3]|batch(2)|list
7 // -2 ~ '|' ~ 7 % -2
""".strip().splitlines()

TEMPLATES = [
    "{% set c = cycler('a', 'b', 'c') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}{{ c.next() }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.reset() }}{{ c.next() }}",
    "{% set c = cycler('a', 'b') %}{% for i in range(5) %}{{ i }}{{ c.next() }}{% endfor %}",
    "{{ cycler() }}",
    "{% set j = joiner() %}{% for i in range(3) %}{{ j() }}{{ i }}{% endfor %}",
    "{% set j = joiner(' | ') %}{{ j() }}a{{ j() }}b{{ j() }}c",
    "{% set ns = namespace(a=1, b='x') %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.z = [1] %}{% set ns.a = none %}{{ ns }}|{{ ns|string }}|{{ 'x' ~ ns }}",
    "{% set ns = namespace(s='a') %}{% set ns.s = ns.s ~ 'b' ~ 1 %}{% set ns.s = ns.s + 'c' + 'd' %}{{ ns.s }}",
    "{% set ns = namespace(s='a') %}{% set t = ns.s %}{% set ns.s = ns.s ~ ns.s %}{{ t }}{{ ns.s }}",
    "{% set ns = namespace(s='a') %}{% set ns.s = ns.s + 1 %}{{ ns.s }}",
    "{% set ns = namespace(s=1) %}{% set ns.s = ns.s + 1 + 2 %}{{ ns.s }}",
    "{% set ns = namespace(s=[1]) %}{% set ns.s = ns.s + [2] %}{{ ns.s }}",
    "{% macro m(ns) %}{% set ns.s = 'new' %}x{% endmacro %}{% set ns = namespace(s='old') %}{% set ns.s = ns.s ~ m(ns) %}{{ ns.s }}",
    "{% set ns = namespace(s='a') %}{% for i in range(4) %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.s }}",
    "{% autoescape false %}{{ '<' }}{% endautoescape %}",
    "a{% block x %}b{% endblock %}c",
    "{% set y = 1 %}{% block x %}{{ y }}{% endblock x %}",
    "{% for i in [1, 2] %}{% block x %}{{ i }}.{% endblock %}{% endfor %}",
    "{% for i in [1, 2] %}{% block x scoped %}{{ i }}.{% endblock %}{% endfor %}",
    "{% block x %}{% endblock %}{% block x %}{% endblock %}",
    "{% for g in [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]|groupby('a') %}{{ g.grouper }}:{{ g.list|length }}{% endfor %}",
    "{% for k, v in [{'a': 1}, {'a': 2}]|groupby('a') %}{{ k }}{{ v }}{% endfor %}",
    "{% for g in [{'a': 1}]|groupby('a') %}{{ g }}{{ g[0] }}{% endfor %}",
]


def case(source):
    try:
        text = _compile_jinja_template(source).render(messages=[])
    except Exception:
        text = None
    return {"source": source, "text": text}


cases = [case("{{ " + expression + " }}") for expression in EXPRESSIONS] + [case(source) for source in TEMPLATES]
lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
library = f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}"
Path(sys.argv[1]).write_text(f'{{"library": {json.dumps(library)}, "cases": [\n{lines}\n]}}\n')

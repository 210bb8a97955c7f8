//! Chat templates against their reference implementation, and malicious templates.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tallow_support::shared;
use tallow_text::template::{Chat, ChatTemplate, Ending, Now};

/// 9 March 2025, 14:05: the time in the goldens.
fn now() -> Now {
    Now::from_unix(1_741_529_100)
}

fn template(file: &Value) -> ChatTemplate {
    let mut template = ChatTemplate::new(file["template"].as_str().unwrap()).unwrap();
    for name in ["bos_token", "eos_token"] {
        if let Some(text) = file[name].as_str() {
            template = template.with_token(name, text);
        }
    }
    template
}

#[test]
fn real_templates_render_as_the_reference_does() {
    let Some(folder) = shared("chat-templates") else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ext| ext != "json") {
            continue;
        }
        let file = tallow_support::json(&path);
        assert_eq!(file["now"], "2025-03-09T14:05:00");
        let template = template(&file);
        for case in file["cases"].as_array().unwrap() {
            let flag = |name: &str| case[name].as_bool().unwrap();
            let ending = match (flag("add_generation_prompt"), flag("continue_final_message")) {
                (_, true) => Ending::Open,
                (true, _) => Ending::Prompt,
                _ => Ending::Closed,
            };
            let values = case["kwargs"].as_object().unwrap();
            let tools = Some(&case["tools"]).filter(|tools| !tools.is_null());
            let chat = Chat { tools, ending, values, ..Chat::new(&case["messages"], now()) };
            let name = format!("{} {}", path.display(), case["name"]);
            match (template.render(&chat), case["expected"].as_str()) {
                (Ok(text), Some(want)) => assert_eq!(text, want, "{name}"),
                (Err(_), None) => assert!(case["error"].is_string()),
                (rendered, want) => panic!("{name}: {rendered:?}\nshould be {want:?} {:?}", case["error"]),
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

/// Filters, tests, functions and methods that hardly any chat template uses, but a fine-tune's may.
#[test]
fn expressions_give_what_the_reference_gives() {
    let file = tallow_support::json(&tallow_support::golden("template").join("expressions.json"));
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() > 200);
    let mut wrong = Vec::new();
    for case in cases {
        let source = case["source"].as_str().unwrap();
        let rendered = ChatTemplate::new(source)
            .and_then(|template| template.render(&Chat::new(&json!([]), now())))
            .map_err(|e| e.to_string());
        match (&rendered, case["text"].as_str()) {
            (Ok(text), Some(want)) if text == want => {}
            (Err(_), None) => {}
            (_, want) => wrong.push(format!("{source}\n    {rendered:?}\n    should be {want:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A chat of `count` messages of 500 bytes, with alternating roles.
fn long_chat(count: usize) -> Value {
    let text = "lorem ipsum ".repeat(42)[..500].to_owned();
    let role = |i: usize| if i.is_multiple_of(2) { "user" } else { "assistant" };
    (0..count).map(|i| json!({"role": role(i), "content": text})).collect()
}

/// Real templates whose work is quadratic in the number of messages: Gemma 4's looks back over all messages at each
/// one, Reka Edge's appends each to a string.
#[test]
fn chats_of_five_thousand_messages_are_rendered() {
    let chat = long_chat(5000);
    let looks_back = "{%- for message in messages -%}
        {%- set before = namespace(role=None, found=false) -%}
        {%- if loop.index0 > 0 -%}
            {%- for j in range(loop.index0 - 1, -1, -1) -%}
                {%- if not before.found -%}
                    {%- if messages[j]['role'] != 'tool' -%}
                        {%- set before.role = messages[j]['role'] -%}
                        {%- set before.found = true -%}
                    {%- endif -%}
                {%- endif -%}
            {%- endfor -%}
        {%- endif -%}
        {{- '<|turn>' + message['role'] + ' after ' ~ before.role ~ '\n' ~ message['content'] | trim ~ '<turn|>' -}}
    {%- endfor -%}";
    let text = ChatTemplate::new(looks_back).unwrap().render(&Chat::new(&chat, now())).unwrap();
    assert_eq!(text.matches("after user").count(), 2500);
    let adds = "{%- set ns = namespace(out='') -%}
        {%- for message in messages -%}
            {%- set ns.out = ns.out ~ message.role ~ ': ' -%}
            {%- set ns.out = ns.out ~ message.content -%}
            {%- set ns.out = ns.out ~ '<sep>' -%}
            {%- set ns.out = ns.out + ' ' -%}
            {%- if loop.last -%}{%- set ns.out = ns.out ~ 'end' -%}{%- endif -%}
        {%- endfor -%}
        {{- ns.out -}}";
    let begun = Instant::now();
    let text = ChatTemplate::new(adds).unwrap().render(&Chat::new(&chat, now())).unwrap();
    assert_eq!(text.matches("<sep> ").count(), 5000);
    assert!(text.starts_with("user: lorem") && text.ends_with("<sep> end"));
    // Each message is copied a few times; copying everything before it as well would be 30 GB.
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn a_chat_that_takes_too_long_is_said_to_be_long() {
    let source = "{% for m in messages %}{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}{% endfor %}";
    let refused = ChatTemplate::new(source).unwrap().render(&Chat::new(&long_chat(3), now())).unwrap_err();
    assert_eq!(refused.to_string(), "line 1: the template takes too long for a chat of 3 messages");
}

/// The result or the error of a malicious template, which must come quickly and on a small stack.
fn tried(case: &str, source: String) -> Result<String, String> {
    let begun = Instant::now();
    let work = move || {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let template = ChatTemplate::new(&source).map_err(|e| e.to_string())?;
        template.render(&Chat::new(&messages, now())).map_err(|e| e.to_string())
    };
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(work).unwrap();
    let tried = thread.join().unwrap_or_else(|_| panic!("{case}: it panicked"));
    assert!(begun.elapsed() < Duration::from_secs(20), "{case}: took {:?}", begun.elapsed());
    tried
}

/// All of these are refused; the snapshot has the messages.
macro_rules! refused {
    ($cases:expr) => {
        let said = $cases.into_iter().map(|(case, source)| {
            let source: String = source.into();
            let why = tried(case, source).expect_err(case);
            format!("{case}:\n    {why}\n")
        });
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "snapshots/template" }, {
            insta::assert_snapshot!(said.collect::<String>())
        })
    };
}

/// `left` × `count`, `middle`, `right` × `count`.
fn nested(count: usize, left: &str, middle: &str, right: &str) -> String {
    [&left.repeat(count), middle, &right.repeat(count)].concat()
}

#[test]
fn c3_16_deep_nesting() {
    let shown = |text: String| format!("{{{{ {text} }}}}");
    let deep = |left: &str, right: &str| shown(nested(6000, left, "1", right));
    refused!([
        ("6000 parentheses", deep("(", ")")),
        ("6000 parentheses that nothing closes", deep("(", "")),
        ("6000 lists", deep("[", "]")),
        ("6000 objects", deep("{'a':", "}")),
        ("6000 times not", deep("not ", "")),
        ("6000 signs", deep("-", "")),
        ("6000 choices", deep("1 if 1 else ", "")),
        ("6000 powers", deep("2**", "")),
        ("6000 calls", deep("range(", ")")),
        ("6000 subscripts", deep("messages[", "]")),
        ("6000 filters' arguments", deep("1|default(", ")")),
        ("6000 conditions", nested(6000, "{% if 1 %}", "x", "{% endif %}")),
        ("6000 loops", nested(6000, "{% for x in [1] %}", "x", "{% endfor %}")),
        ("6000 macros", nested(6000, "{% macro m() %}", "x", "{% endmacro %}")),
        ("6000 blocks that are set", nested(6000, "{% set x %}", "x", "{% endset %}")),
        (
            "40000 branches",
            format!("{{% if 0 %}}{}{{% endif %}}{{{{ 1/0 }}}}", "{% elif 0 %}x".repeat(40_000))
        ),
    ]);
}

/// Long chains are not nested: they work up to the maximum source length.
#[test]
fn c3_16_long_chains() {
    for (case, start, link) in [
        ("texts", "'a'", "~'a'"),
        ("sums", "1", "+1"),
        ("products", "1", "*1"),
        ("conjunctions", "1", " and 1"),
        ("disjunctions", "0", " or 0"),
        ("comparisons", "1", "==1"),
        ("filters", "'a'", "|trim"),
        ("attributes", "messages", ".a"),
        ("subscripts", "'a'", "[0]"),
        ("methods", "'a'", ".strip()"),
        ("tests", "1", " is true"),
    ] {
        for links in [50, 200_000] {
            let chain: String = [start, &link.repeat(links)].concat().chars().take(1_000_000).collect();
            // Where the last link was cut off, any other error will do.
            let whole = tried(case, format!("{{{{ {chain} }}}}"));
            assert!(
                links > 50 || whole.is_ok() || matches!(case, "attributes" | "tests"),
                "{case}: {whole:?}"
            );
        }
    }
}

#[test]
fn c3_16_recursion() {
    let thread = "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}";
    let caller = "{% macro m() %}{{ caller() }}{% endmacro %}\
                  {% macro r() %}{% call m() %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}";
    refused!([
        ("a macro that calls itself", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
        ("with arguments", "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('a') }}"),
        ("twice", "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}"),
        ("within expressions", "{% macro m() %}{{ [1, (m() ~ 'x')|trim] }}{% endmacro %}{{ m() }}"),
        ("two that call each other", thread),
        ("by what calls it", caller),
        ("by its default", "{% macro m(x=m()) %}x{% endmacro %}{{ m() }}"),
        ("a loop that calls itself", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
    ]);
}

#[test]
fn c3_16_without_end() {
    let bomb = |step: &str, then: &str| {
        format!(
            "{{% set n = namespace(s='x', l=[1], m=[1]) %}}{{% for i in range(120) %}}{step}{{% endfor %}}{then}"
        )
    };
    refused!([
        ("a range of 10^9", "{% for i in range(10**9) %}x{% endfor %}".into()),
        ("a range of 2^63", "{{ range(2**63)|list }}".into()),
        (
            "loops within loops",
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}".into(),
        ),
        (
            "text without end",
            "{% for i in range(100000) %}{% for j in range(100000) %}0123456789{% endfor %}{% endfor %}"
                .into(),
        ),
        (
            "long texts often",
            "{% set x = 'x' * 100000 %}{% for i in range(100000) %}{{ x }}{% endfor %}".into(),
        ),
        ("a text that doubles", bomb("{% set n.s = n.s ~ n.s %}", "{{ n.s }}")),
        ("a text that doubles by plus", bomb("{% set n.s = n.s + n.s %}", "{{ n.s }}")),
        ("a text that doubles by joining", bomb("{% set n.s = [n.s, n.s]|join %}", "{{ n.s }}")),
        ("a text that doubles by replacing", bomb("{% set n.s = n.s|replace('x', 'xx') %}", "{{ n.s }}")),
        (
            "a text that doubles in a block",
            bomb("{% set x %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = x %}", "")
        ),
        ("a list that doubles", bomb("{% set n.l = n.l + n.l %}", "{{ n.l }}")),
        ("lists of lists that are shown", bomb("{% set n.l = [n.l, n.l] %}", "{{ n.l }}")),
        ("lists of lists as JSON", bomb("{% set n.l = [n.l, n.l] %}", "{{ n.l|tojson }}")),
        ("lists of lists as text", bomb("{% set n.l = [n.l, n.l] %}", "{{ (n.l|string)|length }}")),
        (
            "lists of lists compared",
            bomb("{% set n.l = [n.l, n.l] %}{% set n.m = [n.m, n.m] %}", "{{ n.l == n.m }}{{ 1/0 }}"),
        ),
        (
            "objects of objects compared",
            bomb(
                "{% set n.l = {'a': n.l, 'b': n.l} %}{% set n.m = {'a': n.m, 'b': n.m} %}",
                "{{ n.l == n.m }}{{ 1/0 }}"
            ),
        ),
        ("lists within lists", bomb("{% set n.l = [[[[n.l]]]] %}", "{{ n.l }}")),
        ("many lists that are kept", bomb("{% set n.l = [n.l, 'x' * 10000000] %}", "{{ 1/0 }}")),
    ]);
}

#[test]
fn c3_16_large_values() {
    let shown = |text: &str| format!("{{{{ {text} }}}}");
    refused!(
        [
            "'x' * 10**10",
            "10**10 * 'x'",
            "[1] * 10**10",
            "'x' * 2**62",
            "10**10**10",
            "2**126 * 2**126",
            "'%1000000000d' % 1",
            "'%.1000000000f' % 1.5",
            "'%*d' % (1000000000, 1)",
            "'{:1000000000}'.format(1)",
            "'x'.ljust(10**10)",
            "'x'.rjust(10**10)",
            "'x'.center(10**10)",
            "'x'.zfill(10**10)",
            "'\\t'.expandtabs(10**10)",
            "'a\\nb'|indent(10**10)",
            "'x'|center(10**10)",
            "('x' * 100000)|replace('', 'y' * 100000)",
            "('x' * 100000).replace('', 'y' * 100000)",
            "('y' * 100000).join('x' * 100000)",
            "[1]|batch(10**10, 0)|list",
            "[1]|slice(10**10, 0)|list",
            "strftime_now('%Y' * 10000000)",
        ]
        .map(|text| (text, shown(text)))
    );
}

/// Number formatting, with widths and precisions as in Python.
#[test]
fn numbers_are_written_as_asked() {
    for (text, want) in [
        ("'%5d|%-5d|%05d' % (7, 7, -7)", "    7|7    |-0007"),
        ("'%+5d|% d|%+05d' % (7, 7, 7)", "   +7| 7|+0007"),
        ("'%.3f|%8.2f|%.0f' % (1.5, 2.25, 3.0)", "1.500|    2.25|3"),
        ("('%.150s' % ('x' * 200))|length", "150"),
        ("'%5s|%-5s|%.2s' % ('ab', 'ab', 'abc')", "   ab|ab   |ab"),
        ("'0x1f'|int(0, 16)", "31"),
        ("[1, {'a': []}]|tojson", r#"[1, {"a": []}]"#),
        ("{'a': [1, 2]}|tojson(indent=2)", "{\n  \"a\": [\n    1,\n    2\n  ]\n}"),
    ] {
        assert_eq!(tried(text, format!("{{{{ {text} }}}}")).as_deref(), Ok(want));
    }
}

#[test]
fn c3_16_ways_out() {
    refused!([
        ("a text's class", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        ("a text's class by filter", "{{ (''|attr('__class__')).__mro__ }}"),
        ("a text's class by subscript", "{{ ''['__class__']['__mro__'] }}"),
        ("a text's class by format", "{{ '{0.__class__.__mro__}'.format('') }}"),
        ("a text's class by map", "{{ ([''] | map(attribute='__class__') | list)[0].__mro__ }}"),
        ("a function's globals", "{{ range.__globals__['os'].system('id') }}"),
        ("a macro's globals", "{% macro m() %}{% endmacro %}{{ m.__globals__.os }}"),
        ("a loop's code", "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}"),
        ("a namespace's code", "{{ namespace.__init__.__globals__ }}"),
        ("a namespace's own", "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n.__dict__.x }}"),
        ("a message's code", "{{ messages[0].__init__.__globals__ }}"),
        ("the template itself", "{{ self.__init__.__globals__ }}"),
        ("functions that web servers have", "{{ lipsum.__globals__ }}"),
        ("objects that web servers have", "{{ cycler.__init__.__globals__ }}"),
        ("a file", "{% include '/etc/passwd' %}"),
        ("a file's macros", "{% import '/etc/passwd' as x %}"),
        ("a file's parent", "{% extends '/etc/passwd' %}"),
        ("a function that is not there", "{{ open('/etc/passwd').read() }}"),
        ("changes to what was given", "{{ messages.append(messages) }}"),
        ("changes to a list", "{% set l = [] %}{{ l.append(l) }}{{ l }}"),
    ]);
}

//! llama.cpp's notation: each construct, and the grammars of its repository.

use tallow_constraint::Grammar;

use crate::{accepts, refusal, tiny};

fn gbnf(text: &str) -> Grammar {
    Grammar::Gbnf(text.into())
}

#[test]
fn the_grammars_of_llama_cpp_compile() {
    let (Some(folder), Some(_)) = (tallow_support::shared("gbnf-grammars"), tiny()) else { return };
    let read = |name: &str| gbnf(&std::fs::read_to_string(folder.join(name)).unwrap());
    for (name, yes, no) in [
        ("arithmetic.gbnf", "1 + 2=3\n", "1 +"),
        ("c.gbnf", "int main() {return 0;}", "int main( {"),
        ("chess.gbnf", "1. e4 e5\n", "1. e9"),
        ("english.gbnf", "Hello there.", "Ünder"),
        ("japanese.gbnf", "こんにちは", "hello"),
        ("json.gbnf", r#"{"a": [1, true, null, "x\n"]}"#, r#"{"a": }"#),
        ("json_arr.gbnf", "[\n1,\n2]", r#"{"a":1}"#),
        ("list.gbnf", "- one\n- two\n", "one"),
    ] {
        let grammar = read(name);
        tiny().unwrap().compile(&grammar).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!accepts(&grammar, no), "{name}: {no}");
        if !matches!(name, "arithmetic.gbnf" | "c.gbnf" | "chess.gbnf") {
            assert!(accepts(&grammar, yes), "{name}: {yes}");
        }
    }
}

#[test]
fn constructs_mean_what_they_do_in_llama_cpp() {
    if tiny().is_none() {
        return;
    }
    for (grammar, yes, no) in [
        (r#"root ::= "a" | "ab""#, vec!["a", "ab"], vec!["b", "abb", ""]),
        (r#"root ::= ("a" | "ab") "c""#, vec!["ac", "abc"], vec!["ab"]),
        (r#"root ::= [a-cx]+"#, vec!["abcx"], vec!["d", ""]),
        (r#"root ::= [^a-c\n]"#, vec!["d", "é", "-"], vec!["a", "\n", "dd"]),
        (r#"root ::= [a-]"#, vec!["a", "-"], vec!["b"]),
        (r#"root ::= [\]\[\\]"#, vec!["]", "[", "\\"], vec!["a"]),
        (r#"root ::= "\x41\u00e9\U0001F600\t\"""#, vec!["Aé😀\t\""], vec!["A"]),
        (r#"root ::= . ."#, vec!["ab", "é\n"], vec!["a", "abc"]),
        (r#"root ::= "a"{2,3}"#, vec!["aa", "aaa"], vec!["a", "aaaa"]),
        (r#"root ::= "a"{2}"#, vec!["aa"], vec!["a", "aaa"]),
        (r#"root ::= "a"{2,}"#, vec!["aa", "aaaaa"], vec!["a"]),
        (r#"root ::= "a"{,2}"#, vec!["", "aa"], vec!["aaa"]),
        (r#"root ::= ("a" "b")*"#, vec!["", "abab"], vec!["aba"]),
        (r#"root ::= "a"? "b""#, vec!["b", "ab"], vec!["a"]),
        ("root ::= x-y # comment\n\n# another\nx-y ::=\n  \"a\" |\n  \"b\"\n", vec!["a", "b"], vec!["c"]),
        ("root ::= (\n  \"a\"\n  \"b\"\n)", vec!["ab"], vec!["a"]),
        // Left recursion, and a rule for nothing.
        (
            r#"root ::= root "+" n | n
n ::= [0-9]"#,
            vec!["1", "1+2+3"],
            vec!["+1", "1+"],
        ),
        ("root ::= \"a\" empty \"b\"\nempty ::=\n", vec!["ab"], vec!["a"]),
        ("root ::= \"(\" root \")\" | \"\"", vec!["", "(())"], vec!["(()"]),
    ] {
        for text in yes {
            assert!(accepts(&gbnf(grammar), text), "{grammar}: {text:?}");
        }
        for text in no {
            assert!(!accepts(&gbnf(grammar), text), "{grammar}: {text:?}");
        }
    }
}

#[test]
fn mistakes_are_named_with_their_places() {
    if tiny().is_none() {
        return;
    }
    let messages: Vec<String> = [
        "",
        "start ::= \"a\"",
        "root ::= a",
        "root ::= \"a",
        "root ::= [a",
        "root ::= [z-a]",
        "root ::= []",
        "root ::= (\"a\"",
        "root ::= \"a\")",
        "root ::= \"\\q\"",
        "root ::= \"\\u12\"",
        "root = \"a\"",
        "root ::= *",
        "root ::= \"a\"{3,2}",
        "root ::= \"a\"{x}",
        "root ::= \"a\"{1000000000}",
        "root ::= <|im_end|>",
        "root ::= !<[1]>",
        "root ::= \"a\"\nroot ::= \"b\"",
        "root ::= \"a\" root",
        "root ::= \"a\" | x\nx ::= \"b\" x",
    ]
    .iter()
    .map(|grammar| format!("{grammar:?}: {}", refusal(&gbnf(grammar))))
    .collect();
    insta::assert_snapshot!(messages.join("\n"), @r##"
    "": the grammar is empty: it needs a rule `root ::= …`
    "start ::= \"a\"": there is no rule `root`, which is where a grammar starts: add `root ::= …`
    "root ::= a": 1:10: the rule `a` is not defined: add `a ::= …`
    "root ::= \"a": 1:10: the quote `"` is not closed
    "root ::= [a": 1:10: the bracket `[` is not closed
    "root ::= [z-a]": 1:10: the range from 'z' to 'a' goes backwards
    "root ::= []": 1:10: the brackets `[]` are empty: no character is in them
    "root ::= (\"a\"": 1:14: the bracket `(` is not closed: add `)`
    "root ::= \"a\")": 1:13: `)` is not expected here: the rule `root` ends before it
    "root ::= \"\\q\"": 1:11: the escape \q is not known: use \n, \r, \t, \\, \x, \u or \U
    "root ::= \"\\u12\"": 1:11: \u needs 4 hexadecimal digits of a character
    "root = \"a\"": 1:6: `::=` is expected behind the name `root` of a rule
    "root ::= *": 1:10: `*` repeats what stands before it, and nothing does
    "root ::= \"a\"{3,2}": 1:13: the second count is below the first: write `{m}`, `{m,}` or `{m,n}`
    "root ::= \"a\"{x}": 1:13: a count is expected: write `{m}`, `{m,}` or `{m,n}`
    "root ::= \"a\"{1000000000}": 1:13: counts may be 2000 at most: use `*`, or a smaller one
    "root ::= <|im_end|>": 1:10: tokens (`<name>`, `<[number]>`) cannot be part of a grammar: write their text in quotes
    "root ::= !<[1]>": 1:10: tokens (`<name>`, `<[number]>`) cannot be part of a grammar: write their text in quotes
    "root ::= \"a\"\nroot ::= \"b\"": 2:1: the rule `root` is defined twice
    "root ::= \"a\" root": 1:1: no text ever satisfies the rule `root`: it needs itself, or a rule that does
    "root ::= \"a\" | x\nx ::= \"b\" x": 2:1: no text ever satisfies the rule `x`: it needs itself, or a rule that does
    "##);
}

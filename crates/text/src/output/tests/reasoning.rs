//! Reasoning, as the chat templates of real models mark it.

use super::super::{Event, OutputFormat, OutputParser, ToolFormat};
use super::{all, always, parse};
use crate::template::ChatTemplate;

const TAGS: &str = "{{ messages[0].content.split('</think>')[-1] }}";
const CHANNELS: &str = "<|start|>assistant<|channel|>analysis<|message|>{{ messages[0].thinking }}<|end|>";

fn format(source: &str) -> OutputFormat {
    OutputFormat::of(&ChatTemplate::new(source).unwrap())
}

fn parser(source: &str, prompt: &str) -> OutputParser {
    format(source).parser(prompt, None)
}

fn after(source: &str, answer: &str) -> OutputParser {
    let mut parser = parser(source, "");
    parser.resume(answer);
    parser
}

fn split(events: &[Event]) -> (String, String) {
    let reasoning = all(events, |event| if let Event::Reasoning(text) = event { Some(text) } else { None });
    let content = all(events, |event| if let Event::Content(text) = event { Some(text) } else { None });
    (reasoning, content)
}

fn is(parser: &OutputParser, text: &str, reasoning: &str, content: &str) {
    assert_eq!(split(&always(parser, text, "")), (reasoning.to_owned(), content.to_owned()), "{text:?}");
}

#[test]
fn thinking_between_tags_is_reasoning() {
    let parser = parser(TAGS, "<|im_start|>assistant\n");
    is(&parser, "<think>\nI see\n\nit.\n</think>\n\nYes.\n", "I see\n\nit.", "Yes.\n");
    is(&parser, "\n<think>a < b </thin k></think>c", "a < b </thin k>", "c");
    is(&parser, "<think>\n\n</think>\n\nNo.", "", "No.");
    // Without an end marker everything is reasoning, and without a begin marker nothing is.
    is(&parser, "<think>\nI see </thi", "I see </thi", "");
    is(&parser, "  Yes, <think> is a tag.</think>", "", "  Yes, <think> is a tag.</think>");
    is(&parser, "<thin", "", "<thin");
    is(&parser, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>");
    is(&parser, "<think>a</think><think>c</think>", "a", "<think>c</think>");
    is(&parser, "", "", "");
}

#[test]
fn a_prompt_may_begin_the_thinking() {
    for prompt in ["<|im_start|>assistant\n<think>\n", "<｜Assistant｜><think>"] {
        is(&parser(TAGS, prompt), "\nI see.\n</think>\nYes", "I see.", "Yes");
    }
    for prompt in ["what is <think>?<|im_end|>assistant\n", "<think>\n\n</think>\n\n", ""] {
        is(&parser(TAGS, prompt), "I see.", "", "I see.");
    }
    // Continued answers (assistant prefill).
    is(&after(TAGS, "<think>\nI "), "see</think>\n\nYes", "see", "Yes");
    is(&after(TAGS, "<think>I see</think>Y"), "es", "", "es");
    is(&after(TAGS, "Well, "), "<think>", "", "<think>");
    is(&after(TAGS, "Well,\n\n"), "yes", "", "yes");
    assert!(after(TAGS, "<think>").is_reasoning());
    assert!(!after(TAGS, "<think>a</think>").is_reasoning());
}

#[test]
fn channels_are_told_apart() {
    let parser = parser(CHANNELS, "<|start|>assistant");
    is(
        &parser,
        "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>final<|message|>Yes <b|>.<|return|>",
        "I see.",
        "Yes <b|>.",
    );
    is(
        &parser,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>b<|end|>\
         <|start|>assistant<|channel|>analysis<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>d",
        "ac",
        "bd",
    );
    is(&parser, "<|message|>Yes", "", "Yes");
    is(&parser, "Yes <|", "", "Yes <|");
    is(&parser, "<|channel|>analysis<|message|>I see", "I see", "");
    let name = format!("<|channel|>{}", "x".repeat(300));
    is(&parser, &name, "", &name);
}

#[test]
fn nothing_is_held_back_without_end() {
    let mut thinking = parser(TAGS, "<think>");
    thinking.push("a");
    let held = (0..100_000).filter(|_| thinking.push(" ").is_empty()).count();
    assert!((1..100_000).contains(&held));
    let mut beginning = parser(TAGS, "");
    assert!((0..1000).any(|_| !beginning.push("\n").is_empty()));
}

#[test]
fn long_whitespace_is_text() {
    let space = "\n".repeat(300);
    is(&parser(TAGS, ""), &format!("{space}<think>a</think>"), "", &format!("{space}<think>a</think>"));
    is(&parser(TAGS, "<think>"), &format!("a{space}</think>b"), &format!("a{space}"), "b");
    let call = "<tool_call>{\"name\": \"f\"}</tool_call>";
    let hermes = OutputFormat::new(ToolFormat::named("hermes").unwrap()).parser("", None);
    is(&hermes, &format!("a{space}{call}"), "", &format!("a{space}"));
}

#[test]
fn a_prompt_may_begin_a_call() {
    let mut parser = OutputFormat::new(ToolFormat::named("hermes").unwrap()).parser("", None);
    parser.resume("Well.\n<tool_call>\n{\"name\": \"f\", ");
    assert!(parser.is_in_call());
    let events = parse(parser, ["\"arguments\": {}}\n</tool_call>"]);
    assert!(matches!(events.as_slice(), [Event::Call(call)] if call.name == "f"), "{events:?}");
}

#[test]
fn templates_say_how_reasoning_is_marked() {
    assert!(format(TAGS).reasons() && format(CHANNELS).reasons());
    assert!(!format("{{ messages[0].content }}").reasons());
    let hermes = ToolFormat::named("hermes").unwrap();
    let template = ChatTemplate::new("[THINK][/THINK]").unwrap();
    let parser = OutputFormat::with(hermes, &template).parser("", None);
    is(&parser, "[THINK]a[/THINK]b", "a", "b");
}

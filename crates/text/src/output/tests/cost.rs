//! No byte is looked at again and again, however the text is cut and whatever it says. Bytes are counted: time is not
//! the same everywhere.

use super::super::{Event, MOST_CALL, OutputFormat, OutputParser, ToolFormat};

const SIZE: usize = 1 << 20;

fn parser(format: &str) -> OutputParser {
    OutputFormat::new(ToolFormat::named(format).unwrap()).parser("", None)
}

/// Bytes looked at for each byte of a text that comes byte by byte, and the events.
fn looks(mut parser: OutputParser, text: &str) -> (usize, Vec<Event>) {
    let mut events = Vec::new();
    let mut buffer = [0; 4];
    for c in text.chars() {
        events.extend(parser.push(c.encode_utf8(&mut buffer)));
    }
    events.extend(parser.finish());
    (parser.scanned() / text.len(), events)
}

fn calls(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Call(_))).count()
}

#[test]
fn long_arguments_are_looked_at_a_few_times() {
    let long = "lorem <ipsum> ] } ".repeat(SIZE / 18);
    for (format, text) in [
        (
            "hermes",
            format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"a\": \"{long}\"}}}}</tool_call>"),
        ),
        ("llama3_json", format!("{{\"name\": \"f\", \"parameters\": {{\"a\": \"{long}\"}}}}")),
        ("mistral", format!("[TOOL_CALLS][{{\"name\": \"f\", \"arguments\": {{\"a\": \"{long}\"}}}}]")),
        (
            "qwen3_xml",
            format!("<tool_call><function=f><parameter=a>{long}</parameter></function></tool_call>"),
        ),
        ("harmony", format!("<|channel|>commentary to=f<|message|>{{\"a\": \"{long}\"}}<|call|>")),
        (
            "deepseek_v31",
            format!("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{{\"a\": \"{long}\"}}<｜tool▁call▁end｜>"),
        ),
    ] {
        let (looks, events) = looks(parser(format), &text);
        assert_eq!(calls(&events), 1, "{format}");
        assert!(looks <= 3, "{format}: {looks}");
    }
}

#[test]
fn text_is_looked_at_a_few_times() {
    let text = "a <b> < c [d] {e} <|f|> ".repeat((SIZE >> 2) / 24);
    for format in ToolFormat::ALL {
        let (looks, events) = looks(parser(format.name()), &text);
        assert_eq!(calls(&events), 0);
        assert!(looks <= 8, "{}: {looks}", format.name());
    }
}

#[test]
fn many_beginnings_that_are_no_calls_cost_little() {
    for (format, beginning) in [
        ("hermes", "<tool_call>{\"name\":\""),
        ("hermes", "<tool_call> "),
        ("hermes", "<tool_call>[["),
        ("qwen3_xml", "<tool_call><function=f><parameter=a>"),
        ("qwen3_xml", "<function=f><parameter=a></parameter> "),
        ("mistral", "[TOOL_CALLS][{\"a\":[\""),
        ("llama3_json", "<|python_tag|>{\"a\":"),
        ("harmony", "<|channel|>commentary to=f<|message|>{\"a\":\""),
        ("deepseek_v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>f\n```json\n{\"a\":\""),
    ] {
        let text = beginning.repeat((SIZE >> 2) / beginning.len());
        let whole = super::parse(parser(format), [text.as_str()]);
        let (looks, events) = looks(parser(format), &text);
        assert_eq!(super::joined(events), whole);
        assert_eq!(whole, [Event::Content(text)]);
        assert!(looks <= 64, "{format} {beginning}: {looks}");
    }
}

#[test]
fn a_call_that_is_too_long_is_content() {
    let begin = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
    let text = format!("{begin}{}\"}}}}</tool_call>", "x".repeat(MOST_CALL));
    let mut whole = parser("hermes");
    let mut events = whole.push(&text);
    events.extend(whole.finish());
    assert_eq!(super::joined(events), [Event::Content(text.clone())]);
    // What is held is bounded: it is let go as soon as it is too long, not at the end.
    let mut parts = parser("hermes");
    let mut count = 0;
    for piece in text.as_bytes().chunks(1 << 16) {
        for event in parts.push(std::str::from_utf8(piece).unwrap()) {
            let Event::Content(text) = event else { panic!() };
            count += text.len();
        }
    }
    assert!(count > MOST_CALL);
}

//! A model's output: the first byte says in which format, the second how it is cut. Cut or whole, it says the same.
#![no_main]

use tallow_text::output::{Event, OutputFormat, ToolFormat};

/// Events, with adjacent pieces of a kind joined.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    for event in events {
        match (all.last_mut(), event) {
            (Some(Event::Content(text)), Event::Content(more)) => *text += &more,
            (Some(Event::Reasoning(text)), Event::Reasoning(more)) => *text += &more,
            (_, event) => all.push(event),
        }
    }
    all
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [format, each, text @ ..] = data else { return };
    let text = String::from_utf8_lossy(text);
    let format = ToolFormat::ALL[usize::from(*format) % ToolFormat::ALL.len()];
    let parser = OutputFormat::new(format).parser("", None);
    let (mut whole, mut cut) = (parser.clone(), parser);
    let mut events = whole.push(&text);
    events.extend(whole.finish());
    let characters: Vec<char> = text.chars().collect();
    let pieces = characters.chunks(1 + usize::from(*each % 8));
    let mut pieces: Vec<Event> = pieces.flat_map(|some| cut.push(&some.iter().collect::<String>())).collect();
    pieces.extend(cut.finish());
    assert_eq!(joined(pieces), joined(events), "{} {text:?}", format.name());
});

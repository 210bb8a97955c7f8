//! Splitting reasoning from answers, as the chat templates of real models mark it.

use serde_json::{Value, json};
use tallow_support::shared;
use tallow_text::reasoning::{Controls, Effort, Piece, Reasoning, Splitter};
use tallow_text::template::ChatTemplate;

const TAGS: &str = "{{ messages[0].content.split('</think>')[-1] }}";
const CHANNELS: &str = "<|start|>assistant<|channel|>analysis<|message|>{{ messages[0].thinking }}<|end|>";

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source).unwrap()
}

fn reasoning(source: &str) -> Reasoning {
    Reasoning::of(&template(source)).unwrap()
}

/// Reasoning and answer of a text fed in these pieces.
fn split<'t>(mut splitter: Splitter, pieces: impl IntoIterator<Item = &'t str>) -> (String, String) {
    let (mut thoughts, mut answer) = (String::new(), String::new());
    let mut take = |pieces: Vec<Piece>| {
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => thoughts += &text,
                Piece::Answer(text) => answer += &text,
            }
        }
    };
    pieces.into_iter().for_each(|piece| take(splitter.push(piece)));
    take(splitter.finish());
    (thoughts, answer)
}

/// The same result however the text is cut into pieces.
fn always(splitter: &Splitter, text: &str, thoughts: &str, answer: &str) {
    let want = (thoughts.to_owned(), answer.to_owned());
    assert_eq!(split(splitter.clone(), [text]), want, "{text:?}");
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    for &a in &places {
        for &b in places.iter().filter(|b| **b >= a) {
            assert_eq!(
                split(splitter.clone(), [&text[..a], &text[a..b], &text[b..]]),
                want,
                "{text:?} {a} {b}"
            );
        }
    }
    let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
    assert_eq!(split(splitter.clone(), characters), want, "{text:?}");
}

#[test]
fn thinking_between_tags_is_reasoning() {
    let splitter = reasoning(TAGS).splitter("<|im_start|>assistant\n");
    always(&splitter, "<think>\nI see\n\nit.\n</think>\n\nYes.\n", "I see\n\nit.", "Yes.\n");
    always(&splitter, "\n<think>a < b </thin k></think>c", "a < b </thin k>", "c");
    always(&splitter, "<think>\n\n</think>\n\nNo.", "", "No.");
    // Without an end marker everything is reasoning, and without a begin marker nothing is.
    always(&splitter, "<think>\nI see </thi", "I see </thi", "");
    always(&splitter, "  Yes, <think> is a tag.</think>", "", "  Yes, <think> is a tag.</think>");
    always(&splitter, "<thin", "", "<thin");
    always(&splitter, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>");
    always(&splitter, "", "", "");
}

#[test]
fn a_prompt_may_begin_the_thinking() {
    let reasoning = reasoning(TAGS);
    for prompt in ["<|im_start|>assistant\n<think>\n", "<｜Assistant｜><think>"] {
        always(&reasoning.splitter(prompt), "\nI see.\n</think>\nYes", "I see.", "Yes");
    }
    for prompt in ["what is <think>?<|im_end|>assistant\n", "<think>\n\n</think>\n\n", ""] {
        always(&reasoning.splitter(prompt), "I see.", "", "I see.");
    }
    // Continued answers (assistant prefill).
    always(&reasoning.splitter_after("<think>\nI "), "see</think>\n\nYes", "see", "Yes");
    always(&reasoning.splitter_after("<think>I see</think>Y"), "es", "", "es");
    always(&reasoning.splitter_after("Well, "), "<think>", "", "<think>");
    assert!(reasoning.splitter_after("<think>").is_thinking());
}

#[test]
fn channels_are_told_apart() {
    let splitter = reasoning(CHANNELS).splitter("<|start|>assistant");
    always(
        &splitter,
        "<|channel|>analysis<|message|>I see.<|end|><|start|>assistant<|channel|>final<|message|>Yes <b|>.<|return|>",
        "I see.",
        "Yes <b|>.",
    );
    always(
        &splitter,
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>b<|end|>\
         <|start|>assistant<|channel|>analysis<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>d",
        "ac",
        "bd",
    );
    always(&splitter, "<|message|>Yes", "", "Yes");
    always(&splitter, "Yes <|", "", "Yes <|");
    always(&splitter, "<|channel|>analysis<|message|>I see", "I see", "");
    let name = "x".repeat(300);
    assert_eq!(
        split(splitter, ["<|channel|>", &name]).1,
        format!("<|channel|>{name}"),
        "no header is so long"
    );
}

#[test]
fn nothing_is_held_back_without_end() {
    let mut splitter = reasoning(TAGS).splitter("<think>");
    splitter.push("a");
    let held = (0..100_000).filter(|_| splitter.push(" ").is_empty()).count();
    assert!((1..100_000).contains(&held));
    let mut splitter = reasoning(TAGS).splitter("");
    assert!((0..1000).any(|_| !splitter.push("\n").is_empty()));
}

#[test]
fn a_template_says_which_variables_steer_thinking() {
    let controls = |source: &str| Controls::of(&template(source));
    let read = controls("{% if enable_thinking is defined and enable_thinking %}x{% endif %}");
    assert_eq!((read.switch, read.effort), (Some("enable_thinking"), None));
    assert_eq!(controls("{% if not thinking %}x{% endif %}").switch, Some("thinking"));
    for source in [
        "{{ message.thinking }}",
        "{% if 'thinking' in message %}x{% endif %}",
        "{# thinking #} thinking",
        "{% set thinking = 1 %}",
        "{% set ns = namespace(thinking=1, enable_thinking=2) %}",
    ] {
        assert_eq!(controls(source).switch, None, "{source}");
    }
}

/// Template values for each effort, or why it is refused.
fn asked(controls: Controls) -> Vec<String> {
    let said = |effort| match controls.values(effort) {
        Ok(values) => Value::Object(values).to_string(),
        Err(why) => why.to_string(),
    };
    Effort::ALL.into_iter().map(said).collect()
}

#[test]
fn an_effort_becomes_what_the_template_knows_or_is_refused() {
    let controls = |switch, effort, thinks| Controls { switch, effort, thinks };
    let (off, on) =
        (json!({"enable_thinking": false}).to_string(), json!({"enable_thinking": true}).to_string());
    assert_eq!(
        asked(controls(Some("enable_thinking"), None, true)),
        [&off, &off, &on, &on, &on].map(String::as_str)
    );
    let level = |level| json!({"reasoning_effort": level}).to_string();
    let (low, medium, high) = (level("low"), level("medium"), level("high"));
    let least = "this model always thinks; the least it takes is low";
    assert_eq!(asked(controls(None, Some("reasoning_effort"), true)), [least, &low, &low, &medium, &high]);
    let always = "this model always thinks: its chat template has no variable that controls it";
    assert_eq!(asked(controls(None, None, true)), [always; 5]);
    let none = "this model's chat template has no variable for how much to think";
    assert_eq!(asked(controls(None, None, false)), ["{}", "{}", none, none, none]);
    let both = controls(Some("thinking"), Some("reasoning_effort"), true);
    assert_eq!(both.values(Effort::None).unwrap(), *json!({"thinking": false}).as_object().unwrap());
    let high = json!({"thinking": true, "reasoning_effort": "high"});
    assert_eq!(both.values(Effort::High).unwrap(), *high.as_object().unwrap());
    assert!(Effort::ALL.into_iter().all(|effort| Effort::named(effort.name()) == Some(effort)));
    assert_eq!(Effort::named("extreme"), None);
}

#[test]
fn real_templates_are_known() {
    let Some(folder) = shared("chat-templates") else { return };
    let switch = Some("enable_thinking");
    for (name, want) in [
        ("Qwen-Qwen3-0.6B", (true, switch, None)),
        ("Qwen3.5-4B", (true, switch, None)),
        ("HuggingFaceTB-SmolLM3-3B", (true, switch, None)),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", (true, switch, None)),
        ("ibm-granite-granite-3.3-2B-Instruct", (true, Some("thinking"), None)),
        ("openai-gpt-oss-120b", (true, None, Some("reasoning_effort"))),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", (true, switch, None)),
        ("Qwen-Qwen2.5-7B-Instruct", (false, None, None)),
        ("meta-llama-Llama-3.1-8B-Instruct", (false, None, None)),
        ("mistral-7b-v0.1", (false, None, None)),
    ] {
        let file = tallow_support::json(&folder.join(format!("{name}.json")));
        let template = template(file["template"].as_str().unwrap());
        let controls = Controls::of(&template);
        assert_eq!((controls.thinks, controls.switch, controls.effort), want, "{name}");
    }
}

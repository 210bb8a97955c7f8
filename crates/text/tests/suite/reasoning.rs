//! Control of reasoning, by the chat templates of real models.

use serde_json::{Value, json};
use tallow_support::shared;
use tallow_text::reasoning::{Controls, Effort};
use tallow_text::template::ChatTemplate;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source).unwrap()
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

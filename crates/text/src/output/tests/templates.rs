//! Chat templates choose their format.

use std::collections::BTreeMap;

use tallow_support::shared;

use super::super::{OutputFormat, ToolFormat};
use crate::template::ChatTemplate;

#[test]
fn real_templates_choose_their_format() {
    let Some(folder) = shared("chat-templates") else { return };
    let wanted = BTreeMap::from([
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command_r"),
        ("HuggingFaceTB-SmolLM3-3B", "hermes"),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes"),
        ("Qwen-Qwen2.5-7B-Instruct", "hermes"),
        ("Qwen-Qwen3-0.6B", "hermes"),
        ("Qwen3.5-4B", "qwen3_xml"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3"),
        ("google-gemma-2-2b-it", "gemma3"),
        ("ibm-granite-granite-3.3-2B-Instruct", "granite3"),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3_json"),
        ("meta-llama-Llama-3.2-3B-Instruct", "llama3_json"),
        ("microsoft-Phi-3.5-mini-instruct", "json"),
        ("mistral-7b-v0.1", "json"),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
        ("openai-gpt-oss-120b", "harmony"),
        ("phi-3-mini", "json"),
        ("yi-chatml", "json"),
    ]);
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ext| ext != "json") {
            continue;
        }
        let file = tallow_support::json(&path);
        let template = ChatTemplate::new(file["template"].as_str().unwrap()).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if let Some(wanted) = wanted.get(name) {
            assert_eq!(OutputFormat::of(&template).tools().name(), *wanted, "{name}");
            seen += 1;
        }
    }
    assert_eq!(seen, wanted.len());
}

/// The part of each family's template that shows its calls, in as few words as possible.
#[test]
fn texts_of_templates_choose_their_format() {
    for (source, wanted) in [
        ("<tool_call>\n<function=example>\n<parameter=a>\n</parameter>", "qwen3_xml"),
        ("<tool_call>{\"name\": ..}</tool_call>", "hermes"),
        ("[TOOL_CALLS]", "mistral"),
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json", "deepseek_v3"),
        ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "deepseek_v31"),
        ("<|start_header_id|> \"parameters\": ", "llama3_json"),
        ("<|channel|>analysis<|message|>", "harmony"),
        ("<|tool_call>call:f{<tool_call|>", "gemma4"),
        ("<start_function_call>call:f{", "functiongemma"),
        ("<start_of_turn>", "gemma3"),
        ("set begin = '<minimax:tool_call>'", "minimax_m2"),
        ("set dsml_token = '｜DSML｜'", "deepseek_v32"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("<tool_call>{name}\n<arg_key>", "glm45"),
        ("set begin = '<seed:tool_call>' <function= <parameter=", "seed_oss"),
        ("<|START_ACTION|>", "command_r"),
        ("<TOOLCALL>[", "nemotron"),
        ("<|start_of_role|> <|tool_call|>", "granite3"),
        ("<|start_of_role|> <tool_call>", "hermes"),
        ("<|tool|> <|/tool|>", "phi4"),
        ("<tool_call> <tool_calls>[{}]</tool_calls>", "apriel"),
        ("List of tools: <|tool_list_start|>", "lfm2"),
        ("<|header_start|> <|python_start|>", "llama4_pythonic"),
        ("<|start_header_id|> [func_name1(params_name1=params_value1)]", "llama4_pythonic"),
        ("<|start_header_id|> <|im_start|> <tool_call>", "hermes"),
        ("nothing", "json"),
    ] {
        let template = ChatTemplate::new(source).unwrap();
        assert_eq!(ToolFormat::of(&template).name(), wanted, "{source}");
    }
}

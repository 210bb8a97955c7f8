//! Short names of well-known models, in Ollama's style.

use crate::quant;

/// A short name for a well-known model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alias {
    /// Name: a family and a size.
    pub name: &'static str,
    /// The model on the hub, in the syntax of [`ModelRef::parse`](crate::ModelRef::parse).
    pub model: &'static str,
    /// Approximate download size in GB of the default quantization.
    pub gigabytes: f32,
}

impl Alias {
    /// The name before the size.
    pub fn family(&self) -> &'static str {
        self.name.split(':').next().unwrap_or(self.name)
    }
}

const fn alias(name: &'static str, model: &'static str, gigabytes: f32) -> Alias {
    Alias { name, model, gigabytes }
}

/// All aliases. The first of a family is its default size. A quantization may follow, as in `smollm3:3b:Q8_0`. Only
/// supported families are listed.
pub const ALIASES: &[Alias] = &[
    alias("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", 2.0),
    alias("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", 0.8),
    alias("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", 4.9),
    alias("llama3.1:70b", "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF", 42.5),
    alias("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", 42.5),
    alias("llama3:8b", "bartowski/Meta-Llama-3-8B-Instruct-GGUF", 4.9),
    alias("llama3:70b", "bartowski/Meta-Llama-3-70B-Instruct-GGUF", 42.5),
    alias("llama2:7b", "TheBloke/Llama-2-7B-Chat-GGUF", 4.1),
    alias("llama2:13b", "TheBloke/Llama-2-13B-chat-GGUF", 7.9),
    alias("codellama:7b", "TheBloke/CodeLlama-7B-Instruct-GGUF", 4.1),
    alias("codellama:13b", "TheBloke/CodeLlama-13B-Instruct-GGUF", 7.9),
    alias("codellama:34b", "TheBloke/CodeLlama-34B-Instruct-GGUF", 20.2),
    alias("tinyllama:1.1b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", 0.7),
    alias("qwen3:8b", "Qwen/Qwen3-8B-GGUF", 5.0),
    alias("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF", 0.6),
    alias("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF", 1.8),
    alias("qwen3:4b", "Qwen/Qwen3-4B-GGUF", 2.5),
    alias("qwen3:14b", "Qwen/Qwen3-14B-GGUF", 9.0),
    alias("qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF", 18.6),
    alias("qwen3:32b", "Qwen/Qwen3-32B-GGUF", 19.8),
    alias("qwen3:235b", "unsloth/Qwen3-235B-A22B-GGUF", 142.0),
    alias("qwen3-coder:30b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", 18.6),
    alias("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF", 4.7),
    alias("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", 0.5),
    alias("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", 1.1),
    alias("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF", 2.1),
    alias("qwen2.5:14b", "Qwen/Qwen2.5-14B-Instruct-GGUF", 9.0),
    alias("qwen2.5:32b", "Qwen/Qwen2.5-32B-Instruct-GGUF", 19.9),
    alias("qwen2.5:72b", "Qwen/Qwen2.5-72B-Instruct-GGUF", 47.4),
    alias("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", 4.7),
    alias("qwen2.5-coder:0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", 0.5),
    alias("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", 1.1),
    alias("qwen2.5-coder:3b", "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF", 2.1),
    alias("qwen2.5-coder:14b", "Qwen/Qwen2.5-Coder-14B-Instruct-GGUF", 9.0),
    alias("qwen2.5-coder:32b", "Qwen/Qwen2.5-Coder-32B-Instruct-GGUF", 19.9),
    alias("qwen2:7b", "Qwen/Qwen2-7B-Instruct-GGUF", 4.7),
    alias("qwen2:0.5b", "Qwen/Qwen2-0.5B-Instruct-GGUF", 0.4),
    alias("qwen2:1.5b", "Qwen/Qwen2-1.5B-Instruct-GGUF", 1.0),
    alias("qwq:32b", "Qwen/QwQ-32B-GGUF", 19.9),
    alias("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", 2.5),
    alias("gemma3:270m", "unsloth/gemma-3-270m-it-GGUF", 0.3),
    alias("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", 0.8),
    alias("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF", 7.3),
    alias("gemma3:27b", "ggml-org/gemma-3-27b-it-GGUF", 16.5),
    alias("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF", 5.8),
    alias("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF", 1.7),
    alias("gemma2:27b", "bartowski/gemma-2-27b-it-GGUF", 16.6),
    alias("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", 12.1),
    alias("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", 63.4),
    alias("deepseek-r1:8b", "unsloth/DeepSeek-R1-0528-Qwen3-8B-GGUF", 5.0),
    alias("deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", 1.1),
    alias("deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", 4.7),
    alias("deepseek-r1:14b", "bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF", 9.0),
    alias("deepseek-r1:32b", "bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF", 19.9),
    alias("deepseek-r1:70b", "bartowski/DeepSeek-R1-Distill-Llama-70B-GGUF", 42.5),
    alias("deepseek-coder-v2:16b", "bartowski/DeepSeek-Coder-V2-Lite-Instruct-GGUF", 10.4),
    alias("deepseek-coder:1.3b", "TheBloke/deepseek-coder-1.3b-instruct-GGUF", 0.9),
    alias("deepseek-coder:6.7b", "TheBloke/deepseek-coder-6.7B-instruct-GGUF", 4.1),
    alias("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", 4.4),
    alias("mistral-nemo:12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF", 7.5),
    alias("mistral-small:24b", "bartowski/Mistral-Small-24B-Instruct-2501-GGUF", 14.3),
    alias("mistral-small3.2:24b", "unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF", 14.3),
    alias("magistral:24b", "unsloth/Magistral-Small-2506-GGUF", 14.3),
    alias("devstral:24b", "unsloth/Devstral-Small-2507-GGUF", 14.3),
    alias("codestral:22b", "bartowski/Codestral-22B-v0.1-GGUF", 13.3),
    alias("phi4:14b", "bartowski/phi-4-GGUF", 9.1),
    alias("phi4-mini:3.8b", "unsloth/Phi-4-mini-instruct-GGUF", 2.5),
    alias("phi4-mini-reasoning:3.8b", "unsloth/Phi-4-mini-reasoning-GGUF", 2.5),
    alias("phi4-reasoning:14b", "unsloth/Phi-4-reasoning-GGUF", 9.0),
    alias("phi3.5:3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF", 2.4),
    alias("phi3:3.8b", "bartowski/Phi-3.1-mini-4k-instruct-GGUF", 2.4),
    alias("phi3:14b", "bartowski/Phi-3-medium-4k-instruct-GGUF", 8.6),
    alias("phi:2.7b", "TheBloke/phi-2-GGUF", 1.8),
    alias("smollm3:3b", "ggml-org/SmolLM3-3B-GGUF", 1.9),
    alias("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", 1.1),
    alias("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF", 0.1),
    alias("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF", 0.3),
    alias("granite3.3:8b", "ibm-granite/granite-3.3-8b-instruct-GGUF", 4.9),
    alias("granite3.3:2b", "ibm-granite/granite-3.3-2b-instruct-GGUF", 1.5),
    alias("granite3.2:8b", "ibm-research/granite-3.2-8b-instruct-GGUF", 4.9),
    alias("granite3.2:2b", "ibm-research/granite-3.2-2b-instruct-GGUF", 1.5),
    alias("olmo2:7b", "bartowski/OLMo-2-1124-7B-Instruct-GGUF", 4.5),
    alias("olmo2:13b", "bartowski/OLMo-2-1124-13B-Instruct-GGUF", 8.4),
    alias("command-r:35b", "bartowski/c4ai-command-r-08-2024-GGUF", 19.8),
    alias("command-r7b:7b", "bartowski/c4ai-command-r7b-12-2024-GGUF", 5.1),
    alias("aya-expanse:8b", "bartowski/aya-expanse-8b-GGUF", 5.1),
    alias("aya-expanse:32b", "bartowski/aya-expanse-32b-GGUF", 19.8),
    alias("falcon3:7b", "tiiuae/Falcon3-7B-Instruct-GGUF", 4.6),
    alias("falcon3:1b", "tiiuae/Falcon3-1B-Instruct-GGUF", 1.1),
    alias("falcon3:3b", "tiiuae/Falcon3-3B-Instruct-GGUF", 2.0),
    alias("falcon3:10b", "tiiuae/Falcon3-10B-Instruct-GGUF", 6.3),
    alias("hermes3:8b", "bartowski/Hermes-3-Llama-3.1-8B-GGUF", 4.9),
    alias("hermes3:3b", "bartowski/Hermes-3-Llama-3.2-3B-GGUF", 2.0),
    alias("dolphin3:8b", "bartowski/Dolphin3.0-Llama3.1-8B-GGUF", 4.9),
    alias("tulu3:8b", "bartowski/Llama-3.1-Tulu-3-8B-GGUF", 4.9),
    alias("openhermes:7b", "TheBloke/OpenHermes-2.5-Mistral-7B-GGUF", 4.4),
    alias("zephyr:7b", "TheBloke/zephyr-7B-beta-GGUF", 4.4),
    alias("vicuna:7b", "TheBloke/vicuna-7B-v1.5-GGUF", 4.1),
    alias("vicuna:13b", "TheBloke/vicuna-13B-v1.5-GGUF", 7.9),
    alias("openchat:7b", "TheBloke/openchat-3.5-0106-GGUF", 4.4),
    alias("neural-chat:7b", "TheBloke/neural-chat-7B-v3-3-GGUF", 4.4),
    alias("solar:10.7b", "TheBloke/SOLAR-10.7B-Instruct-v1.0-GGUF", 6.5),
    alias("yi:6b", "bartowski/Yi-1.5-6B-Chat-GGUF", 3.7),
    alias("yi:9b", "bartowski/Yi-1.5-9B-Chat-GGUF", 5.3),
    alias("yi:34b", "bartowski/Yi-1.5-34B-Chat-GGUF", 20.7),
    alias("stablelm-zephyr:3b", "TheBloke/stablelm-zephyr-3b-GGUF", 1.7),
    alias("nomic-embed-text:137m", "nomic-ai/nomic-embed-text-v1.5", 0.5),
    alias("mxbai-embed-large:335m", "mixedbread-ai/mxbai-embed-large-v1", 0.7),
    alias("all-minilm:22m", "sentence-transformers/all-MiniLM-L6-v2", 0.1),
    alias("all-minilm:33m", "sentence-transformers/all-MiniLM-L12-v2", 0.1),
    alias("snowflake-arctic-embed:335m", "Snowflake/snowflake-arctic-embed-l", 1.3),
    alias("snowflake-arctic-embed:110m", "Snowflake/snowflake-arctic-embed-m", 0.4),
    alias("snowflake-arctic-embed:33m", "Snowflake/snowflake-arctic-embed-s", 0.1),
    alias("bge-large:335m", "BAAI/bge-large-en-v1.5", 1.3),
    alias("bge-small:33m", "BAAI/bge-small-en-v1.5", 0.1),
    alias("bge-reranker-v2-m3:568m", "BAAI/bge-reranker-v2-m3", 2.3),
    alias("whisper:small", "openai/whisper-small", 1.0),
    alias("whisper:tiny", "openai/whisper-tiny", 0.2),
    alias("whisper:base", "openai/whisper-base", 0.3),
    alias("whisper:medium", "openai/whisper-medium", 3.1),
    alias("whisper:large", "openai/whisper-large-v3", 3.1),
    alias("whisper:turbo", "openai/whisper-large-v3-turbo", 1.6),
];

/// The aliases whose name or model contains all of these words.
pub fn search<'a>(words: &'a [String]) -> impl Iterator<Item = &'static Alias> + 'a {
    let has = |text: &str, word: &str| text.to_ascii_lowercase().contains(&word.to_ascii_lowercase());
    ALIASES.iter().filter(move |a| words.iter().all(|word| has(a.name, word) || has(a.model, word)))
}

/// True if the text is an alias, with or without a size.
pub fn is_alias(name: &str) -> bool {
    find(name).is_some()
}

/// Target of an alias.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// A model, and optionally a quantization.
    Model(&'static str, Option<String>),
    /// Unknown size: the family's aliases.
    Sizes(Vec<&'static str>),
}

/// Resolves an alias; `None` if there is no such family.
pub(crate) fn find(name: &str) -> Option<Found> {
    let (family, tag) = name.split_once(':').unwrap_or((name, ""));
    let all: Vec<&Alias> = ALIASES.iter().filter(|a| a.family().eq_ignore_ascii_case(family)).collect();
    let first = all.first()?;
    let sized = |size: &str| {
        all.iter().find(|a| a.name.split_once(':').is_some_and(|(_, own)| own.eq_ignore_ascii_case(size)))
    };
    // The size, then optionally a quantization: `8b:Q4_K_M`, or Ollama's `8b-instruct-q4_K_M`.
    let (size, rest) = tag.split_once(':').map_or_else(
        || tag.split_once('-').map_or((tag, ""), |(size, rest)| (size, rest)),
        |(size, rest)| (size, rest),
    );
    let found = match sized(size) {
        Some(found) => found,
        None if ["", "latest"].contains(&size) => first,
        // A quantization alone, of the default size.
        None if quantization(tag).is_some() => return Some(Found::Model(first.model, quantization(tag))),
        None => return Some(Found::Sizes(all.iter().map(|a| a.name).collect())),
    };
    let words: Vec<&str> = rest.split('-').filter(|word| !SAYS_LITTLE.contains(word)).collect();
    match words[..] {
        [] => Some(Found::Model(found.model, None)),
        [quant] if quantization(quant).is_some() => Some(Found::Model(found.model, quantization(quant))),
        // After a colon, a file name is allowed too.
        _ if tag.contains(':') => Some(Found::Model(found.model, Some(rest.to_owned()))),
        _ => Some(Found::Sizes(all.iter().map(|a| a.name).collect())),
    }
}

/// Words in Ollama's tags that apply to all of these models.
const SAYS_LITTLE: &[&str] = &["", "instruct", "it", "chat", "text"];

/// The quantization label, if the word is one.
fn quantization(word: &str) -> Option<String> {
    quant::label(word).filter(|_| !word.contains(['/', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_families_lie_together() {
        let mut families: Vec<&str> = Vec::new();
        for (i, alias) in ALIASES.iter().enumerate() {
            assert!(ALIASES[..i].iter().all(|other| other.name != alias.name), "{}", alias.name);
            assert_eq!(alias.name, alias.name.to_ascii_lowercase());
            assert!(alias.name.contains(':') && alias.gigabytes > 0.0 && alias.gigabytes < 200.0);
            if families.last() != Some(&alias.family()) {
                assert!(!families.contains(&alias.family()), "{}", alias.name);
                families.push(alias.family());
            }
        }
        assert!(ALIASES.len() >= 100);
    }

    #[test]
    fn sizes_follow_the_parameters() {
        // Quantized models have 4 to 5 bits per weight plus embeddings; unquantized ones up to four bytes.
        for alias in ALIASES {
            let size = alias.name.split_once(':').unwrap().1;
            let number = |unit| size.strip_suffix(unit).and_then(|n: &str| n.parse::<f32>().ok());
            let Some(billions) = number("b").or(number("m").map(|m| m / 1000.0)) else { continue };
            let bytes = alias.gigabytes / billions;
            assert!((0.45..4.6).contains(&bytes), "{}: {bytes} bytes a parameter", alias.name);
        }
    }

    #[test]
    fn tags_are_read_as_ollama_writes_them() {
        let model = |model, quant: Option<&str>| Some(Found::Model(model, quant.map(str::to_owned)));
        let llama = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF";
        for name in ["llama3.1", "llama3.1:latest", "llama3.1:8b", "Llama3.1:8B", "llama3.1:8b-instruct"] {
            assert_eq!(find(name), model(llama, None), "{name}");
        }
        for name in ["llama3.1:8b-instruct-q8_0", "llama3.1:8b:q8_0", "llama3.1:Q8_0", "llama3.1:8b-q8_0"] {
            assert_eq!(find(name), model(llama, Some("Q8_0")), "{name}");
        }
        assert_eq!(find("gemma3:4b-it-fp16"), model("ggml-org/gemma-3-4b-it-GGUF", Some("F16")));
        assert_eq!(find("smollm3:3b:dir/file"), model("ggml-org/SmolLM3-3B-GGUF", Some("dir/file")));
        let sizes = Some(Found::Sizes(vec!["llama3.1:8b", "llama3.1:70b"]));
        for name in ["llama3.1:405b", "llama3.1:8b-text-oddity", "llama3.1:nonsense"] {
            assert_eq!(find(name), sizes, "{name}");
        }
        assert_eq!(find("gpt2"), None);
        assert_eq!(find("org/llama3.1"), None);
    }

    #[test]
    fn searching_takes_all_words() {
        let names = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            search(&words).map(|a| a.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&["GPT-oss"]), ["gpt-oss:20b", "gpt-oss:120b"]);
        assert_eq!(names(&["qwen2.5", "coder", "14b"]), ["qwen2.5-coder:14b"]);
        assert_eq!(names(&["no such thing"]), Vec::<&str>::new());
        assert_eq!(names(&[]).len(), ALIASES.len());
    }
}

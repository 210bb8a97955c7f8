//! `config.json` and other settings: item 12.

use std::fs::File;
use std::path::Path;

use serde_json::{Value, json};
use tallow_models::Model;
use tallow_text::generation::Generation;

use crate::gguf_file::{GgufFile, array, float, text, uint, value};
use crate::{Dir, Said, folder, snapshot};

#[test]
fn c3_12_settings_of_a_folder() {
    let dir = Dir::new("12");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let mut open = |key: &str, value: Value| {
        let mut config = folder::config();
        config[key] = value.clone();
        if value.is_null() {
            config.as_object_mut().unwrap().remove(key);
        }
        dir.write("config.json", config.to_string().as_bytes());
        said.opening(&format!("{key}: {value}"), &dir.0);
    };
    for value in
        [json!(1_000_000_000), json!(0), json!(-1), json!(1.5), json!("1"), json!(u64::MAX), json!(1e300)]
    {
        open("num_hidden_layers", value);
    }
    for value in [json!(0), json!(7), json!(1 << 30), json!([16])] {
        open("head_dim", value);
    }
    for value in [json!(3), json!(0), json!(1 << 30), Value::Null] {
        open("num_attention_heads", value);
    }
    open("num_key_value_heads", json!(3));
    open("num_key_value_heads", json!(0));
    open("hidden_size", json!(1u64 << 40));
    open("intermediate_size", json!(0));
    open("vocab_size", json!(0));
    open("vocab_size", json!(1_000_000_000));
    open("vocab_size", Value::Null);
    open("max_position_embeddings", json!(1_000_000_000));
    for value in [json!(0), json!(-1), json!("1e4"), json!(0.5)] {
        open("rope_theta", value);
    }
    for value in [
        json!({"type": "linear"}),
        json!({"type": "linear", "factor": 0}),
        json!({"type": "linear", "factor": -2.0}),
        json!({"rope_type": "spiral", "factor": 2.0}),
        json!({"rope_type": "longrope", "short_factor": [1], "long_factor": [1], "factor": 2.0}),
        json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 0, "high_freq_factor": 4}),
    ] {
        open("rope_scaling", value);
    }
    open("rms_norm_eps", json!(-1));
    open("hidden_act", json!("exec"));
    open("quantization_config", json!({"quant_method": "gptq"}));
    open("architectures", json!(["GhostForCausalLM"]));
    open("architectures", json!([]));
    open("architectures", json!({"0": 1}));
    open("architectures", Value::Null);
    snapshot!(said);
}

#[test]
fn c3_12_settings_that_some_families_have() {
    let dir = Dir::new("12-families");
    let mut said = Said::new(&dir);
    dir.write_folder();
    for (family, key, value) in [
        ("Gemma3ForCausalLM", "use_bidirectional_attention", json!(true)),
        ("Gemma3ForCausalLM", "sliding_window_pattern", json!(0)),
        ("Gemma3ForCausalLM", "final_logit_softcapping", json!(1e-60)),
        ("Gemma3ForCausalLM", "rope_local_base_freq", json!(0)),
        ("Gemma2ForCausalLM", "attn_logit_softcapping", json!(0)),
        ("Gemma2ForCausalLM", "final_logit_softcapping", json!(-30.0)),
        ("Gemma2ForCausalLM", "query_pre_attn_scalar", json!(0)),
        ("Gemma2ForCausalLM", "layer_types", json!([])),
        ("Gemma2ForCausalLM", "layer_types", json!(["chunked_attention", "full_attention"])),
        ("StableLmForCausalLM", "partial_rotary_factor", json!(0)),
        ("Ministral3ForCausalLM", "rope_parameters", json!({"rope_type": "default"})),
        ("GPT2LMHeadModel", "add_cross_attention", json!(true)),
        ("GPT2LMHeadModel", "n_positions", json!(0)),
        ("GPTNeoXForCausalLM", "rotary_pct", json!(0)),
        ("StableLmForCausalLM", "use_parallel_residual", json!(1)),
        ("Gemma4ForCausalLM", "attention_k_eq_v", json!("yes")),
        ("Gemma4ForCausalLM", "num_kv_shared_layers", json!(100)),
        ("Gemma4ForCausalLM", "hidden_size_per_layer_input", json!(-1)),
        ("Gemma4ForCausalLM", "use_bidirectional_attention", json!("all")),
        ("Gemma4ForCausalLM", "global_head_dim", json!(7)),
        ("Gemma4ForCausalLM", "per_layer_config", json!({"0": {"sliding_window": 7}})),
        ("Gemma4ForCausalLM", "vocab_size_per_layer_input", json!(7)),
        ("GptOssForCausalLM", "swiglu_limit", json!(9.0)),
        ("GptOssForCausalLM", "swiglu_alpha", json!(1.5)),
        ("GptOssForCausalLM", "hidden_act", json!("gelu")),
        ("GptOssForCausalLM", "num_experts_per_tok", json!(200)),
        ("PhimoeForCausalLM", "num_experts_per_tok", json!(3)),
        ("PhimoeForCausalLM", "router_jitter_noise", json!(-0.1)),
        ("PhimoeForCausalLM", "rope_scaling", json!({"type": "linear", "factor": 2.0})),
        (
            "PhimoeForCausalLM",
            "rope_scaling",
            json!({"type": "longrope", "short_factor": vec![1; 8], "long_factor": vec![1; 8]}),
        ),
        ("Llama4ForCausalLM", "attention_chunk_size", json!(0)),
        ("Llama4ForCausalLM", "interleave_moe_layer_step", json!(0)),
        ("Llama4ForCausalLM", "no_rope_layer_interval", json!(0)),
        ("Llama4ForCausalLM", "floor_scale", json!(0)),
        ("Llama4ForCausalLM", "layer_types", json!(["sliding_attention"])),
        ("Llama4ForCausalLM", "rope_scaling", json!({"type": "yarn", "factor": 2.0})),
        ("DeepseekV2ForCausalLM", "topk_method", json!("noaux_tc")),
        ("DeepseekV2ForCausalLM", "scoring_func", json!("sigmoid")),
        ("DeepseekV2ForCausalLM", "norm_topk_prob", json!(true)),
        ("DeepseekV2ForCausalLM", "num_experts_per_tok", json!(null)),
        ("DeepseekV3ForCausalLM", "moe_layer_freq", json!(2)),
        ("DeepseekV3ForCausalLM", "mlp_bias", json!(true)),
        ("DeepseekV3ForCausalLM", "num_key_value_heads", json!(1)),
        ("DeepseekV3ForCausalLM", "qk_rope_head_dim", json!(7)),
        ("DeepseekV3ForCausalLM", "kv_lora_rank", json!(1000)),
        ("DeepseekV3ForCausalLM", "topk_group", json!(9)),
        ("DeepseekV3ForCausalLM", "rope_scaling", json!({"type": "yarn", "mscale_all_dim": 1.0})),
        ("Qwen3_5ForCausalLM", "linear_num_key_heads", json!(0)),
        ("Qwen3_5ForCausalLM", "linear_num_value_heads", json!(24)),
        ("Qwen3_5ForCausalLM", "linear_num_value_heads", json!(1u64 << 31)),
        ("Qwen3_5ForCausalLM", "linear_key_head_dim", json!(257)),
        ("Qwen3_5ForCausalLM", "linear_value_head_dim", json!(1025)),
        ("Qwen3_5ForCausalLM", "linear_conv_kernel_dim", json!(1)),
        ("Qwen3_5ForCausalLM", "linear_conv_kernel_dim", json!(17)),
        ("Qwen3_5ForCausalLM", "full_attention_interval", json!(0)),
        ("Qwen3_5ForCausalLM", "layer_types", json!(["sliding_attention"])),
        ("Qwen3_5ForCausalLM", "text_config", json!({"hidden_size": 32})),
        ("Qwen3_5MoeForCausalLM", "moe_intermediate_size", Value::Null),
        ("Qwen3NextForCausalLM", "hidden_act", json!("gelu")),
        ("Qwen3NextForCausalLM", "decoder_sparse_step", json!(0)),
        ("MiniMaxM2ForCausalLM", "scoring_func", json!("softmax")),
        ("MiniMaxM2ForCausalLM", "use_routing_bias", json!(false)),
        ("MiniMaxM2ForCausalLM", "use_qk_norm", json!(false)),
        ("MiniMaxM2ForCausalLM", "qk_norm_type", json!("per_head")),
        ("MiniMaxM2ForCausalLM", "rotary_dim", json!(1000)),
        ("MiniMaxM2ForCausalLM", "num_experts_per_tok", json!(1000)),
        ("Glm4MoeLiteForCausalLM", "scoring_func", json!("softmax")),
        ("Dots1ForCausalLM", "scoring_func", json!("softmax")),
        ("Dots1ForCausalLM", "moe_layer_freq", json!(2)),
        ("Dots1ForCausalLM", "n_routed_experts", Value::Null),
    ] {
        let mut config = folder::config();
        for (called, key) in [("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer")] {
            config[key] = config[called].clone();
        }
        for key in ["n_head", "num_key_value_heads"] {
            config[key] = config["num_attention_heads"].clone();
        }
        config["architectures"] = json!([family]);
        config[key] = value.clone();
        dir.write("config.json", config.to_string().as_bytes());
        said.opening(&format!("{family}, {key}: {value}"), &dir.0);
    }
    snapshot!(said);
}

#[test]
fn c3_12_settings_that_are_no_settings() {
    let dir = Dir::new("12-json");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let mut open = |case: &str, bytes: &[u8]| {
        dir.write("config.json", bytes);
        said.opening(case, &dir.0);
    };
    open("empty", b"");
    open("a list", b"[]");
    open("a number", b"7");
    open("cut short", &folder::config().to_string().as_bytes()[..40]);
    open("not UTF-8", b"{\"\xFF\": 1}");
    open("100000 lists deep", &[b"[".repeat(100_000), b"]".repeat(100_000)].concat());
    let with =
        |theta: &str| folder::config().to_string().replace("{", &format!("{{\"rope_theta\": {theta},"));
    for theta in ["NaN", "Infinity", "1e999", "-1e999"] {
        open(&format!("rope_theta: {theta}"), with(theta).as_bytes());
    }
    // A million small JSON values take many times their file size once parsed.
    open("many brackets", format!("[{}1]", "[],".repeat(3_000_000)).as_bytes());
    let file = File::options().write(true).open(dir.0.join("config.json")).unwrap();
    file.set_len(1 << 30).unwrap();
    said.opening("1 GiB", &dir.0);
    std::fs::remove_file(dir.0.join("config.json")).unwrap();
    said.opening("none", &dir.0);
    snapshot!(said);
}

#[test]
fn c3_12_settings_of_a_gguf_file() {
    let dir = Dir::new("12-gguf");
    let mut said = Said::new(&dir);
    let long = |n: u64| value(10, &n.to_le_bytes());
    let minus = || value(5, &(-1i32).to_le_bytes());
    let cases = [
        ("block_count", "10^9", uint(1_000_000_000)),
        ("block_count", "2^64-1", long(u64::MAX)),
        ("block_count", "0", uint(0)),
        ("block_count", "-1", minus()),
        ("embedding_length", "2^40", long(1 << 40)),
        ("attention.head_count", "0", uint(0)),
        ("attention.head_count", "3", uint(3)),
        ("attention.head_count_kv", "3", uint(3)),
        ("attention.head_count_kv", "0", uint(0)),
        ("attention.key_length", "0", uint(0)),
        ("attention.key_length", "2^31", uint(1 << 31)),
        ("attention.value_length", "8", uint(8)),
        ("attention.layer_norm_rms_epsilon", "NaN", float(f32::NAN)),
        ("attention.layer_norm_rms_epsilon", "-1", float(-1.0)),
        ("rope.freq_base", "NaN", float(f32::NAN)),
        ("rope.freq_base", "inf", float(f32::INFINITY)),
        ("rope.freq_base", "0", float(0.0)),
        ("rope.dimension_count", "0", uint(0)),
        ("rope.dimension_count", "2^31", uint(1 << 31)),
        ("rope.scaling.type", "spiral", text("spiral")),
        ("rope.scaling.type", "a list", array(4, 1, &[0; 4])),
        ("context_length", "0", uint(0)),
        ("context_length", "2^63", long(1 << 63)),
    ];
    for (key, written, value) in cases {
        let file = GgufFile::good().with(&format!("llama.{key}"), value);
        said.gguf(&format!("{key}: {written}"), &file.bytes());
    }
    said.gguf("architecture: ghost", &GgufFile::good().with("general.architecture", text("ghost")).bytes());
    let mut file = GgufFile::good();
    file.pairs.clear();
    said.gguf("no keys", &file.bytes());
    snapshot!(said);
}

#[test]
fn c3_12_a_model_in_parts() {
    let dir = Dir::new("12-split");
    let mut said = Said::new(&dir);
    let part = |no: u32, count: u32| {
        GgufFile::good().with("split.no", uint(no)).with("split.count", uint(count)).bytes()
    };
    said.gguf("a name without numbers", &part(0, 2));
    std::fs::remove_file(dir.0.join("model.gguf")).unwrap();
    let first = dir.write("m-00001-of-00002.gguf", &part(0, 2));
    said.opening("a part is missing", &first);
    dir.write("m-00002-of-00002.gguf", &part(0, 2));
    said.opening("a part is another", &first);
    dir.write("m-00002-of-00002.gguf", &part(1, 2));
    said.opening("tensors are there twice", &first);
    dir.write("m-00001-of-00002.gguf", &part(0, u32::MAX));
    said.opening("billions of parts", &first);
    let billions = dir.write("m-00001-of-4000000000.gguf", &part(0, 4_000_000_000));
    said.opening("billions of parts, by name too", &billions);
    snapshot!(said);
}

/// Vocabularies that do not match the model's.
#[test]
fn c3_12_vocabularies_of_another_model() {
    let dir = Dir::new("12-vocab");
    let mut said = Said::new(&dir);
    dir.write_folder();
    let mut larger = folder::tokenizer();
    for i in 6..100 {
        larger["model"]["vocab"][format!("word{i}")] = json!(i);
    }
    dir.write("tokenizer.json", larger.to_string().as_bytes());
    said.note("100 tokens for 8 rows", Model::open(&dir.0).unwrap().tokenizer().map(drop).unwrap_err());
    std::fs::remove_file(dir.0.join("tokenizer.json")).unwrap();
    said.note("no vocabulary", Model::open(&dir.0).unwrap().tokenizer().map(drop).unwrap_err());
    dir.write_folder();
    dir.write("generation_config.json", br#"{"temperature": -1}"#);
    said.note("a negative temperature", Model::open(&dir.0).unwrap().tokenizer().map(drop).unwrap_err());
    dir.write("generation_config.json", b"[");
    said.note(
        "generation settings cut short",
        Model::open(&dir.0).unwrap().tokenizer().map(drop).unwrap_err(),
    );
    snapshot!(said);
}

/// Sampling defaults as published in both kinds of file.
#[test]
fn c3_12_settings_for_choosing_tokens() {
    let dir = Dir::new("12-sampling");
    let mut said = Said::new(&dir);
    let generation = |path: &Path| Model::open(path).unwrap().generation();
    let file = |key: &str, value: Vec<u8>| {
        dir.write("model.gguf", &GgufFile::good().with(&format!("general.sampling.{key}"), value).bytes())
    };
    let minus = value(5, &(-1i32).to_le_bytes());
    assert_eq!(generation(&file("temp", float(0.5))).unwrap().temperature, Some(0.5));
    assert_eq!(generation(&file("penalty_repeat", float(1.5))).unwrap().repetition_penalty, Some(1.5));
    assert_eq!(generation(&file("top_k", uint(7))).unwrap().top_k, Some(7));
    assert_eq!(generation(&file("top_k", minus.clone())).unwrap().top_k, Some(0));
    assert_eq!(generation(&file("sequence", text("temp"))).unwrap(), Generation::default());
    for (key, written, value) in [
        ("temp", "-1", minus),
        ("temp", "NaN", float(f32::NAN)),
        ("top_p", "a text", text("0.5")),
        ("min_p", "2", uint(2)),
        ("penalty_repeat", "inf", float(f32::INFINITY)),
    ] {
        said.note(&format!("{key}: {written}"), generation(&file(key, value)).unwrap_err().into());
    }
    let folder = Dir::new("12-sampling-folder");
    folder.write_folder();
    folder.write("generation_config.json", br#"{"temperature": 0.5, "top_k": 7, "eos_token_id": [1, 2]}"#);
    let read = generation(&folder.0).unwrap();
    assert_eq!((read.temperature, read.top_k, read.ends), (Some(0.5), Some(7), vec![1, 2]));
    snapshot!(said);
}

//! `tallow dump` and `tallow perplexity` against what reference implementations recorded.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{Home, gpu};
use tallow_support::{DECODERS, ENCODERS, Golden, golden, json, shared, tensors};

fn dump(home: &Home, model: &Path, input: &Path, device: &str) -> BTreeMap<String, Golden> {
    let output = home.path().join("out.safetensors");
    let (model, input) = (model.to_str().unwrap(), input.to_str().unwrap());
    home.run(&[
        "dump",
        model,
        "--in",
        input,
        "--out",
        output.to_str().unwrap(),
        "--force",
        "--device",
        device,
    ])
    .ok();
    tensors(&output)
}

/// Largest absolute difference of two tensors' elements.
fn distance(a: &Golden, b: &Golden) -> f32 {
    assert_eq!(a.shape, b.shape);
    let far = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    a.f32().iter().zip(&b.f32()).map(far).fold(0.0, f32::max)
}

#[test]
fn every_family_of_the_goldens() {
    let home = Home::new();
    for name in DECODERS {
        let folder = golden(name);
        let tolerance =
            json(&folder.join("golden.json"))["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32;
        let wanted = tensors(&folder.join("golden.safetensors"));
        let got = dump(&home, &folder, &folder.join("golden.safetensors"), "cpu");
        let (mut compared, mut most) = (0, 0.0_f32);
        for (tensor, want) in &wanted {
            if tensor.ends_with(".logits") || tensor.contains(".hidden") {
                let far = distance(&got[tensor], want);
                assert!(far <= tolerance, "{name} {tensor}: off by {far}, and {tolerance} is allowed");
                (compared, most) = (compared + 1, most.max(far));
            }
        }
        println!("{name:<18} {compared:>2} tensors, off by {most:.1e} at most, {tolerance:.0e} allowed");
        assert!(compared >= 4, "{name}: {compared}");
    }
}

/// Encoders, image encoders and encoder-decoders. Rows of padding are not compared.
#[test]
fn every_other_family_of_the_goldens() {
    let home = Home::new();
    for name in ENCODERS.into_iter().chain([
        "clip",
        "siglip",
        "t5",
        "whisper",
        "encoders/bert-sort",
        "encoders/roberta-mask",
        "encoders/bert-odd-heads",
    ]) {
        let folder = golden(name);
        let tolerance =
            json(&folder.join("golden.json"))["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32;
        let wanted = tensors(&folder.join("golden.safetensors"));
        let got = dump(&home, &folder, &folder.join("golden.safetensors"), "cpu");
        let mask = wanted.get("attention_mask").map(Golden::ids);
        let mut compared = 0;
        for (tensor, want) in wanted.iter().filter(|(tensor, _)| got.contains_key(*tensor)) {
            let got = &got[tensor];
            assert_eq!(got.shape, want.shape, "{name} {tensor}");
            let (width, by_token) = (*want.shape.last().unwrap(), want.shape.len() == 3);
            let (got, want) = (got.f32(), want.f32());
            for (i, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
                let is_filling = by_token && mask.as_ref().is_some_and(|mask| mask[i] == 0);
                let far = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(is_filling || far <= tolerance, "{name} {tensor}, row {i}: off by {far}");
            }
            compared += 1;
        }
        assert!(compared >= 2, "{name}: {compared}");
    }
    // A KV cache type of fewer bits is refused for models without a KV cache.
    let of = |name: &str, file: &str| golden(name).join(file).to_str().unwrap().to_owned();
    let run = |name: &str| {
        let (model, input) = (of(name, ""), of(name, "golden.safetensors"));
        home.run(&["dump", &model, "--in", &input, "--out", "half", "--force", "--precision", "f16"])
    };
    run("t5").ok();
    assert!(run("bert").failed().contains("encoders keep no keys and values"));
}

/// With an adapter, from both file formats, the program gives PEFT's logits; at half scale or without it, it does not.
#[test]
fn adapters_of_the_goldens() {
    let home = Home::new();
    for name in ["llama", "qwen3", "gpt2"] {
        let folder = golden("adapters").join(name);
        let facts = json(&folder.join("golden.json"));
        let tolerance = facts["suggested_abs_tolerance_f32"].as_f64().unwrap() as f32;
        let model = golden(facts["base"].as_str().unwrap());
        let input = folder.join("golden.safetensors");
        let (wanted, output) = (tensors(&input), home.path().join("out.safetensors"));
        let [model, input, out] = [&model, &input, &output].map(|p| p.to_str().unwrap());
        let far = |lora: &str| {
            home.run(&[
                "dump",
                model,
                "--in",
                input,
                "--out",
                out,
                "--force",
                "--only-logits",
                "--device",
                "cpu",
                "--lora",
                lora,
            ])
            .ok();
            let got = tensors(&output);
            let logits = wanted.keys().filter(|key| key.ends_with(".logits"));
            logits.map(|key| distance(&got[key], &wanted[key])).fold(0.0, f32::max)
        };
        let folder = folder.to_str().unwrap();
        for lora in [folder.to_owned(), format!("{folder}/adapter.gguf"), format!("some={folder}:1.0")] {
            assert!(far(&lora) <= tolerance, "{lora}");
        }
        assert!(far(&format!("{folder}:0.5")) > 100.0 * tolerance, "{name}");
        assert!(far(&format!("{folder}:0")) > 100.0 * tolerance, "{name}");
    }
}

#[test]
fn precision_is_what_was_asked_for() {
    let home = Home::new();
    let folder = golden("llama");
    let input = folder.join("golden.safetensors");
    let [folder, input] = [&folder, &input].map(|p| p.to_str().unwrap());
    let run = |precision: &str| {
        let output = home.path().join(precision);
        home.run(&[
            "dump",
            folder,
            "--in",
            input,
            "--out",
            output.to_str().unwrap(),
            "--precision",
            precision,
        ])
        .ok();
        tensors(&output)
    };
    let (exact, half, brain) = (run("f32"), run("f16"), run("bf16"));
    let logits = exact.keys().find(|k| k.ends_with("logits") && exact[*k].shape[0] > 8).unwrap();
    let (near, far) = (distance(&exact[logits], &half[logits]), distance(&exact[logits], &brain[logits]));
    assert!(0.0 < near && near < far && far < 0.2, "{near} {far}");
}

#[test]
fn wrong_inputs_are_refused() {
    let home = Home::new();
    let folder = golden("llama");
    let model = folder.to_str().unwrap();
    home.file("junk.safetensors", "not a tensor in sight");
    let header =
        |json: &str, data: &[u8]| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat();
    let one = |dtype: &str, shape: &str, len: usize| {
        format!(r#"{{"input_ids":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{len}]}}}}"#)
    };
    home.file("float.safetensors", header(&one("F32", "[1]", 4), &[0; 4]));
    home.file("huge.safetensors", header(&one("I64", "[1]", 8), &i64::MAX.to_le_bytes()));
    home.file("minus.safetensors", header(&one("I64", "[1]", 8), &(-1_i64).to_le_bytes()));
    home.file("unknown.safetensors", header(&one("I32", "[1]", 4), &99_999_i32.to_le_bytes()));
    home.file("empty.safetensors", header(&one("I64", "[0]", 0), &[]));
    home.file("cube.safetensors", header(&one("I64", "[1,1,1]", 8), &[0; 8]));
    home.file("other.safetensors", header("{}", &[]));
    let mut text = String::new();
    for name in ["nothing", "junk", "float", "huge", "minus", "unknown", "empty", "cube", "other"] {
        let file = format!("{name}.safetensors");
        text += &home.run(&["dump", model, "--in", &file, "--out", "out"]).failed();
    }
    home.file("good.safetensors", header(&one("I32", "[1]", 4), &[0; 4]));
    text += &home.run(&["dump", model, "--in", "good.safetensors", "--out", "no/such/folder/out"]).failed();
    insta::assert_snapshot!(text);
}

/// Greedy decoding in full precision.
fn greedily(device: &str) -> [&str; 10] {
    ["run", "--raw", "--temperature", "0", "--kv", "f32", "--arithmetic", "exact", "--device", device]
}

/// A small trained model: logits, text and perplexity, from each file format.
#[test]
fn a_trained_model_behaves_as_recorded() {
    trained_model("cpu", 1.0);
}

#[test]
fn a_trained_model_behaves_as_recorded_on_a_gpu() {
    gpu().into_iter().for_each(|device| trained_model(&device, 4.0));
}

fn trained_model(device: &str, slack: f64) {
    let Some(folder) = shared("stories260K-hf") else { return };
    let home = Home::new();
    let facts = json(&folder.join("golden.json"));
    let ids = &tensors(&folder.join("golden.safetensors"))["input_ids"];
    let text = home.file("text.txt", facts["text"].as_str().unwrap());
    let greedy = |value: &serde_json::Value| {
        value.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect::<Vec<_>>()
    };
    let files = [
        ("", "golden.safetensors", &facts["perplexity"], &facts["greedy_from_bos"]["token_ids"]),
        (
            "stories260K-F16.gguf",
            "",
            &facts["gguf"]["stories260K-F16.gguf"]["perplexity_dequantized_f32"],
            &facts["gguf"]["stories260K-F16.gguf"]["greedy_40_from_bos_dequantized_f32"],
        ),
        (
            "stories260K-Q8_0.gguf",
            "golden-Q8_0.safetensors",
            &facts["gguf"]["stories260K-Q8_0.gguf"]["perplexity_dequantized_f32"],
            &facts["gguf"]["stories260K-Q8_0.gguf"]["greedy_40_from_bos_dequantized_f32"],
        ),
        (
            "stories260K-Q4_0.gguf",
            "golden-Q4_0.safetensors",
            &facts["gguf"]["stories260K-Q4_0.gguf"]["perplexity_dequantized_f32"],
            &facts["gguf"]["stories260K-Q4_0.gguf"]["greedy_40_from_bos_dequantized_f32"],
        ),
    ];
    for (file, logits, perplexity, tokens) in files {
        let model = folder.join(file);
        let name = model.to_str().unwrap();
        if !logits.is_empty() {
            let got = dump(&home, &model, &folder.join("golden.safetensors"), device);
            let far = distance(&got["logits"], &tensors(&folder.join(logits))["logits"]);
            println!("{file:<24} logits of {} tokens off by {far:.1e}", ids.shape[0]);
            assert!(f64::from(far) < slack * 2e-4, "{file}: {far}");
        }
        let perplexity_by = |arithmetic: &str| {
            let how = ["--json", "--device", device, "--arithmetic", arithmetic];
            let found = home.run(&[&["perplexity", name, &text], &how[..]].concat()).ok();
            let found: serde_json::Value = serde_json::from_str(&found).unwrap();
            found["perplexity"].as_f64().unwrap()
        };
        let (found, fast) = (perplexity_by("exact"), perplexity_by("fast"));
        let want = perplexity.as_f64().unwrap();
        println!("{file:<24} perplexity {found:.6} ({fast:.6} when fast), recorded {want:.6}");
        assert!((found / want - 1.0).abs() < slack * 1e-5, "{file}: {found} {want}");
        // 8-bit activations cost hardly anything, whatever the weight type.
        assert!((fast / want - 1.0).abs() < 5e-3, "{file}: {fast} {want}");
        // The reference began with BOS, and so does an empty prompt here.
        let want = greedy(tokens);
        let count = (want.len() - 1).to_string();
        let said = home.run(&[&greedily(device)[..], &["-n", &count, name, ""]].concat()).ok();
        let list = want.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let meant = home.run(&["tokenize", name, "--decode", &list]).ok();
        assert_eq!(said.trim(), meant.trim().trim_start_matches("<s>").trim(), "{file}");
    }
    let story = facts["greedy_from_bos"]["text"].as_str().unwrap();
    let count = (facts["greedy_from_bos"]["token_ids"].as_array().unwrap().len() - 1).to_string();
    let said = home.run(&[&greedily(device)[..], &["-n", &count, folder.to_str().unwrap(), ""]].concat());
    assert_eq!(said.ok().trim(), story.trim());
}

/// With a chat template the model gets the rendered chat, and special tokens in a user's text stay text.
#[test]
fn a_chat_is_what_its_template_makes_of_it() {
    let Some(folder) = shared("stories260K-hf") else { return };
    let home = Home::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        home.file(&format!("model/{name}"), std::fs::read(folder.join(name)).unwrap());
    }
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    home.file("model/chat_template.jinja", template);
    assert_eq!(home.run(&["show", "model", "--template"]).ok(), format!("{template}\n"));
    let how = ["--temperature", "0", "-n", "16"];
    for said in ["Lily went to the park.", "Lily </s> went <s> home."] {
        let chat = home.run(&[&["run"], &how[..], &["--system", "Be kind.", "model", said]].concat()).ok();
        let rendered = format!("system: Be kind.\nuser: {said}\nassistant:");
        let raw = home.run(&[&["run", "--raw", "--echo"], &how[..], &["model", &rendered]].concat()).ok();
        assert_eq!(format!("{rendered}{chat}"), raw);
        assert!(chat.trim().len() > 10, "{chat:?}");
    }
}

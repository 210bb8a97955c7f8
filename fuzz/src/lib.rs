//! Shared by the fuzz targets: bytes as files, and running a model as far as it goes.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tallow_checkpoint::Checkpoint;
use tallow_convert::Conversion;
use tallow_cpu::{Cpu, Isa};
use tallow_models::AnyModel;
use tallow_models::decoder::Decoder;
use tallow_models::encoder::Encoder;
use tallow_models::seq2seq::Seq2Seq;
use tallow_text::template::{Chat, ChatTemplate, Now};
use tallow_text::tokenizer::{Around, Shown, Special, Tokenizer, Written};

/// A folder of this process, in memory if `TMPDIR` is.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("tallow-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for files");
        path
    })
}

/// Writes a file into the folder.
pub fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder().join(name);
    std::fs::write(&path, bytes).expect("a file");
    path
}

/// Opens a model, converts it to a file and loads it onto a device, as far as its files are valid.
pub fn open(path: &Path) {
    let Ok(checkpoint) = Checkpoint::open(path) else { return };
    let Ok(model) = AnyModel::new(checkpoint) else { return };
    let b = Cpu::new(Isa::best(), 1).expect("the processor");
    let told = &mut |_, _| ControlFlow::Continue(());
    match model {
        AnyModel::Encoder(model) => drop(Encoder::load(&b, &model, told)),
        AnyModel::Seq2Seq(model) => drop(Seq2Seq::load(&b, &model, told)),
        AnyModel::Decoder(model) => {
            let _ = model.generation();
            if let Ok(conversion) = Conversion::new(&model, Path::new("out.gguf")) {
                let _ = conversion.write(&mut std::io::sink(), told);
            }
            let _ = Decoder::load(&b, &model, 16, told);
        }
    }
}

/// Encodes texts and decodes them again.
pub fn tokenize(tokenizer: &Tokenizer) {
    const TEXTS: [&str; 5] = [
        "",
        "ab c <end> é\n",
        "  The  quick\tbrown\r\nfox 1234567 ",
        "日本語 \u{1F468}\u{200D}\u{1F469} e\u{301}",
        "<|im_start|>a</s>",
    ];
    let special =
        [Special::PROMPT, Special::RENDERED, Special { around: Around::Added, written: Written::Shielded }];
    for (text, special) in TEXTS.iter().flat_map(|text| special.map(|special| (text, special))) {
        if let Ok(ids) = tokenizer.encode(&tokenizer.shield(text), special) {
            tokenizer.decode(&ids, Shown::All);
            tokenizer.decode(&ids, Shown::Text);
        }
    }
    tokenizer.decode(&[0, 1, 2, 3, u32::MAX], Shown::All);
}

/// Renders a chat that uses a bit of everything.
pub fn render(template: &ChatTemplate) {
    let messages = serde_json::json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
        {"role": "assistant", "content": null, "reasoning_content": "Easy.", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2.5}}}
        ]},
        {"role": "tool", "tool_call_id": "a", "content": "4"},
        {"role": "user", "content": "Thanks ✓"},
    ]);
    let tools = serde_json::json!([
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
    ]);
    let now = Now::from_unix(1_741_529_100);
    let _ = template.render(&Chat { tools: Some(&tools), ..Chat::new(&messages, now) });
}

/// A tokenizer with a token for each byte, and one that ends the generation.
pub fn bytes_tokenizer() -> Tokenizer {
    let plain = |b: &u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 255;
    // The characters that stand for bytes in byte-level BPE vocabularies.
    let character = |b: u32| {
        next += u32::from(!plain(&b));
        char::from_u32(if plain(&b) { b } else { next }).expect("a character")
    };
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..256).map(character).zip(0..).map(|(c, id): (char, u32)| (c.to_string(), id.into())).collect();
    let file = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 256, "content": "<|im_end|>", "special": true, "normalized": false, "single_word": false,
                          "lstrip": false, "rstrip": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Tokenizer::from_json(Path::new("tokenizer.json"), file.to_string().as_bytes(), None).expect("a tokenizer")
}

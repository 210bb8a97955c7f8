//! A folder's tokenizer, chat templates and generation settings as GGUF metadata.

use std::path::Path;

use serde_json::Value;
use tallow_checkpoint::Settings;
use tallow_checkpoint::gguf::write::{Header, Written};
use tallow_models::Model;
use tallow_models::{LoadError, Result};
use tallow_text::template::MOST_SOURCE;
use tallow_text::tokenizer::{SAMPLES, Special, Tokenizer};

use super::in_memory;

/// Sets all their keys. Returns an error for what GGUF cannot represent.
pub(super) fn set(header: &mut Header, model: &Model, out: &Path) -> Result<()> {
    let folder = &model.checkpoint.path;
    let mine = Tokenizer::from_folder(folder)?;
    let generation = model.generation()?;
    for (key, value) in mine.gguf_keys(folder, model.spec.vocab)? {
        header.set(format!("tokenizer.ggml.{key}"), value);
    }
    templates(header, model)?;
    for (key, value) in [
        ("temp", generation.temperature),
        ("top_k", generation.top_k.map(|k| k as f32)),
        ("top_p", generation.top_p),
        ("min_p", generation.min_p),
        ("penalty_repeat", generation.repetition_penalty),
    ] {
        if let Some(value) = value {
            header.set(format!("general.sampling.{key}"), Written::Number(value));
        }
    }
    let read = |header: &Header| -> Result<Tokenizer> {
        Ok(match in_memory(out, header, &[])?.settings {
            Settings::Gguf(meta) => Tokenizer::from_gguf(&meta)?,
            Settings::Hf(_) => Tokenizer::from_folder(folder)?,
        })
    };
    // End tokens that readers do not recognize by name; GGUF has keys for two.
    let known = read(header)?;
    let all: Vec<u32> = mine.ends().chain(generation.ends).collect();
    let mut missing: Vec<u32> = all.into_iter().filter(|id| !known.ends_generation(*id)).collect();
    missing.sort_unstable();
    missing.dedup();
    for (key, id) in ["eot_token_id", "eom_token_id"].into_iter().zip(missing) {
        header.set(format!("tokenizer.ggml.{key}"), Written::Count(id));
    }
    match difference(&mine, &read(header)?, model.spec.vocab)? {
        None => Ok(()),
        Some(what) => Err(LoadError::unsupported(folder, "converting its tokenizer", what)),
    }
}

/// The difference that the file's tokenizer would have, if any.
fn difference(mine: &Tokenizer, read: &Tokenizer, vocab: usize) -> Result<Option<String>> {
    let ids = 0..u32::try_from(vocab).unwrap_or(u32::MAX);
    if let Some(id) =
        ids.into_iter().find(|id| mine.token_text(*id).is_some_and(|t| read.token_text(*id) != Some(t)))
    {
        return Ok(Some(format!("token {id} would have another text")));
    }
    if (mine.bos(), mine.eos(), mine.adds_bos()) != (read.bos(), read.eos(), read.adds_bos()) {
        return Ok(Some("a text would begin or end with another token".into()));
    }
    for text in SAMPLES {
        for special in [Special::PROMPT, Special::RENDERED] {
            if mine.encode(text, special).ok() != read.encode(text, special).ok() {
                return Ok(Some(format!("GGUF's words would cut {text:?} otherwise")));
            }
        }
    }
    Ok(None)
}

/// Chat templates: a default one, and named ones.
fn templates(header: &mut Header, model: &Model) -> Result<()> {
    let mut put = |name: Option<&str>, source: &str| {
        let key = name.map_or("tokenizer.chat_template".into(), |n| format!("tokenizer.chat_template.{n}"));
        header.set(key, Written::Text(source.into()));
    };
    if let Some(source) = model.checkpoint.text_file("chat_template.jinja", MOST_SOURCE)? {
        put(None, &source);
        return Ok(());
    }
    let config = model.checkpoint.json_file("tokenizer_config.json")?.unwrap_or_default();
    match &config["chat_template"] {
        Value::String(source) => put(None, source),
        Value::Array(list) => {
            let mut names = Vec::new();
            for entry in list {
                let (Some(name), Some(source)) = (entry["name"].as_str(), entry["template"].as_str()) else {
                    continue;
                };
                put(Some(name).filter(|name| *name != "default"), source);
                names.push(name.to_owned());
            }
            header.set("tokenizer.chat_templates", Written::Texts(names));
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Conversion of real models' tokenizers.
    #[test]
    fn tokenizers_stay_what_they_are_or_are_refused() {
        let mut said = String::new();
        for name in ["llama2", "llama3", "mistral", "qwen2.5", "roberta", "bert", "t5", "clip", "whisper"] {
            let Some(folder) = tallow_support::shared(&format!("tokenizer-{name}")) else { return };
            let mine = Tokenizer::from_folder(&folder).unwrap();
            let vocab = mine.vocab_size();
            let keys = match mine.gguf_keys(&folder, vocab) {
                Ok(keys) => keys,
                Err(why) => {
                    said +=
                        &format!("{name}: {}\n", why.to_string().replace(folder.to_str().unwrap(), "FOLDER"));
                    continue;
                }
            };
            let mut header = Header::default();
            keys.into_iter().for_each(|(key, value)| header.set(format!("tokenizer.ggml.{key}"), value));
            let checkpoint = in_memory(Path::new("test"), &header, &[]).unwrap();
            let Settings::Gguf(meta) = &checkpoint.settings else { panic!() };
            let read = Tokenizer::from_gguf(meta).unwrap();
            let way = meta.text("tokenizer.ggml.pre").unwrap();
            let difference = difference(&mine, &read, vocab).unwrap();
            said += &format!("{name}: {way:?}, {difference:?}\n");
        }
        insta::assert_snapshot!(said);
    }
}

//! [`ChatTemplates`]: all templates that a model ships.

use std::path::Path;

use serde_json::Value as Json;
use tallow_checkpoint::gguf::Metadata;
use tallow_checkpoint::{FileError, Result};

use super::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// A model's templates: usually one, sometimes another for chats with tools.
#[derive(Debug, Clone)]
pub struct ChatTemplates(Vec<(String, ChatTemplate)>);

const DEFAULT: &str = "default";
const TOOLS: &str = "tool_use";
/// Limit that no model reaches.
const MOST_TEMPLATES: usize = 32;

impl ChatTemplates {
    /// Reads the templates of a model folder: those in its `tokenizer_config.json`, which also has the text of the
    /// special tokens, and its `chat_template.jinja`, which replaces the default one where there are both. `None` if
    /// there are none. `path` is for error messages.
    pub fn from_config(path: &Path, config: &Json, jinja: Option<&str>) -> Result<Option<ChatTemplates>> {
        let mut sources: Vec<(String, &str)> = Vec::new();
        let field = config.get("chat_template").unwrap_or(&Json::Null);
        let bad = |why: &str| FileError::bad(path, "chat_template", why);
        match field {
            Json::Null => {}
            Json::String(source) => sources.push((DEFAULT.into(), source)),
            Json::Object(named) => {
                for (name, source) in named {
                    sources.push((name.clone(), source.as_str().ok_or_else(|| bad("should be text"))?));
                }
            }
            Json::Array(list) => {
                for entry in list {
                    let text = |key| entry.get(key).and_then(Json::as_str);
                    let pair = text("name").zip(text("template"));
                    let (name, source) =
                        pair.ok_or_else(|| bad("should be a list of names and templates"))?;
                    sources.push((name.into(), source));
                }
            }
            _ => return Err(bad("should be text, or templates by name")),
        }
        if let Some(source) = jinja {
            sources.retain(|(name, _)| name != DEFAULT);
            sources.insert(0, (DEFAULT.into(), source));
        }
        let mut tokens: Vec<(&str, &str)> = Vec::new();
        for name in
            ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
        {
            let token = config.get(name).unwrap_or(&Json::Null);
            let text = token.as_str().or_else(|| token.get("content")?.as_str());
            tokens.extend(text.map(|text| (name, text)));
        }
        read(path, "chat_template", sources, &tokens)
    }

    /// Reads the templates of a GGUF file. `None` if there are none.
    pub fn from_gguf(meta: &Metadata, tokenizer: &Tokenizer) -> Result<Option<ChatTemplates>> {
        const KEY: &str = "tokenizer.chat_template";
        let mut sources: Vec<(String, &str)> = Vec::new();
        sources.extend(meta.text(KEY)?.map(|source| (DEFAULT.into(), source)));
        for name in meta.texts("tokenizer.chat_templates")?.unwrap_or_default() {
            sources.extend(meta.text(&format!("{KEY}.{name}"))?.map(|source| (name.into(), source)));
        }
        read(meta.path(), KEY, sources, &tokens(tokenizer))
    }

    /// One template for all chats, from a file of its own.
    pub fn from_source(path: &Path, source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplates> {
        let templates = read(path, "the template", vec![(DEFAULT.into(), source)], &tokens(tokenizer))?;
        Ok(templates.unwrap_or(ChatTemplates(Vec::new())))
    }

    /// The template for chats with tools, or without.
    pub fn choose(&self, tools: bool) -> Option<&ChatTemplate> {
        let special = if tools { self.named(TOOLS) } else { None };
        special.or_else(|| self.named(DEFAULT))
    }

    /// The template called `name`.
    pub fn named(&self, name: &str) -> Option<&ChatTemplate> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, template)| template)
    }

    /// The names, in the file's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

/// The texts of a tokenizer's special tokens, by the names that templates have for them.
fn tokens(tokenizer: &Tokenizer) -> Vec<(&'static str, &str)> {
    let token = |id: Option<u32>| tokenizer.token_text(id?);
    let tokens = [("bos_token", token(tokenizer.bos())), ("eos_token", token(tokenizer.eos()))];
    tokens.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
}

fn read(
    path: &Path,
    field: &str,
    sources: Vec<(String, &str)>,
    tokens: &[(&str, &str)],
) -> Result<Option<ChatTemplates>> {
    if sources.len() > MOST_TEMPLATES {
        return Err(FileError::bad(path, field, format_args!("has {} templates", sources.len())));
    }
    let mut templates = Vec::new();
    for (name, source) in sources {
        let template = ChatTemplate::new(source).map_err(|e| match name.as_str() {
            DEFAULT => FileError::bad(path, field, e),
            name => FileError::bad(path, format_args!("{field} {name:?}"), e),
        })?;
        let with = |template: ChatTemplate, (name, text): &(&str, &str)| template.with_token(name, text);
        templates.push((name, tokens.iter().fold(template, with)));
    }
    Ok((!templates.is_empty()).then_some(ChatTemplates(templates)))
}

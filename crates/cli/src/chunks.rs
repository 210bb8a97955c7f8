//! A text split into chunks of tokens, each of which starts with an empty context.

use std::path::Path;

use tallow_text::tokenizer::Special;

use crate::Failed;
use crate::load::LoadedModel;
use crate::settings::unreadable;

/// Default tokens per chunk.
const DEFAULT_TOKENS: usize = 512;

/// The tokens of a text, split into chunks.
pub(crate) struct Chunks {
    /// The chunks, each beginning with BOS if the model's tokenizer adds it.
    pub chunks: Vec<Vec<u32>>,
    /// Tokens per chunk; the last may have fewer.
    pub context: usize,
    /// Tokens of the whole text.
    pub tokens: usize,
}

impl Chunks {
    /// Reads a text and splits it into chunks of `context` tokens.
    pub(crate) fn read(path: &Path, loaded: &LoadedModel, context: Option<usize>) -> Result<Chunks, Failed> {
        let name = path.display();
        let text = std::fs::read(path).map_err(|e| Failed::new(format!("{name}: {}", unreadable(&e))))?;
        let text = String::from_utf8(text).map_err(|e| {
            let at = e.utf8_error().valid_up_to();
            Failed::new(format!("{name}: is not UTF-8 text: byte {at} cannot be read"))
        })?;
        let (tokenizer, most) = (&loaded.text_codec()?.tokenizer, loaded.model.spec.context);
        let tokens = tokenizer.encode(&text, Special::BARE)?;
        let begin = tokenizer.bos().filter(|_| tokenizer.adds_bos());
        let context = context.unwrap_or(DEFAULT_TOKENS.min(loaded.model.spec.trained_context()));
        if context < 2 || context > most {
            let why = format!("--context is {context}; 2 to {most} can be used with this model");
            return Err(Failed::new(why));
        }
        let chunks = tokens.chunks(context - begin.iter().len());
        let chunks = chunks.map(|chunk| begin.iter().chain(chunk).copied().collect()).collect();
        Ok(Chunks { chunks, context, tokens: tokens.len() })
    }
}

//! The tokenizer and the templates in a GGUF file. A target of its own, because regexes take long to compile.
#![no_main]

use std::sync::Arc;

use tallow_checkpoint::gguf::Gguf;
use tallow_checkpoint::map::Mapping;
use tallow_text::template::ChatTemplates;
use tallow_text::tokenizer::Tokenizer;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = tallow_fuzz::write("model.gguf", bytes);
    let Ok(gguf) = Mapping::open(&path).and_then(|file| Gguf::parse(Arc::new(file))) else { return };
    let Ok(tokenizer) = Tokenizer::from_gguf(&gguf.meta) else { return };
    tallow_fuzz::tokenize(&tokenizer);
    if let Ok(Some(templates)) = ChatTemplates::from_gguf(&gguf.meta, &tokenizer) {
        templates.choose(true).iter().for_each(|template| tallow_fuzz::render(template));
    }
});

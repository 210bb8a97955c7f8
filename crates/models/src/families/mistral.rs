//! Mistral: Llama with a sliding window.

use super::{Family, common};
use crate::error::Result;
use crate::formats::config::Config;
use crate::formats::names;
use crate::spec::DecoderSpec;

pub(super) static MISTRAL: Family = Family {
    name: "Mistral",
    hf: &["MistralForCausalLM"],
    // Its GGUF files call themselves llama.
    gguf: &[],
    hf_names: names::HF,
    gguf_names: names::GGUF,
    spec,
};

/// The window where `config.json` does not say, not even `null`.
const WINDOW: usize = 4096;

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = common::plain(c)?;
    let window = if c.leaves_out(common::WINDOW) { Some(WINDOW) } else { common::window(c)? };
    spec.layers.iter_mut().for_each(|layer| layer.mixer.window = window);
    Ok(spec)
}

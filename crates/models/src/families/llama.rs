//! Llama 1 to 3, and models that use its architecture name.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::Config;
use tallow_checkpoint::tensor_names;

use super::{Declared, Family, common, mixtral};
use crate::spec::DecoderSpec;

pub(super) const FAMILIES: &[Declared] = &[Declared::Decoder(&LLAMA)];

static LLAMA: Family = Family {
    name: "Llama",
    hf: &["LlamaForCausalLM"],
    gguf: &["llama"],
    hf_names: tensor_names::HF,
    gguf_names: tensor_names::GGUF,
    spec,
};

fn spec(c: &Config<'_>) -> Result<DecoderSpec> {
    let mut spec = common::plain(c)?;
    common::gguf_permutes_qk(c, &mut spec);
    let (attention, mlp) = (common::bias(c, "attention_bias", false)?, common::bias(c, "mlp_bias", false)?);
    // GGUF files of Mistral and Mixtral have the same architecture name, and may have a window and experts.
    let window = if c.is_gguf() { common::window(c)? } else { None };
    let experts = common::find_experts(c, common::LOCAL_EXPERTS)?.filter(|count| c.is_gguf() && *count > 0);
    let experts = experts.map(|count| mixtral::experts(c, count)).transpose()?;
    for layer in &mut spec.layers {
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (attention, attention, mlp);
        layer.mixer.window = window;
    }
    Ok(spec.with_experts(|_| experts))
}

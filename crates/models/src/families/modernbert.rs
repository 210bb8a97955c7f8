//! ModernBERT: pre-norm, RoPE, gated FFN, no biases, a sliding window in most layers.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};

use super::{Declared, EncoderFamily, common, encoders, rope};
use crate::spec::Order;
use crate::spec::encoder::{EncoderSpec, HeadActivation, HeadSpec, MlmHeadSpec, Pooling};

pub(super) const FAMILIES: &[Declared] = &[Declared::Encoder(&MODERNBERT)];

static MODERNBERT: EncoderFamily = EncoderFamily {
    name: "ModernBERT",
    hf: &["ModernBertModel", "ModernBertForSequenceClassification", "ModernBertForMaskedLM"],
    names: Names {
        base: "model.",
        ..tensor_names::HF.with(&[
            (Slot::TokenEmbdNorm, "model.embeddings.norm"),
            (Slot::TokenEmbd, "model.embeddings.tok_embeddings"),
            (Slot::OutputNorm, "model.final_norm"),
            (Slot::AttnNorm, "model.layers.{}.attn_norm"),
            (Slot::AttnQkv, "model.layers.{}.attn.Wqkv"),
            (Slot::AttnOut, "model.layers.{}.attn.Wo"),
            (Slot::FfnNorm, "model.layers.{}.mlp_norm"),
            (Slot::FfnGateUp, "model.layers.{}.mlp.Wi"),
            (Slot::FfnDown, "model.layers.{}.mlp.Wo"),
        ])
    },
    spare: &["head.", "decoder."],
    spec,
};

const GLOBAL_EVERY: Key = key("global_attn_every_n_layers", "");
const WINDOW: Key = key("local_attention", "");
const THETA: Key = key("global_rope_theta", "");
const LOCAL_THETA: Key = key("local_rope_theta", "");
const POOLING: Key = key("classifier_pooling", "");
const HEAD_ACT: Key = key("classifier_activation", "");

fn spec(c: &Config<'_>) -> Result<EncoderSpec> {
    let defaults = common::Defaults {
        gated: true,
        act: (key("hidden_activation", ""), "gelu"),
        context: (common::CONTEXT, 8192),
        eps: (key("norm_eps", ""), 1e-5),
        norm_bias: common::bias(c, "norm_bias", false)?,
        rope: rope::Defaults { theta: (THETA, 160_000.0), ..rope::DEFAULTS },
        rotates: true,
        ..encoders::DEFAULTS
    };
    let mut spec = encoders::plain(c, &defaults)?;
    spec.positions = None;
    spec.last_norm = true;
    let local = rope::local_rope_as(c, &spec.ropes[0], LOCAL_THETA)?;
    spec.ropes.push(local);
    let every = c.find_count(GLOBAL_EVERY)?.unwrap_or(3);
    if every == 0 {
        return Err(c.bad(GLOBAL_EVERY, "is 0"));
    }
    let windowed = common::windowed(c, spec.layers.len(), |i| !i.is_multiple_of(every))?;
    let window = common::sane(c, WINDOW, c.find_count(WINDOW)?.unwrap_or(128))?;
    let (of_attention, of_ffn) =
        (common::bias(c, "attention_bias", false)?, common::bias(c, "mlp_bias", false)?);
    for (i, (layer, windowed)) in spec.layers.iter_mut().zip(windowed).enumerate() {
        layer.order = if i == 0 { Order::FfnPreNorm } else { Order::Pre };
        (layer.mixer.qkv_bias, layer.mixer.out_bias, layer.ffn.bias) = (of_attention, of_attention, of_ffn);
        layer.mixer.rope = Some(usize::from(windowed));
        // The window is symmetric: half of it on each side of a token.
        layer.mixer.window = windowed.then_some(window / 2 + 1);
    }
    spec.head = head(c)?;
    let words = MlmHeadSpec {
        dense: "head.dense",
        dense_bias: common::bias(c, "classifier_bias", false)?,
        act: common::activation(c, (HEAD_ACT, "gelu"))?,
        norm: "head.norm",
        out: "decoder",
        bias: None,
    };
    spec.mlm_head = encoders::words(c, words, &["decoder.bias"]);
    Ok(spec)
}

fn head(c: &Config<'_>) -> Result<Option<HeadSpec>> {
    let act = HeadActivation::Like(common::activation(c, (HEAD_ACT, "gelu"))?);
    let Some(plain) = encoders::head(c, "head.dense", act, "classifier") else { return Ok(None) };
    let pooling = match c.find_text(POOLING)?.unwrap_or("cls") {
        "cls" => Pooling::First,
        "mean" => Pooling::Mean,
        other => return Err(c.unsupported(POOLING, other, "cls and mean are")),
    };
    let dense_bias = common::bias(c, "classifier_bias", false)?;
    Ok(Some(HeadSpec { pooling, dense_bias, norm: Some("head.norm"), ..plain }))
}

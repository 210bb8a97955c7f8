//! Settings common to two-tower families (CLIP, SigLIP): a text and an image encoder that embed into one space.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};
use tallow_checkpoint::tensor_names::{self, Names, Slot};
use tallow_core::{Heads, NormKind};

use super::common;
use crate::spec::encoder::{EncoderSpec, ImageDefaults, PatchSpec, Positions};
use crate::spec::{AttentionSpec, Bias, FfnSpec, LayerSpec, NormSpec};

/// Defaults of settings; configs may leave all of them out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    pub dim: usize,
    pub layers: usize,
    pub heads: usize,
    pub ffn: usize,
    pub act: &'static str,
    pub eps: f64,
}

const DIM: Key = key("hidden_size", "");
const LAYERS: Key = key("num_hidden_layers", "");
const HEADS: Key = key("num_attention_heads", "");
const FFN: Key = key("intermediate_size", "");
const VOCAB: Key = key("vocab_size", "");
const IMAGE: Key = key("image_size", "");
const PATCH: Key = key("patch_size", "");
const CHANNELS: Key = key("num_channels", "");

/// Tensor names of the text encoder.
pub(super) const TEXT: Names = Names {
    base: "text_model.",
    ..tensor_names::HF.with(&[
        (Slot::TokenEmbd, "text_model.embeddings.token_embedding"),
        (Slot::PosEmbd, "text_model.embeddings.position_embedding"),
        (Slot::OutputNorm, "text_model.final_layer_norm"),
        (Slot::AttnNorm, "text_model.encoder.layers.{}.layer_norm1"),
        (Slot::AttnQ, "text_model.encoder.layers.{}.self_attn.q_proj"),
        (Slot::AttnK, "text_model.encoder.layers.{}.self_attn.k_proj"),
        (Slot::AttnV, "text_model.encoder.layers.{}.self_attn.v_proj"),
        (Slot::AttnOut, "text_model.encoder.layers.{}.self_attn.out_proj"),
        (Slot::FfnNorm, "text_model.encoder.layers.{}.layer_norm2"),
        (Slot::FfnUp, "text_model.encoder.layers.{}.mlp.fc1"),
        (Slot::FfnDown, "text_model.encoder.layers.{}.mlp.fc2"),
    ])
};

/// Tensor names of the image encoder.
pub(super) const IMAGES: Names = Names {
    base: "vision_model.",
    ..tensor_names::HF.with(&[
        (Slot::TokenEmbd, "vision_model.embeddings.patch_embedding"),
        (Slot::PosEmbd, "vision_model.embeddings.position_embedding"),
        (Slot::OutputNorm, "vision_model.post_layernorm"),
        (Slot::AttnNorm, "vision_model.encoder.layers.{}.layer_norm1"),
        (Slot::AttnQ, "vision_model.encoder.layers.{}.self_attn.q_proj"),
        (Slot::AttnK, "vision_model.encoder.layers.{}.self_attn.k_proj"),
        (Slot::AttnV, "vision_model.encoder.layers.{}.self_attn.v_proj"),
        (Slot::AttnOut, "vision_model.encoder.layers.{}.self_attn.out_proj"),
        (Slot::FfnNorm, "vision_model.encoder.layers.{}.layer_norm2"),
        (Slot::FfnUp, "vision_model.encoder.layers.{}.mlp.fc1"),
        (Slot::FfnDown, "vision_model.encoder.layers.{}.mlp.fc2"),
    ])
};

/// Preprocessing without a center crop, pixel values scaled to [-1, 1].
pub(super) const WHOLE: ImageDefaults = ImageDefaults { crops: false, mean: [0.5; 3], deviation: [0.5; 3] };

/// Tensors that the text encoder leaves to the image encoder and to the similarity.
pub(super) const BESIDE_TEXT: &[&str] = &["vision_model.", "visual_projection.", "logit_scale", "logit_bias"];
/// Tensors that the image encoder leaves to the text encoder and to the similarity.
pub(super) const BESIDE_IMAGES: &[&str] = &["text_model.", "text_projection.", "logit_scale", "logit_bias"];

/// Settings of one tower: the sub-object `object`, or the whole config where a checkpoint has one tower only.
pub(super) fn of<'a>(c: &Config<'a>, object: &'static str) -> Result<Config<'a>> {
    let (within, key) = (c.under(object), key(object, ""));
    match within.is_there() {
        true => Ok(within),
        false if c.has(key) => Err(c.bad(key, "is no object of settings")),
        false => Ok(*c),
    }
}

fn count(c: &Config<'_>, key: Key, default: usize) -> Result<usize> {
    common::sane(c, key, c.find_count(key)?.unwrap_or(default))
}

/// Encoder of uniform layers: pre-norm, biases everywhere, no RoPE, no norm of the embeddings. Its input is set by the
/// callers.
fn plain(c: &Config<'_>, defaults: &Defaults) -> Result<EncoderSpec> {
    let (dim, heads) = (count(c, DIM, defaults.dim)?, count(c, HEADS, defaults.heads)?);
    let (layers, tensors) = (count(c, LAYERS, defaults.layers)?, c.checkpoint().tensors().len());
    if layers > tensors {
        return Err(c.bad(LAYERS, format_args!("is {layers}, with {tensors} tensors")));
    }
    let head = dim / heads;
    if !dim.is_multiple_of(heads) || head > 1024 {
        let why = format_args!("is {heads}, which does not divide {dim} into heads of up to 1024");
        return Err(c.bad(HEADS, why));
    }
    let eps = c.number_or(common::LAYER_EPS, defaults.eps)?;
    if !(0.0..1.0).contains(&eps) {
        return Err(c.bad(common::LAYER_EPS, format_args!("is {eps}")));
    }
    let mixer = AttentionSpec {
        qkv_bias: Bias::Yes,
        out_bias: Bias::Yes,
        rope: None,
        causal: false,
        ..AttentionSpec::new(Heads { q: heads, kv: heads, dim: head })
    };
    let act = common::activation(c, (common::ACT, defaults.act))?;
    let ffn = FfnSpec { width: count(c, FFN, defaults.ffn)?, act, gated: false, bias: Bias::Yes };
    Ok(EncoderSpec {
        vocab: 0,
        dim,
        context: 0,
        norm: NormSpec { kind: NormKind::Layer, eps: eps as f32, bias: Bias::Yes, weight_offset: 0.0 },
        embed_scale: 1.0,
        positions: None,
        types: None,
        patches: None,
        pad: None,
        ropes: Vec::new(),
        layers: vec![LayerSpec::new(mixer, ffn); layers],
        last_norm: true,
        head: None,
        mlm_head: None,
        pooler: None,
        pooling_head: None,
        dense: Vec::new(),
        audio: None,
    })
}

/// Text encoder, with default vocabulary and context sizes.
pub(super) fn text(
    c: &Config<'_>,
    defaults: &Defaults,
    (vocab, context): (usize, usize),
) -> Result<EncoderSpec> {
    let (vocab, context) = (count(c, VOCAB, vocab)?, count(c, common::CONTEXT, context)?);
    let positions = Some(Positions { rows: context, pad: None });
    Ok(EncoderSpec { vocab, context, positions, ..plain(c, defaults)? })
}

/// Image encoder, with default image and patch sizes.
pub(super) fn images(c: &Config<'_>, defaults: &Defaults, patches: PatchSpec) -> Result<EncoderSpec> {
    let (image, side) = (count(c, IMAGE, patches.image)?, count(c, PATCH, patches.side)?);
    if image > MOST_SIDE {
        return Err(c.unsupported(IMAGE, image, format_args!("up to {MOST_SIDE} are")));
    }
    if side > image {
        return Err(c.bad(PATCH, format_args!("is {side}, of images of {image} pixels a side")));
    }
    match c.find_count(CHANNELS)?.unwrap_or(3) {
        3 => {}
        other => return Err(c.unsupported(CHANNELS, other, "3 are, for red, green and blue")),
    }
    let patches = PatchSpec { image, side, ..patches };
    if patches.rows() > MOST_ROWS {
        let why =
            format_args!("is {side}: images of {image} pixels a side have more than {MOST_ROWS} patches");
        return Err(c.bad(PATCH, why));
    }
    let positions = Some(Positions { rows: patches.rows(), pad: None });
    let context = patches.rows();
    Ok(EncoderSpec { context, positions, patches: Some(patches), ..plain(c, defaults)? })
}

/// Largest image side in pixels.
const MOST_SIDE: usize = 1024;
/// Most patches per image: attention is all-to-all.
const MOST_ROWS: usize = 1 << 16;

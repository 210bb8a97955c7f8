//! SigLIP: a text encoder on inputs padded to a fixed length, and an image encoder with attention pooling.

use tallow_checkpoint::Result;
use tallow_checkpoint::config::{Config, Key, key};

use super::{Declared, EncoderFamily, common, towers};
use crate::spec::Bias;
use crate::spec::encoder::{EncoderSpec, PatchSpec, PoolKind, Pooling, PoolingHeadSpec, Projection};

pub(super) const FAMILIES: &[Declared] = &[Declared::Encoder(&SIGLIP), Declared::Encoder(&SIGLIP_IMAGES)];

static SIGLIP: EncoderFamily = EncoderFamily {
    name: "SigLIP",
    hf: &["SiglipModel", "SiglipTextModel"],
    names: towers::TEXT,
    spare: towers::BESIDE_TEXT,
    spec: text,
};

static SIGLIP_IMAGES: EncoderFamily = EncoderFamily {
    name: "SigLIP (images)",
    hf: &["SiglipModel", "SiglipVisionModel"],
    names: towers::IMAGES,
    spare: towers::BESIDE_IMAGES,
    spec: images,
};

const WIDTH: Key = key("projection_size", "");
const FILL: Key = key("pad_token_id", "");
const HEAD: Key = key("vision_use_head", "");

const DEFAULTS: towers::Defaults =
    towers::Defaults { dim: 768, layers: 12, heads: 12, ffn: 3072, act: "gelu_pytorch_tanh", eps: 1e-6 };

const PATCHES: PatchSpec =
    PatchSpec { image: 224, side: 16, first: None, bias: Bias::Yes, usual: towers::WHOLE };

fn text(c: &Config<'_>) -> Result<EncoderSpec> {
    let c = towers::of(c, "text_config")?;
    let mut spec = towers::text(&c, &DEFAULTS, (32_000, 64))?;
    let fill = c.find_count(FILL)?.unwrap_or(1);
    if fill >= spec.vocab {
        return Err(c.bad(FILL, format_args!("is {fill}, of {} tokens", spec.vocab)));
    }
    spec.pad = Some(fill as u32);
    let width = common::sane(&c, WIDTH, c.find_count(WIDTH)?.unwrap_or(spec.dim))?;
    let project = Some(Projection { name: "text_model.head", width, bias: Bias::Yes });
    spec.pooling_head = Some(PoolingHeadSpec { pool: PoolKind::By(Pooling::Last), norm: false, project });
    Ok(spec)
}

fn images(c: &Config<'_>) -> Result<EncoderSpec> {
    let c = towers::of(c, "vision_config")?;
    if !c.flag_or(HEAD, true)? {
        return Err(c.unsupported(
            HEAD,
            false,
            "without its head the model makes no vectors of images: true is",
        ));
    }
    let mut spec = towers::images(&c, &DEFAULTS, PATCHES)?;
    spec.pooling_head = Some(PoolingHeadSpec {
        pool: PoolKind::AttentionPool("vision_model.head"),
        norm: false,
        project: None,
    });
    Ok(spec)
}

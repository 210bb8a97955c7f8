//! A model's settings as GGUF metadata.

use std::cell::RefCell;

use serde_json::Value;
use tallow_checkpoint::config::{Config, Noted};
use tallow_checkpoint::gguf::write::{Header, Planned, Written};
use tallow_core::{NormKind, Scores};
use tallow_models::Model;
use tallow_models::families::{self, Family};
use tallow_models::file_type::{FileType, dominant};
use tallow_models::spec::rope::{RopeSpec, Scaling};
use tallow_models::spec::{Bias, DecoderSpec, Ffn, GatedDeltaSpec, LayerSpec, Mixer, MoeSpec};
use tallow_models::{LoadError, Result};
use tallow_quant::Format;

use super::tensors::Target;

/// The family that reads GGUF files of this model.
pub(super) fn reader(model: &Model) -> Result<&'static Family> {
    let arch = model.family.gguf.first();
    let reader = arch.and_then(|arch| families::decoders().find(|family| family.gguf.contains(arch)));
    reader.ok_or_else(|| {
        let what = format!("converting a {} model", model.family.name);
        LoadError::unsupported(&model.checkpoint.path, what, "GGUF files of that family are not read here")
    })
}

/// Keys of an architecture, `ARCH.KEY`.
struct Keys<'a> {
    header: &'a mut Header,
    arch: &'static str,
}

impl Keys<'_> {
    fn set(&mut self, key: &str, value: Written) {
        self.header.set(format!("{}.{key}", self.arch), value);
    }

    fn unset(&mut self, key: &str) {
        self.header.unset(&format!("{}.{key}", self.arch));
    }

    fn count(&mut self, key: &str, n: usize) {
        self.set(key, Written::Count(u32::try_from(n).unwrap_or(u32::MAX)));
    }

    fn number(&mut self, key: &str, x: f64) {
        self.set(key, Written::Number(x as f32));
    }

    fn text(&mut self, key: &str, text: &str) {
        self.set(key, Written::Text(text.into()));
    }

    /// One count if all layers have the same, else a list.
    fn by_layer(&mut self, key: &str, all: &[usize]) {
        match all {
            [first, rest @ ..] if rest.iter().all(|n| n == first) => self.count(key, *first),
            _ => {
                let all = all.iter().map(|n| i32::try_from(*n).unwrap_or(i32::MAX));
                self.set(key, Written::Counts(all.collect()));
            }
        }
    }
}

/// Sets the keys that most readers need: those the family read that have a GGUF name, and those derived from the spec.
pub(super) fn common(header: &mut Header, model: &Model, reader: &Family) -> Result<()> {
    let arch = reader.gguf[0];
    header.set("general.architecture", Written::Text(arch.into()));
    let path = &model.checkpoint.path;
    let path = path.canonicalize().unwrap_or_else(|_| path.clone());
    if let Some(name) = path.file_name() {
        header.set("general.name", Written::Text(name.to_string_lossy().into_owned()));
    }
    let (keys, spec) = (&mut Keys { header, arch }, &model.spec);
    recorded(keys, model)?;
    keys.count("vocab_size", spec.vocab);
    keys.count("context_length", spec.context);
    keys.count("embedding_length", spec.dim);
    // GGUF files count the MTP layer among the layers.
    let stored = &DecoderSpec { layers: model.stored_layers(), ..spec.clone() };
    keys.count("block_count", stored.layers.len());
    keys.count("nextn_predict_layers", stored.layers.len() - spec.layers.len());
    let eps = match spec.norm.kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    keys.set(eps, Written::Number(spec.norm.eps));
    attention(keys, stored);
    feed_forward(keys, stored);
    gated_delta(keys, &stored.layers);
    ropes(keys, model)
}

/// Keys that the family read and that have a GGUF name.
fn recorded(keys: &mut Keys<'_>, model: &Model) -> Result<()> {
    let noted = Noted::new(Default::default());
    model.family.read(&Config::new(&model.checkpoint)?.noting(&noted))?;
    for (key, value) in RefCell::into_inner(noted) {
        // RoPE keys differ too much between the file kinds.
        if key == families::rope::SECTIONS.gguf {
            keys.set(key, Written::Counts(sections(&value)));
        } else if let Some(value) = written(&value).filter(|_| !key.starts_with("rope.")) {
            keys.set(key, value);
        }
    }
    Ok(())
}

/// Heads of the full-attention layers, and those of sliding-window layers where they differ; MLA's ranks.
fn attention(keys: &mut Keys<'_>, spec: &DecoderSpec) {
    let layers = &spec.layers;
    let all_heads = || layers.iter().filter_map(|layer| layer.mixer.heads());
    let full = layers.iter().rev().filter(|layer| layer.mixer.window().is_none());
    let Some(heads) = full.filter_map(|layer| layer.mixer.heads()).next().or(all_heads().next()) else {
        return;
    };
    keys.count("attention.head_count", heads.q);
    let kv_heads: Vec<usize> = all_heads().map(|heads| heads.kv).collect();
    keys.by_layer("attention.head_count_kv", &kv_heads);
    if let Some(narrow) = all_heads().map(|heads| heads.dim).find(|dim| *dim != heads.dim) {
        keys.count("attention.key_length_swa", narrow);
        keys.count("attention.value_length_swa", narrow);
        keys.count("rope.dimension_count_swa", narrow);
    }
    keys.count("attention.key_length", heads.dim);
    keys.count("attention.value_length", heads.dim);
    if let Some(latent) = layers.iter().find_map(|layer| layer.mixer.mla()) {
        keys.count("attention.value_length", latent.kv_lora_rank);
        keys.count("attention.key_length_mla", latent.qk_nope_dim + latent.qk_rope_dim);
        keys.count("attention.value_length_mla", latent.v_dim);
        keys.count("attention.kv_lora_rank", latent.kv_lora_rank);
        if let Some(rank) = latent.q_lora_rank {
            keys.count("attention.q_lora_rank", rank);
        }
    }
}

/// Widths of dense and expert FFNs, the router, and per-layer embeddings.
fn feed_forward(keys: &mut Keys<'_>, spec: &DecoderSpec) {
    let layers = &spec.layers;
    let dense: Vec<usize> = layers.iter().filter_map(|layer| Some(layer.ffn.dense()?.width)).collect();
    match dense.first() {
        Some(_) if dense.len() == layers.len() => keys.by_layer("feed_forward_length", &dense),
        Some(width) => keys.count("feed_forward_length", *width),
        // All layers have experts.
        None => {}
    }
    if let Some(dim) = spec.per_layer_dim {
        keys.count("embedding_length_per_layer_input", dim);
    }
    if let Some(MoeSpec { expert, experts }) = layers.iter().find_map(|layer| layer.ffn.moe()) {
        keys.count("expert_count", experts.count);
        keys.count("expert_used_count", experts.top_k);
        keys.count("expert_feed_forward_length", expert.width);
        keys.count("expert_gating_func", if experts.scores == Scores::Sigmoid { 2 } else { 1 });
    }
    if let Some(shared) = layers.iter().find_map(|layer| layer.ffn.moe()?.experts.shared) {
        keys.count("expert_shared_feed_forward_length", shared.width);
    }
}

/// Gated DeltaNet, and which layers have it.
fn gated_delta(keys: &mut Keys<'_>, layers: &[LayerSpec]) {
    let spec = layers.iter().find_map(|layer| layer.mixer.gated_delta());
    let Some(GatedDeltaSpec { heads, kernel }) = spec else { return };
    keys.count("ssm.conv_kernel", *kernel);
    keys.count("ssm.state_size", heads.key_dim);
    keys.count("ssm.group_count", heads.keys);
    keys.count("ssm.time_step_rank", heads.values);
    keys.count("ssm.inner_size", heads.value_cols());
    let is_recurrent = |layer: &LayerSpec| layer.mixer.gated_delta().is_some();
    keys.set("attention.recurrent_layers", Written::Flags(layers.iter().map(is_recurrent).collect()));
}

/// RoPE of all layers.
fn ropes(keys: &mut Keys<'_>, model: &Model) -> Result<()> {
    let spec = &model.spec;
    if let [first, ..] = spec.ropes.as_slice() {
        rope(keys, first);
    }
    if spec.layers.iter().any(|layer| layer.mixer.mla().is_some()) {
        // MLA families store the attention-scale multiplier instead of the cos/sin factor.
        keys.unset("rope.scaling.attn_factor");
        let sharpening = families::rope::sharpening(&Config::new(&model.checkpoint)?)?;
        let scaling = spec.ropes.first().map(|rope| &rope.scaling);
        if let (Some(Scaling::Yarn(_)), Some(all)) = (scaling, sharpening) {
            keys.number("rope.scaling.yarn_log_multiplier", 0.1 * all);
        }
    }
    if let [_, second] = spec.ropes.as_slice() {
        keys.number("rope.freq_base_swa", second.theta);
    }
    Ok(())
}

/// M-RoPE sections, padded to four.
fn sections(value: &Value) -> Vec<i32> {
    let said = value.as_array().into_iter().flatten();
    let counts = said.map(|n| n.as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0));
    counts.chain(std::iter::repeat(0)).take(4).collect()
}

/// GGUF value of a `config.json` value, if there is one.
fn written(value: &Value) -> Option<Written> {
    let count = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    Some(match value {
        Value::Null | Value::Object(_) => return None,
        Value::Bool(flag) => Written::Flag(*flag),
        Value::String(text) => Written::Text(text.clone()),
        Value::Number(x) => match count(value) {
            Some(n) => Written::Count(n),
            None => Written::Number(x.as_f64()? as f32),
        },
        Value::Array(list) => {
            let counts = |v: &Value| v.as_i64().and_then(|n| i32::try_from(n).ok());
            let flags: Option<Vec<bool>> = list.iter().map(Value::as_bool).collect();
            let counts: Option<Vec<i32>> = list.iter().map(counts).collect();
            let numbers = || list.iter().map(|v| v.as_f64().map(|x| x as f32)).collect::<Option<_>>();
            flags
                .map(Written::Flags)
                .or(counts.map(Written::Counts))
                .or_else(|| numbers().map(Written::Numbers))?
        }
    })
}

/// RoPE keys. A scaling without keys is stored as a tensor.
fn rope(keys: &mut Keys<'_>, rope: &RopeSpec) {
    keys.number("rope.freq_base", rope.theta);
    keys.count("rope.dimension_count", rope.dim);
    match &rope.scaling {
        Scaling::Linear { factor } => {
            keys.text("rope.scaling.type", "linear");
            keys.number("rope.scaling.factor", *factor);
        }
        Scaling::Yarn(yarn) => {
            keys.text("rope.scaling.type", "yarn");
            keys.number("rope.scaling.factor", yarn.factor);
            keys.count("rope.scaling.original_context_length", yarn.original);
            keys.number("rope.scaling.yarn_beta_fast", yarn.beta_fast);
            keys.number("rope.scaling.yarn_beta_slow", yarn.beta_slow);
            // The key multiplies the default factor.
            let usual = if yarn.factor <= 1.0 { 1.0 } else { 0.1 * yarn.factor.ln() + 1.0 };
            keys.number("rope.scaling.attn_factor", yarn.attention / usual);
        }
        Scaling::Long { original, attention: [one, other], .. } => {
            keys.count("rope.scaling.original_context_length", *original);
            if one == other {
                keys.number("rope.scaling.attn_factor", *one);
            }
        }
        Scaling::None | Scaling::Dynamic { .. } | Scaling::Llama3 { .. } => {}
        Scaling::Factors(_) | Scaling::Temperature { .. } => {}
    }
}

/// Tensors that are part of the settings: frequency divisors.
pub(super) fn factors<'a>(model: &Model) -> Result<Vec<Target<'a>>> {
    let Some(rope) = model.spec.ropes.first() else { return Ok(Vec::new()) };
    let row = |name: &str, by: &[f64]| {
        // An unrotated frequency (infinite divisor) gets a large finite one.
        let bytes = by.iter().flat_map(|x| (*x as f32).min(1e30).to_le_bytes()).collect();
        Target::new_made(Planned { name: name.into(), format: Format::F32, shape: vec![by.len()] }, bytes)
    };
    Ok(match &rope.scaling {
        Scaling::Llama3 { .. } => {
            let plain = RopeSpec { scaling: Scaling::None, ..rope.clone() }.frequencies(0).0;
            let by: Vec<f64> = plain.iter().zip(rope.frequencies(0).0).map(|(plain, f)| plain / f).collect();
            vec![row("rope_freqs.weight", &by)]
        }
        Scaling::Factors(by) => vec![row("rope_freqs.weight", by)],
        Scaling::Long { short, long, .. } => {
            vec![row("rope_factors_long.weight", long), row("rope_factors_short.weight", short)]
        }
        _ => Vec::new(),
    })
}

/// Sets the window size, and if `with_pattern` which layers have it.
pub(super) fn windows(header: &mut Header, model: &Model, reader: &Family, with_pattern: bool) {
    let (keys, layers) = (&mut Keys { header, arch: reader.gguf[0] }, &model.spec.layers);
    let Some(window) = layers.iter().find_map(|layer| layer.mixer.window()) else {
        return keys.unset("attention.sliding_window");
    };
    keys.count("attention.sliding_window", window);
    if with_pattern {
        let which = layers.iter().map(|layer| layer.mixer.window().is_some()).collect();
        keys.set("attention.sliding_window_pattern", Written::Flags(which));
    }
}

/// The difference that the file's settings would make to the model, if any.
pub(super) fn difference(model: &DecoderSpec, read: &DecoderSpec) -> Option<String> {
    let (mine, read) = (alike(model, read), alike(read, read));
    let parts: [(&str, bool); 12] = [
        ("the vocabulary's size", mine.vocab == read.vocab),
        ("the size of hidden states", mine.dim == read.dim),
        ("the context", mine.context == read.context),
        ("the norms", mine.norm == read.norm),
        ("the head", (mine.tied_embeddings, mine.head_bias) == (read.tied_embeddings, read.head_bias)),
        ("what multiplies embeddings", mine.embed_scale == read.embed_scale),
        ("the embedding of positions", mine.positions == read.positions),
        ("per-layer embeddings", mine.per_layer_dim == read.per_layer_dim),
        ("what multiplies logits", mine.logit_scale == read.logit_scale),
        ("the cap on logits", mine.logit_softcap == read.logit_softcap),
        ("the number of layers", mine.layers.len() == read.layers.len()),
        ("the rotary embeddings", same_ropes(model, &read)),
    ];
    if let Some((what, _)) = parts.into_iter().find(|(_, same)| !same) {
        return Some(what.into());
    }
    let mut layers = mine.layers.iter().zip(&read.layers).enumerate();
    layers.find_map(|(i, (mine, read))| {
        let what = match mine {
            _ if mine == read => return None,
            _ if mine.mixer.gated_delta() != read.mixer.gated_delta() => "what stands for the attention",
            _ if mine.mixer != read.mixer => "the attention",
            _ if mine.ffn.expert() != read.ffn.expert() => "the feed-forward block",
            _ if mine.ffn != read.ffn => "the experts",
            _ => "the order of blocks",
        };
        Some(format!("{what} of layer {i}"))
    })
}

/// `spec` without the differences that the tensors compensate for, or that only express less certainty (`IfPresent`).
fn alike(spec: &DecoderSpec, read: &DecoderSpec) -> DecoderSpec {
    let mut spec = spec.clone();
    spec.mtp_layers = 0;
    spec.norm.weight_offset = 0.0;
    // In GGUF files a bias exists if its tensor does.
    let unsure = Bias::IfPresent;
    let sure = |bias: &mut Bias, read: Bias| {
        if read == unsure {
            *bias = unsure;
        }
    };
    // Derived from a value that is rounded in the file.
    let round = |scale: &mut f32, read: f32| {
        if (*scale - read).abs() <= 1e-6 * read.abs() {
            *scale = read;
        }
    };
    sure(&mut spec.norm.bias, read.norm.bias);
    sure(&mut spec.head_bias, read.head_bias);
    for (layer, read) in spec.layers.iter_mut().zip(&read.layers) {
        match (&mut layer.mixer, &read.mixer) {
            (Mixer::Attention(mine), Mixer::Attention(read)) => {
                round(&mut mine.scale, read.scale);
                sure(&mut mine.qkv_bias, read.qkv_bias);
                sure(&mut mine.out_bias, read.out_bias);
            }
            (Mixer::SharedKv(mine), Mixer::SharedKv(read)) => {
                round(&mut mine.scale, read.scale);
                sure(&mut mine.q_bias, read.q_bias);
                sure(&mut mine.out_bias, read.out_bias);
            }
            (Mixer::Mla(mine), Mixer::Mla(read)) => {
                round(&mut mine.scale, read.scale);
                sure(&mut mine.down_bias, read.down_bias);
                sure(&mut mine.out_bias, read.out_bias);
            }
            // Value heads are reordered.
            (Mixer::GatedDelta(mine), Mixer::GatedDelta(read)) => mine.heads.sharing = read.heads.sharing,
            _ => {}
        }
        match (&mut layer.ffn, &read.ffn) {
            (Ffn::Dense(mine), Ffn::Dense(read)) => sure(&mut mine.bias, read.bias),
            (Ffn::Moe(mine), Ffn::Moe(read))
            | (Ffn::Parallel { moe: mine, .. }, Ffn::Parallel { moe: read, .. }) => {
                sure(&mut mine.expert.bias, read.expert.bias);
                sure(&mut mine.experts.router_bias, read.experts.router_bias);
            }
            _ => {}
        }
    }
    spec
}

/// True if RoPE rotates by the same angles, at short and long contexts.
fn same_ropes(model: &DecoderSpec, read: &DecoderSpec) -> bool {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-5 * a.abs().max(b.abs()) + 1e-20;
    let same = |(mine, read): (&RopeSpec, &RopeSpec)| {
        let at = |context: usize| {
            let ((mine, one), (read, other)) = (mine.frequencies(context), read.frequencies(context));
            mine.len() == read.len() && near(one, other) && mine.iter().zip(read).all(|(a, b)| near(*a, b))
        };
        let tempered = |rope: &RopeSpec| matches!(rope.scaling, Scaling::Temperature { .. });
        mine.dim == read.dim
            && !tempered(mine)
            && !tempered(read)
            && [1, model.context / 2, model.context, 2 * model.context].into_iter().all(at)
    };
    // A different pairing is compensated for in the tensors, except with MLA.
    let latent = model.layers.iter().any(|layer| layer.mixer.mla().is_some());
    let together = model.ropes.iter().zip(&read.ropes).all(|(mine, read)| mine.pairs == read.pairs);
    (together || !latent)
        && model.ropes.len() == read.ropes.len()
        && model.ropes.iter().zip(&read.ropes).all(same)
}

/// `general.file_type`: the id of the format of most weights.
pub(super) fn file_type(model: &Model, tensors: &[Planned]) -> Option<u32> {
    let edges = model.edges(&model.family.gguf_names);
    let matrices = tensors.iter().filter(|t| t.shape.len() > 1);
    let formats = matrices.map(|t| (edges.contains(&t.name), t.format, t.shape.iter().product::<usize>()));
    FileType::of(dominant(formats)?, model.said_types()).map(FileType::id)
}

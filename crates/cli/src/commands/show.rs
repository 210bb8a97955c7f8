//! `tallow show`: the properties of a model.

use std::collections::BTreeMap;
use std::fmt::Write;

use tallow_checkpoint::{Checkpoint, Kind, Settings};
use tallow_core::Heads;
use tallow_models::AnyModel;
use tallow_models::encoder::EncoderModel;
use tallow_models::seq2seq::Seq2SeqModel;
use tallow_models::spec::{DecoderSpec, GatedDeltaSpec, LayerSpec, MoeSpec};
use tallow_text::tokenizer::Tokenizer;

use super::print;
use crate::Failed;
use crate::args::Show;
use crate::load::{self, LoadedModel};
use crate::memory::size;
use crate::model_name::short_name;
use crate::settings::Sources;
use crate::terminal::sanitized;

/// Maximum characters shown of a metadata value.
const MAX_SHOWN: usize = 100;

pub(crate) fn show(args: &Show, sources: &Sources) -> Result<(), Failed> {
    let model = match load::any(&args.model, load::OpenOptions::new(sources, args.offline, None)?)? {
        AnyModel::Decoder(model) => *model,
        AnyModel::Encoder(model) => return show_encoder(args, &model),
        AnyModel::Seq2Seq(model) => return show_seq2seq(args, &model),
    };
    let loaded = load::decoder(&args.model, model)?;
    if args.template {
        let codec = loaded.text_codec()?;
        let template = codec.templates.as_ref().and_then(|t| t.choose(false));
        let template =
            template.ok_or_else(|| Failed::new(format!("{} has no chat template", loaded.name)))?;
        return print(&format!("{}\n", template.source()));
    }
    let mut text = match (args.tensors, args.metadata) {
        (false, false) => summary(&loaded),
        _ => String::new(),
    };
    if args.metadata {
        text += &metadata(&loaded.model.checkpoint);
    }
    if args.tensors {
        text += &tensors(&loaded.model.checkpoint);
    }
    print(&sanitized(&text))
}

fn show_encoder(args: &Show, model: &EncoderModel) -> Result<(), Failed> {
    let name = short_name(&args.model);
    if args.template {
        return Err(Failed::new(format!("{name} has no chat template: it is an encoder")));
    }
    let mut text = match (args.tensors, args.metadata) {
        (false, false) => summary_of_encoder(name, model),
        _ => String::new(),
    };
    if args.metadata {
        text += &metadata(&model.checkpoint);
    }
    if args.tensors {
        text += &tensors(&model.checkpoint);
    }
    print(&sanitized(&text))
}

/// Shows a seq2seq (encoder-decoder) model.
fn show_seq2seq(args: &Show, model: &Seq2SeqModel) -> Result<(), Failed> {
    let (name, checkpoint) = (short_name(&args.model), &model.checkpoint);
    if args.template {
        return Err(Failed::new(format!("{name} has no chat template")));
    }
    let (mut text, spec) = (String::new(), &model.spec);
    if !args.tensors && !args.metadata {
        let parameters: usize = checkpoint.tensors().map(|(_, t)| t.len()).sum();
        let takes = match spec.encoder.audio {
            Some(sound) => {
                format!("sound, {} frames of {} bands at one time", 2 * spec.encoder.context, sound.bands)
            }
            None => format!("a text of up to {} tokens", spec.encoder.context),
        };
        let rows = [
            ("model", name),
            ("files", checkpoint.path.display().to_string()),
            ("family", model.family.name.to_owned()),
            ("parameters", format!("{} ({parameters})", count(parameters))),
            ("size", size(model.weight_bytes() as u64)),
            ("types", mix(checkpoint)),
            ("takes in", takes),
            ("width", spec.decoder.dim.to_string()),
            ("encoder", layers(&spec.encoder.layers, " layers")),
            ("decoder", layers(&spec.decoder.layers, " layers")),
            ("vocabulary", format!("{} tokens", spec.decoder.vocab)),
        ];
        text += &table(&rows);
    }
    if args.metadata {
        text += &metadata(checkpoint);
    }
    if args.tensors {
        text += &tensors(checkpoint);
    }
    print(&sanitized(&text))
}

fn summary_of_encoder(name: String, model: &EncoderModel) -> String {
    let parameters: usize = model.checkpoint.tensors().map(|(_, t)| t.len()).sum();
    let gives = match model.spec.head {
        None => format!("vectors of {} numbers", model.spec.width()),
        Some(head) if head.labels == 1 => "a score for a pair of texts".into(),
        Some(head) => {
            let labels = model.classes().ok().flatten();
            let labels =
                labels.map_or(String::new(), |classes| format!(" ({})", classes.labels().join(", ")));
            format!("{} scores for a text{labels}", head.labels)
        }
    };
    let mut rows = vec![
        ("model", name),
        ("files", model.checkpoint.path.display().to_string()),
        ("family", model.family.name().to_owned()),
        ("parameters", format!("{} ({parameters})", count(parameters))),
        ("size", size(model.weight_bytes() as u64)),
        ("types", mix(&model.checkpoint)),
        ("gives", gives),
    ];
    if let Some(texts) = model.of_texts() {
        rows.push(("texts", format!("up to {} tokens of {}", texts.context(), texts.spec.vocab)));
        rows.push(("layers", layers(&texts.spec.layers, "")));
    }
    if let Some((images, patches)) = model.of_images().and_then(|m| Some((m, m.spec.patches?))) {
        let (image, side) = (patches.image, patches.side);
        rows.push(("images", format!("{image} x {image} pixels, in patches of {side} x {side}")));
        rows.push(("layers", layers(&images.spec.layers, "")));
    }
    table(&rows)
}

fn table(rows: &[(&str, String)]) -> String {
    rows.iter().fold(String::new(), |text, (name, value)| text + &format!("{name:<12} {value}\n"))
}

fn summary(loaded: &LoadedModel) -> String {
    // Without a tokenizer everything else can still be shown.
    let (model, codec) = (&loaded.model, loaded.text_codec());
    let (spec, checkpoint) = (&model.spec, &model.checkpoint);
    let parameters: usize = checkpoint.tensors().map(|(_, t)| t.len()).sum();
    let templates = match codec.map(|codec| &codec.templates) {
        Err(why) => format!("not known: {why}"),
        Ok(None) => "none (base model: it continues text)".into(),
        Ok(Some(t)) => t.names().collect::<Vec<_>>().join(", "),
    };
    let g = &loaded.generation;
    let mut sampling = Vec::new();
    sampling.extend(g.temperature.map(|x| format!("temperature {x}")));
    sampling.extend(g.top_k.map(|x| format!("top-k {x}")));
    sampling.extend(g.top_p.map(|x| format!("top-p {x}")));
    sampling.extend(g.min_p.map(|x| format!("min-p {x}")));
    sampling.extend(g.typical_p.map(|x| format!("typical-p {x}")));
    sampling.extend(g.repetition_penalty.map(|x| format!("repetition-penalty {x}")));
    let token = |id: fn(&Tokenizer) -> Option<u32>| {
        let Ok(tokenizer) = loaded.text_codec().map(|codec| &codec.tokenizer) else {
            return "not known".into();
        };
        match id(tokenizer).and_then(|id| Some((id, tokenizer.token_text(id)?))) {
            Some((id, text)) => format!("{id} {text:?}"),
            None => "none".into(),
        }
    };
    let rows = [
        ("model", loaded.name.clone()),
        ("files", checkpoint.path.display().to_string()),
        ("family", model.family.name.to_owned()),
        ("parameters", format!("{} ({parameters})", count(parameters))),
        ("size", size(model.weight_bytes() as u64)),
        ("types", mix(checkpoint)),
        ("file type", model.file_type().unwrap_or("unknown".into())),
        ("context", context(spec)),
        ("width", format!("{}", spec.dim)),
        ("layers", layers(&spec.layers, "")),
        ("vocabulary", format!("{} tokens", spec.vocab)),
        ("begins with", token(Tokenizer::bos)),
        ("ends with", token(Tokenizer::eos)),
        ("template", templates),
        ("sampling", if sampling.is_empty() { "none recommended".into() } else { sampling.join(", ") }),
    ];
    table(&rows)
}

/// The longest context, and the trained one if the model can go past that.
fn context(spec: &DecoderSpec) -> String {
    match spec.trained_context() {
        trained if trained < spec.context => format!(
            "{} tokens; trained on {trained}, and a longer --context stretches the rotary embedding (dynamic NTK)",
            spec.context
        ),
        _ => format!("{} tokens", spec.context),
    }
}

/// `mlp 8192`, or `8 of 128 experts of 768`
fn feed_forward(layer: &LayerSpec) -> String {
    let width = layer.ffn.expert().width;
    let Some(MoeSpec { experts, .. }) = layer.ffn.moe() else { return format!("mlp {width}") };
    let shared = experts.shared.map(|s| s.width).or(layer.ffn.dense().map(|dense| dense.width));
    let shared = shared.map_or(String::new(), |width| format!(" and one of {width}"));
    format!("{} of {} experts of {width}{shared}", experts.top_k, experts.count)
}

/// `8 (32 query heads, 8 key heads, 128 wide, mlp 4096)`, with a part for each kind of layer. `unit` follows the count.
fn layers<L: Clone + Into<LayerSpec>>(all: &[L], unit: &str) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for layer in all {
        let layer: LayerSpec = layer.clone().into();
        let of = |what: &str, n: Option<usize>| n.map_or(String::new(), |n| format!(", {what} {n}"));
        let window = of("window", layer.mixer.window())
            + &of("chunks of", layer.mixer.chunk())
            + &of("keys of layer", layer.mixer.kv_source());
        let attention = |h: Heads| format!("{} query heads, {} key heads, {} wide", h.q, h.kv, h.dim);
        let delta = |GatedDeltaSpec { heads: h, .. }: &GatedDeltaSpec| {
            format!("{} delta heads of {} x {}, {} key heads", h.values, h.key_dim, h.value_dim, h.keys)
        };
        let heads = layer.mixer.heads().map(attention).or(layer.mixer.gated_delta().map(delta));
        let heads = heads.unwrap_or_default();
        let kind = format!("{heads}, {}{window}", feed_forward(&layer));
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, n)) => *n += 1,
            None => kinds.push((kind, 1)),
        }
    }
    match kinds.as_slice() {
        [(kind, n)] => format!("{n}{unit} ({kind})"),
        _ => {
            let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} ({kind})")).collect();
            format!("{}{unit}: {}", all.len(), kinds.join("; "))
        }
    }
}

/// Bytes and tensors of each stored type.
/// The type that most bytes of the weights have.
pub(super) fn main_type(checkpoint: &Checkpoint) -> String {
    types(checkpoint).into_iter().next().map(|(name, _)| name).unwrap_or_default()
}

/// Types of the weights with their numbers of tensors and bytes; that of most bytes comes first.
fn types(checkpoint: &Checkpoint) -> Vec<(String, (usize, usize))> {
    let mut types: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (_, t) in checkpoint.tensors() {
        let entry = types.entry(kind(&t.kind)).or_default();
        *entry = (entry.0 + 1, entry.1 + t.size());
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
    types
}

fn mix(checkpoint: &Checkpoint) -> String {
    let types = types(checkpoint);
    let one = |(name, (n, bytes)): &(String, (usize, usize))| {
        format!("{name} {} in {n} tensors", size(*bytes as u64))
    };
    types.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn kind(kind: &Kind) -> String {
    match kind {
        Kind::Weights(format) => format.to_string(),
        Kind::Grouped(matrix) => format!("{} (from groups)", matrix.format()),
        Kind::Other(name) => name.clone(),
    }
}

/// `7.3 M`
pub(crate) fn count(n: usize) -> String {
    match n {
        0..1_000 => n.to_string(),
        1_000..1_000_000 => format!("{:.0} K", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} B", n as f64 / 1e9),
    }
}

fn tensors(checkpoint: &Checkpoint) -> String {
    checkpoint.tensors().fold(String::new(), |mut text, (name, t)| {
        let _ = writeln!(text, "{name:<48} {:<8} {:?}", kind(&t.kind), t.shape);
        text
    })
}

fn metadata(checkpoint: &Checkpoint) -> String {
    let cut = |text: String| match text.char_indices().nth(MAX_SHOWN) {
        Some((at, _)) => format!("{}… ({} characters)", &text[..at], text.chars().count()),
        None => text,
    };
    match &checkpoint.settings {
        Settings::Hf(config) => format!("{config:#}\n"),
        Settings::Gguf(meta) => meta.entries().fold(String::new(), |mut text, (key, value)| {
            let _ = writeln!(text, "{key} = {}", cut(value.to_string()));
            text
        }),
    }
}

//! `tallow show`: what a model is.

use std::collections::BTreeMap;
use std::fmt::Write;

use tallow_models::formats::{Kind, Settings};
use tallow_models::spec::{DecoderSpec, DeltaSpec, LayerSpec};

use super::print;
use crate::Failed;
use crate::args::Show;
use crate::load::{self, Opened, Words};
use crate::memory::size;
use crate::screen::harmless;
use crate::settings::Sources;

/// Characters of a metadata value that are shown.
const SHOWN: usize = 100;

pub(crate) fn show(args: &Show, sources: &Sources) -> Result<(), Failed> {
    let opened = load::open(&args.model, load::How::new(sources, args.offline, None)?)?;
    let words = opened.words()?;
    if args.template {
        let template = words.templates.as_ref().and_then(|t| t.choose(false));
        let template =
            template.ok_or_else(|| Failed::new(format!("{} has no chat template", opened.name)))?;
        return print(&format!("{}\n", template.source()));
    }
    let mut text = match (args.tensors, args.metadata) {
        (false, false) => summary(&opened, words),
        _ => String::new(),
    };
    if args.metadata {
        text += &metadata(&opened);
    }
    if args.tensors {
        text += &tensors(&opened);
    }
    print(&harmless(&text))
}

fn summary(opened: &Opened, words: &Words) -> String {
    let (model, tokenizer) = (&opened.model, &words.tokenizer);
    let (spec, checkpoint) = (&model.spec, &model.checkpoint);
    let parameters: usize = checkpoint.tensors().map(|(_, t)| t.len()).sum();
    let templates = match &words.templates {
        None => "none: the model goes on with text as it is".into(),
        Some(t) => t.names().collect::<Vec<_>>().join(", "),
    };
    let g = &opened.generation;
    let mut sampling = Vec::new();
    sampling.extend(g.temperature.map(|x| format!("temperature {x}")));
    sampling.extend(g.top_k.map(|x| format!("top-k {x}")));
    sampling.extend(g.top_p.map(|x| format!("top-p {x}")));
    sampling.extend(g.min_p.map(|x| format!("min-p {x}")));
    sampling.extend(g.typical_p.map(|x| format!("typical-p {x}")));
    sampling.extend(g.repetition_penalty.map(|x| format!("repetition-penalty {x}")));
    let token = |id: Option<u32>| match id.and_then(|id| Some((id, tokenizer.token_text(id)?))) {
        Some((id, text)) => format!("{id} {text:?}"),
        None => "none".into(),
    };
    let rows = [
        ("model", opened.name.clone()),
        ("files", checkpoint.path.display().to_string()),
        ("family", model.family.name.to_owned()),
        ("parameters", format!("{} ({parameters})", count(parameters))),
        ("size", size(model.weight_bytes() as u64)),
        ("types", mix(opened)),
        ("context", format!("{} tokens", spec.context)),
        ("width", format!("{}", spec.dim)),
        ("layers", layers(spec)),
        ("vocabulary", format!("{} tokens", spec.vocab)),
        ("begins with", token(tokenizer.bos())),
        ("ends with", token(tokenizer.eos())),
        ("templates", templates),
        ("sampling", if sampling.is_empty() { "nothing said".into() } else { sampling.join(", ") }),
    ];
    rows.iter().fold(String::new(), |text, (name, value)| text + &format!("{name:<12} {value}\n"))
}

/// `mlp 8192`, or `8 of 128 experts of 768`
fn feed_forward(layer: &LayerSpec) -> String {
    let Some(experts) = layer.experts else { return format!("mlp {}", layer.ffn.width) };
    let shared = experts.shared.map_or(String::new(), |s| format!(" and one of {}", s.width));
    format!("{} of {} experts of {}{shared}", experts.used, experts.count, layer.ffn.width)
}

/// `8, of 32 heads for queries and 8 for keys, each 128 wide`, with a line for each kind of layer.
fn layers(spec: &DecoderSpec) -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for layer in &spec.layers {
        let of = |what: &str, n: Option<usize>| n.map_or(String::new(), |n| format!(", {what} {n}"));
        let window = of("window", layer.mixer.window) + &of("chunks of", layer.mixer.chunk);
        let heads = match (layer.delta, layer.mixer.heads) {
            (Some(DeltaSpec { heads: h, .. }), _) => {
                format!("{} delta heads of {} x {}, {} key heads", h.values, h.key_dim, h.value_dim, h.keys)
            }
            (None, h) => format!("{} query heads, {} key heads, {} wide", h.q, h.kv, h.dim),
        };
        let kind = format!("{heads}, {}{window}", feed_forward(layer));
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, n)) => *n += 1,
            None => kinds.push((kind, 1)),
        }
    }
    match kinds.as_slice() {
        [(kind, n)] => format!("{n} ({kind})"),
        _ => {
            let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} ({kind})")).collect();
            format!("{}: {}", spec.layers.len(), kinds.join("; "))
        }
    }
}

/// How much of the model is stored in which type.
fn mix(opened: &Opened) -> String {
    let mut types: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (_, t) in opened.model.checkpoint.tensors() {
        let entry = types.entry(kind(&t.kind)).or_default();
        *entry = (entry.0 + 1, entry.1 + t.size());
    }
    let mut types: Vec<_> = types.into_iter().collect();
    types.sort_by_key(|(_, (_, bytes))| std::cmp::Reverse(*bytes));
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

fn tensors(opened: &Opened) -> String {
    opened.model.checkpoint.tensors().fold(String::new(), |mut text, (name, t)| {
        let _ = writeln!(text, "{name:<48} {:<8} {:?}", kind(&t.kind), t.shape);
        text
    })
}

fn metadata(opened: &Opened) -> String {
    let cut = |text: String| match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}… ({} characters)", &text[..at], text.chars().count()),
        None => text,
    };
    match &opened.model.checkpoint.settings {
        Settings::Hf(config) => format!("{config:#}\n"),
        Settings::Gguf(meta) => meta.entries().fold(String::new(), |mut text, (key, value)| {
            let _ = writeln!(text, "{key} = {}", cut(value.to_string()));
            text
        }),
    }
}

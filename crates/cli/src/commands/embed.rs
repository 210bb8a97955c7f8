//! `tallow embed`, `tallow rerank` and `tallow classify`: embeddings of texts and images, documents ranked by a query,
//! and labels of texts.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tallow_engine::embedder::{EmbedderHandle, RunningEmbedder};
use tallow_models::encoder::{EncoderModel, Image, Input, Item, Truncation, relevance, shortened};

use super::{print, text_or_stdin};
use crate::args::{Classify, Embed, Rerank};
use crate::encoder::{self, Placement};
use crate::load;
use crate::model_name::short_name;
use crate::notice::Notice;
use crate::settings::{DeviceArgs, Sources, unreadable};
use crate::{Failed, terminal};

/// Texts submitted together: their results are shown before more are submitted.
const TEXT_BATCH: usize = 256;
/// Images submitted together; they take more memory than texts.
const IMAGE_BATCH: usize = 16;
/// Largest image file that is read.
const MAX_BYTES: u64 = 256 << 20;

pub(crate) fn embed(args: &Embed, sources: &Sources) -> Result<(), Failed> {
    let model =
        load::encoder(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    model.embeds()?;
    let width = model.spec.width();
    if let Some(n) = args.dimensions.filter(|n| !(1..=width).contains(n)) {
        return Err(Failed::new(format!("--dimensions is {n}; the model's vectors have {width} numbers")));
    }
    let texts = match (&args.text[..], &args.images[..]) {
        ([], [_, ..]) if !args.matching => Vec::new(),
        (text, _) => texts(text)?,
    };
    if args.matching {
        return matched(args, &model, &texts, sources);
    }
    let handle = start(&model, &args.model, &args.device, sources)?;
    each_vector(args, &handle, &texts, |index, tokens, vector| {
        let vector = shortened(vector, args.dimensions);
        print(&match args.json {
            true => format!("{}\n", json!({ "index": index, "embedding": vector, "tokens": tokens })),
            false => vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" ") + "\n",
        })
    })
}

/// Calls `to` with index, number of tokens and vector of each text, and then of each image.
fn each_vector(
    args: &Embed,
    handle: &EmbedderHandle,
    texts: &[String],
    mut to: impl FnMut(usize, usize, Vec<f32>) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let cut = if args.truncate { Truncation::End } else { Truncation::No };
    let mut next = 0;
    let mut hand_in = |items: Vec<Item>| {
        let tokens: Vec<usize> = items.iter().map(Item::rows).collect();
        for (vector, tokens) in answered(handle, items)?.into_iter().zip(tokens) {
            to(next, tokens, vector)?;
            next += 1;
        }
        Ok::<_, Failed>(())
    };
    for (part, some) in texts.chunks(TEXT_BATCH).enumerate() {
        let item = |(i, text): (usize, &String)| {
            let named = |why| Failed::new(format!("text {}: {why}", part * TEXT_BATCH + i + 1));
            handle.info().inputs.text(text, cut).map(Item::Text).map_err(named)
        };
        hand_in(some.iter().enumerate().map(item).collect::<Result<_, Failed>>()?)?;
    }
    for some in args.images.chunks(IMAGE_BATCH) {
        let item = |file: &PathBuf| image(handle, file).map(Item::Image);
        hand_in(some.iter().map(item).collect::<Result<_, Failed>>()?)?;
    }
    Ok(())
}

fn image(handle: &EmbedderHandle, file: &Path) -> Result<Image, Failed> {
    let named = |why: &dyn std::fmt::Display| Failed::new(format!("{}: {why}", file.display()));
    let size = std::fs::metadata(file).map_err(|e| named(&unreadable(&e)))?.len();
    if size > MAX_BYTES {
        return Err(named(&format_args!("it has {size} bytes; {MAX_BYTES} are the most that is read")));
    }
    let bytes = std::fs::read(file).map_err(|e| named(&unreadable(&e)))?;
    handle.info().inputs.image(&bytes).map_err(|e| named(&e))
}

/// Match of each text with each image.
fn matched(args: &Embed, model: &EncoderModel, texts: &[String], sources: &Sources) -> Result<(), Failed> {
    let Some(matching) = model.matching else {
        let why =
            "--match is for models that were trained on pairs of texts and images, as CLIP and SigLIP were";
        return Err(Failed::new(why));
    };
    if texts.is_empty() {
        return Err(Failed::new("--match needs texts to match images with"));
    }
    let handle = start(model, &args.model, &args.device, sources)?;
    let mut known = Vec::new();
    each_vector(args, &handle, texts, |index, _, vector| {
        let vector = shortened(vector, None);
        let Some(file) = index.checked_sub(texts.len()).and_then(|i| args.images.get(i)) else {
            known.push(vector);
            return Ok(());
        };
        let logits: Vec<f32> = known.iter().map(|text| matching.logit(text, &vector)).collect();
        let shares = matching.shares(&logits);
        if args.json {
            let file = file.to_string_lossy();
            return print(&format!("{}\n", json!({ "image": file, "logits": logits, "shares": shares })));
        }
        let mut ranked: Vec<(f32, &String)> = shares.into_iter().zip(texts).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        let line = |(share, text): (f32, &String)| format!("{share:.6}  {}  {text}\n", file.display());
        print(&terminal::sanitized(&ranked.into_iter().map(line).collect::<String>()))
    })
}

pub(crate) fn rerank(args: &Rerank, sources: &Sources) -> Result<(), Failed> {
    let model =
        load::encoder(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    model.ranks()?;
    let documents = texts(&args.documents)?;
    let handle = start(&model, &args.model, &args.device, sources)?;
    let cut = if args.no_truncate { Truncation::No } else { Truncation::End };
    let pair = |(i, text): (usize, &String)| {
        let named = |why| Failed::new(format!("document {}: {why}", i + 1));
        handle.info().inputs.pair(&args.query, text, cut).map_err(named)
    };
    let inputs = documents.iter().enumerate().map(pair).collect::<Result<Vec<Input>, Failed>>()?;
    let scores = answered(&handle, inputs)?;
    let mut ranked: Vec<(usize, f32)> =
        scores.iter().map(|score| relevance(score.first().copied().unwrap_or(0.0))).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(args.top_n.unwrap_or(ranked.len()));
    let line = |(index, score): &(usize, f32)| match args.json {
        true => {
            json!({ "index": index, "relevance_score": score, "document": documents[*index] }).to_string()
                + "\n"
        }
        false => format!("{score:.6}  {index}  {}\n", documents[*index]),
    };
    let lines: String = ranked.iter().map(line).collect();
    print(&if args.json { lines } else { terminal::sanitized(&lines).into_owned() })
}

pub(crate) fn classify(args: &Classify, sources: &Sources) -> Result<(), Failed> {
    let model =
        load::encoder(&args.model, load::OpenOptions::new(sources, args.device.offline, args.device.quant)?)?;
    let classes = model.classifies()?;
    let texts = texts(&args.text)?;
    let handle = start(&model, &args.model, &args.device, sources)?;
    let cut = if args.truncate { Truncation::End } else { Truncation::No };
    let mut next = 0;
    for some in texts.chunks(TEXT_BATCH) {
        let input = |(i, text): (usize, &String)| {
            let named = |why| Failed::new(format!("text {}: {why}", next + i + 1));
            handle.info().inputs.text(text, cut).map_err(named)
        };
        let inputs = some.iter().enumerate().map(input).collect::<Result<Vec<Input>, Failed>>()?;
        let mut lines = String::new();
        for (text, scores) in some.iter().zip(answered(&handle, inputs)?) {
            let probabilities = classes.probabilities(&scores);
            let (best, label) = classes.best(&probabilities);
            lines += &match args.json {
                true => {
                    let each = classes.labels().iter().zip(&probabilities);
                    let each: Vec<Value> = each.map(|(l, p)| json!({ "label": l, "score": p })).collect();
                    format!("{}\n", json!({ "index": next, "label": label, "scores": each }))
                }
                false => terminal::sanitized(&format!("{:.6}  {label}  {text}\n", probabilities[best]))
                    .into_owned(),
            };
            next += 1;
        }
        print(&lines)?;
    }
    Ok(())
}

/// The given texts, else the lines of standard input.
fn texts(given: &[String]) -> Result<Vec<String>, Failed> {
    if !given.is_empty() && given != ["-"] {
        return Ok(given.to_vec());
    }
    Ok(text_or_stdin(&[])?.lines().map(str::to_owned).collect())
}

fn start(
    model: &EncoderModel,
    name: &str,
    device: &DeviceArgs,
    sources: &Sources,
) -> Result<RunningEmbedder, Failed> {
    let placement = Placement::new(sources, device)?;
    encoder::start(model, placement, vec![short_name(name)], 1, &Notice::show_passed_over)
}

fn answered(handle: &EmbedderHandle, inputs: Vec<impl Into<Item>>) -> Result<Vec<Vec<f32>>, Failed> {
    let answer = handle.submit(inputs)?.blocking_recv();
    Ok(answer.map_err(|_| Failed::new("the embedder has ended"))??)
}

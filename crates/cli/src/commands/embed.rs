//! `tallow embed` and `tallow rerank`: vectors of texts, and documents sorted by a query.

use serde_json::json;
use tallow_models::encoder::{Cut, EncoderModel, Input, relevance, shortened};

use super::{print, text_or_stdin};
use crate::args::{DeviceArgs, Embed, Rerank};
use crate::encoder::{self, Place, Running};
use crate::load::{self, Note};
use crate::settings::Sources;
use crate::{Failed, screen};

/// Texts that are handed in together: what they give is shown before more are.
const TOGETHER: usize = 256;

pub(crate) fn embed(args: &Embed, sources: &Sources) -> Result<(), Failed> {
    let model = load::encoder(&args.model, load::How::new(sources, args.device.offline, args.device.quant)?)?;
    model.embeds()?;
    let dim = model.spec.dim;
    if let Some(n) = args.dimensions.filter(|n| !(1..=dim).contains(n)) {
        return Err(Failed::new(format!("--dimensions is {n}; the model's vectors have {dim} numbers")));
    }
    let texts = texts(&args.text)?;
    let handle = start(&model, &args.model, &args.device, sources)?;
    let cut = if args.truncate { Cut::End } else { Cut::No };
    for (part, some) in texts.chunks(TOGETHER).enumerate() {
        let first = part * TOGETHER;
        let input = |(i, text): (usize, &String)| {
            let named = |why| Failed::new(format!("text {}: {why}", first + i + 1));
            handle.info().inputs.text(text, cut).map_err(named)
        };
        let inputs = some.iter().enumerate().map(input).collect::<Result<Vec<Input>, Failed>>()?;
        let tokens: Vec<usize> = inputs.iter().map(|input| input.tokens.len()).collect();
        let mut lines = String::new();
        for (i, (vector, tokens)) in answered(&handle, inputs)?.into_iter().zip(tokens).enumerate() {
            let vector = shortened(vector, args.dimensions);
            lines += &match args.json {
                true => json!({ "index": first + i, "embedding": vector, "tokens": tokens }).to_string(),
                false => vector.iter().map(f32::to_string).collect::<Vec<_>>().join(" "),
            };
            lines.push('\n');
        }
        print(&lines)?;
    }
    Ok(())
}

pub(crate) fn rerank(args: &Rerank, sources: &Sources) -> Result<(), Failed> {
    let model = load::encoder(&args.model, load::How::new(sources, args.device.offline, args.device.quant)?)?;
    model.ranks()?;
    let documents = texts(&args.documents)?;
    let handle = start(&model, &args.model, &args.device, sources)?;
    let cut = if args.no_truncate { Cut::No } else { Cut::End };
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
    print(&if args.json { lines } else { screen::harmless(&lines).into_owned() })
}

/// Texts that were given, or else the lines of standard input.
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
) -> Result<Running, Failed> {
    let place = Place::new(sources, device)?;
    // What is taken is nobody's affair here; what is passed over has to be said.
    let say = |note: &Note| {
        if let Note::PassedOver(_) = note {
            note.show()
        }
    };
    encoder::start(model, place, vec![load::short_name(name)], 1, &say)
}

fn answered(handle: &Running, inputs: Vec<Input>) -> Result<Vec<Vec<f32>>, Failed> {
    let answer = handle.submit(inputs)?.blocking_recv();
    Ok(answer.map_err(|_| Failed::new("the embedder has ended"))??)
}

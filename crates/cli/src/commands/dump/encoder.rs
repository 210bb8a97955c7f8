//! Encoders: embeddings or scores of texts and images.

use std::ops::ControlFlow;

use tallow_core::{Backend, DType, Tensor};
use tallow_models::encoder::{Encoder, EncoderModel, Input, Texts, shortened};
use tallow_models::spec::encoder::{CHANNELS, Pooling};

use super::Tensors;
use super::inputs::Inputs;
use crate::Failed;
use crate::devices::{Device, Hardware, Task};
use crate::fit::on_some_device;
use crate::memory::Plan;
use crate::notice::Notice;
use crate::single_runner::Setup;

/// Hidden states, L2-normalized vectors, and scores; each text and image is computed alone.
pub(super) fn dump(model: &EncoderModel, setup: Setup, inputs: &Inputs) -> Result<Tensors, Failed> {
    if setup.kv.0 != DType::F32 {
        let why = "--precision: encoders keep no keys and values; leave the flag out";
        return Err(Failed::new(why));
    }
    let plan = |device: &Device| Plan::of_encoder(model, setup.batch, device);
    on_some_device(setup.device, plan, &Notice::show_passed_over, |device, _| {
        device.run(Forward { model, setup, inputs })
    })
}

/// Computes the outputs of an encoder.
struct Forward<'a> {
    model: &'a EncoderModel,
    setup: Setup,
    inputs: &'a Inputs,
}

impl Task for Forward<'_> {
    type Output = Tensors;

    fn run<H: Hardware>(self, device: H) -> Result<Tensors, Failed> {
        outputs(&device.open(self.setup.cpu)?, self.model, self.inputs)
    }
}

fn outputs<B: Backend>(b: &B, model: &EncoderModel, inputs: &Inputs) -> Result<Tensors, Failed> {
    let load = |model: &EncoderModel| Encoder::load(b, model, &mut |_, _| ControlFlow::Continue(()));
    let texts = model.of_texts().map(load).transpose()?;
    let images = model.of_images().map(load).transpose()?;
    let mut written = Tensors::new();
    for before in inputs.groups(&["input_ids", "pixel_values"])? {
        let mut add = |name: &str, shape: &[usize], numbers: Vec<f32>| {
            written.insert(format!("{before}{name}"), (shape.to_vec(), numbers));
        };
        let of_texts = match &texts {
            Some(encoder) => of_texts(b, encoder, model, (inputs, &before), &mut add)?,
            None => None,
        };
        let of_images = match &images {
            Some(encoder) => of_images(b, encoder, (inputs, &before), &mut add)?,
            None => None,
        };
        if let (Some(texts), Some(images), Some(matching)) = (&of_texts, &of_images, model.matching) {
            let of =
                |image: &Vec<f32>| texts.iter().map(|text| matching.logit(text, image)).collect::<Vec<_>>();
            add("logits_per_image", &[images.len(), texts.len()], images.iter().flat_map(of).collect());
        }
    }
    match written.is_empty() {
        true => Err(inputs.wrong("has nothing that the model takes")),
        false => Ok(written),
    }
}

/// Adds a tensor to be written: name, shape and values.
type Add<'a> = &'a mut dyn FnMut(&str, &[usize], Vec<f32>);

fn of_texts<B: Backend>(
    b: &B,
    encoder: &Encoder<B>,
    model: &EncoderModel,
    (inputs, before): (&Inputs, &str),
    add: Add<'_>,
) -> Result<Option<Vec<Vec<f32>>>, Failed> {
    let spec = encoder.spec();
    let Some(rows) = inputs.texts(before, spec.vocab, spec.context)? else { return Ok(None) };
    let width = inputs.ids(&format!("{before}input_ids"))?.map_or(0, |rows| rows[0].len());
    if spec.pad.is_some() && rows.iter().any(|row| row.len() < width) {
        return Err(inputs.wrong("has a mask, and the model sees what its texts are filled up with"));
    }
    let name = format!("{before}token_type_ids");
    let types = inputs.ids(&name)?.unwrap_or_else(|| vec![vec![0; width]; rows.len()]);
    inputs.known(&name, &types, spec.types.unwrap_or(1))?;
    if types.len() != rows.len() || types.iter().any(|types| types.len() != width) {
        return Err(inputs.wrong(format_args!("tensor {name:?} has another shape than input_ids")));
    }
    let (mut hidden, mut means, mut firsts, mut own, mut scores) =
        (Vec::<Vec<f32>>::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut words, mut pooler) = (Vec::<f32>::new(), Vec::<f32>::new());
    for (tokens, mut types) in rows.iter().zip(types) {
        types.truncate(tokens.len());
        let text = encoder.upload(b, &[Input { tokens: tokens.clone(), types }])?;
        let mut seen = Vec::new();
        let x = encoder.forward(b, &text, |_, x| {
            seen.push(x.clone());
            Ok(())
        })?;
        hidden.resize(seen.len(), Vec::new());
        for (all, x) in hidden.iter_mut().zip(&seen) {
            let end = all.len() + width * spec.dim;
            all.extend(b.download::<f32>(x)?);
            // Padding is written as zeros.
            all.resize(end, 0.0);
        }
        let vector = |y: Tensor<B>| Ok::<_, Failed>(shortened(b.download(&y)?, None));
        let pooled = |pooling| vector(encoder.pool(b, &text, &x, pooling)?);
        means.extend(pooled(Pooling::Mean)?);
        firsts.extend(pooled(Pooling::First)?);
        own.push(vector(vectors(b, encoder, &text, &x, model.sentence.pooling)?)?);
        if let Some(y) = encoder.scores(b, &text, &x)? {
            scores.extend(b.download::<f32>(&y)?);
        }
        if let Some(y) = encoder.mlm_logits(b, &x)? {
            let end = words.len() + width * spec.vocab;
            words.extend(b.download::<f32>(&y)?);
            words.resize(end, 0.0);
        }
        if let Some(y) = encoder.pooler_output(b, &text, &x)? {
            pooler.extend(b.download::<f32>(&y)?);
        }
    }
    let (count, dim) = (rows.len(), spec.dim);
    let last = hidden.last().cloned().unwrap_or_default();
    if spec.pooling_head.is_some() {
        add("text_last_hidden", &[count, width, dim], last);
        add("text_embeds", &[count, spec.width()], own.concat());
        return Ok(Some(own));
    }
    add("last_hidden_state", &[count, width, dim], last);
    for (i, x) in hidden.into_iter().enumerate() {
        add(&format!("hidden{i}"), &[count, width, dim], x);
    }
    add("mean_pooled_l2", &[count, dim], means);
    add("cls_pooled_l2", &[count, dim], firsts);
    if spec.head.is_some() {
        add("logits", &[count, scores.len() / count], scores);
    } else {
        if spec.mlm_head.is_some() {
            add("logits", &[count, width, spec.vocab], words);
        }
        if spec.pooler.is_some() {
            add("pooler_output", &[count, dim], pooler);
        }
        add("embeddings", &[count, spec.width()], own.concat());
    }
    Ok(Some(own))
}

fn of_images<B: Backend>(
    b: &B,
    encoder: &Encoder<B>,
    (inputs, before): (&Inputs, &str),
    add: Add<'_>,
) -> Result<Option<Vec<Vec<f32>>>, Failed> {
    let spec = encoder.spec();
    let Some(patches) = spec.patches else { return Ok(None) };
    let shape = [CHANNELS, patches.image, patches.image];
    let Some(images) = inputs.floats(&format!("{before}pixel_values"), &shape)? else { return Ok(None) };
    let (mut hidden, mut own) = (Vec::new(), Vec::new());
    for image in &images {
        let image = encoder.upload_images(b, &[patches.cut(image)])?;
        let x = encoder.forward(b, &image, |_, _| Ok(()))?;
        hidden.extend(b.download::<f32>(&x)?);
        own.push(shortened(b.download(&vectors(b, encoder, &image, &x, Pooling::First)?)?, None));
    }
    add("vision_last_hidden", &[images.len(), patches.rows(), spec.dim], hidden);
    add("image_embeds", &[images.len(), spec.width()], own.concat());
    Ok(Some(own))
}

fn vectors<B: Backend>(
    b: &B,
    encoder: &Encoder<B>,
    of: &Texts<B>,
    x: &Tensor<B>,
    pooling: Pooling,
) -> Result<Tensor<B>, Failed> {
    Ok(encoder.vectors(b, of, x, pooling)?)
}

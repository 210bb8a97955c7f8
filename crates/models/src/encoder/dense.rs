//! [`Dense`]: linear layers behind pooling, which sentence-transformers stores in folders of their own.

use std::path::Path;

use serde_json::Value;
use tallow_checkpoint::tensor_names::named;
use tallow_checkpoint::{Checkpoint, Settings, Stored};
use tallow_core::{Activation, Backend, LinearWeights, Result, Tensor};

use super::classifier_head::linear_act;
use crate::error::{LoadError, Result as LoadResult};
use crate::spec::Bias;
use crate::spec::encoder::{DenseSpec, HeadActivation};
use crate::weights::Weights;

/// Linear layer with an optional activation.
#[derive(Debug)]
pub(super) struct Dense<B: Backend> {
    linear: LinearWeights<B>,
    act: Option<HeadActivation>,
}

impl<B: Backend> Dense<B> {
    pub(super) fn load(w: &mut Weights<'_, B>, spec: &DenseSpec) -> LoadResult<Dense<B>> {
        let linear = w.linear(spec.name.as_str(), spec.width, spec.inputs, spec.bias)?;
        Ok(Dense { linear, act: spec.act })
    }

    /// [texts, inputs] to [texts, width]
    pub(super) fn forward(&self, b: &B, x: &Tensor<B>) -> Result<Tensor<B>> {
        linear_act(b, x, &self.linear, self.act)
    }
}

/// Upper bound of a vector's width.
const MOST: u64 = 1 << 20;

/// Dense layers in GGUF files, in order.
const IN_GGUF: [&str; 2] = ["dense_2", "dense_3"];

impl DenseSpec {
    /// The dense layers in a GGUF file, which have no activation there; none in a folder.
    pub(super) fn of_gguf(checkpoint: &Checkpoint) -> LoadResult<Vec<DenseSpec>> {
        let Settings::Gguf(_) = checkpoint.settings else { return Ok(Vec::new()) };
        let stored = IN_GGUF.into_iter().filter_map(|name| Some((name, checkpoint.get(&named(name))?)));
        let read = |(name, stored): (&str, &Stored)| match *stored.shape.as_slice() {
            [width, inputs] => {
                Ok(DenseSpec { name: name.into(), inputs, width, bias: Bias::IfPresent, act: None })
            }
            _ => {
                let why = format!("has shape {:?}; a matrix is expected", stored.shape);
                Err(LoadError::bad(&checkpoint.path, format!("tensor {:?}", named(name)), why))
            }
        };
        stored.map(read).collect()
    }

    /// Reads the settings in a folder next to a model, and adds the folder's tensors to the checkpoint.
    pub(super) fn read(checkpoint: &mut Checkpoint, folder: &str) -> LoadResult<DenseSpec> {
        let name = Path::new(folder).join("config.json");
        let file = checkpoint.path.join(&name);
        let json = checkpoint.json_file(&name.to_string_lossy())?;
        let json = json.ok_or_else(|| LoadError::bad(&file, "the file", "is missing"))?;
        let count = |key: &str| match json[key].as_u64().filter(|n| (1..=MOST).contains(n)) {
            Some(n) => Ok(n as usize),
            None => Err(LoadError::bad(&file, key, format!("is {}; 1 to {MOST} make sense", json[key]))),
        };
        let (inputs, width) = (count("in_features")?, count("out_features")?);
        let bias = match &json["bias"] {
            Value::Null | Value::Bool(true) => Bias::Yes,
            Value::Bool(false) => Bias::No,
            other => return Err(LoadError::bad(&file, "bias", format!("is {other}, not true or false"))),
        };
        // The name of a PyTorch class, such as `torch.nn.modules.activation.Tanh`.
        let called = json["activation_function"].as_str().unwrap_or("Tanh");
        let act = match called.rsplit('.').next().unwrap_or(called) {
            "Identity" => None,
            "Tanh" => Some(HeadActivation::Tanh),
            "ReLU" => Some(HeadActivation::Like(Activation::Relu)),
            "GELU" => Some(HeadActivation::Like(Activation::Gelu)),
            "SiLU" => Some(HeadActivation::Like(Activation::Silu)),
            other => {
                let what = format!("activation_function = {other}");
                let why = "Identity, Tanh, ReLU, GELU and SiLU are";
                return Err(LoadError::unsupported(&file, what, why));
            }
        };
        checkpoint.add(folder)?;
        Ok(DenseSpec { name: format!("{folder}/linear"), inputs, width, bias, act })
    }
}

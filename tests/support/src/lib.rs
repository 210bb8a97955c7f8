//! Shared by tests: paths of reference data, and how to read it.
//!
//! Golden files are in the repository. Files of other owners are not: tests that use them ask [`shared`], which says so
//! and lets them skip where the files are absent, and fails in CI.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "this crate only serves tests")]

mod encoder;
mod seq2seq;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

pub use encoder::{image_encoder, only_tensors, text_encoder, with_tensors};
pub use seq2seq::{listener, reader};

/// Time limit for what a test waits for, however busy the machine is: beyond it, it will not come.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The goldens of decoders, one or more of each family.
pub const DECODERS: [&str; 39] = [
    "cohere",
    "cohere2",
    "deepseek-v2",
    "deepseek-v3",
    "gemma",
    "gemma2",
    "gemma2-std",
    "gemma3-text",
    "gemma4-text",
    "glm4",
    "glm4-moe",
    "gpt-neox",
    "gpt-oss",
    "gpt2",
    "granite",
    "llama",
    "llama-f16-shards",
    "llama-f32",
    "llama3-rope",
    "llama4-text",
    "ministral3",
    "mistral-swa",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "phimoe",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "qwen3-cfgv5",
    "qwen3-moe",
    "qwen3-next",
    "qwen3.5",
    "qwen3.5-moe",
    "smollm3",
    "stablelm",
    "starcoder2",
];

/// The goldens of encoders.
pub const ENCODERS: [&str; 4] = ["bert", "distilbert", "modernbert", "roberta"];

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A file or folder among the goldens.
pub fn golden(name: &str) -> PathBuf {
    let path = root().join("tests/goldens").join(name);
    assert!(path.exists(), "{} is missing", path.display());
    path
}

/// A file or folder that has other owners. `None`, with a notice, where there is none; a failure in CI.
pub fn shared(name: &str) -> Option<PathBuf> {
    let base = std::env::var_os("TALLOW_SHARED").map_or_else(|| root().join("../shared"), PathBuf::from);
    let path = base.join("data").join(name);
    if path.exists() {
        return Some(path);
    }
    needed(&format!("{} (set TALLOW_SHARED to the folder that holds data/)", path.display()), None)
}

/// The folder of the real MiniLM, once `tools/minilm/fetch` has brought it.
pub fn minilm() -> Option<PathBuf> {
    let path = root().join("target/minilm");
    let is_there = path.join("model.safetensors").exists();
    needed("real MiniLM in target/minilm (tools/minilm/fetch brings it)", is_there.then_some(path))
}

/// Something that a test cannot do without. Where it is absent, says so and lets the test skip; fails in CI.
pub fn needed<T>(what: &str, found: Option<T>) -> Option<T> {
    assert!(found.is_some() || !ci(), "CI needs {what}");
    if found.is_none() {
        eprintln!("skipped: there is no {what}");
    }
    found
}

/// True if the tests run in CI. Slow tests take all their cases there, and some elsewhere.
pub fn ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| !v.is_empty() && v != "false")
}

/// Are tests that go through many cases to go through all of them, and not through some?
pub fn sweeps_all() -> bool {
    std::env::var_os("TALLOW_SWEEP").is_some_and(|how| how == "all")
}

/// Parses a JSON file.
pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        .unwrap()
}

/// One tensor of a golden file.
#[derive(Debug, Clone)]
pub struct Golden {
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Bytes of the tensor.
    pub bytes: Vec<u8>,
    dtype: Dtype,
}

impl Golden {
    /// Numbers as `f32`.
    pub fn f32(&self) -> Vec<f32> {
        let pairs = || self.bytes.chunks_exact(2).map(|c| [c[0], c[1]]);
        match self.dtype {
            Dtype::F32 => {
                self.bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
            }
            Dtype::F16 => pairs().map(|c| f16::from_le_bytes(c).to_f32()).collect(),
            Dtype::BF16 => pairs().map(|c| bf16::from_le_bytes(c).to_f32()).collect(),
            other => panic!("{other:?} is no float"),
        }
    }

    /// Numbers as token ids.
    pub fn ids(&self) -> Vec<u32> {
        assert_eq!(self.dtype, Dtype::I64);
        self.bytes.chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().unwrap()) as u32).collect()
    }
}

/// All tensors of a safetensors file.
pub fn tensors(path: &Path) -> BTreeMap<String, Golden> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let golden = |t: safetensors::tensor::TensorView<'_>| Golden {
        shape: t.shape().to_vec(),
        bytes: t.data().to_vec(),
        dtype: t.dtype(),
    };
    file.tensors().into_iter().map(|(name, t)| (name, golden(t))).collect()
}

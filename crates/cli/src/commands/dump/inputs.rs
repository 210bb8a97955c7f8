//! [`Inputs`]: a file of inputs, named as in Hugging Face Transformers.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use crate::Failed;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// A safetensors file with inputs for models: `input_ids` and what belongs to it, or several as `NAME.input_ids`.
pub(super) struct Inputs {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Token ids (or other whole numbers) in rows.
pub(super) type Ids = Vec<Vec<u32>>;

impl Inputs {
    pub(super) fn read(path: &Path) -> Result<Inputs, Failed> {
        let mut inputs = Inputs { path: path.to_owned(), bytes: Vec::new() };
        let size = std::fs::metadata(path).map_err(|e| inputs.wrong(e))?.len();
        if size > MAX_BYTES {
            return Err(inputs.wrong(format_args!("has {size} bytes; at most {MAX_BYTES} are read")));
        }
        inputs.bytes = std::fs::read(path).map_err(|e| inputs.wrong(e))?;
        inputs.file()?;
        Ok(inputs)
    }

    pub(super) fn wrong(&self, why: impl Display) -> Failed {
        Failed::new(format!("{}: {why}", self.path.display()))
    }

    fn file(&self) -> Result<SafeTensors<'_>, Failed> {
        SafeTensors::deserialize(&self.bytes)
            .map_err(|e| self.wrong(format_args!("is no safetensors file: {e}")))
    }

    /// Prefixes of the inputs' names: there is a tensor of one of `kinds` for each.
    pub(super) fn groups(&self, kinds: &[&str]) -> Result<BTreeSet<String>, Failed> {
        let file = self.file()?;
        let before = |name: &str| kinds.iter().find_map(|kind| Some(name.strip_suffix(kind)?.to_owned()));
        let groups: BTreeSet<String> = file.names().into_iter().filter_map(before).collect();
        let groups: BTreeSet<String> =
            groups.into_iter().filter(|before| before.is_empty() || before.ends_with('.')).collect();
        match groups.is_empty() {
            true => {
                let kinds = kinds.iter().map(|kind| format!("{kind} or NAME.{kind}"));
                let kinds = kinds.collect::<Vec<_>>().join(", ");
                Err(self.wrong(format_args!("has no tensor called {kinds}")))
            }
            false => Ok(groups),
        }
    }

    /// Whole numbers in rows from the tensor of that name, if it exists.
    pub(super) fn ids(&self, name: &str) -> Result<Option<Ids>, Failed> {
        let file = self.file()?;
        let Ok(tensor) = file.tensor(name) else { return Ok(None) };
        let ids = ids(&tensor).map_err(|why| self.wrong(format_args!("tensor {name:?} {why}")))?;
        let width = tensor.shape().last().copied().unwrap_or(0);
        if width == 0 || tensor.shape().len() > 2 || ids.is_empty() {
            let shape = tensor.shape();
            let why =
                format_args!("tensor {name:?} has shape {shape:?}; it should be [tokens] or [rows, tokens]");
            return Err(self.wrong(why));
        }
        Ok(Some(ids.chunks(width).map(<[u32]>::to_vec).collect()))
    }

    /// F32 values of shape `[count, shape…]` from the tensor of that name, if it exists, split into `count` parts.
    pub(super) fn floats(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<Vec<f32>>>, Failed> {
        let file = self.file()?;
        let Ok(tensor) = file.tensor(name) else { return Ok(None) };
        let fits = tensor.shape().len() == shape.len() + 1 && &tensor.shape()[1..] == shape;
        if !fits || tensor.dtype() != Dtype::F32 || shape.contains(&0) {
            let (have, kind) = (tensor.shape(), tensor.dtype());
            let why =
                format_args!("tensor {name:?} is {kind:?}{have:?}; expected F32 of shape [count, {shape:?}]");
            return Err(self.wrong(why));
        }
        let numbers: Vec<f32> = tensor.data().as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        Ok(Some(numbers.chunks(shape.iter().product()).map(<[f32]>::to_vec).collect()))
    }

    /// Rows of token ids without their trailing padding, if there is an attention mask. Rejects ids beyond the
    /// vocabulary, and rows longer than the context.
    pub(super) fn texts(&self, before: &str, vocab: usize, context: usize) -> Result<Option<Ids>, Failed> {
        let name = format!("{before}input_ids");
        let Some(mut rows) = self.ids(&name)? else { return Ok(None) };
        let mask = format!("{before}attention_mask");
        if let Some(masks) = self.ids(&mask)? {
            let alike = masks.len() == rows.len() && masks.iter().zip(&rows).all(|(m, r)| m.len() == r.len());
            for (row, mask) in rows.iter_mut().zip(&masks) {
                row.truncate(mask.iter().take_while(|m| **m == 1).count());
            }
            let behind = |(row, mask): (&Vec<u32>, &Vec<u32>)| {
                !row.is_empty() && mask[row.len()..].iter().all(|m| *m == 0)
            };
            if !alike || !rows.iter().zip(&masks).all(behind) {
                let why =
                    format_args!("tensor {mask:?}: expected ones and then zeros for each row of {name}");
                return Err(self.wrong(why));
            }
        }
        self.known(&name, &rows, vocab)?;
        match rows.iter().map(Vec::len).max() {
            Some(longest) if longest > context => {
                Err(self
                    .wrong(format_args!("{name} has {longest} tokens, and the model's context is {context}")))
            }
            _ => Ok(Some(rows)),
        }
    }

    /// Rejects ids of `vocab` or more.
    pub(super) fn known(&self, name: &str, rows: &Ids, vocab: usize) -> Result<(), Failed> {
        match rows.iter().flatten().find(|id| **id as usize >= vocab) {
            Some(id) => {
                Err(self
                    .wrong(format_args!("{name} has token {id}, and the model knows those under {vocab}")))
            }
            None => Ok(()),
        }
    }
}

fn ids(tensor: &TensorView<'_>) -> Result<Vec<u32>, String> {
    let width = match tensor.dtype() {
        Dtype::I64 | Dtype::U64 => 8,
        Dtype::I32 | Dtype::U32 => 4,
        other => return Err(format!("is {other:?}; token ids are I64, U64, I32 or U32")),
    };
    let id = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(bytes);
        // A negative number, read as unsigned, is far too large as well.
        u32::try_from(u64::from_le_bytes(wide)).map_err(|_| "has a number that can be no token".to_owned())
    };
    tensor.data().chunks_exact(width).map(id).collect()
}

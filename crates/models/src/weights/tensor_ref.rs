//! [`TensorRef`]: how blocks ask for tensors, and the names that these have in the checkpoint.

use tallow_checkpoint::tensor_names::{Pattern, Slot, named};
use tallow_core::Backend;

use super::Weights;
use crate::error::{LoadError, Result};

/// Reference to tensors: those in a slot, of a layer of the model; or, where only one family has such, those of a layer
/// with that name, which comes without `.weight` and `.bias`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TensorRef<'n> {
    Slot(Slot, usize),
    Name(&'n str),
}

impl From<(Slot, usize)> for TensorRef<'_> {
    fn from((slot, layer): (Slot, usize)) -> Self {
        TensorRef::Slot(slot, layer)
    }
}

/// A tensor outside the model's layers.
impl From<Slot> for TensorRef<'_> {
    fn from(slot: Slot) -> Self {
        TensorRef::Slot(slot, 0)
    }
}

impl<'n> From<&'n str> for TensorRef<'n> {
    fn from(name: &'n str) -> Self {
        TensorRef::Name(name)
    }
}

impl<B: Backend> Weights<'_, B> {
    /// The name in a slot; an error if such files have no such tensor.
    pub(super) fn pattern(&self, slot: Slot) -> Result<Pattern> {
        let missing = || LoadError::bad(self.path(), format!("tensor {slot:?}"), "has no name in such files");
        self.names().get(slot).ok_or_else(missing)
    }

    /// Name without `.weight` and `.bias` unless the slot is whole.
    pub(super) fn name(&self, of: TensorRef<'_>) -> Result<String> {
        match of {
            TensorRef::Slot(slot, layer) => Ok(self.pattern(slot)?.fill(layer.into())),
            TensorRef::Name(name) => Ok(name.to_owned()),
        }
    }

    /// Whole name of a weight.
    pub(crate) fn weight_name<'n>(&self, of: impl Into<TensorRef<'n>>) -> Result<String> {
        let of = of.into();
        let name = self.name(of)?;
        let is_whole = matches!(of, TensorRef::Slot(slot, _) if slot.is_whole());
        Ok(if is_whole { name } else { named(&name) })
    }

    /// True if the checkpoint has a weight.
    pub(crate) fn has<'n>(&self, of: impl Into<TensorRef<'n>>) -> bool {
        self.weight_name(of).is_ok_and(|name| self.find(&name).is_some())
    }
}

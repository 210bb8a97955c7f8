//! Operands of an observed backend's ops, as those of the inner one. Memory is shared; only handles are converted.

use std::rc::Rc;

use super::{Observed, ObservedBuf};
use crate::{
    AttnSpec, Backend, Decay, LinearWeight, LinearWeights, Norm, QkNorm, RopeTable, Routing, Stack, StepPlan,
    Tensor, TensorId, Weight,
};

/// The same operand on the inner backend.
pub(super) trait Inner {
    type On;
    fn inner(&self) -> Self::On;
}

/// The same operand on the observed backend, without a [`TensorId`].
pub(super) trait Outer {
    type On;
    fn outer(self) -> Self::On;
}

pub(super) fn outer<T: Outer>(of: T) -> T::On {
    of.outer()
}

fn buf<T>(buf: T, tensor: Option<Rc<TensorId>>) -> ObservedBuf<T> {
    ObservedBuf { buf, tensor }
}

/// A weight on the observed backend, with its [`TensorId`] in the memory handle.
pub(super) fn with_id<B: Backend>(weight: Weight<B>, id: Option<Rc<TensorId>>) -> Weight<Observed<B>> {
    match weight {
        Weight::Dense(t) => Weight::Dense(t.of(buf(t.buf().clone(), id))),
        Weight::Blocks { data, format, rows, cols } => {
            let data = data.of(buf(data.buf().clone(), id));
            Weight::Blocks { data, format, rows, cols }
        }
    }
}

/// The [`TensorId`] of a layer's weight.
pub(super) fn tensor_id<B: Backend>(layer: &LinearWeights<Observed<B>>) -> Option<&TensorId> {
    let (LinearWeight::InOrder(weight) | LinearWeight::ActOrder { weight, .. }) = &layer.weight;
    let (Weight::Dense(data) | Weight::Blocks { data, .. }) = weight;
    data.buf().tensor.as_deref()
}

impl<B: Backend> Inner for Tensor<Observed<B>> {
    type On = Tensor<B>;
    fn inner(&self) -> Tensor<B> {
        self.of(self.buf().buf.clone())
    }
}

impl<B: Backend> Outer for Tensor<B> {
    type On = Tensor<Observed<B>>;
    fn outer(self) -> Tensor<Observed<B>> {
        self.of(buf(self.buf().clone(), None))
    }
}

impl<B: Backend> Outer for LinearWeights<B> {
    type On = LinearWeights<Observed<B>>;
    fn outer(self) -> LinearWeights<Observed<B>> {
        let weight = match self.weight {
            LinearWeight::InOrder(weight) => LinearWeight::InOrder(with_id(weight, None)),
            LinearWeight::ActOrder { weight, order } => {
                LinearWeight::ActOrder { weight: with_id(weight, None), order: outer(order) }
            }
        };
        LinearWeights { weight, bias: self.bias.map(outer), lora_target: self.lora_target }
    }
}

impl<T: Inner> Inner for Option<T> {
    type On = Option<T::On>;
    fn inner(&self) -> Option<T::On> {
        self.as_ref().map(T::inner)
    }
}

impl<B: Backend> Inner for Weight<Observed<B>> {
    type On = Weight<B>;
    fn inner(&self) -> Weight<B> {
        match self {
            Weight::Dense(t) => Weight::Dense(t.inner()),
            Weight::Blocks { data, format, rows, cols } => {
                Weight::Blocks { data: data.inner(), format: *format, rows: *rows, cols: *cols }
            }
        }
    }
}

impl<B: Backend> Inner for Stack<Observed<B>> {
    type On = Stack<B>;
    fn inner(&self) -> Stack<B> {
        Stack { count: self.count, used: self.used, room: self.room.inner() }
    }
}

impl<B: Backend> Outer for Stack<B> {
    type On = Stack<Observed<B>>;
    fn outer(self) -> Stack<Observed<B>> {
        Stack { count: self.count, used: self.used, room: self.room.map(|room| with_id(room, None)) }
    }
}

impl<B: Backend> Inner for LinearWeights<Observed<B>> {
    type On = LinearWeights<B>;
    fn inner(&self) -> LinearWeights<B> {
        let weight = match &self.weight {
            LinearWeight::InOrder(weight) => LinearWeight::InOrder(weight.inner()),
            LinearWeight::ActOrder { weight, order } => {
                LinearWeight::ActOrder { weight: weight.inner(), order: order.inner() }
            }
        };
        LinearWeights { weight, bias: self.bias.inner(), lora_target: self.lora_target }
    }
}

impl<B: Backend> Inner for Norm<Observed<B>> {
    type On = Norm<B>;
    fn inner(&self) -> Norm<B> {
        Norm { kind: self.kind, weight: self.weight.inner(), bias: self.bias.inner(), eps: self.eps }
    }
}

impl<B: Backend> Inner for QkNorm<Observed<B>> {
    type On = QkNorm<B>;
    fn inner(&self) -> QkNorm<B> {
        QkNorm { q: self.q.inner(), k: self.k.inner() }
    }
}

impl<B: Backend> Inner for RopeTable<Observed<B>> {
    type On = RopeTable<B>;
    fn inner(&self) -> RopeTable<B> {
        RopeTable { table: self.table.inner(), pairs: self.pairs }
    }
}

impl<B: Backend> Inner for Routing<Observed<B>> {
    type On = Routing<B>;
    fn inner(&self) -> Routing<B> {
        let Routing { top_k, scores, groups, norm_weights, scale, .. } = *self;
        Routing { top_k, scores, bias: self.bias.inner(), groups, norm_weights, scale }
    }
}

impl<B: Backend> Inner for Decay<Observed<B>> {
    type On = Decay<B>;
    fn inner(&self) -> Decay<B> {
        Decay { rate: self.rate.inner(), bias: self.bias.inner() }
    }
}

impl<B: Backend> Inner for AttnSpec<Observed<B>> {
    type On = AttnSpec<B>;
    fn inner(&self) -> AttnSpec<B> {
        let AttnSpec { scale, window, chunk, softcap, causal, .. } = *self;
        let (sinks, bias) = (self.sinks.inner(), self.bias.inner());
        AttnSpec { scale, window, chunk, softcap, sinks, bias, causal }
    }
}

impl<B: Backend> Inner for StepPlan<Observed<B>> {
    type On = StepPlan<B>;
    /// Without LoRA adapters: ops get those in fields of their own.
    fn inner(&self) -> StepPlan<B> {
        self.map(Inner::inner)
    }
}

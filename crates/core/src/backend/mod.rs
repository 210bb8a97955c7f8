//! [`Backend`]: the trait that every device implements.

pub mod compose;
mod replay;

pub use replay::Replay;

use std::time::Instant;

use crate::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, Embed, Ffn, GatedDelta, Head, IndexRows, KvWrite,
    LatentWrite, Linear, LinearHeads, LinearMany, Lora, Matmul, Moe, Normalize, Op, PermuteCols, QkvPrep,
    Rope, Route, TailSum, TopK, TopKOut,
};
use crate::{HostWeight, Memory, Result, Stack, Tensor, Trace, Weight};

/// A device: its [`Memory`] and its queue. The value belongs to one thread, the engine's; it has no global state.
///
/// Ops execute in launch order; results are visible to [`fetch`](Memory::fetch) and after [`sync`](Backend::sync).
/// Ops return fresh tensors and leave their operands unchanged; only `copy`, `kv_write`, `qkv_prep` and `latent_write` (KV
/// cache), `index_rows` in scatter-add mode, and `causal_conv` and `gated_delta` (recurrent state) write into memory passed
/// to them.
///
/// Methods expect ops that have been checked. Call [`run`](Backend::run), which checks, records and launches.
pub trait Backend: Memory {
    // ---- required: the device -------------------------------------------------------------------------------

    /// The device's name for logs and messages.
    fn label(&self) -> String;

    /// The record of launched ops.
    fn trace(&self) -> &Trace;

    /// Copies one view into another.
    fn copy(&self, op: &Copy<'_, Self>) -> Result<()>;

    /// Waits until all launched ops have finished.
    fn sync(&self) -> Result<()>;

    // ---- required: primitive ops -----------------------------------------------------------------------------

    /// Embedding lookup.
    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>>;
    /// RMSNorm or LayerNorm over groups of columns.
    fn normalize(&self, op: &Normalize<'_, Self>) -> Result<Tensor<Self>>;
    /// Matrix product with a dense weight.
    fn matmul(&self, op: &Matmul<'_, Self>) -> Result<Tensor<Self>>;
    /// Dequantizes some rows of a weight to `f32`.
    fn dequant(&self, op: &Dequant<'_, Self>) -> Result<Tensor<Self>>;
    /// Rotary embedding (RoPE).
    fn rope(&self, op: &Rope<'_, Self>) -> Result<Tensor<Self>>;
    /// Writes K and V into the KV cache.
    fn kv_write(&self, op: &KvWrite<'_, Self>) -> Result<()>;
    /// Attention of the step's tokens over the KV cache.
    fn attend(&self, op: &Attend<'_, Self>) -> Result<Tensor<Self>>;
    /// Activation function, gated or not.
    fn activate(&self, op: &Activate<'_, Self>) -> Result<Tensor<Self>>;
    /// Element-wise arithmetic.
    fn eltwise(&self, op: &Eltwise<'_, Self>) -> Result<Tensor<Self>>;
    /// Row gather or scatter-add.
    fn index_rows(&self, op: &IndexRows<'_, Self>) -> Result<Tensor<Self>>;
    /// Column permutation.
    fn permute_cols(&self, op: &PermuteCols<'_, Self>) -> Result<Tensor<Self>>;
    /// MoE router: the experts of each token and their weights.
    fn route(&self, op: &Route<'_, Self>) -> Result<Tensor<Self>>;
    /// Gated delta rule (Gated DeltaNet).
    fn gated_delta(&self, op: &GatedDelta<'_, Self>) -> Result<Tensor<Self>>;
    /// Top-k elements of each row.
    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>>;
    /// Softmax mass outside the top k of each row.
    fn tail_sum(&self, op: &TailSum<'_, Self>) -> Result<Tensor<Self>>;

    // ---- defaults of the device -------------------------------------------------------------------------------

    /// Hands over what was launched and fetched, so that the device computes it while the host does something else.
    /// Returns whether it does. By default nothing is left to hand over: an op is computed when it is launched.
    fn begin(&self) -> Result<bool> {
        Ok(false)
    }

    /// Does `work`, which launches ops, and returns what launches them again without the host's work for each. The tensors
    /// that `work` uses or leaves behind must live as long as that; what it frees is free to use. By default, and where
    /// `work` waits for the device or writes to its memory from the host, nothing is returned.
    fn capture(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Replay>> {
        work()?;
        Ok(None)
    }

    /// Seconds on the device's clock, read after all ops launched so far have finished.
    fn clock(&self) -> Result<f64> {
        self.sync()?;
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        Ok(START.elapsed().as_secs_f64())
    }

    // ---- fused ops: defaults composed of the above, to be overridden for speed --------------------------------

    /// A weight that an earlier load has packed for the device, and that need not be read from its checkpoint, so that `bytes`
    /// are hardly touched. By default there is none.
    fn find_packed(&self, _weight: &HostWeight<'_>) -> Option<Weight<Self>> {
        None
    }

    /// Uploads a checkpoint's weight, packed as the device's kernels read it, or returns an error that says why not.
    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Self>> {
        compose::prepare(self, weight)
    }

    /// As [`prepare`](Backend::prepare), for the next of several weights that one op reads together. By default each has
    /// memory of its own.
    fn prepare_stacked(&self, weight: HostWeight<'_>, _stack: &mut Stack<Self>) -> Result<Weight<Self>> {
        self.prepare(weight)
    }

    /// Linear layer, whatever the weight's format.
    fn linear(&self, op: &Linear<'_, Self>) -> Result<Tensor<Self>> {
        compose::linear(self, op)
    }

    /// Several linear layers over one input, with an optional norm before them.
    fn linear_many(&self, op: &LinearMany<'_, Self>) -> Result<Tensor<Self>> {
        compose::linear_many(self, op)
    }

    /// A linear layer for each head.
    fn linear_heads(&self, op: &LinearHeads<'_, Self>) -> Result<Tensor<Self>> {
        compose::linear_heads(self, op)
    }

    /// Linear layers plus the LoRA deltas of some rows.
    fn lora(&self, op: &Lora<'_, Self>) -> Result<Tensor<Self>> {
        compose::lora(self, op)
    }

    /// QK norm, RoPE and KV cache write on a joint QKV projection; returns the queries.
    fn qkv_prep(&self, op: &QkvPrep<'_, Self>) -> Result<Tensor<Self>> {
        compose::qkv_prep(self, op)
    }

    /// Norm and RoPE of MLA's latent rows, and their write into the KV cache.
    fn latent_write(&self, op: &LatentWrite<'_, Self>) -> Result<()> {
        compose::latent_write(self, op)
    }

    /// Causal convolution over the tokens of each sequence.
    fn causal_conv(&self, op: &CausalConv<'_, Self>) -> Result<Tensor<Self>> {
        compose::causal_conv(self, op)
    }

    /// Feed-forward block.
    fn ffn(&self, op: &Ffn<'_, Self>) -> Result<Tensor<Self>> {
        compose::ffn(self, op)
    }

    /// Mixture of experts.
    fn moe(&self, op: &Moe<'_, Self>) -> Result<Tensor<Self>> {
        compose::moe(self, op)
    }

    /// LM head: logits of some rows of the hidden states.
    fn head(&self, op: &Head<'_, Self>) -> Result<Tensor<Self>> {
        compose::head(self, op)
    }

    // ---- provided: the entry point for models ----------------------------------------------------------------

    /// Checks an op, records it in the trace and launches it.
    fn run<O: Dispatch<Self>>(&self, op: O) -> Result<O::Out> {
        op.check()?;
        let _under_way = self.trace().enter(O::NAME);
        op.dispatch(self)
    }
}

/// The backend method that runs an op.
pub trait Dispatch<B: Backend>: Op {
    /// Calls it. Called by [`Backend::run`] only.
    fn dispatch(&self, b: &B) -> Result<Self::Out>;
}

macro_rules! dispatch {
    ($($op:ident => $method:ident,)*) => {
        $(impl<B: Backend> Dispatch<B> for $op<'_, B> {
            fn dispatch(&self, b: &B) -> Result<Self::Out> {
                b.$method(self)
            }
        })*
    };
}

/// Calls a macro with the required ops and their methods, except those where a step begins and ends (`embed`,
/// `topk`, `tail_sum`).
#[doc(hidden)]
#[macro_export]
macro_rules! required_ops {
    ($($then:tt)*) => {
        $($then)*! {
            Normalize => normalize,
            Matmul => matmul,
            Dequant => dequant,
            Rope => rope,
            KvWrite => kv_write,
            Attend => attend,
            Activate => activate,
            Eltwise => eltwise,
            IndexRows => index_rows,
            PermuteCols => permute_cols,
            Route => route,
            GatedDelta => gated_delta,
        }
    };
}

required_ops!(dispatch);

dispatch! {
    Copy => copy,
    Embed => embed,
    TopK => topk,
    TailSum => tail_sum,
    Linear => linear,
    LinearMany => linear_many,
    LinearHeads => linear_heads,
    Lora => lora,
    QkvPrep => qkv_prep,
    LatentWrite => latent_write,
    CausalConv => causal_conv,
    Ffn => ffn,
    Moe => moe,
    Head => head,
}

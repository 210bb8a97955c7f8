//! [`Backend`]: the trait that every device implements.

use std::fmt;
use std::time::Instant;

use crate::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, Embed, Ffn, GatedDelta, Head, IndexRows, KvWrite,
    Linear, LinearMany, Lora, Matmul, Moe, Normalize, Op, PermuteCols, QkvPrep, Rope, Route, TopK, TopKOut,
};
use crate::{DType, Elem, Error, HostWeight, Result, Tensor, Trace, Weight, compose};

/// A device and its queue. The value belongs to one thread, the engine's; it has no global state.
///
/// Ops execute in launch order; results are visible to [`read`](Backend::read) and after [`sync`](Backend::sync).
/// Ops return fresh tensors and leave their operands unchanged; only `copy`, `kv_write`, `index_rows` in scatter-add
/// mode, and `causal_conv` and `gated_delta` (recurrent state) write into memory passed to them.
///
/// Methods expect ops that have been checked. Call [`run`](Backend::run), which checks, records and launches.
pub trait Backend: Sized + fmt::Debug + 'static {
    /// A handle to device memory, freed (or reused) when the last clone is dropped.
    type Buf: Clone + fmt::Debug;

    // ---- required: device and memory ------------------------------------------------------------------------

    /// The device's name for logs and messages.
    fn label(&self) -> String;

    /// The record of launched ops.
    fn trace(&self) -> &Trace;

    /// Allocates a tensor, uninitialised.
    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>>;

    /// Copies `bytes` from the host into a contiguous tensor.
    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()>;

    /// Copies tensors' elements to the host, row by row, waiting for the ops that compute them. All outputs of a step
    /// are read in one call: with separate device memory a read costs a round trip, however small it is.
    fn read(&self, wanted: &mut [Reading<'_, Self>]) -> Result<()>;

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

    // ---- fused ops: defaults composed of the above, to be overridden for speed --------------------------------

    /// Sets every element of a contiguous tensor to zero.
    fn zero(&self, t: &Tensor<Self>) -> Result<()> {
        compose::zero(self, t)
    }

    /// Uploads a checkpoint's weight, packed as the device's kernels read it, or returns an error that says why not.
    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Self>> {
        compose::prepare(self, weight)
    }

    /// Linear layer, whatever the weight's format.
    fn linear(&self, op: &Linear<'_, Self>) -> Result<Tensor<Self>> {
        compose::linear(self, op)
    }

    /// Several linear layers over one input, with an optional norm before them.
    fn linear_many(&self, op: &LinearMany<'_, Self>) -> Result<Tensor<Self>> {
        compose::linear_many(self, op)
    }

    /// Linear layers plus the LoRA deltas of some rows.
    fn lora(&self, op: &Lora<'_, Self>) -> Result<Tensor<Self>> {
        compose::lora(self, op)
    }

    /// QK norm, RoPE and KV cache write on a joint QKV projection; returns the queries.
    fn qkv_prep(&self, op: &QkvPrep<'_, Self>) -> Result<Tensor<Self>> {
        compose::qkv_prep(self, op)
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

    /// Seconds on the device's clock, read after all ops launched so far have finished.
    fn clock(&self) -> Result<f64> {
        self.sync()?;
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        Ok(START.elapsed().as_secs_f64())
    }

    // ---- provided: the entry point for models ----------------------------------------------------------------

    /// Checks an op, records it in the trace and launches it.
    fn run<O: Op<Self>>(&self, op: O) -> Result<O::Out> {
        op.check()?;
        let _under_way = self.trace().enter(O::NAME);
        op.launch(self)
    }
}

/// A read request: a tensor and the host buffer that receives its elements, row by row.
#[derive(Debug)]
pub struct Reading<'a, B: Backend> {
    /// Source.
    pub from: &'a Tensor<B>,
    /// Destination, of exactly `from.bytes()` bytes.
    pub to: &'a mut [u8],
}

impl<B: Backend> Reading<'_, B> {
    /// Checks that the destination has the size of the source.
    pub fn check(&self) -> Result<()> {
        if self.from.bytes() == self.to.len() {
            return Ok(());
        }
        let (want, got) = (format!("{} bytes", self.from.bytes()), format!("{} bytes", self.to.len()));
        Err(Error::Shape { op: "read", what: "the room", want, got })
    }
}

/// Typed uploads and downloads, provided for every backend.
pub trait Memory: Backend {
    /// Uploads `data` as a [rows, cols] tensor.
    fn upload<T: Elem>(&self, data: &[T], rows: usize, cols: usize) -> Result<Tensor<Self>> {
        if rows.checked_mul(cols) != Some(data.len()) {
            let (want, got) = (format!("{rows} x {cols} elements"), data.len().to_string());
            return Err(Error::Shape { op: "upload", what: "data", want, got });
        }
        let t = self.alloc(T::DTYPE, rows, cols)?;
        self.write(&t, bytemuck::cast_slice(data))?;
        Ok(t)
    }

    /// Uploads `data` as a [1, len] tensor.
    fn upload_row<T: Elem>(&self, data: &[T]) -> Result<Tensor<Self>> {
        self.upload(data, 1, data.len())
    }

    /// Downloads a tensor's elements, row by row.
    fn download<T: Elem>(&self, t: &Tensor<Self>) -> Result<Vec<T>> {
        if t.dtype() != T::DTYPE {
            let (what, want) = ("the tensor's elements", T::DTYPE.name());
            return Err(Error::Type { op: "download", what, want, got: t.dtype() });
        }
        let mut data = vec![T::zeroed(); t.len()];
        self.read(&mut [Reading { from: t, to: bytemuck::cast_slice_mut(&mut data) }])?;
        Ok(data)
    }

    /// Allocates a tensor of zeros.
    fn zeros(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        let t = self.alloc(dtype, rows, cols)?;
        self.zero(&t)?;
        Ok(t)
    }
}

impl<B: Backend> Memory for B {}

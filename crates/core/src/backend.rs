//! [`Backend`]: what a device must be able to do.

use std::fmt;
use std::time::Instant;

use crate::ops::{
    Activate, Attend, CausalConv, Copy, Dequant, Eltwise, Embed, Ffn, GatedDelta, Head, IndexRows, KvWrite,
    Linear, LinearMany, Lora, Matmul, Moe, Normalize, Op, PermuteCols, QkvPrep, Rope, Route, TopK, TopKOut,
};
use crate::{DType, Elem, Error, HostWeight, Result, Tensor, Trace, Weight, compose};

/// A device and its queue. The value belongs to one thread, the engine's; there is no global state behind it.
///
/// Work is queued in the order it is asked for and is visible to [`read`](Backend::read) and after
/// [`sync`](Backend::sync). Ops return fresh tensors and leave their operands alone; only `copy`, `kv_write`,
/// adding `index_rows`, and `causal_conv` and `gated_delta` (what they keep of sequences) write into memory they are given.
///
/// Methods take ops that have been checked. Call [`run`](Backend::run), which checks, records and launches.
pub trait Backend: Sized + fmt::Debug + 'static {
    /// A handle to device memory, freed (or reused) when the last clone goes.
    type Buf: Clone + fmt::Debug;

    // ---- required: what the device is, and its memory -------------------------------------------------------

    /// What to call the device when talking to people.
    fn label(&self) -> String;

    /// The record of what it was asked to do.
    fn trace(&self) -> &Trace;

    /// Memory for a tensor. What it holds at first is unspecified.
    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>>;

    /// Fills a contiguous tensor with `bytes`, one after another.
    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()>;

    /// Reads tensors' elements row by row, waiting for whatever computes them. All that a step gives is asked for
    /// together: where memory is the device's own, reading costs a round trip, however little is read.
    fn read(&self, wanted: &mut [Reading<'_, Self>]) -> Result<()>;

    /// Copies one view into another.
    fn copy(&self, op: &Copy<'_, Self>) -> Result<()>;

    /// Waits until everything asked for is done.
    fn sync(&self) -> Result<()>;

    // ---- required: the ops that nothing else can stand in for ------------------------------------------------

    /// Rows of an embedding table.
    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>>;
    /// Root-mean-square or layer normalisation, by groups of columns.
    fn normalize(&self, op: &Normalize<'_, Self>) -> Result<Tensor<Self>>;
    /// Product with a dense matrix.
    fn matmul(&self, op: &Matmul<'_, Self>) -> Result<Tensor<Self>>;
    /// Some rows of a weight as plain numbers.
    fn dequant(&self, op: &Dequant<'_, Self>) -> Result<Tensor<Self>>;
    /// Rotary embedding.
    fn rope(&self, op: &Rope<'_, Self>) -> Result<Tensor<Self>>;
    /// Stores keys and values in the cache.
    fn kv_write(&self, op: &KvWrite<'_, Self>) -> Result<()>;
    /// Attention of new tokens over the cache.
    fn attend(&self, op: &Attend<'_, Self>) -> Result<Tensor<Self>>;
    /// Activation, gated or not.
    fn activate(&self, op: &Activate<'_, Self>) -> Result<Tensor<Self>>;
    /// Element by element.
    fn eltwise(&self, op: &Eltwise<'_, Self>) -> Result<Tensor<Self>>;
    /// Gathers rows, or adds rows to others.
    fn index_rows(&self, op: &IndexRows<'_, Self>) -> Result<Tensor<Self>>;
    /// Columns in another order.
    fn permute_cols(&self, op: &PermuteCols<'_, Self>) -> Result<Tensor<Self>>;
    /// The experts of each token.
    fn route(&self, op: &Route<'_, Self>) -> Result<Tensor<Self>>;
    /// What heads recall that keep a matrix of their sequence.
    fn gated_delta(&self, op: &GatedDelta<'_, Self>) -> Result<Tensor<Self>>;
    /// The largest elements of each row.
    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>>;

    // ---- composed: complete as they stand, to be overridden for speed ----------------------------------------

    /// Sets every element of a contiguous tensor to zero.
    fn zero(&self, t: &Tensor<Self>) -> Result<()> {
        compose::zero(self, t)
    }

    /// Brings a checkpoint's weight to the device, arranged as its kernels like it, or says why not.
    fn prepare(&self, weight: HostWeight<'_>) -> Result<Weight<Self>> {
        compose::prepare(self, weight)
    }

    /// A linear layer.
    fn linear(&self, op: &Linear<'_, Self>) -> Result<Tensor<Self>> {
        compose::linear(self, op)
    }

    /// Several linear layers over one input, normalised first if asked.
    fn linear_many(&self, op: &LinearMany<'_, Self>) -> Result<Tensor<Self>> {
        compose::linear_many(self, op)
    }

    /// Linear layers, and what the adapters of some rows add to them.
    fn lora(&self, op: &Lora<'_, Self>) -> Result<Tensor<Self>> {
        compose::lora(self, op)
    }

    /// From joint queries, keys and values to rotated queries and a filled cache.
    fn qkv_prep(&self, op: &QkvPrep<'_, Self>) -> Result<Tensor<Self>> {
        compose::qkv_prep(self, op)
    }

    /// A convolution over the tokens of each sequence.
    fn causal_conv(&self, op: &CausalConv<'_, Self>) -> Result<Tensor<Self>> {
        compose::causal_conv(self, op)
    }

    /// A whole feed-forward block.
    fn ffn(&self, op: &Ffn<'_, Self>) -> Result<Tensor<Self>> {
        compose::ffn(self, op)
    }

    /// A mixture of experts.
    fn moe(&self, op: &Moe<'_, Self>) -> Result<Tensor<Self>> {
        compose::moe(self, op)
    }

    /// From hidden states to the logits of some of them.
    fn head(&self, op: &Head<'_, Self>) -> Result<Tensor<Self>> {
        compose::head(self, op)
    }

    /// Seconds on the device's own clock, read once everything asked for so far is done.
    fn clock(&self) -> Result<f64> {
        self.sync()?;
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        Ok(START.elapsed().as_secs_f64())
    }

    // ---- provided: how models ask ----------------------------------------------------------------------------

    /// Checks an op, records it and launches it.
    fn run<O: Op<Self>>(&self, op: O) -> Result<O::Out> {
        op.check()?;
        let _under_way = self.trace().enter(O::NAME);
        op.launch(self)
    }
}

/// A tensor to be read, and where its elements go, row by row.
#[derive(Debug)]
pub struct Reading<'a, B: Backend> {
    /// What is read.
    pub from: &'a Tensor<B>,
    /// As many bytes as it has.
    pub to: &'a mut [u8],
}

impl<B: Backend> Reading<'_, B> {
    /// Is there as much room as there are bytes?
    pub fn check(&self) -> Result<()> {
        if self.from.bytes() == self.to.len() {
            return Ok(());
        }
        let (want, got) = (format!("{} bytes", self.from.bytes()), format!("{} bytes", self.to.len()));
        Err(Error::Shape { op: "read", what: "the room", want, got })
    }
}

/// Typed access to device memory, on top of what a backend must write.
pub trait Memory: Backend {
    /// A tensor that holds `data`.
    fn upload<T: Elem>(&self, data: &[T], rows: usize, cols: usize) -> Result<Tensor<Self>> {
        if rows.checked_mul(cols) != Some(data.len()) {
            let (want, got) = (format!("{rows} x {cols} elements"), data.len().to_string());
            return Err(Error::Shape { op: "upload", what: "data", want, got });
        }
        let t = self.alloc(T::DTYPE, rows, cols)?;
        self.write(&t, bytemuck::cast_slice(data))?;
        Ok(t)
    }

    /// A tensor of one row that holds `data`.
    fn upload_row<T: Elem>(&self, data: &[T]) -> Result<Tensor<Self>> {
        self.upload(data, 1, data.len())
    }

    /// A tensor's elements, row by row.
    fn download<T: Elem>(&self, t: &Tensor<Self>) -> Result<Vec<T>> {
        if t.dtype() != T::DTYPE {
            let (what, want) = ("the tensor's elements", T::DTYPE.name());
            return Err(Error::Type { op: "download", what, want, got: t.dtype() });
        }
        let mut data = vec![T::zeroed(); t.len()];
        self.read(&mut [Reading { from: t, to: bytemuck::cast_slice_mut(&mut data) }])?;
        Ok(data)
    }

    /// A tensor of zeros.
    fn zeros(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        let t = self.alloc(dtype, rows, cols)?;
        self.zero(&t)?;
        Ok(t)
    }
}

impl<B: Backend> Memory for B {}

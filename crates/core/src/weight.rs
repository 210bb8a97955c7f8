//! Weights and the parameters of layers: what stays on the device as long as the model is loaded.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tallow_quant::Format;

use crate::{DType, Memory, Tensor};

/// The checkpoint tensor, and the matrix in it, that a linear layer's weight comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorId {
    /// Tensor name.
    pub tensor: Arc<str>,
    /// Index of the matrix in the tensor (expert, MLA head).
    pub matrix: usize,
    /// Number of matrices in the tensor.
    pub of: usize,
    /// Inputs of the matrix.
    pub cols: usize,
}

/// A weight matrix in its checkpoint format, as passed to [`prepare`](crate::Backend::prepare): `rows` outputs by `cols` inputs.
#[derive(Clone, Copy)]
pub struct HostWeight<'a> {
    /// Format of `bytes`.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The rows, contiguous, as in the file. See [`HostWeight::row_bytes`].
    pub bytes: &'a [u8],
    /// Called with ranges of rows that the device has finished reading, while it reads others, from any thread. Each
    /// row is reported at most once, and possibly never.
    pub release: &'a ReleaseRows<'a>,
    /// The checkpoint tensor that it comes from. Devices do not read it; [`Observed`](crate::Observed) names the
    /// inputs of a layer by it.
    pub tensor: Option<&'a TensorId>,
    /// True if the rows are all of that matrix, in order, as they are stored; not transposed, cut or quantized on their way.
    pub as_stored: bool,
}

/// Callback with rows of a weight that will not be read again, so that their memory can be released.
pub type ReleaseRows<'a> = dyn Fn(Range<usize>) + Sync + 'a;

impl<'a> HostWeight<'a> {
    /// A weight whose rows stay in memory, and that comes from no tensor in particular.
    pub fn new(format: Format, rows: usize, cols: usize, bytes: &'a [u8]) -> HostWeight<'a> {
        HostWeight { format, rows, cols, bytes, release: &|_| {}, tensor: None, as_stored: false }
    }

    /// Bytes of a row, or `None` if `cols` is not a whole number of blocks. A Q8_0 row may end within a block, which is
    /// padded with zeros.
    pub const fn row_bytes(format: Format, cols: usize) -> Option<usize> {
        match format {
            Format::Q8_0 => match cols.checked_next_multiple_of(format.block_weights()) {
                Some(whole) => format.row_bytes(whole),
                None => None,
            },
            _ => format.row_bytes(cols),
        }
    }
}

impl fmt::Debug for HostWeight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}, {}]", self.format, self.rows, self.cols)
    }
}

/// A weight matrix on a device, distinguished by storage, not by the method that quantized it.
pub enum Weight<B: Memory> {
    /// Row-major floats, readable as a tensor.
    Dense(Tensor<B>),
    /// Quantized blocks. The layout of `data` is the backend's own (packed weight): only the backend that prepared it
    /// can read it.
    Blocks {
        /// Bytes, in the layout that `Backend::prepare` chose.
        data: Tensor<B>,
        /// Format of one block.
        format: Format,
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
    },
}

impl<B: Memory> Weight<B> {
    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            Weight::Dense(t) => t.rows(),
            Weight::Blocks { rows, .. } => *rows,
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            Weight::Dense(t) => t.cols(),
            Weight::Blocks { cols, .. } => *cols,
        }
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::Dense(t) => t.bytes(),
            Weight::Blocks { data, .. } => data.bytes(),
        }
    }
}

impl<B: Memory> Clone for Weight<B> {
    fn clone(&self) -> Self {
        match self {
            Weight::Dense(t) => Weight::Dense(t.clone()),
            Weight::Blocks { data, format, rows, cols } => {
                Weight::Blocks { data: data.clone(), format: *format, rows: *rows, cols: *cols }
            }
        }
    }
}

impl<B: Memory> fmt::Debug for Weight<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weight::Dense(t) => write!(f, "{t:?}"),
            Weight::Blocks { format, rows, cols, .. } => write!(f, "{format}[{rows}, {cols}]"),
        }
    }
}

/// Weights of one shape and format that one op reads together: the heads of an MLA layer, the experts of an MoE layer.
///
/// [`prepare_stacked`](crate::Backend::prepare_stacked) is called with each of them in turn, so that a device whose kernels
/// choose among them can keep them side by side in one piece of memory.
#[derive(Debug)]
pub struct Stack<B: Memory> {
    /// Weights in all.
    pub count: usize,
    /// Weights that have a place so far.
    pub used: usize,
    /// Room for all of them, with the format and shape of one: the device's own, made with the first.
    pub room: Option<Weight<B>>,
}

impl<B: Memory> Stack<B> {
    /// A stack of `count` weights, none of which has been prepared.
    pub fn new(count: usize) -> Stack<B> {
        Stack { count, used: 0, room: None }
    }
}

/// The weight of a linear layer, by the order of its columns.
#[derive(Debug)]
pub enum LinearWeight<B: Memory> {
    /// Column `i` multiplies input `i`.
    InOrder(Weight<B>),
    /// Act-order (GPTQ `desc_act`): the columns are sorted by quantization group. [`compose::linear`] permutes the
    /// input; a device that fuses ops may compose those that have such a layer.
    ///
    /// [`compose::linear`]: crate::compose::linear
    ActOrder {
        /// [outputs, inputs]
        weight: Weight<B>,
        /// [1, inputs]: the input that each column multiplies.
        order: Tensor<B>,
    },
}

impl<B: Memory> LinearWeight<B> {
    /// A weight whose columns multiply the inputs in this order, if not one after the other.
    pub fn new(weight: Weight<B>, order: Option<Tensor<B>>) -> LinearWeight<B> {
        match order {
            Some(order) => LinearWeight::ActOrder { weight, order },
            None => LinearWeight::InOrder(weight),
        }
    }

    /// The weight, if its columns are in the order of the inputs.
    pub fn in_order(&self) -> Option<&Weight<B>> {
        match self {
            LinearWeight::InOrder(weight) => Some(weight),
            LinearWeight::ActOrder { .. } => None,
        }
    }

    fn weight(&self) -> &Weight<B> {
        match self {
            LinearWeight::InOrder(weight) | LinearWeight::ActOrder { weight, .. } => weight,
        }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.weight().rows()
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.weight().cols()
    }
}

impl<B: Memory> Clone for LinearWeight<B> {
    fn clone(&self) -> Self {
        match self {
            LinearWeight::InOrder(weight) => LinearWeight::InOrder(weight.clone()),
            LinearWeight::ActOrder { weight, order } => {
                LinearWeight::ActOrder { weight: weight.clone(), order: order.clone() }
            }
        }
    }
}

/// Index of a linear layer among a model's LoRA targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoraTarget(pub u32);

/// A linear layer: `x · weightᵀ + bias`.
#[derive(Debug)]
pub struct LinearWeights<B: Memory> {
    /// [outputs, inputs]
    pub weight: LinearWeight<B>,
    /// [1, outputs]
    pub bias: Option<Tensor<B>>,
    /// The LoRA target of this layer, if adapters can have a delta for it. Read only where a step has adapters.
    pub lora_target: Option<LoraTarget>,
}

impl<B: Memory> LinearWeights<B> {
    /// A linear layer that is no LoRA target.
    pub fn new(weight: Weight<B>, bias: Option<Tensor<B>>) -> LinearWeights<B> {
        LinearWeights { weight: LinearWeight::InOrder(weight), bias, lora_target: None }
    }
}

impl<B: Memory> Clone for LinearWeights<B> {
    fn clone(&self) -> Self {
        LinearWeights { weight: self.weight.clone(), bias: self.bias.clone(), lora_target: self.lora_target }
    }
}

/// One expert of an MoE layer: gate and up side by side (in one or more weights), or up alone, and down.
#[derive(Debug)]
pub struct Expert<B: Memory> {
    /// [width, dim] each
    pub up: Vec<LinearWeights<B>>,
    /// [dim, width]. The expert is gated if `up` has `2 * width` outputs.
    pub down: LinearWeights<B>,
}

/// MoE routing: how experts are selected and weighted per token.
#[derive(Debug)]
pub struct Routing<B: Memory> {
    /// Experts per token: those with the largest scores; ties go to the lower index.
    pub top_k: usize,
    /// Scoring function of the logits.
    pub scores: Scores,
    /// [1, experts]: added to scores for selection only, not to the expert weights.
    pub bias: Option<Tensor<B>>,
    /// Group-limited routing: experts are selected from the best groups only.
    pub groups: Option<Groups>,
    /// True if the selected experts' scores are divided by their sum.
    pub norm_weights: bool,
    /// Multiplies the expert weights last.
    pub scale: f32,
}

/// Scoring function of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// SparseMixer (PhiMoE): experts are selected one at a time, by largest logit. Each one's weight is its softmax
    /// over the experts left that are near it. Allows neither `bias` nor `groups`.
    SparseMixer {
        /// A logit `x` is near the maximum `m` if `m - x <= near * max(|x|, m)`.
        near: f32,
    },
}

/// Place of an expert's routing weight: it multiplies the input or the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingWeightOn {
    /// To the expert's output.
    Output,
    /// To the expert's input.
    Input,
}

/// Expert groups of equal size, of consecutive experts (group-limited routing, DeepSeek V2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups.
    pub n_group: usize,
    /// Groups that a token's experts may come from.
    pub topk_group: usize,
    /// A group's score is the sum of its `best` largest expert scores.
    pub best: usize,
}

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm: divides by the root mean square.
    Rms,
    /// LayerNorm: subtracts the mean, divides by the standard deviation.
    Layer,
}

/// Norm over groups of as many columns as its weight is wide: a whole row, or each head of it.
#[derive(Debug)]
pub struct Norm<B: Memory> {
    /// RMSNorm or LayerNorm.
    pub kind: NormKind,
    /// [1, width], multiplies the normalised values.
    pub weight: Tensor<B>,
    /// [1, width], added last.
    pub bias: Option<Tensor<B>>,
    /// Added to the variance (RMS: the mean square) to avoid a division by zero.
    pub eps: f32,
}

/// QK norm: norms of queries and keys before RoPE.
#[derive(Debug)]
pub struct QkNorm<B: Memory> {
    /// For queries: as wide as one head, or as all of them.
    pub q: Norm<B>,
    /// Norm of the keys.
    pub k: Norm<B>,
}

/// The elements of a head that RoPE pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// Element `i` with `i + dim / 2` (NeoX style).
    Halves,
    /// Element `2 i` with `2 i + 1` (GPT-J style, llama.cpp's `norm`).
    Interleaved,
}

/// RoPE table: cosines and sines of every position of the context.
///
/// Every RoPE scaling method for long contexts ends up in this table, so kernels implement none of them.
#[derive(Debug)]
pub struct RopeTable<B: Memory> {
    /// [context, dim]: the cosines of a position's `dim / 2` angles, then their sines.
    pub table: Tensor<B>,
    /// The pairing. Elements of a head past `dim` are not rotated.
    pub pairs: RopePairs,
}

/// Attention heads: counts and head dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; a multiple of `kv`.
    pub q: usize,
    /// Key and value heads.
    pub kv: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl Heads {
    /// Columns of all query heads.
    pub fn q_cols(&self) -> usize {
        self.q * self.dim
    }

    /// Columns of all key heads, or of all value heads.
    pub fn kv_cols(&self) -> usize {
        self.kv * self.dim
    }

    /// KV cache columns of type `dtype` for one token's keys, or its values. 8-bit types have an `f32` scale per head,
    /// which takes the space of four elements.
    pub fn cache_cols(&self, dtype: DType) -> usize {
        let scale = if dtype.max_abs().is_some() { size_of::<f32>() } else { 0 };
        self.kv * (self.dim + scale)
    }

    /// Columns of Q, K and V side by side.
    pub fn qkv_cols(&self) -> usize {
        self.q_cols() + 2 * self.kv_cols()
    }
}

/// Heads of a gated delta rule layer, which keep a recurrent state matrix instead of a KV cache: counts and dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Query and key heads.
    pub keys: usize,
    /// Value heads, a multiple of `keys`: each keeps a state matrix of `key_dim` x `value_dim`.
    pub values: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// The value heads that share a key head.
    pub sharing: Sharing,
}

/// Mapping of value heads to key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Consecutive value heads share one: `value / (values / keys)`.
    Grouped,
    /// Key heads repeat in turn: `value % keys`.
    RoundRobin,
}

impl DeltaHeads {
    /// Columns of all queries, or of all keys.
    pub fn key_cols(&self) -> usize {
        self.keys * self.key_dim
    }

    /// Columns of all values.
    pub fn value_cols(&self) -> usize {
        self.values * self.value_dim
    }

    /// Columns of Q, K and V side by side.
    pub fn cols(&self) -> usize {
        2 * self.key_cols() + self.value_cols()
    }

    /// Elements of all heads' state matrices.
    pub fn state_len(&self) -> usize {
        self.values * self.key_dim * self.value_dim
    }

    /// The key head that a value head uses.
    pub fn key_of(&self, value: usize) -> usize {
        match self.sharing {
            Sharing::Grouped => value / (self.values / self.keys.max(1)).max(1),
            Sharing::RoundRobin => value % self.keys.max(1),
        }
    }
}

/// Decay of the gated delta rule: the state is multiplied by `exp(-rate * softplus(b + bias))`.
#[derive(Debug)]
pub struct Decay<B: Memory> {
    /// [1, value heads]: decay rate (`exp(A_log)`), 0 or more.
    pub rate: Tensor<B>,
    /// [1, value heads]: added to the token's decay gate `b` (`dt_bias`).
    pub bias: Tensor<B>,
}

/// Per-layer attention parameters.
#[derive(Debug)]
pub struct AttnSpec<B: Memory> {
    /// Multiplies the scores.
    pub scale: f32,
    /// Sliding window: a token sees at most this many tokens on each visible side, itself included.
    pub window: Option<usize>,
    /// Chunked attention: sequences are cut into chunks of this many tokens, and a token sees nothing before its own.
    pub chunk: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// [1, query heads]: attention sinks: a score per head that adds to the softmax denominator and has no value.
    pub sinks: Option<Tensor<B>>,
    /// [query heads, odd]: relative position bias (T5), added to scores before the softcap and indexed by key position
    /// minus query position: the middle column is offset 0, the outermost columns also cover everything further away.
    pub bias: Option<Tensor<B>>,
    /// True if a token sees only itself and earlier tokens; otherwise attention is bidirectional.
    pub causal: bool,
}

/// Activation function of a gated or plain feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// Exact GELU (error function).
    Gelu,
    /// GELU, tanh approximation.
    GeluTanh,
    /// `max(x, 0)²`
    Relu2,
    /// `max(x, 0)`
    Relu,
    /// GELU, sigmoid approximation: `x * sigmoid(SLOPE * x)`.
    QuickGelu,
    /// Clamped SwiGLU (gpt-oss): `g * sigmoid(SLOPE * g)` with `g = min(gate, LIMIT)`, times
    /// `clamp(up, -LIMIT, LIMIT) + 1`.
    Clamped,
}

impl Activation {
    /// All activation functions.
    pub const ALL: [Activation; 7] = [
        Activation::Silu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu2,
        Activation::Relu,
        Activation::QuickGelu,
        Activation::Clamped,
    ];
    /// Slope of the sigmoid in [`Activation::QuickGelu`] and [`Activation::Clamped`].
    pub const SLOPE: f32 = 1.702;
    /// Clamping limit of [`Activation::Clamped`].
    pub const LIMIT: f32 = 7.0;
}

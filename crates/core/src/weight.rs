//! What stays on the device for as long as a model does: weights, and the small modules made of them.

use std::fmt;
use std::ops::Range;

use tallow_quant::Format;

use crate::{Backend, DType, LoraTarget, Tensor, TensorId};

/// A matrix of weights as a checkpoint stores it, on its way to a device: `rows` outputs of `cols` inputs each.
#[derive(Clone, Copy)]
pub struct HostWeight<'a> {
    /// How the bytes are to be read.
    pub format: Format,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The rows, one after another, straight from the file. See [`HostWeight::row_bytes`].
    pub bytes: &'a [u8],
    /// Told which rows a device is done with, while it reads others, on whatever thread. A device may say nothing of a
    /// row, or say it once.
    pub release: &'a ReleaseRows<'a>,
}

/// Hears which rows of a weight will not be read again, so that they need not stay in memory.
pub type ReleaseRows<'a> = dyn Fn(Range<usize>) + Sync + 'a;

impl HostWeight<'_> {
    /// For rows that stay in memory anyhow.
    pub const KEEP_ROWS: &'static ReleaseRows<'static> = &|_| {};

    /// Bytes of a row. It has whole blocks, but in Q8_0 it may end within one, which goes on with zeros.
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

/// A matrix of weights on a device, told apart by how it is stored and not by who made it.
pub enum Weight<B: Backend> {
    /// Plain numbers in rows, readable as a tensor.
    Dense(Tensor<B>),
    /// Blocks of quantized weights. `data` is the backend's own arrangement of them: only the backend that
    /// prepared it can read it.
    Blocks {
        /// Bytes, arranged as `Backend::prepare` likes them.
        data: Tensor<B>,
        /// What one block holds.
        format: Format,
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
    },
}

impl<B: Backend> Weight<B> {
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

impl<B: Backend> Clone for Weight<B> {
    fn clone(&self) -> Self {
        match self {
            Weight::Dense(t) => Weight::Dense(t.clone()),
            Weight::Blocks { data, format, rows, cols } => {
                Weight::Blocks { data: data.clone(), format: *format, rows: *rows, cols: *cols }
            }
        }
    }
}

impl<B: Backend> fmt::Debug for Weight<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weight::Dense(t) => write!(f, "{t:?}"),
            Weight::Blocks { format, rows, cols, .. } => write!(f, "{format}[{rows}, {cols}]"),
        }
    }
}

/// A linear layer: `x · weightᵀ + bias`.
#[derive(Debug)]
pub struct LinearWeights<B: Backend> {
    /// [outputs, inputs]
    pub weight: Weight<B>,
    /// [1, outputs]
    pub bias: Option<Tensor<B>>,
    /// [1, inputs]: which column of the input each column of the weight takes, where they do not come in order. Ops
    /// see to it: no backend meets such a layer.
    pub permutation: Option<Tensor<B>>,
    /// Where the weight comes from, for those who listen to what goes in.
    pub tensor_id: Option<TensorId>,
    /// Where adapters have what they add to it, if they may add anything.
    pub lora_target: Option<LoraTarget>,
}

impl<B: Backend> LinearWeights<B> {
    /// A layer that takes its inputs as they come.
    pub fn new(weight: Weight<B>, bias: Option<Tensor<B>>) -> LinearWeights<B> {
        LinearWeights { weight, bias, permutation: None, tensor_id: None, lora_target: None }
    }

    /// The same, made of one of the matrices of a tensor.
    pub fn with_tensor_id(self, tensor: &str, matrix: usize, of: usize) -> LinearWeights<B> {
        let cols = self.weight.cols();
        LinearWeights { tensor_id: Some(TensorId { tensor: tensor.into(), matrix, of, cols }), ..self }
    }

    /// Are some of these to be given their inputs in another order?
    pub(crate) fn any_permuted<'a>(some: impl IntoIterator<Item = &'a LinearWeights<B>>) -> bool {
        some.into_iter().any(|l| l.permutation.is_some())
    }
}

/// A feed-forward block among others of its shape: gate and up side by side (however many weights that takes), or up
/// alone, and down.
#[derive(Debug)]
pub struct Expert<B: Backend> {
    /// [width, dim] each
    pub up: Vec<LinearWeights<B>>,
    /// [dim, width]. It tells whether the block is gated: `up` gives twice the width then.
    pub down: LinearWeights<B>,
}

/// How a token's experts are chosen, and how much it takes of each.
#[derive(Debug)]
pub struct Routing<B: Backend> {
    /// Experts of a token: those with the largest scores, of equals the one further left.
    pub top_k: usize,
    /// What logits become.
    pub scores: Scores,
    /// [1, experts]: added to scores where experts are chosen, and only there.
    pub bias: Option<Tensor<B>>,
    /// Experts are chosen from the best groups only.
    pub groups: Option<Groups>,
    /// Are the scores of those chosen divided by their sum?
    pub norm_weights: bool,
    /// Multiplies them last.
    pub scale: f32,
}

/// What the logits of experts become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    /// All of them add up to one.
    Softmax,
    /// Each on its own.
    Sigmoid,
    /// Experts are chosen one after another, by their logits. Each has its share of a softmax over those that are left
    /// and come near it. Neither biases nor groups go with that.
    SparseMixer {
        /// What is further below than so much of the greater of the two sizes is not near.
        near: f32,
    },
}

/// What a row's share of an expert multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareOf {
    /// What the expert makes of the row.
    Result,
    /// The row that the expert gets.
    Input,
}

/// Experts in groups of equal size, side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub n_group: usize,
    /// How many of them a token's experts may be in.
    pub topk_group: usize,
    /// A group is as good as the sum of so many of its best experts.
    pub best: usize,
}

/// Which mean a normalisation divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// By the root of the mean square.
    Rms,
    /// By the standard deviation, after taking away the mean.
    Layer,
}

/// A normalisation. It works on groups of as many columns as its weight is wide: a whole row, or each head of it.
#[derive(Debug)]
pub struct Norm<B: Backend> {
    /// What it divides by.
    pub kind: NormKind,
    /// [1, width], multiplied after the division.
    pub weight: Tensor<B>,
    /// [1, width], added last.
    pub bias: Option<Tensor<B>>,
    /// Added to the variance, so that nothing is divided by zero.
    pub eps: f32,
}

/// Normalisations of queries and keys before they are rotated.
#[derive(Debug)]
pub struct QkNorm<B: Backend> {
    /// For queries: as wide as a head, or as all of them.
    pub q: Norm<B>,
    /// For keys.
    pub k: Norm<B>,
}

/// Which elements of a head a rotary embedding pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairs {
    /// Element `i` with `i + dim / 2`.
    Halves,
    /// Element `2 i` with `2 i + 1`.
    Interleaved,
}

/// A rotary embedding: the angles of every position that the context has.
///
/// Every way of scaling rotations to long contexts ends up in this table, so no kernel knows of any.
#[derive(Debug)]
pub struct RopeTable<B: Backend> {
    /// [context, dim]: the cosines of a position's `dim / 2` angles, then their sines.
    pub table: Tensor<B>,
    /// Which elements turn together. Elements of a head past `dim` stay as they are.
    pub pairs: RopePairs,
}

/// How many heads attention has, and how wide they are.
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

    /// Columns of a cache of that type that a token's keys take, or its values: codes of eight bits have a scale for each
    /// head, which is an `f32` and takes the place of four of them.
    pub fn cache_cols(&self, dtype: DType) -> usize {
        let scale = if dtype.reach().is_some() { size_of::<f32>() } else { 0 };
        self.kv * (self.dim + scale)
    }

    /// Columns of queries, keys and values side by side.
    pub fn qkv_cols(&self) -> usize {
        self.q_cols() + 2 * self.kv_cols()
    }
}

/// Heads that keep a matrix of their sequence each, in place of keys and values: how many, how wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Heads of queries and of keys.
    pub keys: usize,
    /// Heads of values, a multiple of `keys`: each keeps a matrix.
    pub values: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Which of them share a key.
    pub sharing: Sharing,
}

/// Which heads of values share the key of one head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Those that stand side by side.
    Grouped,
    /// Key heads are taken in turn.
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

    /// Columns of queries, keys and values side by side.
    pub fn cols(&self) -> usize {
        2 * self.key_cols() + self.value_cols()
    }

    /// Elements of all heads' matrices.
    pub fn state_len(&self) -> usize {
        self.values * self.key_dim * self.value_dim
    }

    /// The head whose key a head of values uses.
    pub fn key_of(&self, value: usize) -> usize {
        match self.sharing {
            Sharing::Grouped => value / (self.values / self.keys.max(1)).max(1),
            Sharing::RoundRobin => value % self.keys.max(1),
        }
    }
}

/// How fast heads forget.
#[derive(Debug)]
pub struct Decay<B: Backend> {
    /// [1, value heads]: how fast at most, 0 or more.
    pub rate: Tensor<B>,
    /// [1, value heads]: added to what a token says of it.
    pub bias: Tensor<B>,
}

/// What makes one layer's attention unlike another's.
#[derive(Debug)]
pub struct AttnSpec<B: Backend> {
    /// Multiplies the scores.
    pub scale: f32,
    /// A token sees at most this many tokens to each side that it sees, itself among them.
    pub window: Option<usize>,
    /// Sequences are cut into chunks of so many tokens, and a token sees nothing in front of its own.
    pub chunk: Option<usize>,
    /// Scores go through `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// [1, query heads]: a score per head that takes its share of the softmax and gives nothing.
    pub sinks: Option<Tensor<B>>,
    /// [query heads, an odd number]: added to scores, before they are capped, by how far the token that is seen is
    /// behind the one that sees it. The middle column is for a token itself, and the outermost are for all further away.
    pub bias: Option<Tensor<B>>,
    /// Does a token see only itself and what comes before it? Else it sees to both sides.
    pub causal: bool,
}

/// What a gated or plain feed-forward layer bends its numbers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU by the error function.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `max(x, 0)²`
    Relu2,
    /// `max(x, 0)`
    Relu,
    /// GELU by its approximation with a sigmoid: `x * sigmoid(SLOPE * x)`.
    QuickGelu,
    /// `x * sigmoid(SLOPE * x)` of what is at most `LIMIT`. What it gates is held between `-LIMIT` and `LIMIT`, and one
    /// is added.
    Clamped,
}

impl Activation {
    /// Every one.
    pub const ALL: [Activation; 7] = [
        Activation::Silu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu2,
        Activation::Relu,
        Activation::QuickGelu,
        Activation::Clamped,
    ];
    /// Of [`Activation::QuickGelu`] and [`Activation::Clamped`].
    pub const SLOPE: f32 = 1.702;
    /// Of [`Activation::Clamped`].
    pub const LIMIT: f32 = 7.0;
}

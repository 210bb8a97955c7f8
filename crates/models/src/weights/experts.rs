//! Weights of MoE experts: stored per expert, stacked in one tensor, or stacked with gate and up fused.

use tallow_checkpoint::tensor_names::{Index, Indices, Joint, Slot, named};
use tallow_checkpoint::{Kind, Stored};
use tallow_core::{Backend, Expert, LinearWeight, LinearWeights, Norm, Stack, Tensor, Weight};
use tallow_quant::{Format, MXFP4};

use super::transpose::{Transpose, plain};
use super::{StreamCheck, Weights};
use crate::error::{LoadError, Result};
use crate::spec::{Bias, FfnSpec};

/// Rows of a fused tensor that form one matrix: from `first` on, `step` apart.
#[derive(Clone, Copy)]
struct StridedRows {
    rows: usize,
    first: usize,
    step: usize,
}

/// Weights of an MXFP4 block; bytes of its codes.
const BLOCK: usize = 32;
const CODES: usize = BLOCK / 2;

/// MXFP4 matrices stored as two tensors (gpt-oss): 4-bit codes, two to a byte, and one exponent per block.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// [matrices, rows, blocks, 16 bytes]
    pub codes: &'a Stored,
    /// [matrices, rows, blocks]
    pub exponents: &'a Stored,
}

impl Pair<'_> {
    /// Shapes of both tensors; `None` if a row is not a whole number of blocks.
    pub fn shapes(count: usize, rows: usize, cols: usize) -> Option<([usize; 4], [usize; 3])> {
        let blocks = cols.is_multiple_of(BLOCK).then_some(cols / BLOCK)?;
        Some(([count, rows, blocks, CODES], [count, rows, blocks]))
    }

    /// Writes these rows as GGUF MXFP4 blocks.
    pub fn rows(&self, rows: impl Iterator<Item = usize>, to: &mut [u8]) {
        let blocks = self.exponents.shape.last().copied().unwrap_or(0);
        for (row, to) in rows.zip(to.chunks_exact_mut((blocks * size_of::<MXFP4>()).max(1))) {
            let at = row * blocks;
            let codes = self.codes.bytes()[at * CODES..(at + blocks) * CODES].as_chunks().0;
            let exponents = &self.exponents.bytes()[at..at + blocks];
            let to = to.as_chunks_mut::<{ size_of::<MXFP4>() }>().0;
            for ((to, e), pairs) in to.iter_mut().zip(exponents).zip(codes) {
                let MXFP4 { e, qs } = MXFP4::of_pairs(*e, pairs);
                to[0] = e;
                to[1..].copy_from_slice(&qs);
            }
        }
    }
}

/// Checks that a tensor holds raw bytes (`U8`), which have a meaning only together with a second tensor.
pub fn bytes_alone(stored: &Stored, name: &str) -> Result<()> {
    match &stored.kind {
        Kind::Other(elements) if elements == "U8" => Ok(()),
        other => {
            let why = format!("its elements are {other:?}; bytes are expected");
            Err(LoadError::unsupported(stored.file.path(), format!("tensor {name:?}"), why))
        }
    }
}

impl<'a, B: Backend> Weights<'a, B> {
    /// The norm in front of layer `i`'s router. Its weights are divided by `sqrt(dim)`, which scales the router's
    /// input.
    pub(crate) fn router_norm(&mut self, i: usize) -> Result<Norm<B>> {
        let (name, spec) = (self.weight_name((Slot::FfnGateInpNorm, i))?, self.spec());
        let mut weight = self.numbers(&name, &[spec.dim], 0.0)?;
        let by = 1.0 / (spec.dim as f32).sqrt();
        weight.iter_mut().for_each(|x| *x *= by);
        Ok(Norm { kind: spec.norm.kind, weight: self.b.upload_row(&weight)?, bias: None, eps: spec.norm.eps })
    }

    /// The experts of layer `i`.
    pub(crate) fn experts(&mut self, i: usize, count: usize, each: &FfnSpec) -> Result<Vec<Expert<B>>> {
        let (names, dim, width) = (self.names(), self.spec().dim, each.width);
        let [ups, downs] = if names.has(Slot::FfnGateUpExpsT) {
            let part = |half: usize| match names.joint {
                Joint::InTurn => StridedRows { rows: width, first: half * width, step: 1 },
                Joint::Alternating => StridedRows { rows: width, first: half, step: 2 },
            };
            let whole = StridedRows { rows: dim, first: 0, step: 1 };
            let ups = self.joint((Slot::FfnGateUpExpsT, i), count, dim, &[part(0), part(1)], each.bias)?;
            [ups, self.joint((Slot::FfnDownExps, i), count, width, &[whole], each.bias)?]
        } else if self.has((Slot::FfnGateUpExps, i)) {
            let ups = self.in_rows((Slot::FfnGateUpExps, i), [count, 2 * width, dim], each.bias)?;
            [ups, self.in_rows((Slot::FfnDownExpsStacked, i), [count, dim, width], each.bias)?]
        } else {
            let gates = self.separate_experts((Slot::FfnGateExps, i), count, width, dim, each.bias)?;
            let ups = self.separate_experts((Slot::FfnUpExps, i), count, width, dim, each.bias)?;
            let ups = gates.into_iter().zip(ups).map(|(gate, up)| vec![gate, up]).collect();
            [ups, alone(self.separate_experts((Slot::FfnDownExps, i), count, dim, width, each.bias)?)]
        };
        let expert = |(up, mut down): (Vec<_>, Vec<_>)| down.pop().map(|down| Expert { up, down });
        Ok(ups.into_iter().zip(downs).filter_map(expert).collect())
    }

    /// One linear layer per expert, stored per expert or stacked in one tensor [count, rows, cols].
    fn separate_experts(
        &mut self,
        (slot, layer): (Slot, usize),
        count: usize,
        rows: usize,
        cols: usize,
        bias: Bias,
    ) -> Result<Vec<LinearWeights<B>>> {
        let name = self.pattern(slot)?;
        if name.has(Index::Expert) {
            let name = |expert| name.fill(Indices { layer, expert, ..Indices::default() });
            // In a stack of several formats, or of tensors that are missing, room would be left.
            let stored = |expert| {
                let name = named(&name(expert));
                let (name, stored) = self.find(&name)?;
                Some((self.source.format(name, stored), &stored.shape))
            };
            let first = stored(0);
            let alike = first.is_some() && (1..count).all(|expert| stored(expert) == first);
            let mut stack = alike.then(|| Stack::new(count));
            let (mut layers, mut orders) = (Vec::new(), Vec::new());
            for name in (0..count).map(name) {
                let (weight, order) = self.matrix(&named(&name), rows, cols, stack.as_mut())?;
                layers.push((weight, self.bias(name.as_str(), rows, bias)?));
                orders.push(order);
            }
            let orders = self.orders(orders, cols)?;
            let layer = |(e, (weight, bias)): (usize, _)| {
                let order = orders.as_ref().map(|all| all.col_range(e * cols..(e + 1) * cols));
                LinearWeights { weight: LinearWeight::new(weight, order), bias, lora_target: None }
            };
            return Ok(layers.into_iter().enumerate().map(layer).collect());
        }
        let name = name.fill(layer.into());
        let weights = {
            let name = named(&name);
            let stored = self.stored(&name, &[count, rows, cols])?;
            self.stacked_weights(&name, stored, count, rows)?
        };
        let biases = self.expert_biases(&format!("{name}.bias"), count, rows, bias)?;
        let biases = self.rows_of_biases(&biases, count)?;
        let linear = |(e, weight)| LinearWeights::new(weight, biases.get(e).cloned());
        Ok(weights.into_iter().enumerate().map(linear).collect())
    }

    /// The orders in which experts take inputs, one after the other; `None` if all take them as they come. One tensor holds them
    /// all, as a device with all experts in one piece of memory wants them.
    fn orders(&mut self, of: Vec<Option<Vec<u32>>>, cols: usize) -> Result<Option<Tensor<B>>> {
        if of.iter().all(Option::is_none) {
            return Ok(None);
        }
        let order = |order: Option<Vec<u32>>| order.unwrap_or_else(|| (0..cols as u32).collect());
        self.order(of.into_iter().flat_map(order).collect()).map(Some)
    }

    /// One linear layer per expert, stacked in one tensor `shape`: [count, rows, cols].
    fn in_rows(
        &mut self,
        of: (Slot, usize),
        shape: [usize; 3],
        bias: Bias,
    ) -> Result<Vec<Vec<LinearWeights<B>>>> {
        let (name, [count, rows, _]) = (&self.weight_name(of)?, shape);
        if bias == Bias::Yes {
            let why = "has experts with biases; those without are supported where all are in one tensor";
            return Err(LoadError::unsupported(self.path(), format!("tensor {name:?}"), why));
        }
        let stored = self.stored(name, &shape)?;
        let weights = self.stacked_weights(name, stored, count, rows)?;
        Ok(alone(weights.into_iter().map(|weight| LinearWeights::new(weight, None)).collect()))
    }

    /// The rows of `count` experts' biases, if they have any: views of one tensor, as a device with all experts in one
    /// piece of memory wants them.
    fn rows_of_biases(&self, biases: &[f32], count: usize) -> Result<Vec<Tensor<B>>> {
        if biases.is_empty() {
            return Ok(Vec::new());
        }
        let all = self.b.upload(biases, count, biases.len() / count)?;
        Ok((0..count).map(|e| all.row_range(e..e + 1)).collect())
    }

    /// Biases of all experts, concatenated; empty if they have none.
    fn expert_biases(&mut self, name: &str, count: usize, rows: usize, bias: Bias) -> Result<Vec<f32>> {
        match bias {
            Bias::No => Ok(Vec::new()),
            Bias::IfPresent if self.find(name).is_none() => Ok(Vec::new()),
            Bias::Yes | Bias::IfPresent => self.numbers(name, &[count, rows], 0.0),
        }
    }

    /// Per expert, the linear layers fused in one tensor, such as gate and up.
    fn joint(
        &mut self,
        of: (Slot, usize),
        count: usize,
        cols: usize,
        parts: &[StridedRows],
        bias: Bias,
    ) -> Result<Vec<Vec<LinearWeights<B>>>> {
        let name = self.name(of.into())?;
        let outputs = parts.iter().map(|p| p.rows).sum();
        let blocks = format!("{name}_blocks");
        let weights = match self.find(&blocks) {
            Some(_) => self.joint_blocks(&name, count, (outputs, cols), parts)?,
            None => self.joint_transposed(&name, count, (outputs, cols), parts)?,
        };
        let all = self.expert_biases(&format!("{name}_bias"), count, outputs, bias)?;
        let biases = |part: &StridedRows| {
            let each = all.chunks_exact(outputs.max(1));
            let of_part = |of: &[f32]| {
                of.iter().copied().skip(part.first).step_by(part.step).take(part.rows).collect::<Vec<_>>()
            };
            self.rows_of_biases(&each.flat_map(of_part).collect::<Vec<_>>(), count)
        };
        let biases: Vec<_> = parts.iter().map(biases).collect::<Result<_>>()?;
        let expert = |(e, weights): (usize, Vec<Weight<B>>)| {
            let linear = |(weight, of): (_, &Vec<Tensor<B>>)| LinearWeights::new(weight, of.get(e).cloned());
            weights.into_iter().zip(&biases).map(linear).collect()
        };
        Ok(weights.into_iter().enumerate().map(expert).collect())
    }

    /// The matrices of an unquantized tensor stored transposed: [count, cols, outputs].
    fn joint_transposed(
        &mut self,
        name: &str,
        count: usize,
        (outputs, cols): (usize, usize),
        parts: &[StridedRows],
    ) -> Result<Vec<Vec<Weight<B>>>> {
        let (stored, format) = self.stored(name, &[count, cols, outputs])?;
        plain(stored, name, format)?;
        let size = stored.bytes().len() / count.max(1);
        let part = |e: usize, &StridedRows { rows, first, step }: &StridedRows, stack: &mut Stack<B>| {
            let transpose = Transpose { rows, cols, source_cols: outputs, first, step };
            let (id, from) = (self.id(name, (e, count), cols), &stored.bytes()[e * size..(e + 1) * size]);
            let arrange = |to: &mut [u8]| transpose.bytes(from, to);
            self.permuted_part((stored, name), &id, (format, rows), Some(stack), arrange)
        };
        let weights = each_part(count, parts, part);
        StreamCheck::new(stored, format, count * cols).finish(name)?;
        self.loaded(name, stored)?;
        weights
    }

    /// The matrices of a pair of MXFP4 tensors, `{name}_blocks` and `{name}_scales`.
    fn joint_blocks(
        &mut self,
        name: &str,
        count: usize,
        (outputs, cols): (usize, usize),
        parts: &[StridedRows],
    ) -> Result<Vec<Vec<Weight<B>>>> {
        let Some((of_codes, of_exponents)) = Pair::shapes(count, outputs, cols) else {
            let why = format!("is quantized by blocks of {BLOCK}, and rows have {cols} weights");
            return Err(LoadError::bad(self.path(), format!("tensor {name:?}"), why));
        };
        let blocks = format!("{name}_blocks");
        let codes = self.bytes_of(&blocks, &of_codes)?;
        let exponents = self.bytes_of(&format!("{name}_scales"), &of_exponents)?;
        let pair = Pair { codes, exponents };
        let part = |e: usize, part: &StridedRows, stack: &mut Stack<B>| {
            let rows = (0..part.rows).map(|row| e * outputs + part.first + row * part.step);
            let (id, arrange) = (self.id(&blocks, (e, count), cols), |to: &mut [u8]| pair.rows(rows, to));
            self.permuted_part((codes, name), &id, (Format::MXFP4, part.rows), Some(stack), arrange)
        };
        let weights = each_part(count, parts, part);
        self.loaded(name, codes)?;
        self.loaded(name, exponents)?;
        weights
    }

    /// A tensor of raw bytes of that shape.
    fn bytes_of(&mut self, name: &str, shape: &[usize]) -> Result<&'a Stored> {
        let stored = self.shaped(name, shape)?;
        bytes_alone(stored, name).map(|()| stored)
    }
}

/// The weights of each expert, made one after another; those of a part make up a stack.
fn each_part<B: Backend>(
    count: usize,
    parts: &[StridedRows],
    make: impl Fn(usize, &StridedRows, &mut Stack<B>) -> Result<Weight<B>>,
) -> Result<Vec<Vec<Weight<B>>>> {
    let mut stacks: Vec<_> = parts.iter().map(|_| Stack::new(count)).collect();
    (0..count)
        .map(|e| parts.iter().zip(&mut stacks).map(|(part, stack)| make(e, part, stack)).collect())
        .collect()
}

fn alone<T>(all: Vec<T>) -> Vec<Vec<T>> {
    all.into_iter().map(|one| vec![one]).collect()
}

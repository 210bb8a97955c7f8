//! Default bodies of [`Backend`]'s fused ops, composed of smaller ops.
//!
//! They are correct on every device and the reference that overrides are tested against. They add no failures of
//! their own, never read anything back to the host, and call only backend methods.

use std::rc::Rc;

use tallow_quant::Format;

use crate::ops::{
    Activate, CausalConv, Copy, Dequant, Eltwise, EltwiseOp, Epilogue, Ffn, Head, IndexMode, IndexRows,
    KvWrite, LatentWrite, Linear, LinearHeads, LinearMany, Lora, LoraDelta, Matmul, Moe, Normalize,
    PermuteCols, QkvPrep, Rope, lora_deltas,
};
use crate::{
    Activation, Backend, DType, Error, Expert, HostWeight, LinearWeight, LinearWeights, Result,
    RoutingWeightOn, Tensor, Weight,
};

/// Rows of a weight dequantized at a time: enough to keep a device busy, few enough for a small buffer.
const TILE: usize = 256;

/// Checks that the weight has as many bytes as its format and shape require.
pub fn check_weight(weight: &HostWeight<'_>) -> Result<()> {
    let HostWeight { format, rows, cols, bytes, .. } = *weight;
    let want = HostWeight::row_bytes(format, cols).and_then(|n| n.checked_mul(rows));
    if want == Some(bytes.len()) {
        return Ok(());
    }
    let want = want.map_or(format!("whole blocks of {format}"), |n| format!("{n} bytes"));
    let got = format!("{cols} columns in {} bytes", bytes.len());
    Err(Error::Shape { op: "prepare", what: "the weight's bytes", want, got })
}

/// Uploads a weight in its checkpoint layout.
pub fn prepare<B: Backend>(b: &B, weight: HostWeight<'_>) -> Result<Weight<B>> {
    check_weight(&weight)?;
    let HostWeight { format, rows, cols, bytes, .. } = weight;
    let dense = match format {
        Format::F32 => Some(DType::F32),
        Format::F16 => Some(DType::F16),
        Format::BF16 => Some(DType::BF16),
        _ => None,
    };
    let (dtype, width) = dense.map_or((DType::U8, bytes.len() / rows.max(1)), |d| (d, cols));
    let data = b.alloc(dtype, rows, width)?;
    b.write(&data, bytes)?;
    Ok(match dense {
        Some(_) => Weight::Dense(data),
        None => Weight::Blocks { data, format, rows, cols },
    })
}

/// Linear layer: a dense weight by `Matmul`, a quantized one dequantized and multiplied tile by tile. With act-order,
/// the layer on its permuted input.
pub fn linear<B: Backend>(b: &B, op: &Linear<'_, B>) -> Result<Tensor<B>> {
    let Linear { x, weights, epilogue } = op;
    let weight = match &weights.weight {
        LinearWeight::InOrder(Weight::Dense(weight)) => {
            return b.run(Matmul { x, weight, bias: weights.bias.as_ref(), epilogue: *epilogue });
        }
        LinearWeight::InOrder(weight) => weight,
        LinearWeight::ActOrder { weight, order } => {
            let x = b.run(PermuteCols { x, indices: order })?; // [rows, inputs]
            let weights = &LinearWeights::new(weight.clone(), weights.bias.clone());
            return b.run(Linear { x: &x, weights, epilogue: *epilogue });
        }
    };
    let outputs = weight.rows();
    let y = b.alloc(DType::F32, x.rows(), outputs)?; // [rows, outputs]
    for start in (0..outputs).step_by(TILE) {
        let tile = start..outputs.min(start + TILE);
        let w = b.run(Dequant { w: weight, rows: tile.clone() })?; // [tile, inputs]
        let bias = weights.bias.as_ref().map(|bias| bias.col_range(tile.clone()));
        let part = epilogue.columns(tile.clone(), |epilogue| {
            b.run(Matmul { x, weight: &w, bias: bias.as_ref(), epilogue })
        })?; // [rows, tile]
        b.run(Copy { from: &part, to: &y.col_range(tile) })?;
    }
    Ok(y)
}

/// The norm, then each layer into its columns of the result.
pub fn linear_many<B: Backend>(b: &B, op: &LinearMany<'_, B>) -> Result<Tensor<B>> {
    let normed = op.norm.map(|norm| b.run(Normalize { x: op.x, norm, residual: None })).transpose()?;
    let x = normed.as_ref().unwrap_or(op.x); // [rows, inputs]
    if let [weights] = op.weights {
        return b.run(Linear { x, weights, epilogue: Epilogue::NONE });
    }
    let y = b.alloc(DType::F32, x.rows(), op.cols())?; // [rows, sum of outputs]
    let mut at = 0;
    for weights in op.weights {
        let part = b.run(Linear { x, weights, epilogue: Epilogue::NONE })?; // [rows, outputs]
        b.run(Copy { from: &part, to: &y.col_range(at..at + part.cols()) })?;
        at += part.cols();
    }
    Ok(y)
}

/// Head by head: the copied columns, and the layer's outputs into their columns of the result.
pub fn linear_heads<B: Backend>(b: &B, op: &LinearHeads<'_, B>) -> Result<Tensor<B>> {
    let (copied, outputs) = (op.copied.len(), op.outputs());
    let y = b.alloc(DType::F32, op.x.rows(), op.weights.len() * op.out_dim())?; // [rows, heads * (copied + outputs)]
    for (i, weights) in op.weights.iter().enumerate() {
        let (from, to) = (i * op.head_dim, i * op.out_dim());
        if copied > 0 {
            let columns = op.x.col_range(from + op.copied.start..from + op.copied.end);
            b.run(Copy { from: &columns, to: &y.col_range(to..to + copied) })?;
        }
        let x = op.x.col_range(from + op.inputs.start..from + op.inputs.end); // [rows, inputs]
        let part = b.run(Linear { x: &x, weights, epilogue: Epilogue::NONE })?; // [rows, outputs]
        b.run(Copy { from: &part, to: &y.col_range(to + copied..to + copied + outputs) })?;
    }
    Ok(y)
}

/// The layers without adapters; then, for each row range with an adapter, `y += b · (scale * a · x)`.
pub fn lora<B: Backend>(b: &B, op: &Lora<'_, B>) -> Result<Tensor<B>> {
    let y = match (op.weights, op.norm) {
        ([weights], None) => b.run(Linear { x: op.x, weights, epilogue: op.epilogue })?,
        _ => b.run(LinearMany { x: op.x, norm: op.norm, weights: op.weights })?,
    }; // [rows, sum of outputs]
    let mut deltas = lora_deltas(op.weights, op.adapters).peekable();
    if deltas.peek().is_none() {
        return Ok(y);
    }
    let normed = op.norm.map(|norm| b.run(Normalize { x: op.x, norm, residual: None })).transpose()?;
    let x = normed.as_ref().unwrap_or(op.x); // [rows, inputs]
    // Layers of one checkpoint tensor share `lora_a`, whose product is computed once.
    let mut products: Vec<(LoraDelta<'_, B>, Tensor<B>)> = Vec::new();
    for delta in deltas {
        let same = |(a, _): &&(LoraDelta<'_, B>, _)| {
            Rc::ptr_eq(&a.pair.a, &delta.pair.a) && a.rows == delta.rows && a.scale == delta.scale
        };
        let ax = match products.iter().find(same) {
            Some((_, ax)) => ax.clone(),
            None => {
                let x = x.row_range(delta.rows.clone());
                let weights = &LinearWeights::new(Weight::clone(&delta.pair.a), None);
                // The scale comes first, since a device may round this product.
                let epilogue = Epilogue { scale: delta.scale, ..Epilogue::NONE };
                b.run(Linear { x: &x, weights, epilogue })? // [some, rank]
            }
        };
        let to = y.row_range(delta.rows.clone()).col_range(delta.columns.clone());
        let weights = &LinearWeights::new(delta.pair.b.clone(), None);
        let epilogue = Epilogue { scale: op.epilogue.scale, ..Epilogue::add_to(&to) };
        let sum = b.run(Linear { x: &ax, weights, epilogue })?; // [some, outputs]
        b.run(Copy { from: &sum, to: &to })?;
        products.push((delta, ax));
    }
    Ok(y)
}

/// QK norm, RoPE and the KV cache write, on column views.
pub fn qkv_prep<B: Backend>(b: &B, op: &QkvPrep<'_, B>) -> Result<Tensor<B>> {
    let (q_cols, kv_cols) = (op.heads.q_cols(), op.heads.kv_cols());
    let mut q = op.qkv.col_range(0..q_cols); // [tokens, query columns]
    let mut k = op.qkv.col_range(q_cols..q_cols + kv_cols); // [tokens, key columns]
    let v = op.qkv.col_range(q_cols + kv_cols..op.heads.qkv_cols()); // [tokens, value columns]
    if let Some(norm) = op.qk_norm {
        q = b.run(Normalize { x: &q, norm: &norm.q, residual: None })?;
        k = b.run(Normalize { x: &k, norm: &norm.k, residual: None })?;
    }
    if let Some(rope) = op.rope {
        let positions = &op.plan.positions;
        q = b.run(Rope { x: &q, head_dim: op.heads.dim, rope, positions })?;
        k = b.run(Rope { x: &k, head_dim: op.heads.dim, rope, positions })?;
    }
    b.run(KvWrite { k: &k, v: Some(&v), heads: op.heads, kv: op.kv, plan: op.plan })?;
    Ok(q)
}

/// The row for the cache is put together from the rotated elements and the normalized ones, and written.
pub fn latent_write<B: Backend>(b: &B, op: &LatentWrite<'_, B>) -> Result<()> {
    let (dim, latent, rotated) = (op.heads.dim, op.norm.weight.cols(), op.rotated());
    let x = op.x.col_range(0..latent); // [tokens, latent]
    let x = b.run(Normalize { x: &x, norm: op.norm, residual: None })?;
    let mut k = b.alloc(DType::F32, op.x.rows(), dim)?; // [tokens, rotated + latent]
    b.run(Copy { from: &op.x.col_range(latent..dim), to: &k.col_range(0..rotated) })?;
    b.run(Copy { from: &x, to: &k.col_range(rotated..dim) })?;
    if let Some(rope) = op.rope {
        k = b.run(Rope { x: &k, head_dim: dim, rope, positions: &op.plan.positions })?;
    }
    b.run(KvWrite { k: &k, v: None, heads: op.heads, kv: op.kv, plan: op.plan })
}

/// Per sequence: its rows are appended to those in the state, and the shifted copies, each times its weights, are
/// summed.
pub fn causal_conv<B: Backend>(b: &B, op: &CausalConv<'_, B>) -> Result<Tensor<B>> {
    let (kernel, cols) = (op.weight.rows(), op.x.cols());
    let (before, host) = (kernel - 1, op.plan.host());
    let y = b.alloc(DType::F32, op.x.rows(), cols)?; // [tokens, columns]
    let mut first = 0;
    for (span, state) in host.spans.iter().zip(&host.states) {
        let rows = first..first + span.rows;
        let all = b.alloc(DType::F32, before + span.rows, cols)?; // [kernel - 1 + rows, columns]
        let old = all.row_range(0..before);
        let kept = |row: u32| {
            let row = row as usize;
            op.window.row_range(row..row + 1).matrix(0, before, cols)
        };
        match span.start {
            0 => b.zero(&old)?,
            _ => b.run(Copy { from: &kept(state.from), to: &old })?,
        }
        b.run(Copy { from: &op.x.row_range(rows.clone()), to: &all.row_range(before..before + span.rows) })?;
        let term = |i: usize| {
            let by = op.weight.row_range(i..i + 1);
            b.run(Eltwise { x: &all.row_range(i..i + span.rows), op: EltwiseOp::Mul(&by) })
        };
        let sum = (1..kernel)
            .try_fold(term(0)?, |sum, i| b.run(Eltwise { x: &sum, op: EltwiseOp::Add(&term(i)?) }))?; // [rows, columns]
        let activated = b.run(Activate { gate: &sum, up: None, act: Activation::Silu })?;
        b.run(Copy { from: &activated, to: &y.row_range(rows.clone()) })?;
        b.run(Copy { from: &all.row_range(span.rows..span.rows + before), to: &kept(state.to) })?;
        first = rows.end;
    }
    Ok(y)
}

/// Up, activation, down, with LoRA deltas on up and down.
pub fn ffn<B: Backend>(b: &B, op: &Ffn<'_, B>) -> Result<Tensor<B>> {
    let (width, adapters) = (op.down.weight.cols(), op.adapters);
    let joint = match adapters {
        [] => b.run(LinearMany { x: op.x, norm: op.norm, weights: op.up })?,
        _ => b.run(Lora { x: op.x, norm: op.norm, weights: op.up, epilogue: Epilogue::NONE, adapters })?,
    }; // [rows, width or 2 * width]
    let gate = joint.col_range(0..width);
    let up = op.is_gated().then(|| joint.col_range(width..2 * width));
    let activated = b.run(Activate { gate: &gate, up: up.as_ref(), act: op.act })?; // [rows, width]
    match adapters {
        [] => b.run(Linear { x: &activated, weights: op.down, epilogue: op.epilogue }),
        _ => b.run(Lora {
            x: &activated,
            norm: None,
            weights: std::slice::from_ref(op.down),
            epilogue: op.epilogue,
            adapters,
        }),
    }
}

/// Every expert for every row, each times its routing weight.
pub fn moe<B: Backend>(b: &B, op: &Moe<'_, B>) -> Result<Tensor<B>> {
    let mut sum = b.alloc(DType::F32, op.x.rows(), op.x.cols())?; // [rows, dim]
    b.zero(&sum)?;
    for (i, Expert { up, down }) in op.experts.iter().enumerate() {
        let weight = op.routing_weights.col_range(i..i + 1); // [rows, 1]
        let weighted = |x: &Tensor<B>| b.run(Eltwise { x, op: EltwiseOp::Mul(&weight) });
        let expert = |x: &Tensor<B>| {
            b.run(Ffn { x, norm: None, up, act: op.act, down, epilogue: Epilogue::NONE, adapters: &[] })
        };
        let y = match op.weight_on {
            RoutingWeightOn::Output => weighted(&expert(op.x)?)?,
            RoutingWeightOn::Input => expert(&weighted(op.x)?)?,
        };
        sum = b.run(Eltwise { x: &sum, op: EltwiseOp::Add(&y) })?;
    }
    apply(b, &op.epilogue, sum)
}

/// An epilogue as separate element-wise ops.
pub(crate) fn apply<B: Backend>(b: &B, epilogue: &Epilogue<'_, B>, x: Tensor<B>) -> Result<Tensor<B>> {
    let mut then = Vec::new();
    then.extend((epilogue.scale != 1.0).then_some(EltwiseOp::Scale(epilogue.scale)));
    then.extend(epilogue.softcap.map(EltwiseOp::SoftCap));
    then.extend(epilogue.residual.map(EltwiseOp::Add));
    then.into_iter().try_fold(x, |x, op| b.run(Eltwise { x: &x, op }))
}

/// Gathers the output rows, then norm and LM head.
pub fn head<B: Backend>(b: &B, op: &Head<'_, B>) -> Result<Tensor<B>> {
    let x = b.run(IndexRows { x: op.x, indices: op.rows, mode: IndexMode::Gather })?; // [outputs, dim]
    let x = b.run(Normalize { x: &x, norm: op.norm, residual: None })?;
    b.run(Linear { x: &x, weights: op.weights, epilogue: op.epilogue })
}

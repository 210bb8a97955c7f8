//! The default bodies of [`Backend`]'s composed methods: each fused op as the smaller ops it stands for.
//!
//! They are correct on every device, and they are what an override is tested against. They never fail on their own
//! account, never read anything back, and call only backend methods.

use std::rc::Rc;

use tallow_quant::Format;

use crate::ops::{
    Adapt, Addition, Columns, Convolve, Copy, Dequant, Eltwise, Epilogue, Ffn, Glu, Head, KvWrite, Matmul,
    Moe, Normalize, Project, ProjectMany, QkvPrep, Rotate, Rows, RowsTo, With, additions,
};
use crate::{Activation, Backend, DType, Error, Expert, HostWeight, Linear, Result, ShareOf, Tensor, Weight};

/// Rows of a weight that are unpacked at a time: enough to keep a device busy, few enough to stay small.
const TILE: usize = 256;

/// Writes zeros.
pub fn zero<B: Backend>(b: &B, t: &Tensor<B>) -> Result<()> {
    b.write(t, &vec![0; t.bytes()])
}

/// Are there as many bytes as the weight's shape says?
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

/// Uploads a weight as the file has it.
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

/// A dense weight is multiplied as it is; any other is unpacked tile by tile.
pub fn project<B: Backend>(b: &B, op: &Project<'_, B>) -> Result<Tensor<B>> {
    let Project { x, by, then } = op;
    if let Weight::Dense(w) = &by.weight {
        return b.run(Matmul { x, w, bias: by.bias.as_ref(), then: *then });
    }
    let outputs = by.weight.rows();
    let y = b.alloc(DType::F32, x.rows(), outputs)?; // [rows, outputs]
    for start in (0..outputs).step_by(TILE) {
        let tile = start..outputs.min(start + TILE);
        let w = b.run(Dequant { w: &by.weight, rows: tile.clone() })?; // [tile, inputs]
        let bias = by.bias.as_ref().map(|bias| bias.col_range(tile.clone()));
        let part =
            then.columns(tile.clone(), |then| b.run(Matmul { x, w: &w, bias: bias.as_ref(), then }))?; // [rows, tile]
        b.run(Copy { from: &part, to: &y.col_range(tile) })?;
    }
    Ok(y)
}

/// The inputs in the order that the layer wants, then the layer.
pub(crate) fn project_shuffled<B: Backend>(b: &B, op: &Project<'_, B>, at: &Tensor<B>) -> Result<Tensor<B>> {
    let x = b.run(Columns { x: op.x, at })?; // [rows, inputs]
    let by = Linear::new(op.by.weight.clone(), op.by.bias.clone());
    b.run(Project { x: &x, by: &by, then: op.then })
}

/// The norm, then one layer after another into its columns of the result.
pub fn project_many<B: Backend>(b: &B, op: &ProjectMany<'_, B>) -> Result<Tensor<B>> {
    let normed = op.norm.map(|by| b.run(Normalize { x: op.x, by, residual: None })).transpose()?;
    let x = normed.as_ref().unwrap_or(op.x); // [rows, inputs]
    if let [by] = op.by {
        return b.run(Project { x, by, then: Epilogue::NONE });
    }
    let y = b.alloc(DType::F32, x.rows(), op.cols())?; // [rows, sum of outputs]
    let mut at = 0;
    for by in op.by {
        let part = b.run(Project { x, by, then: Epilogue::NONE })?; // [rows, outputs]
        b.run(Copy { from: &part, to: &y.col_range(at..at + part.cols()) })?;
        at += part.cols();
    }
    Ok(y)
}

/// The layers alone; then, for each run of rows with an adapter, down to its rank and up to what is added.
pub fn adapt<B: Backend>(b: &B, op: &Adapt<'_, B>) -> Result<Tensor<B>> {
    let y = match (op.by, op.norm) {
        ([by], None) => b.run(Project { x: op.x, by, then: op.then })?,
        _ => b.run(ProjectMany { x: op.x, norm: op.norm, by: op.by })?,
    }; // [rows, sum of outputs]
    let mut additions = additions(op.by, op.with).peekable();
    if additions.peek().is_none() {
        return Ok(y);
    }
    let normed = op.norm.map(|by| b.run(Normalize { x: op.x, by, residual: None })).transpose()?;
    let x = normed.as_ref().unwrap_or(op.x); // [rows, inputs]
    // Layers that lie in one tensor have one way down in common.
    let mut gone: Vec<(Addition<'_, B>, Tensor<B>)> = Vec::new();
    for more in additions {
        let same =
            |(a, _): &&(Addition<'_, B>, _)| Rc::ptr_eq(&a.part.down, &more.part.down) && a.rows == more.rows;
        let narrow = match gone.iter().find(same) {
            Some((_, narrow)) => narrow.clone(),
            None => {
                let x = x.row_range(more.rows.clone());
                let by = Linear::new(Weight::clone(&more.part.down), None);
                b.run(Project { x: &x, by: &by, then: Epilogue::NONE })? // [some, rank]
            }
        };
        let to = y.row_range(more.rows.clone()).col_range(more.columns.clone());
        let by = Linear::new(more.part.up.clone(), None);
        let then = Epilogue { scale: more.scale * op.then.scale, ..Epilogue::add_to(&to) };
        let sum = b.run(Project { x: &narrow, by: &by, then })?; // [some, outputs]
        b.run(Copy { from: &sum, to: &to })?;
        gone.push((more, narrow));
    }
    Ok(y)
}

/// Norms, rotations and the cache write, on column views.
pub fn qkv_prep<B: Backend>(b: &B, op: &QkvPrep<'_, B>) -> Result<Tensor<B>> {
    let (q_cols, kv_cols) = (op.heads.q_cols(), op.heads.kv_cols());
    let mut q = op.qkv.col_range(0..q_cols); // [tokens, query columns]
    let mut k = op.qkv.col_range(q_cols..q_cols + kv_cols); // [tokens, key columns]
    let v = op.qkv.col_range(q_cols + kv_cols..op.heads.qkv_cols()); // [tokens, value columns]
    if let Some(norm) = op.qk_norm {
        q = b.run(Normalize { x: &q, by: &norm.q, residual: None })?;
        k = b.run(Normalize { x: &k, by: &norm.k, residual: None })?;
    }
    if let Some(by) = op.rope {
        let positions = &op.plan.positions;
        q = b.run(Rotate { x: &q, head_dim: op.heads.dim, by, positions })?;
        k = b.run(Rotate { x: &k, head_dim: op.heads.dim, by, positions })?;
    }
    b.run(KvWrite { k: &k, v: &v, heads: op.heads, kv: op.kv, plan: op.plan })?;
    Ok(q)
}

/// Sequence by sequence: its rows behind those that the state has, each shifted copy of them times its weights.
pub fn convolve<B: Backend>(b: &B, op: &Convolve<'_, B>) -> Result<Tensor<B>> {
    let (kernel, cols) = (op.by.rows(), op.x.cols());
    let (before, host) = (kernel - 1, &op.plan.host);
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
            let by = op.by.row_range(i..i + 1);
            b.run(Eltwise { x: &all.row_range(i..i + span.rows), with: With::Mul(&by) })
        };
        let sum = (1..kernel)
            .try_fold(term(0)?, |sum, i| b.run(Eltwise { x: &sum, with: With::Add(&term(i)?) }))?; // [rows, columns]
        let bent = b.run(Glu { gate: &sum, up: None, act: Activation::Silu })?;
        b.run(Copy { from: &bent, to: &y.row_range(rows.clone()) })?;
        b.run(Copy { from: &all.row_range(span.rows..span.rows + before), to: &kept(state.to) })?;
        first = rows.end;
    }
    Ok(y)
}

/// Up, bend, down, each with what adapters add to it.
pub fn ffn<B: Backend>(b: &B, op: &Ffn<'_, B>) -> Result<Tensor<B>> {
    let (width, with) = (op.down.weight.cols(), op.with);
    let joint = match with {
        [] => b.run(ProjectMany { x: op.x, norm: op.norm, by: op.up })?,
        _ => b.run(Adapt { x: op.x, norm: op.norm, by: op.up, then: Epilogue::NONE, with })?,
    }; // [rows, width or 2 * width]
    let gate = joint.col_range(0..width);
    let up = op.is_gated().then(|| joint.col_range(width..2 * width));
    let bent = b.run(Glu { gate: &gate, up: up.as_ref(), act: op.act })?; // [rows, width]
    match with {
        [] => b.run(Project { x: &bent, by: op.down, then: op.then }),
        _ => b.run(Adapt { x: &bent, norm: None, by: std::slice::from_ref(op.down), then: op.then, with }),
    }
}

/// Every expert for every row, each times its share.
pub fn moe<B: Backend>(b: &B, op: &Moe<'_, B>) -> Result<Tensor<B>> {
    let mut sum = b.alloc(DType::F32, op.x.rows(), op.x.cols())?; // [rows, dim]
    b.zero(&sum)?;
    for (i, Expert { up, down }) in op.experts.iter().enumerate() {
        let share = op.shares.col_range(i..i + 1); // [rows, 1]
        let taken = |x: &Tensor<B>| b.run(Eltwise { x, with: With::Mul(&share) });
        let work = |x: &Tensor<B>| {
            b.run(Ffn { x, norm: None, up, act: op.act, down, then: Epilogue::NONE, with: &[] })
        };
        let y = match op.share_of {
            ShareOf::Result => taken(&work(op.x)?)?,
            ShareOf::Input => work(&taken(op.x)?)?,
        };
        sum = b.run(Eltwise { x: &sum, with: With::Add(&y) })?;
    }
    op.then.apply(b, sum)
}

/// The wanted rows, the norm, the projection.
pub fn head<B: Backend>(b: &B, op: &Head<'_, B>) -> Result<Tensor<B>> {
    let x = b.run(Rows { x: op.x, at: op.rows, to: RowsTo::Gather })?; // [outputs, dim]
    let x = b.run(Normalize { x: &x, by: op.norm, residual: None })?;
    b.run(Project { x: &x, by: op.by, then: op.then })
}

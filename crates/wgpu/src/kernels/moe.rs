//! Mixture of experts: only the weights of experts that a row is routed to are read.
//!
//! A first kernel lists each row's experts, and for many rows each expert's rows. The others compute *pairs*, of a row and
//! one of its experts: row `row * top_k + place` of a tensor has the expert at that place among those of the row, in their
//! order. For few rows a workgroup computes outputs of one pair, for many those of one expert's rows; those that have
//! nothing to compute leave at once. At last a row's pairs are added up, in order. So a row's result does not depend on
//! the others.

use tallow_core::ops::{Activate, Epilogue, Moe};
use tallow_core::{DType, Expert, Memory, Result, RoutingWeightOn, Tensor};

use super::linear::{Matrices, Part, Product, Tiling, tiles};
use super::operand;
use super::stacked::Piece;
use crate::device::Wgpu;
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Kernel, Launch};

/// Most bytes of a tensor of pairs: with more rows they are computed in several turns.
const ROOM: usize = 64 << 20;
/// Layers that are multiplied by one launch: with biases, more would need too many bindings.
const LAYERS: usize = 2;

/// Weights of all experts: the layers in front of the activation, side by side, and the one behind.
pub(crate) struct Experts<'a> {
    up: Vec<Vec<Piece<'a>>>,
    down: Vec<Piece<'a>>,
    /// Outputs of all layers in `up`.
    joint: usize,
    /// Inputs of `down`.
    width: usize,
}

impl<'a> Experts<'a> {
    /// `None` if the kernels cannot multiply with such weights: those with act-order, of several shapes, or in several
    /// blocks each.
    pub(crate) fn new(experts: &'a [Expert<Wgpu>]) -> Result<Option<Experts<'a>>> {
        let Some(first) = experts.first() else { return Ok(None) };
        if experts.iter().any(|e| e.up.len() != first.up.len()) {
            return Ok(None);
        }
        let (mut up, mut joint) = (Vec::new(), 0);
        for (i, layer) in first.up.iter().enumerate() {
            let Some(pieces) = Wgpu::pieces(experts.iter().map(|e| &e.up[i]), joint)? else {
                return Ok(None);
            };
            up.push(pieces);
            joint += layer.weight.rows();
        }
        let down = Wgpu::pieces(experts.iter().map(|e| &e.down), 0)?;
        Ok(down.map(|down| Experts { up, down, joint, width: first.down.weight.cols() }))
    }
}

/// Routing of some rows.
struct Routed<'a> {
    /// [rows, experts]
    weights: &'a Tensor<Wgpu>,
    on: RoutingWeightOn,
    top_k: usize,
    /// The lists of `moe_plan.wgsl`.
    plan: Tensor<Wgpu>,
}

impl Routed<'_> {
    fn rows(&self) -> usize {
        self.weights.rows()
    }

    fn experts(&self) -> usize {
        self.weights.cols()
    }

    fn pairs(&self) -> usize {
        self.rows() * self.top_k
    }

    fn is_few(&self) -> bool {
        Wgpu::is_few(self.rows())
    }

    /// Where in the plan the number of each expert's rows begins, and where their lists do.
    fn lists(&self) -> (usize, usize) {
        (self.pairs(), self.pairs() + self.experts())
    }
}

impl Wgpu {
    pub(crate) fn moe_into(
        &self,
        op: &Moe<'_, Wgpu>,
        experts: &Experts<'_>,
        out: &Tensor<Wgpu>,
    ) -> Result<()> {
        let pair = experts.joint.max(op.x.cols()) * DType::F32.size() * op.top_k;
        let most = usize::try_from(self.gpu.most()).unwrap_or(usize::MAX).min(ROOM);
        let at_once = (most / pair.max(1)).max(1);
        for start in (0..op.x.rows()).step_by(at_once) {
            let rows = start..op.x.rows().min(start + at_once);
            let residual = op.epilogue.residual.map(|residual| residual.row_range(rows.clone()));
            let op = Moe {
                x: &op.x.row_range(rows.clone()),
                routing_weights: &op.routing_weights.row_range(rows.clone()),
                epilogue: Epilogue { residual: residual.as_ref(), ..op.epilogue },
                ..*op
            };
            self.moe_rows(&op, experts, &out.row_range(rows))?;
        }
        Ok(())
    }

    fn moe_rows(&self, op: &Moe<'_, Wgpu>, experts: &Experts<'_>, out: &Tensor<Wgpu>) -> Result<()> {
        let routed = self.routed(op)?;
        let (pairs, width) = (routed.pairs(), experts.width);
        let hidden = match self.glu_of_experts(op, experts, &routed)? {
            Some(hidden) => hidden,
            None => {
                let joint = self.like(pairs, experts.joint)?;
                self.multiply_experts(op.x, &joint, &experts.up, &routed, true)?;
                let gate = &joint.col_range(0..width);
                let up = (experts.joint == 2 * width).then(|| joint.col_range(width..2 * width));
                let hidden = self.like(pairs, width)?;
                self.activate_into(&Activate { gate, up: up.as_ref(), act: op.act }, &hidden)?;
                hidden
            }
        }; // [pairs, width]
        let each = self.like(pairs, op.x.cols())?; // [pairs, dim]
        self.multiply_experts(&hidden, &each, std::slice::from_ref(&experts.down), &routed, false)?;
        self.sum_of_experts(op, &routed, &each, out)
    }

    /// Lists what is routed where.
    fn routed<'a>(&self, op: &Moe<'a, Wgpu>) -> Result<Routed<'a>> {
        let (weights, on, top_k) = (op.routing_weights, op.weight_on, op.top_k);
        let (rows, experts) = (weights.rows(), weights.cols());
        let lines = if Wgpu::is_few(rows) { rows } else { rows + experts };
        let len = rows * top_k + if Wgpu::is_few(rows) { 0 } else { experts + experts * rows };
        let routed = Routed { weights, on, top_k, plan: self.alloc(DType::U32, 1, len)? };
        let (counts, lists) = routed.lists();
        let mut params = vec![
            U("rows", rows as u32),
            U("experts", experts as u32),
            U("top_k", top_k as u32),
            U("counts_at", counts as u32),
            U("lists_at", lists as u32),
        ];
        let args = vec![
            operand("routing", Access::Read, weights, &mut params)?,
            operand("plan", Access::Write, &routed.plan, &mut params)?,
        ];
        let kernel = Kernel::new("moe_plan");
        self.gpu.launch(&Launch { kernel, args, params, grid: [lines as u32, 1, 1], work: 0 })?;
        Ok(routed)
    }

    /// Gate, up and the gated activation in one kernel, for few rows; `None` where there is none.
    fn glu_of_experts(
        &self,
        op: &Moe<'_, Wgpu>,
        experts: &Experts<'_>,
        routed: &Routed<'_>,
    ) -> Result<Option<Tensor<Wgpu>>> {
        let width = experts.width;
        if !routed.is_few() || experts.joint != 2 * width {
            return Ok(None);
        }
        let Some(ranges) = together(&experts.up) else { return Ok(None) };
        let mut launches = Vec::new();
        for (parts, first, count) in ranges {
            let Some(parts) = Wgpu::gate_and_up(&parts, width) else { return Ok(None) };
            launches.push((parts, first, count));
        }
        let hidden = self.like(routed.pairs(), width)?;
        for (parts, first, count) in launches {
            let (kernel, lanes) = Wgpu::gemv("gemv_glu", 1, (routed.pairs() * width, parts[0].cols));
            let kernel = kernel.with("ACT", op.act as usize);
            let grid = [width.div_ceil(lanes) as u32, routed.pairs() as u32, 1];
            self.launch_experts(
                (op.x, &hidden),
                (&parts, first, count),
                (kernel, lanes, grid),
                routed,
                true,
            )?;
        }
        Ok(Some(hidden))
    }

    /// Every pair times its expert's weights: the result has the layers' outputs side by side. `x` has a row for each
    /// pair, or if `shared` for each row.
    fn multiply_experts(
        &self,
        x: &Tensor<Wgpu>,
        out: &Tensor<Wgpu>,
        layers: &[Vec<Piece<'_>>],
        routed: &Routed<'_>,
        shared: bool,
    ) -> Result<()> {
        for layers in layers.chunks(LAYERS) {
            let Some(ranges) = together(layers) else {
                layers.chunks(1).try_for_each(|one| self.multiply_experts(x, out, one, routed, shared))?;
                continue;
            };
            for (parts, first, count) in ranges {
                // Rows of an expert, if all are chosen alike.
                let rows = if routed.is_few() { 1 } else { routed.pairs().div_ceil(routed.experts()) };
                let all = routed.pairs() * parts.iter().map(|p| p.rows).sum::<usize>();
                let Tiling { kernel, rows, outputs } = Tiling::new(routed.is_few(), rows, (all, x.cols()));
                let grid = match routed.is_few() {
                    true => [tiles(&parts, outputs), routed.pairs() as u32, 1],
                    false => [tiles(&parts, outputs), routed.rows().div_ceil(rows) as u32, count as u32],
                };
                let kernel = kernel.with("RESIDUAL", false);
                self.launch_experts(
                    (x, out),
                    (&parts, first, count),
                    (kernel, outputs, grid),
                    routed,
                    shared,
                )?;
            }
        }
        Ok(())
    }

    /// Launches a kernel for the pairs of `count` experts from `first` on.
    fn launch_experts(
        &self,
        (x, out): (&Tensor<Wgpu>, &Tensor<Wgpu>),
        (parts, first, count): (&[Part<'_>], usize, usize),
        kernel: (Kernel, usize, [u32; 3]),
        routed: &Routed<'_>,
        shared: bool,
    ) -> Result<()> {
        let weighted = shared && routed.on == RoutingWeightOn::Input;
        let product = Product { x, out, epilogue: Epilogue::NONE };
        let mut launch = self.product(&product, parts, kernel, Matrices::Experts { weighted })?;
        let pairs = routed.pairs();
        // The product's rows are pairs, and not those of x.
        launch.work = launch.work / x.rows().max(1) as u64 * pairs as u64;
        launch.params[0] = U("tokens", pairs as u32);
        launch.params.extend([
            U("first", first as u32),
            U("count", count as u32),
            U("sharing", if shared { routed.top_k as u32 } else { 1 }),
        ]);
        if !routed.is_few() {
            let (counts, lists) = routed.lists();
            let [counts, lists, len] = [counts, lists, routed.rows()].map(|n| n as u32);
            launch.params.extend([U("counts_at", counts), U("lists_at", lists), U("list_len", len)]);
        }
        launch.args.push(operand("plan", Access::Read, &routed.plan, &mut launch.params)?);
        if weighted {
            launch.args.push(operand("routing", Access::Read, routed.weights, &mut launch.params)?);
        }
        self.gpu.launch(&launch)
    }

    /// The weighted sum of each row's pairs, and the epilogue.
    fn sum_of_experts(
        &self,
        op: &Moe<'_, Wgpu>,
        routed: &Routed<'_>,
        pairs: &Tensor<Wgpu>,
        out: &Tensor<Wgpu>,
    ) -> Result<()> {
        let mut params = vec![
            U("top_k", routed.top_k as u32),
            U("experts", routed.experts() as u32),
            F("scale", op.epilogue.scale),
            F("cap", op.epilogue.softcap.unwrap_or(0.0)),
        ];
        let mut args = vec![
            operand("x", Access::Read, pairs, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
            operand("plan", Access::Read, &routed.plan, &mut params)?,
        ];
        let weighted = routed.on == RoutingWeightOn::Input;
        if !weighted {
            args.push(operand("routing", Access::Read, routed.weights, &mut params)?);
        }
        if let Some(residual) = op.epilogue.residual {
            args.push(operand("residual", Access::Read, residual, &mut params)?);
        }
        let kernel = Kernel::new("moe_sum")
            .with("WEIGHTED", weighted)
            .with("RESIDUAL", op.epilogue.residual.is_some());
        self.by_element(kernel, (out.rows(), out.cols()), args, params)
    }
}

/// The parts of several layers that lie alike in blocks, with the first expert and the number of experts of each block;
/// `None` if they do not.
fn together<'a>(layers: &[Vec<Piece<'a>>]) -> Option<Vec<(Vec<Part<'a>>, usize, usize)>> {
    let first = layers.first()?;
    let alike = |a: &Piece<'_>, b: &Piece<'_>| (a.first, a.count) == (b.first, b.count);
    let all_alike = |layer: &Vec<Piece<'a>>| {
        layer.len() == first.len() && layer.iter().zip(first).all(|(a, b)| alike(a, b))
    };
    let range = |(i, piece): (usize, &Piece<'a>)| {
        (layers.iter().map(|layer| layer[i].part).collect(), piece.first, piece.count)
    };
    layers.iter().all(all_alike).then(|| first.iter().enumerate().map(range).collect())
}

//! Linear layers: GEMV for few rows, tiled GEMM for many.
//!
//! Both kernels sum in the same order, so that a row's result is bit-identical whichever computes it. The sum over the
//! inputs is split into 8 *strands* of whole segments, 32 if there are many (split-K). Within a strand, every fourth
//! input goes to the same of four accumulators, in order; these four are added, then the strands' sums in order. For few
//! rows the strands of an output are computed in parallel, all at once or in rounds of 8. For many rows a workgroup
//! computes a tile of outputs and rows, strand after strand.

use tallow_core::ops::{Epilogue, Ffn};
use tallow_core::{Activation, LinearWeights, Result, Tensor, Weight};

use super::operand;
use crate::device::{Run, Wgpu, block, runs};
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Block, Kernel, Launch};
use crate::weights::{LANES, PARTS, SEGMENT, Stored, layout};

/// Most rows for which the strands are computed in parallel.
const FEW: usize = 8;
/// Invocations of a workgroup of the kernels for few rows.
const THREADS: usize = 256;
/// Inputs from which on a sum is cut into more strands. Measured on an H200, as the next: docs/benchmarks.md.
const MANY_INPUTS: usize = 1024;
/// Outputs that keep a device busy with 32 of them in a workgroup.
const MANY_OUTPUTS: usize = 1 << 15;
/// Outputs per tile of the GEMM.
const TILE: usize = 64;

/// Rows of a weight that lie in one block of memory.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub stored: Stored,
    pub block: &'a Block,
    /// Offset of the part, and the stride of its rows or groups of rows: see `shaders/weights.wgsl`.
    pub base: usize,
    pub step: usize,
    /// Outputs: rows of the weight.
    pub rows: usize,
    pub cols: usize,
    pub bias: Option<&'a Tensor<Wgpu>>,
    /// Index in the bias of the first output.
    pub bias_at: usize,
    /// Column of the result of the first output.
    pub column: usize,
    /// From one matrix of a stack to the next: groups of rows, and elements of the bias.
    pub each: usize,
    pub bias_each: usize,
}

const WEIGHTS: [&str; PARTS] = ["w0", "w1", "w2"];
const BIASES: [&str; PARTS] = ["bias0", "bias1", "bias2"];
/// Defines that say whether a part has a bias.
const HAS_BIAS: [&str; PARTS] = ["BIAS_0", "BIAS_1", "BIAS_2"];

/// Uniform parameters of each part.
const NAMES: [[&str; 8]; PARTS] = [
    ["rows_0", "step_0", "base_0", "each_0", "column_0", "bias_at_0", "bias_each_0", "first_tile_0"],
    ["rows_1", "step_1", "base_1", "each_1", "column_1", "bias_at_1", "bias_each_1", "first_tile_1"],
    ["rows_2", "step_2", "base_2", "each_2", "column_2", "bias_at_2", "bias_each_2", "first_tile_2"],
];

/// Input, output and epilogue of a product.
pub(crate) struct Product<'a> {
    pub x: &'a Tensor<Wgpu>,
    pub out: &'a Tensor<Wgpu>,
    pub epilogue: Epilogue<'a, Wgpu>,
}

impl Wgpu {
    /// The parts of a weight, one per block. The first output goes to column `column` of the result.
    pub(crate) fn parts<'a>(
        w: &'a Weight<Wgpu>,
        bias: Option<&'a Tensor<Wgpu>>,
        column: usize,
    ) -> Result<Vec<Part<'a>>> {
        let (rows, cols) = (w.rows(), w.cols());
        Ok(match w {
            Weight::Dense(t) => vec![Part {
                stored: Stored::Rows(t.dtype()),
                block: block(t)?,
                base: t.offset(),
                step: t.stride(),
                rows,
                cols,
                bias,
                bias_at: 0,
                column,
                each: 0,
                bias_each: 0,
            }],
            Weight::Blocks { data, format, .. } => {
                let part = |Run { block, at, rows: groups }: Run<'a>| {
                    let first = groups.start * LANES;
                    Part {
                        stored: Stored::Packed(*format),
                        block,
                        base: at,
                        step: layout(*format).units(cols),
                        rows: rows.min(groups.end * LANES) - first,
                        cols,
                        bias,
                        bias_at: first,
                        column: column + first,
                        each: 0,
                        bias_each: 0,
                    }
                };
                runs(data).map(part).collect()
            }
        })
    }

    /// The parts of several linear layers whose outputs are concatenated; `None` if one has act-order.
    pub(crate) fn side_by_side(layers: &[LinearWeights<Wgpu>]) -> Result<Option<Vec<Part<'_>>>> {
        let mut column = 0;
        let mut parts = Vec::new();
        for linear in layers {
            let Some(weight) = linear.weight.in_order() else { return Ok(None) };
            parts.extend(Wgpu::parts(weight, linear.bias.as_ref(), column)?);
            column += weight.rows();
        }
        Ok(Some(parts))
    }

    /// Gate and up as two parts with the same outputs, where one gated kernel can compute both.
    pub(crate) fn gated<'a>(op: &Ffn<'a, Wgpu>) -> Result<Option<[Part<'a>; 2]>> {
        if !op.is_gated() || !Wgpu::is_few(op.x.rows()) || op.down.weight.in_order().is_none() {
            return Ok(None);
        }
        let parts = Wgpu::side_by_side(op.up)?;
        Ok(parts.and_then(|parts| Wgpu::gate_and_up(&parts, op.down.weight.cols())))
    }

    /// Gate and up, `width` outputs each, among the parts of the layers before a gated activation.
    pub(super) fn gate_and_up<'a>(parts: &[Part<'a>], width: usize) -> Option<[Part<'a>; 2]> {
        match parts {
            [gate, up] if gate.rows == width && up.rows == width => Some([*gate, *up]),
            // Gate and up fused in one weight: up must begin at a whole group of rows.
            [both] if matches!(both.stored, Stored::Packed(_)) && width.is_multiple_of(LANES) => {
                let gate = Part { rows: width, ..*both };
                Some([gate, Part { base: both.base + width / LANES, bias_at: both.bias_at + width, ..gate }])
            }
            _ => None,
        }
    }

    /// Multiplies with all parts, `PARTS` per launch.
    pub(crate) fn multiply(&self, product: &Product<'_>, parts: &[Part<'_>]) -> Result<()> {
        parts.chunks(PARTS).try_for_each(|parts| self.multiply_some(product, parts))
    }

    fn multiply_some(&self, product: &Product<'_>, parts: &[Part<'_>]) -> Result<()> {
        let rows = product.x.rows();
        let all = parts.iter().map(|p| p.rows).sum();
        let Tiling { kernel, rows: width, outputs } =
            Tiling::new(Wgpu::is_few(rows), rows, (all, product.x.cols()));
        let kernel = kernel.with("RESIDUAL", product.epilogue.residual.is_some());
        let grid = [tiles(parts, outputs), rows.div_ceil(width) as u32, 1];
        self.gpu.launch(&self.product(product, parts, (kernel, outputs, grid), Matrices::One)?)
    }

    /// GEMV of gate and up with the gated activation, `act(gate) * up`, for few rows. Both parts have the same outputs.
    pub(crate) fn multiply_glu(
        &self,
        product: &Product<'_>,
        parts: &[Part<'_>; 2],
        act: Activation,
    ) -> Result<()> {
        let rows = product.x.rows().next_power_of_two();
        let (kernel, lanes) = Wgpu::gemv("gemv_glu", rows, (parts[0].rows, parts[0].cols));
        let kernel = kernel.with("ACT", act as usize);
        let grid = [parts[0].rows.div_ceil(lanes) as u32, 1, 1];
        self.gpu.launch(&self.product(product, parts, (kernel, lanes, grid), Matrices::One)?)
    }

    /// A kernel for few rows, with the defines of `shaders/strands.wgsl`, and the outputs of its workgroup. With few
    /// outputs, more workgroups share the layer, each with all strands at once.
    pub(super) fn gemv(name: &'static str, rows: usize, (outputs, cols): (usize, usize)) -> (Kernel, usize) {
        let strands = strands(cols);
        let at_once = if outputs < MANY_OUTPUTS { strands } else { 8 };
        let kernel = Kernel::new(name).with("ROWS", rows).with("AT_ONCE", at_once);
        (kernel.with("ROUNDS", strands / at_once), THREADS / at_once)
    }

    /// True if there are few enough rows for [`multiply_glu`](Wgpu::multiply_glu).
    pub(crate) fn is_few(rows: usize) -> bool {
        rows <= FEW
    }

    /// A launch of a kernel, by its tile's outputs, with the defines, operands and parameters common to all these kernels.
    pub(super) fn product<'a>(
        &self,
        product: &Product<'a>,
        parts: &[Part<'a>],
        (kernel, tile, grid): (Kernel, usize, [u32; 3]),
        matrices: Matrices,
    ) -> Result<Launch<'a>> {
        let (x, cols) = (product.x, product.x.cols());
        let mut params = vec![
            U("tokens", x.rows() as u32),
            U("segments", cols.div_ceil(SEGMENT) as u32),
            U("strands", strands(cols) as u32),
            U("cols", cols as u32),
            F("scale", product.epilogue.scale),
            F("cap", product.epilogue.softcap.unwrap_or(0.0)),
        ];
        let aligned = aligned(x, matrices);
        let mut kernel = matrices.define(kernel).with("PARTS", parts.len()).with("ALIGNED", aligned);
        let mut args = vec![operand("x", Access::Read, x, &mut params)?];
        if aligned {
            args[0].of = "vec4<f32>";
        }
        args.push(operand("out", Access::Write, product.out, &mut params)?);
        if let Some(residual) = product.epilogue.residual {
            args.push(operand("residual", Access::Read, residual, &mut params)?);
        }
        let mut first_tile = 0;
        for (i, part) in parts.iter().enumerate() {
            kernel = part.stored.define(i, kernel).with(HAS_BIAS[i], part.bias.is_some());
            let bias_at = part.bias.map_or(0, |b| b.offset() + part.bias_at);
            let Part { rows, step, base, each, column, bias_each, .. } = *part;
            let numbers = [rows, step, base, each, column, bias_at, bias_each, first_tile];
            first_tile += part.rows.div_ceil(tile);
            params.extend(NAMES[i].iter().zip(numbers).map(|(name, n)| U(name, n as u32)));
            args.push(Arg { name: WEIGHTS[i], of: "u32", access: Access::Read, block: part.block });
            if let Some(bias) = part.bias {
                let block = block(bias)?;
                args.push(Arg { name: BIASES[i], of: "f32", access: Access::Read, block });
            }
        }
        let outputs: usize = parts.iter().map(|p| p.rows).sum();
        let work = (x.rows() * cols) as u64 * outputs as u64;
        Ok(Launch { kernel, args, params, grid, work })
    }
}

/// Matrix that a workgroup multiplies with: see `shaders/matrices.wgsl`.
#[derive(Clone, Copy)]
pub(super) enum Matrices {
    One,
    /// The head's, whose columns of x are so many.
    Heads(usize),
    /// The expert's; whether the routing weight multiplies x.
    Experts {
        weighted: bool,
    },
}

impl Matrices {
    fn define(self, kernel: Kernel) -> Kernel {
        let (name, weighted) = match self {
            Matrices::One => ("one", false),
            Matrices::Heads(_) => ("heads", false),
            Matrices::Experts { weighted } => ("experts", weighted),
        };
        kernel.with("MATRICES", name).with("WEIGHTED", weighted)
    }
}

/// Division of a product among workgroups.
pub(super) struct Tiling {
    /// GEMV or GEMM.
    pub kernel: Kernel,
    /// Rows of x and outputs of a workgroup.
    pub rows: usize,
    pub outputs: usize,
}

impl Tiling {
    /// For about `rows` rows, by the kernel for few rows or the one for many. The launch has `outputs` outputs, of `cols`
    /// inputs.
    pub(super) fn new(few: bool, rows: usize, (outputs, cols): (usize, usize)) -> Tiling {
        let rows = rows.next_power_of_two();
        if few {
            let (kernel, outputs) = Wgpu::gemv("gemv", rows, (outputs, cols));
            return Tiling { kernel, rows, outputs };
        }
        let rows = rows.clamp(16, 64);
        Tiling { kernel: Kernel::new("gemm").with("ROWS_EACH", rows / 16), rows, outputs: TILE }
    }
}

/// Strands of a sum over so many inputs.
fn strands(cols: usize) -> usize {
    if cols < MANY_INPUTS { 8 } else { 32 }
}

/// Tiles of all parts.
pub(super) fn tiles(parts: &[Part<'_>], tile: usize) -> u32 {
    parts.iter().map(|part| part.rows.div_ceil(tile) as u32).sum()
}

/// True if `x` can be read as `vec4`.
fn aligned(x: &Tensor<Wgpu>, matrices: Matrices) -> bool {
    let heads = match matrices {
        Matrices::Heads(columns) => columns.is_multiple_of(4),
        Matrices::One | Matrices::Experts { .. } => true,
    };
    heads && x.offset().is_multiple_of(4) && x.stride().is_multiple_of(4) && x.cols().is_multiple_of(SEGMENT)
}

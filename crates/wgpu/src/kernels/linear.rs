//! Linear layers: GEMV for few rows, tiled GEMM for many.
//!
//! Both kernels sum in the same order, so that a row's result is bit-identical whichever computes it. The sum over the
//! inputs is split into eight *strands* of whole segments (split-K). Within a strand, every fourth input goes to the
//! same of four accumulators, in order; these four are added, then the strands' sums in order. For few rows the strands
//! of an output are computed in parallel, by one workgroup per 32 outputs. For many rows a workgroup computes a tile of
//! outputs and rows, strand after strand.

use std::fmt::Write;

use tallow_core::ops::Epilogue;
use tallow_core::{Activation, Result, Tensor};

use super::operand;
use crate::backend::Wgpu;
use crate::gpu::Param::{F, U};
use crate::gpu::{Access, Arg, Block, Kernel, Launch};
use crate::weights::{LANES, SEGMENT, Stored};

/// Most rows for which the strands are computed in parallel.
const FEW: usize = 8;
/// Strands of a sum (split-K).
const STRANDS: usize = 8;
/// Outputs per tile of the GEMM.
const TILE: usize = 64;
/// Most weight parts per launch.
pub(crate) const PARTS: usize = 3;

/// Rows of a weight that lie in one block of memory.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub stored: Stored,
    pub block: &'a Block,
    /// Where the part begins, and the stride of its rows or groups of rows: see [`Stored::source`].
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
}

const WEIGHTS: [&str; PARTS] = ["w0", "w1", "w2"];
const BIASES: [&str; PARTS] = ["bias0", "bias1", "bias2"];

/// Uniform parameters of each part.
const NAMES: [[&str; 6]; PARTS] = [
    ["rows_0", "step_0", "base_0", "column_0", "bias_at_0", "tiles_0"],
    ["rows_1", "step_1", "base_1", "column_1", "bias_at_1", "tiles_1"],
    ["rows_2", "step_2", "base_2", "column_2", "bias_at_2", "tiles_2"],
];

/// Input, output and epilogue of a product.
pub(crate) struct Product<'a> {
    pub x: &'a Tensor<Wgpu>,
    pub out: &'a Tensor<Wgpu>,
    pub then: Epilogue<'a, Wgpu>,
}

impl Wgpu {
    /// Multiplies with all parts, `PARTS` per launch.
    pub(crate) fn multiply(&self, product: &Product<'_>, parts: &[Part<'_>]) -> Result<()> {
        parts.chunks(PARTS).try_for_each(|parts| self.multiply_some(product, parts))
    }

    fn multiply_some(&self, product: &Product<'_>, parts: &[Part<'_>]) -> Result<()> {
        let rows = product.x.rows();
        let few = rows <= FEW;
        // Rows of x per workgroup, about as many as there are.
        let width = if few { rows.next_power_of_two() } else { rows.next_power_of_two().clamp(16, 64) };
        let tile = if few { LANES } else { TILE };
        let shape = Shape::new(product, parts, width);
        let source = || if few { shape.side_by_side() } else { shape.tiled() };
        let launch = self.product(product, parts, tile, &source)?;
        let tiles: usize = parts.iter().map(|p| p.rows.div_ceil(tile)).sum();
        let kernel = Kernel { name: if few { "product" } else { "product_tiled" }, variant: shape.variant() };
        self.gpu.launch(&Launch { kernel, grid: [tiles as u32, rows.div_ceil(width) as u32, 1], ..launch })
    }

    /// GEMV of gate and up with the gated activation, `act(gate) * up`, for few rows. Both parts have the same outputs.
    pub(crate) fn multiply_bent(
        &self,
        product: &Product<'_>,
        parts: &[Part<'_>; 2],
        act: Activation,
    ) -> Result<()> {
        let rows = product.x.rows();
        let shape = Shape::new(product, parts, rows.next_power_of_two());
        let source = || shape.bent(act);
        let launch = self.product(product, parts, LANES, &source)?;
        let mut variant = shape.variant();
        variant.push(act as u32);
        let grid = [parts[0].rows.div_ceil(LANES) as u32, 1, 1];
        self.gpu.launch(&Launch { kernel: Kernel { name: "product_bent", variant }, grid, ..launch })
    }

    /// Whether there are few enough rows for [`multiply_bent`](Wgpu::multiply_bent).
    pub(crate) fn is_few(rows: usize) -> bool {
        rows <= FEW
    }

    /// Operands and parameters common to all these kernels.
    fn product<'a>(
        &self,
        product: &Product<'a>,
        parts: &[Part<'a>],
        tile: usize,
        source: &'a dyn Fn() -> String,
    ) -> Result<Launch<'a>> {
        let (x, cols) = (product.x, product.x.cols());
        let mut params = vec![
            U("tokens", x.rows() as u32),
            U("segments", cols.div_ceil(SEGMENT) as u32),
            U("cols", cols as u32),
            F("scale", product.then.scale),
            F("cap", product.then.softcap.unwrap_or(0.0)),
        ];
        let mut args = vec![operand("x", Access::Read, x, &mut params)?];
        if aligned(x) {
            args[0].of = "vec4<f32>";
        }
        args.push(operand("out", Access::Write, product.out, &mut params)?);
        if let Some(residual) = product.then.residual {
            args.push(operand("residual", Access::Read, residual, &mut params)?);
        }
        for (i, part) in parts.iter().enumerate() {
            let bias_at = part.bias.map_or(0, |b| b.offset() + part.bias_at);
            let tiles = part.rows.div_ceil(tile);
            let numbers = [part.rows, part.step, part.base, part.column, bias_at, tiles];
            params.extend(NAMES[i].iter().zip(numbers).map(|(name, n)| U(name, n as u32)));
            args.push(Arg { name: WEIGHTS[i], of: "u32", access: Access::Read, block: part.block });
            if let Some(bias) = part.bias {
                let block = super::block(bias)?;
                args.push(Arg { name: BIASES[i], of: "f32", access: Access::Read, block });
            }
        }
        let kernel = Kernel { name: "", variant: Vec::new() };
        let outputs: usize = parts.iter().map(|p| p.rows).sum();
        let work = (x.rows() * cols) as u64 * outputs as u64;
        Ok(Launch { kernel, source, args, params, grid: [0; 3], work })
    }
}

/// Whether `x` can be read as `vec4`.
fn aligned(x: &Tensor<Wgpu>) -> bool {
    x.offset().is_multiple_of(4) && x.stride().is_multiple_of(4) && x.cols().is_multiple_of(SEGMENT)
}

/// What is fixed in a kernel's source.
struct Shape {
    parts: Vec<(Stored, bool)>,
    /// Rows of x per workgroup.
    width: usize,
    aligned: bool,
    residual: bool,
}

impl Shape {
    fn new(product: &Product<'_>, parts: &[Part<'_>], width: usize) -> Shape {
        Shape {
            parts: parts.iter().map(|p| (p.stored, p.bias.is_some())).collect(),
            width,
            aligned: aligned(product.x),
            residual: product.then.residual.is_some(),
        }
    }

    fn variant(&self) -> Vec<u32> {
        let mut v = vec![self.width as u32, u32::from(self.aligned), u32::from(self.residual)];
        v.extend(self.parts.iter().map(|(stored, bias)| stored.code() << 1 | u32::from(*bias)));
        v
    }

    /// WGSL that reads `x` and the weights.
    fn reading(&self) -> String {
        let mut s = include_str!("../shaders/eight.wgsl").to_owned();
        for (i, (stored, _)) in self.parts.iter().enumerate() {
            s += &stored.source(i);
        }
        // Rows past the end read the last row, and are not stored.
        s += "fn x4(row: u32, k: u32) -> vec4<f32> {\n  let at = p.x_at + min(row, p.tokens - 1u) * p.x_stride + k;\n";
        s += match self.aligned {
            true => "  return x[at / 4u];\n}\n",
            false => {
                "  var v = vec4<f32>(0.0);\n  \
                   if (k < p.cols) { v.x = x[at]; }\n  if (k + 1u < p.cols) { v.y = x[at + 1u]; }\n  \
                   if (k + 2u < p.cols) { v.z = x[at + 2u]; }\n  if (k + 3u < p.cols) { v.w = x[at + 3u]; }\n  \
                   return v;\n}\n"
            }
        };
        s
    }

    /// WGSL: eight weights of the workgroup's part.
    fn eight(&self) -> String {
        let mut s = "fn eight(part: u32, group: u32, lane: u32, k8: u32) -> Eight {\n".to_owned();
        for i in (1..self.parts.len()).rev() {
            let _ = writeln!(
                s,
                "  if (part == {i}u) {{ return eight_{i}(p.base_{i}, p.step_{i}, group, lane, k8); }}"
            );
        }
        s + "  return eight_0(p.base_0, p.step_0, group, lane, k8);\n}\n"
    }

    /// WGSL: adds the bias, applies the epilogue and stores an output.
    fn store(&self) -> String {
        let mut s = include_str!("../shaders/store.wgsl").to_owned();
        s += "fn store(part: u32, output: u32, row: u32, sum: f32) {\n  if (row >= p.tokens) { return; }\n  \
              var y = sum;\n  var column = 0u;\n  switch part {\n";
        for (i, (_, bias)) in self.parts.iter().enumerate() {
            let case = if i == 0 { "default".to_owned() } else { format!("case {i}u") };
            let _ = write!(
                s,
                "    {case}: {{\n      if (output >= p.rows_{i}) {{ return; }}\n      column = p.column_{i} + output;\n"
            );
            if *bias {
                let _ = writeln!(s, "      y = y + bias{i}[p.bias_at_{i} + output];");
            }
            s += "    }\n";
        }
        s += "  }\n";
        s += match self.residual {
            true => "  let residual = residual[p.residual_at + row * p.residual_stride + column];\n",
            false => "  let residual = 0.0;\n",
        };
        s + "  out[p.out_at + row * p.out_stride + column] = finished(y, residual);\n}\n"
    }

    /// WGSL: part of the workgroup, and the tile within that part.
    fn which(&self) -> String {
        let mut s = "  var part = 0u;\n  var tile = wg.x;\n".to_owned();
        for i in 1..self.parts.len() {
            let last = i - 1;
            let _ = writeln!(
                s,
                "  if (part == {last}u && tile >= p.tiles_{last}) {{ tile -= p.tiles_{last}; part = {i}u; }}"
            );
        }
        s
    }

    /// The GEMV: 32 outputs times 8 strands in parallel.
    fn side_by_side(&self) -> String {
        let n = self.width;
        let mut s = self.reading() + &self.eight() + &self.store();
        let _ = writeln!(s, "var<workgroup> sums: array<f32, {}>;", LANES * STRANDS * n);
        s += MAIN;
        s += &self.which();
        let _ = writeln!(s, "  let row = wg.y * {n}u;");
        s += STRAND;
        each(&mut s, n, "  var acc_I = vec4<f32>(0.0);\n");
        s += "  for (var k8 = k_first; k8 < k_end; k8++) {\n    let w = eight(part, tile, lane, k8);\n    let k = 8u * k8;\n";
        each(&mut s, n, "    acc_I = fma(w.b, x4(row + Iu, k + 4u), fma(w.a, x4(row + Iu, k), acc_I));\n");
        s += "  }\n";
        each(&mut s, n, "  sums[(Iu * 8u + strand) * 32u + lane] = across(acc_I);\n");
        let _ = write!(
            s,
            "  workgroupBarrier();\n  if (strand < {n}u) {{\n    var total = 0.0;\n    \
             for (var i = 0u; i < 8u; i++) {{ total = total + sums[(strand * 8u + i) * 32u + lane]; }}\n    \
             store(part, 32u * tile + lane, row + strand, total);\n  }}\n}}\n"
        );
        s
    }

    /// The GEMV of gate and up, with the gated activation.
    fn bent(&self, act: Activation) -> String {
        let n = self.width;
        let mut s = self.reading();
        let _ = writeln!(s, "const ACT = {}u;", act as u32);
        s += include_str!("../shaders/bend.wgsl");
        s += "fn across(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }\n";
        let _ = writeln!(s, "var<workgroup> sums: array<f32, {}>;", 2 * LANES * STRANDS * n);
        s += MAIN;
        s += "  let tile = wg.x;\n  let row = 0u;\n";
        s += STRAND;
        each(&mut s, n, "  var gate_I = vec4<f32>(0.0);\n  var up_I = vec4<f32>(0.0);\n");
        s += "  for (var k8 = k_first; k8 < k_end; k8++) {\n    \
              let g = eight_0(p.base_0, p.step_0, tile, lane, k8);\n    \
              let u = eight_1(p.base_1, p.step_1, tile, lane, k8);\n    let k = 8u * k8;\n";
        let one = "    {\n      let a = x4(row + Iu, k);\n      let b = x4(row + Iu, k + 4u);\n      \
                   gate_I = fma(g.b, b, fma(g.a, a, gate_I));\n      up_I = fma(u.b, b, fma(u.a, a, up_I));\n    }\n";
        each(&mut s, n, one);
        s += "  }\n";
        let half = LANES * STRANDS * n;
        let sums = format!(
            "  sums[(Iu * 8u + strand) * 32u + lane] = across(gate_I);\n  \
               sums[{half}u + (Iu * 8u + strand) * 32u + lane] = across(up_I);\n"
        );
        each(&mut s, n, &sums);
        let bias = |i: usize| match self.parts[i].1 {
            true => format!(" + bias{i}[p.bias_at_{i} + output]"),
            false => String::new(),
        };
        let _ = write!(
            s,
            "  workgroupBarrier();\n  let output = 32u * tile + lane;\n  let at = row + strand;\n  \
             if (strand < {n}u && output < p.rows_0 && at < p.tokens) {{\n    var gate = 0.0;\n    var up = 0.0;\n    \
             for (var i = 0u; i < 8u; i++) {{\n      gate = gate + sums[(strand * 8u + i) * 32u + lane];\n      \
             up = up + sums[{half}u + (strand * 8u + i) * 32u + lane];\n    }}\n    \
             out[p.out_at + at * p.out_stride + output] = bend(gate{}) * gated(up{});\n  }}\n}}\n",
            bias(0),
            bias(1)
        );
        s
    }

    /// The GEMM: a tile of 64 outputs and `width` rows, 16 x 16 invocations, strand after strand.
    fn tiled(&self) -> String {
        let (width, each_row) = (self.width, self.width / 16);
        let mut s = self.reading() + &self.eight() + &self.store();
        let _ = writeln!(s, "var<workgroup> ws: array<vec4<f32>, {}>;", 8 * TILE);
        let _ = writeln!(s, "var<workgroup> xs: array<vec4<f32>, {}>;", 8 * width);
        s += MAIN;
        s += &self.which();
        let _ = writeln!(s, "  let row = wg.y * {width}u;\n  let r = id % 16u;\n  let c = id / 16u;");
        s += "  let mine = 2u * tile + (id % 64u) / 32u;\n  let lane = id % 32u;\n  let eighth = id / 64u;\n";
        let cells: Vec<(usize, usize)> = (0..4).flat_map(|i| (0..each_row).map(move |j| (i, j))).collect();
        for (i, j) in &cells {
            let _ = writeln!(s, "  var acc_{i}_{j} = vec4<f32>(0.0);\n  var total_{i}_{j} = 0.0;");
        }
        let _ = write!(
            s,
            "  for (var segment = 0u; segment < p.segments; segment++) {{\n    workgroupBarrier();\n    \
             let w = eight(part, mine, lane, 4u * segment + eighth);\n    \
             ws[128u * eighth + id % 64u] = w.a;\n    ws[128u * eighth + 64u + id % 64u] = w.b;\n    \
             for (var i = id; i < {0}u; i += 256u) {{\n      \
             xs[(i % 8u) * {width}u + i / 8u] = x4(row + i / 8u, 32u * segment + 4u * (i % 8u));\n    }}\n    \
             workgroupBarrier();\n    for (var k4 = 0u; k4 < 8u; k4++) {{\n",
            8 * width
        );
        for i in 0..4 {
            let _ = writeln!(s, "      let w_{i} = ws[k4 * 64u + r + {}u];", 16 * i);
        }
        for j in 0..each_row {
            let _ = writeln!(s, "      let x_{j} = xs[k4 * {width}u + c + {}u];", 16 * j);
        }
        for (i, j) in &cells {
            let _ = writeln!(s, "      acc_{i}_{j} = fma(w_{i}, x_{j}, acc_{i}_{j});");
        }
        // A strand may end here: strand n ends at segment n * segments / 8.
        s += "    }\n    let end = segment + 1u;\n    let n = (8u * end + p.segments - 1u) / p.segments;\n    \
              if (n * p.segments < 8u * (end + 1u)) {\n";
        for (i, j) in &cells {
            let _ = writeln!(
                s,
                "      total_{i}_{j} = total_{i}_{j} + across(acc_{i}_{j});\n      acc_{i}_{j} = vec4<f32>(0.0);"
            );
        }
        s += "    }\n  }\n";
        for (i, j) in &cells {
            let _ = writeln!(
                s,
                "  store(part, 64u * tile + r + {}u, row + c + {}u, total_{i}_{j});",
                16 * i,
                16 * j
            );
        }
        s + "}\n"
    }
}

const MAIN: &str = "@compute @workgroup_size(256)\n\
                    fn main(@builtin(workgroup_id) wg: vec3<u32>, @builtin(local_invocation_index) id: u32) {\n";

/// WGSL: the invocation's output, its strand, and the strand's inputs.
const STRAND: &str = "  let lane = id % 32u;\n  let strand = id / 32u;\n  \
                      let k_first = 4u * (strand * p.segments / 8u);\n  \
                      let k_end = 4u * ((strand + 1u) * p.segments / 8u);\n";

/// Repeats a line for each of `n` rows, with the row's index for `I`.
fn each(s: &mut String, n: usize, line: &str) {
    for i in 0..n {
        let i = i.to_string();
        *s += &line.replace("_I", &format!("_{i}")).replace("Iu", &format!("{i}u"));
    }
}

//! Mixtures of experts. The kernels are in `experts.cu`, and those of the experts' layers in [`stacked`](super::stacked).

use tallow_core::ops::{Epilogue, MAX_EXPERTS, Moe};
use tallow_core::{DType, Expert, Memory, Result, RoutingWeightOn, Tensor};

use super::layers::{Rounded, Sixteens};
use super::products::Products;
use super::sixteen;
use super::stacked::{CHUNK, FEW, MANY, Product, RoundedSlots, Routed, Rows, SUMS};
use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::weights::{Evenly, Sixteen, Stacked};

/// Threads of a CTA.
const THREADS: u32 = 256;
/// Rows, experts or slots of a CTA: one for each warp.
const WARPS: usize = THREADS as usize / 32;
/// Most rows whose experts the kernel lists that lists the rows of the experts: with more, a kernel before it is faster.
const LISTED_AT_ONCE: usize = 32;
/// Most rows for which kernels of products round their input: with more it is rounded once, before.
const ROUNDED_AT_ONCE: usize = 8;
/// Most bytes of what is computed for each expert of each row, and most of these: with more rows they are computed in several
/// turns.
const ROOM: usize = 256 << 20;
const MOST_PAIRS: usize = 1 << 19;

/// The layers of all experts.
pub(crate) struct Experts<'a> {
    /// The layer in front of the activation that is alone, or the gate.
    gate: Stacked<'a>,
    up: Option<Stacked<'a>>,
    down: Stacked<'a>,
}

impl<'a> Experts<'a> {
    /// `None` for weights that the kernels do not take: they differ between experts, or lie where each happens to.
    pub(crate) fn new(experts: &'a [Expert<Cuda>]) -> Option<Experts<'a>> {
        let first = experts.first().filter(|_| experts.len() <= MAX_EXPERTS)?;
        let down = Stacked::of(experts.iter().map(|expert| &expert.down))?;
        let layers = first.up.len();
        if experts.iter().any(|expert| expert.up.len() != layers) || down.rows() == 0 || down.cols() == 0 {
            return None;
        }
        let layer = |i: usize| Stacked::of(experts.iter().map(move |expert| &expert.up[i]));
        let width = down.cols();
        let (gate, up) = match layers {
            1 => match layer(0)? {
                whole if whole.rows() == width => (whole, None),
                joint => {
                    let [gate, up] = joint.halves()?;
                    (gate, Some(up))
                }
            },
            2 => (layer(0)?, Some(layer(1)?)),
            _ => return None,
        };
        let is_whole = gate.rows() == width && up.is_none_or(|up| up.rows() == width);
        is_whole.then_some(Experts { gate, up, down })
    }
}

/// Input of experts' layers: rows of x as they are routed, and what is rounded in advance.
struct Input {
    x: Tensor<Cuda>,
    routed: Routed,
    rounded: RoundedSlots,
}

/// `Lists` of the kernels, for rows with a number of experts each at most.
struct Lists {
    /// Five lists of the kernels, one after the other: of each pair its expert, its weight and its slot; of each slot its pair;
    /// tiles.
    all: Tensor<Cuda>,
    pairs: usize,
    tiles: usize,
    /// Rows of a tile.
    tile: usize,
    top_k: usize,
}

impl Lists {
    /// The address of the list at a place among them. All but the last have as many words as there are pairs.
    fn address(&self, place: usize) -> u64 {
        Cuda::address(&self.all) + (4 * place * self.pairs) as u64
    }

    const EXPERTS: usize = 0;
    const WEIGHTS: usize = 1;
    const SLOTS: usize = 2;
    const PAIRS: usize = 3;
    const TILES: usize = 4;

    /// Rows of x as experts take them: x has a row for each row, multiplied with the routing weight or not, or one for each slot.
    fn routed(&self, has_rows: bool, weighted: bool) -> Routed {
        Routed {
            tiles: self.address(Lists::TILES),
            pairs: self.address(Lists::PAIRS),
            weights: if weighted { self.address(Lists::WEIGHTS) } else { 0 },
            top_k: if has_rows { self.top_k } else { 0 },
        }
    }

    fn rows(&self, routed: Routed) -> Rows<'static> {
        Rows::Routed { routed, tiles: self.tiles, tile: self.tile }
    }

    /// `Lists` of the kernels.
    fn arg(&self, args: Args) -> Args {
        (0..=Lists::TILES)
            .fold(args, |args, place| args.wide(self.address(place)))
            .word(self.top_k)
            .word(self.tile)
    }
}

impl Cuda {
    fn launch_experts(&self, name: &'static str, grid: [usize; 2], args: Args) -> Result<()> {
        let [x, y] = grid.map(|n| n as u32);
        let kernel = Kernel { module: "experts", name };
        self.gpu.launch(&Launch { kernel, grid: [x, y, 1], block: THREADS, shared: 0, args })
    }

    pub(crate) fn moe_into(
        &self,
        op: &Moe<'_, Cuda>,
        experts: &Experts<'_>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let (dim, width) = (op.x.cols(), experts.down.cols());
        // A pair has gate, hidden and output, both inputs as layers order them, and in 8 bits with their sums or in 16 with factors.
        let pair = (3 * width + 2 * dim) * size_of::<f32>() + 3 * (width + dim);
        let at_once = ((ROOM / pair).min(MOST_PAIRS) / op.top_k.max(1)).max(1);
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

    fn moe_rows(&self, op: &Moe<'_, Cuda>, experts: &Experts<'_>, out: &Tensor<Cuda>) -> Result<()> {
        let lists = self.lists(op)?;
        let hidden = self.hidden_of_experts(op, experts, &lists)?; // [slots, width]
        let each = self.like(lists.pairs, op.x.cols())?; // [slots, dim]
        let (first, routed) = (&experts.down, lists.routed(false, false));
        let input = self.input_of_experts(&lists, routed, &hidden, [Some(first), None])?;
        self.multiply_stacked(&Product {
            first,
            second: None,
            x: &input.x,
            rounded: &input.rounded,
            gate: None,
            act: None,
            rows: lists.rows(input.routed),
            out: &each,
        })?;
        self.sum_of_experts(op, &lists, &each, out)
    }

    /// Lists what is routed where.
    fn lists(&self, op: &Moe<'_, Cuda>) -> Result<Lists> {
        let (rows, experts, top_k) = (op.x.rows(), op.experts.len(), op.top_k);
        let pairs = rows * top_k;
        let tile = match rows {
            1 => 1,
            _ if pairs > FEW * experts => MANY,
            _ => FEW,
        };
        let tiles = pairs.min(pairs / tile + experts.min(pairs));
        let all = self.alloc(DType::U32, 1, Lists::TILES * pairs + 3 * tiles)?;
        let lists = Lists { all, pairs, tiles, tile, top_k };
        let (is_few, args) = (rows <= LISTED_AT_ONCE, lists.arg(Args::new().matrix(op.routing_weights)));
        if !is_few {
            self.launch_experts("experts_of_rows", [rows.div_ceil(WARPS), 1], args.clone())?;
        }
        let ctas = if is_few { 1 } else { experts.div_ceil(WARPS) };
        self.launch_experts("rows_of_experts", [ctas, 1], args.word(tiles).flag(is_few))?;
        Ok(lists)
    }

    /// Inputs of `down`: each slot's activated gate and up, or up alone.
    fn hidden_of_experts(
        &self,
        op: &Moe<'_, Cuda>,
        experts: &Experts<'_>,
        lists: &Lists,
    ) -> Result<Tensor<Cuda>> {
        let Experts { gate, up, down } = experts;
        let routed = lists.routed(true, op.weight_on == RoutingWeightOn::Input);
        let input_of = |layers| self.input_of_experts(lists, routed, op.x, layers);
        let shares = |up: &&Stacked<'_>| up.orders() == gate.orders();
        let input = &input_of([Some(gate), up.as_ref().filter(shares)])?;
        let hidden = self.like(lists.pairs, down.cols())?;
        let product = Product {
            first: gate,
            second: None,
            x: &input.x,
            rounded: &input.rounded,
            gate: None,
            act: Some(op.act),
            rows: lists.rows(input.routed),
            out: &hidden,
        };
        match up {
            None => self.multiply_stacked(&product)?,
            Some(up) if up.is_like(gate) => {
                self.multiply_stacked(&Product { second: Some(up), ..product })?
            }
            Some(up) => {
                let gated = &self.like(lists.pairs, down.cols())?;
                self.multiply_stacked(&Product { act: None, out: gated, ..product })?;
                let own = if shares(&up) { None } else { Some(input_of([Some(up), None])?) };
                let Input { x, routed, rounded } = own.as_ref().unwrap_or(input);
                let (rows, gate) = (lists.rows(*routed), Some(gated));
                self.multiply_stacked(&Product { first: up, x, rounded, rows, gate, ..product })?;
            }
        }
        Ok(hidden)
    }

    /// The input of layers that take it in one order.
    fn input_of_experts(
        &self,
        lists: &Lists,
        routed: Routed,
        x: &Tensor<Cuda>,
        layers: [Option<&Stacked<'_>>; 2],
    ) -> Result<Input> {
        let (x, routed) = match layers[0].and_then(Stacked::orders) {
            Some(orders) => (self.slots_in_order(lists, routed, x, orders)?, lists.routed(false, false)),
            None => (x.clone(), routed),
        };
        let rounded = self.rounded_slots(lists, routed, &x, layers)?;
        Ok(Input { x, routed, rounded })
    }

    /// Rows slot by slot, with their columns in the order in which each slot's expert takes them.
    fn slots_in_order(
        &self,
        lists: &Lists,
        routed: Routed,
        x: &Tensor<Cuda>,
        orders: Evenly,
    ) -> Result<Tensor<Cuda>> {
        let out = self.like(lists.pairs, x.cols())?; // [slots, cols]
        let args = routed.arg(Args::new().matrix(x)).wide(lists.address(Lists::EXPERTS));
        let grid = [lists.pairs, x.cols().div_ceil(THREADS as usize)];
        self.launch_experts("order_slots", grid, orders.arg(args).matrix(&out))?;
        Ok(out)
    }

    /// The input of layers slot by slot, rounded as they take it, but for what their kernels round.
    fn rounded_slots(
        &self,
        lists: &Lists,
        routed: Routed,
        x: &Tensor<Cuda>,
        layers: [Option<&Stacked<'_>>; 2],
    ) -> Result<RoundedSlots> {
        let mut rounded = RoundedSlots::default();
        if lists.pairs <= ROUNDED_AT_ONCE * lists.top_k {
            return Ok(rounded);
        }
        for layer in layers.into_iter().flatten() {
            match self.stacked_products(layer) {
                Products::Exact => {}
                Products::Eights(_) if rounded.eights.is_some() => {}
                Products::Eights(_) => rounded.eights = Some(self.slots_in_eight(lists, routed, x)?),
                Products::Sixteens(Sixteen { is_f16, .. }) => {
                    let sixteens = &mut rounded.sixteens[usize::from(is_f16)];
                    if sixteens.is_none() {
                        *sixteens = Some(self.slots_in_sixteen(lists, routed, x, is_f16)?);
                    }
                }
            }
        }
        Ok(rounded)
    }

    fn slots_in_eight(&self, lists: &Lists, routed: Routed, x: &Tensor<Cuda>) -> Result<Rounded> {
        let (slots, chunks) = (lists.pairs, x.cols().div_ceil(CHUNK));
        let rounded = Rounded {
            codes: self.alloc(DType::U8, slots, chunks * CHUNK)?,
            sums: self.alloc(DType::U8, slots, chunks * SUMS)?,
            scales: self.like(slots, chunks)?,
        };
        let args = routed.arg(Args::new().matrix(x)).pointer(&rounded.codes).pointer(&rounded.sums);
        let args = args.pointer(&rounded.scales).word(slots);
        self.launch_experts("round_slots", [chunks, slots.div_ceil(WARPS)], args)?;
        Ok(rounded)
    }

    fn slots_in_sixteen(
        &self,
        lists: &Lists,
        routed: Routed,
        x: &Tensor<Cuda>,
        is_f16: bool,
    ) -> Result<Sixteens> {
        let rounded = self.sixteens(lists.pairs, x.cols(), is_f16)?;
        let segments = x.cols().div_ceil(sixteen::SEGMENT);
        let args = routed
            .arg(Args::new().matrix(x))
            .pointer(&rounded.rows)
            .optional_pointer(rounded.factors.as_ref())
            .word(segments);
        let name = if is_f16 { "round_slots_f16" } else { "round_slots_bf16" };
        self.gpu.launch(&Launch {
            kernel: Kernel { module: "sixteen_rows", name },
            grid: [lists.pairs as u32, segments.div_ceil(sixteen::ROUNDED) as u32, 1],
            block: THREADS,
            shared: 0,
            args,
        })?;
        Ok(rounded)
    }

    /// The weighted sum of each row's experts, and the epilogue.
    fn sum_of_experts(
        &self,
        op: &Moe<'_, Cuda>,
        lists: &Lists,
        each: &Tensor<Cuda>,
        out: &Tensor<Cuda>,
    ) -> Result<()> {
        let Epilogue { scale, softcap, residual } = op.epilogue;
        let weights = match op.weight_on {
            RoutingWeightOn::Output => lists.address(Lists::WEIGHTS),
            RoutingWeightOn::Input => 0,
        };
        let args = Args::new().matrix(each).wide(lists.address(Lists::SLOTS)).wide(weights);
        let args = args.optional(residual).matrix(out).word(lists.top_k).float(scale);
        let grid = [out.rows(), out.cols().div_ceil(THREADS as usize)];
        self.launch_experts("sum_of_experts", grid, args.float(softcap.unwrap_or(0.0)))
    }
}

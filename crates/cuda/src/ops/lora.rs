//! LoRA deltas, all of an input in two launches. The kernels are in `lora.cu`.

use std::collections::HashMap;
use std::rc::Rc;

use tallow_core::ops::{Lora, LoraDelta, lora_deltas};
use tallow_core::{Result, Tensor};

use super::layers::Input;
use crate::args::Args;
use crate::device::Cuda;
use crate::gpu::Launch;
use crate::kernels::Kernel;
use crate::weights;

/// Threads of a CTA.
const THREADS: u32 = 256;
/// Outputs of a CTA.
const OUTPUTS: usize = 32;
/// Rows of a CTA, where a delta has more than one.
const ROWS: usize = 8;

impl Cuda {
    /// Adds the deltas of an op to the products of its layers.
    pub(crate) fn add_deltas(&self, op: &Lora<'_, Cuda>, y: &Tensor<Cuda>) -> Result<()> {
        let deltas: Vec<_> = lora_deltas(op.weights, op.adapters).collect();
        let most = |of: fn(&LoraDelta<'_, Cuda>) -> usize| deltas.iter().map(of).max().unwrap_or_default();
        let (rows, ranks, outputs) =
            (most(|d| d.rows.len()), most(|d| d.pair.rank()), most(|d| d.columns.len()));
        if rows * ranks * outputs == 0 {
            return Ok(());
        }
        let input = Input::new(op.x, op.norm);
        input.compute_if_grouped(self)?;
        let (bytes, numbers) = table(&deltas);
        let (table, narrow) = (self.tables.of(self, &bytes)?, self.like(1, numbers)?);
        let (names, tile) = match rows {
            1 => (["lora_down_1", "lora_up_1"], 1),
            _ => (["lora_down_8", "lora_up_8"], ROWS),
        };
        let launch = |name, outputs: usize, args| {
            let grid = [outputs.div_ceil(OUTPUTS), rows.div_ceil(tile), deltas.len()].map(|n| n as u32);
            let kernel = Kernel { module: "lora", name };
            self.gpu.launch(&Launch { kernel, grid, block: THREADS, shared: 0, args })
        };
        let args = || Args::new().pointer(&table);
        launch(names[0], ranks, input.arg(args()).pointer(&narrow))?;
        launch(names[1], outputs, args().pointer(&narrow).matrix(y).float(op.epilogue.scale))
    }
}

/// Deltas as the structs `Delta` of `lora.cu`, and how many numbers their products with the first factors are.
fn table(deltas: &[LoraDelta<'_, Cuda>]) -> (Vec<u8>, usize) {
    let (mut args, mut numbers, mut products) = (Args::new(), 0, HashMap::new());
    for delta in deltas {
        let (pair, rows) = (delta.pair, &delta.rows);
        // Layers of one checkpoint tensor share `a`, whose product is computed once.
        let product = (Rc::as_ptr(&pair.a), rows.start, delta.scale.to_bits());
        let narrow = *products.entry(product).or_insert(numbers);
        let computes_a = narrow == numbers;
        if computes_a {
            numbers += rows.len() * pair.rank();
        }
        args = weights::arg(weights::arg(args, &pair.a), &pair.b)
            .word(rows.start)
            .word(rows.len())
            .word(narrow)
            .word(delta.columns.start)
            .float(delta.scale)
            .flag(computes_a);
    }
    (args.bytes().to_vec(), numbers)
}

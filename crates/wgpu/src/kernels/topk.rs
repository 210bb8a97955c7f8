//! Top-k, and the softmax mass outside of it.
//!
//! A vocabulary is wide, and often there is one row, which a single workgroup would read in milliseconds. So wide rows are
//! cut into chunks, one for each workgroup: these count the elements by the first bits of their sort keys, and then gather
//! those that may be among the k largest. One workgroup finds and sorts the k largest of these.

use tallow_core::ops::{TailSum, TopK, TopKOut};
use tallow_core::{DType, Memory, Result, Tensor};

use super::operand;
use crate::device::{Wgpu, block};
use crate::gpu::Param::U;
use crate::gpu::{Access, Arg, Kernel, Launch};

/// Largest k of a top-k that searches a narrow row again for each element.
const FEW: usize = 8;
/// Largest k of a top-k that sorts the elements in a workgroup's memory.
const MOST_SORTED: usize = 1024;
/// Columns from which on a row is wide.
const WIDE: usize = 4096;
/// Columns of a chunk.
const CHUNK: usize = 2048;
/// Counts of a row: one for each value of a sort key's first bits (`BINS` in `shaders/topk_bins.wgsl`), and one of the
/// gathered elements.
const COUNTS: usize = 2048 + 1;
/// Most elements that are gathered. Of a row with more, all are looked at again by one workgroup.
const MOST_GATHERED: usize = 8192;

impl Wgpu {
    pub(crate) fn topk_of(&self, op: &TopK<'_, Wgpu>) -> Result<TopKOut<Wgpu>> {
        let (rows, cols) = (op.x.rows(), op.x.cols());
        let out =
            TopKOut { values: self.alloc(DType::F32, rows, op.k)?, ids: self.alloc(DType::U32, rows, op.k)? };
        let gathered = match cols >= WIDE && op.k <= MOST_SORTED && rows > 0 {
            true => Some(self.gather_largest(op)?),
            false => None,
        };
        // Otherwise one element after another, if they are few or too many for a workgroup's memory.
        let select = gathered.is_some() || (FEW + 1..=MOST_SORTED).contains(&op.k);
        let mut params = vec![U("cols", cols as u32), U("k", op.k as u32)];
        let mut args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("values", Access::Write, &out.values, &mut params)?,
            operand("ids", Access::Write, &out.ids, &mut params)?,
        ];
        let mut kernel = Kernel::new("topk");
        if select {
            kernel = Kernel::new("topk_select").with("GATHERED", gathered.is_some());
            params.push(U("sorted", op.k.next_power_of_two() as u32));
        }
        if let Some((counts, found)) = &gathered {
            kernel = kernel.with("COUNTS", COUNTS).with("MOST_GATHERED", MOST_GATHERED);
            let [counts, found] = [block(counts)?, block(found)?];
            args.push(Arg { name: "counts", of: "u32", access: Access::Read, block: counts });
            args.push(Arg { name: "gathered", of: "vec2<u32>", access: Access::Read, block: found });
        }
        self.gpu.launch(&Launch { kernel, args, params, grid: [rows as u32, 1, 1], work: 0 })?;
        Ok(out)
    }

    /// Counts of each row's elements, and those that may be among its k largest: sort keys and columns.
    fn gather_largest(&self, op: &TopK<'_, Wgpu>) -> Result<(Tensor<Wgpu>, Tensor<Wgpu>)> {
        let (rows, cols) = (op.x.rows(), op.x.cols());
        let counts = self.alloc(DType::U32, rows, COUNTS)?;
        let gathered = self.alloc(DType::U32, rows, 2 * MOST_GATHERED)?;
        self.gpu.clear(block(&counts)?);
        let grid = [cols.div_ceil(CHUNK) as u32, rows as u32, 1];
        for name in ["topk_count", "topk_gather"] {
            let mut params = vec![U("cols", cols as u32)];
            let mut args = vec![operand("x", Access::Read, op.x, &mut params)?];
            args.push(Arg {
                name: "counts",
                of: "atomic<u32>",
                access: Access::Write,
                block: block(&counts)?,
            });
            let mut kernel = Kernel::new(name).with("CHUNK", CHUNK).with("COUNTS", COUNTS);
            if name == "topk_gather" {
                kernel = kernel.with("MOST_GATHERED", MOST_GATHERED);
                params.push(U("k", op.k as u32));
                let block = block(&gathered)?;
                args.push(Arg { name: "gathered", of: "vec2<u32>", access: Access::Write, block });
            }
            self.gpu.launch(&Launch { kernel, args, params, grid, work: 0 })?;
        }
        Ok((counts, gathered))
    }

    pub(crate) fn tail_sum_into(&self, op: &TailSum<'_, Wgpu>, out: &Tensor<Wgpu>) -> Result<()> {
        let (rows, cols, temperatures) = (op.x.rows(), op.x.cols(), op.temperatures.cols());
        if rows == 0 || temperatures == 0 {
            return Ok(());
        }
        // Of each chunk, and then of all chunks in order. With each sum comes whether one of its elements is NaN.
        let chunks = cols.div_ceil(CHUNK);
        let sums = self.alloc(DType::F32, rows, 2 * chunks * temperatures)?;
        let mut params = vec![
            U("cols", cols as u32),
            U("last", op.top.values.cols() as u32 - 1),
            U("temperatures", temperatures as u32),
        ];
        let args = vec![
            operand("x", Access::Read, op.x, &mut params)?,
            operand("values", Access::Read, &op.top.values, &mut params)?,
            operand("ids", Access::Read, &op.top.ids, &mut params)?,
            operand("by", Access::Read, op.temperatures, &mut params)?,
            operand("sums", Access::Write, &sums, &mut params)?,
        ];
        let kernel = Kernel::new("tail_sum").with("CHUNK", CHUNK);
        self.gpu.launch(&Launch { kernel, args, params, grid: [chunks as u32, rows as u32, 1], work: 0 })?;
        let mut params = vec![
            U("chunks", chunks as u32),
            U("temperatures", temperatures as u32),
            U("nan", f32::NAN.to_bits()),
        ];
        let args = vec![
            operand("sums", Access::Read, &sums, &mut params)?,
            operand("out", Access::Write, out, &mut params)?,
        ];
        let grid = [temperatures as u32, rows as u32, 1];
        self.gpu.launch(&Launch { kernel: Kernel::new("tail_sum_merge"), args, params, grid, work: 0 })
    }
}

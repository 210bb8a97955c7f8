//! [`PackedWeights`]: packed weights as kernels read them.

use tallow_core::{Backend, Tensor};
use tallow_quant::Format;

use super::layout::{PackedLayout, layout};
use super::panel::{CHUNK, LINE, ROWS, SUBBLOCK};
use crate::mat::Mat;
use crate::memory::Buf;

/// Packed weights: one pair of panels per row of bytes.
#[derive(Clone, Copy)]
pub(crate) struct PackedWeights<'a> {
    pub pairs: Mat<'a, u8>,
    pub layout: &'static PackedLayout,
    /// Inputs, as kernels [compute](super::panel::PanelShape::int_inputs) them.
    pub cols: usize,
    /// Panels whose chunks alternate: two, or a single one.
    pub panels: usize,
    /// Bytes of a full chunk of a panel.
    chunk: usize,
    /// Bytes of the last chunk, if it is partial, as kernels read it; and how many of those are past its end.
    rest: usize,
    past: usize,
}

impl<'a> PackedWeights<'a> {
    pub(crate) fn new<B: Backend<Buf = Buf>>(
        data: &'a Tensor<B>,
        format: Format,
        cols: usize,
    ) -> PackedWeights<'a> {
        let layout = layout(format);
        let (shape, last) = (&layout.shape, cols % CHUNK);
        let (chunk, rest) = (shape.chunk(CHUNK), shape.chunk(shape.int_inputs(last)));
        let (cols, past) = (shape.int_inputs(cols), rest - shape.chunk(last));
        let panel = cols / CHUNK * chunk + if last == 0 { 0 } else { rest - past };
        let panels = if data.cols() > panel { 2 } else { 1 };
        PackedWeights { pairs: Mat::and_past(data, past), layout, cols, panels, chunk, rest, past }
    }

    /// Groups of four inputs of a weight with one sub-block of 8-bit codes.
    pub(crate) fn groups(&self) -> usize {
        (SUBBLOCK * ROWS - self.past) / LINE
    }

    /// The bytes of a chunk of a panel, and its number of inputs.
    #[inline(always)]
    pub(crate) fn chunk(&self, panel: usize, chunk: usize) -> (&'a [u8], usize) {
        let inputs = CHUNK.min(self.cols - chunk * CHUNK);
        let (bytes, stride) =
            if inputs == CHUNK { (self.chunk, self.chunk) } else { (self.rest, self.rest - self.past) };
        let at = self.panels * chunk * self.chunk + (panel & (self.panels - 1)) * stride;
        (&self.pairs.row(panel / 2)[at..at + bytes], inputs)
    }
}

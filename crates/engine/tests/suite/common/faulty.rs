//! A backend that computes nothing and fails at certain tokens.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tallow_core::ops::*;
use tallow_core::{Backend, DType, Error, Memory, Reading, Result, Tensor, Trace};

/// A kernel panics at this token.
pub(crate) const PANICS: u32 = 13;
/// The device reports an error at this token.
pub(crate) const FAILS: u32 = 14;
/// The logits after this token are NaN.
pub(crate) const NOT_A_NUMBER: u32 = 15;
/// The device is lost for good at this token.
pub(crate) const LOST: u32 = 16;

/// Stores what is written to it and returns zeros for everything else.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    trace: Trace,
    lost: Cell<bool>,
    /// Per read: rows and columns of each tensor that was read.
    pub(crate) reads: RefCell<Vec<Vec<(usize, usize)>>>,
    /// Number of tokens of each step.
    pub(crate) steps: Rc<RefCell<Vec<usize>>>,
    /// Steps block while the test holds this lock.
    held: Arc<Mutex<()>>,
}

type Bytes = Rc<RefCell<Vec<u8>>>;

impl Faulty {
    pub(crate) fn held(held: Arc<Mutex<()>>) -> Faulty {
        Faulty { held, ..Faulty::default() }
    }

    fn like(&self, rows: usize, cols: usize) -> Result<Tensor<Faulty>> {
        self.alloc(DType::F32, rows, cols)
    }

    fn fill(&self, rows: usize, cols: usize, value: impl Fn(usize) -> f32) -> Result<Tensor<Faulty>> {
        let t = self.like(rows, cols)?;
        let values: Vec<f32> = (0..rows).flat_map(|r| vec![value(r); cols]).collect();
        self.write(&t, &bytes_of(&values, f32::to_le_bytes))?;
        Ok(t)
    }
}

fn bytes_of<T: Clone, const N: usize>(x: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    x.iter().flat_map(|x| bytes(x.clone())).collect()
}

/// The elements of a view, row by row.
fn elements(t: &Tensor<Faulty>) -> Vec<u8> {
    let (size, buf) = (t.dtype().size(), t.buf().borrow());
    let row = |r: usize| &buf[(t.offset() + r * t.stride()) * size..][..t.cols() * size];
    (0..t.rows()).flat_map(row).copied().collect()
}

fn u32s(t: &Tensor<Faulty>) -> Vec<u32> {
    elements(t).chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn f32s(t: &Tensor<Faulty>) -> Vec<f32> {
    elements(t).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

impl Memory for Faulty {
    type Buf = Bytes;

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        let bytes = Rc::new(RefCell::new(vec![0; rows * cols * dtype.size()]));
        Ok(Tensor::whole(bytes, dtype, rows, cols))
    }

    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        assert!(to.is_contiguous() && to.bytes() == bytes.len(), "{} bytes into {to:?}", bytes.len());
        let at = to.offset() * to.dtype().size();
        to.buf().borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, wanted: &mut [Reading<'_, Self>]) -> Result<()> {
        for reading in &mut *wanted {
            reading.check()?;
            reading.to.copy_from_slice(&elements(reading.from));
        }
        let shapes = wanted.iter().map(|reading| (reading.from.rows(), reading.from.cols()));
        self.reads.borrow_mut().push(shapes.collect());
        Ok(())
    }
}

impl Backend for Faulty {
    fn label(&self) -> String {
        "faulty".into()
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }

    tallow_core::null_ops!();

    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>> {
        drop(self.held.lock().unwrap());
        let ids = u32s(op.ids);
        self.steps.borrow_mut().push(ids.len());
        assert!(!ids.contains(&PANICS), "a bug in a kernel");
        if ids.contains(&FAILS) && !self.lost.get() {
            return Err(Error::Device { device: "faulty".into(), why: "it is out of order".into() });
        }
        if self.lost.get() || ids.contains(&LOST) {
            self.lost.set(true);
            return Err(Error::Lost { device: "faulty".into(), why: "it fell off the bus".into() });
        }
        // A NaN token poisons the row after it in its sequence.
        let after = |r: usize| r > 0 && ids[r - 1] == NOT_A_NUMBER;
        self.fill(ids.len(), op.table.cols(), |r| if after(r) { f32::NAN } else { 0.0 })
    }

    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>> {
        let (rows, cols, k) = (op.x.rows(), op.x.cols(), op.k);
        let (values, ids) = (self.like(rows, k)?, self.alloc(DType::U32, rows, k)?);
        let kept: Vec<f32> = f32s(op.x).chunks(cols).flat_map(|row| row[..k].to_vec()).collect();
        self.write(&values, &bytes_of(&kept, f32::to_le_bytes))?;
        // All logits of a row are equal. Token 0 is not in the vocabulary; 30 is.
        let kept: Vec<u32> = (0..rows * k).map(|i| ((30 + i % k) % cols) as u32).collect();
        self.write(&ids, &bytes_of(&kept, u32::to_le_bytes))?;
        Ok(TopKOut { values, ids })
    }

    fn tail_sum(&self, op: &TailSum<'_, Self>) -> Result<Tensor<Self>> {
        let others = op.x.cols() - op.top.ids.cols();
        self.fill(op.x.rows(), op.temperatures.cols(), |_| others as f32)
    }

    /// Identity, so that a NaN row reaches the logits unchanged.
    fn ffn(&self, op: &Ffn<'_, Self>) -> Result<Tensor<Self>> {
        Ok(op.x.clone())
    }

    fn linear(&self, op: &Linear<'_, Self>) -> Result<Tensor<Self>> {
        op.epilogue
            .residual
            .map_or_else(|| self.like(op.x.rows(), op.weights.weight.rows()), |x| Ok(x.clone()))
    }

    fn head(&self, op: &Head<'_, Self>) -> Result<Tensor<Self>> {
        let (x, rows) = (f32s(op.x), u32s(op.rows));
        self.fill(rows.len(), op.weights.weight.rows(), |r| x[rows[r] as usize * op.x.cols()])
    }
}

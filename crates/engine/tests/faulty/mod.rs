//! A device that computes nothing and fails at some tokens.

use std::cell::RefCell;
use std::rc::Rc;

use tallow_core::ops::*;
use tallow_core::{Backend, DType, Error, Result, Tensor, Trace};

/// A token at which a kernel panics.
pub(crate) const PANICS: u32 = 13;
/// A token at which the device reports an error.
pub(crate) const FAILS: u32 = 14;
/// A token whose logits are NaN.
pub(crate) const NOT_A_NUMBER: u32 = 15;

/// Remembers what is written to it and gives zeros for everything else.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    trace: Trace,
}

type Bytes = Rc<RefCell<Vec<u8>>>;

impl Faulty {
    fn like(&self, rows: usize, cols: usize) -> Result<Tensor<Faulty>> {
        self.alloc(DType::F32, rows, cols)
    }

    fn fill(&self, rows: usize, cols: usize, value: impl Fn(usize) -> f32) -> Result<Tensor<Faulty>> {
        let t = self.like(rows, cols)?;
        let values: Vec<f32> = (0..rows).flat_map(|r| vec![value(r); cols]).collect();
        self.write(&t, bytes_of(&values))?;
        Ok(t)
    }
}

fn bytes_of(x: &[f32]) -> &[u8] {
    // Tests need no dependency for this.
    Box::leak(x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into_boxed_slice())
}

fn u32s(t: &Tensor<Faulty>) -> Vec<u32> {
    t.buf().borrow().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn f32s(t: &Tensor<Faulty>) -> Vec<f32> {
    t.buf().borrow().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

impl Backend for Faulty {
    type Buf = Bytes;

    fn label(&self) -> String {
        "faulty".into()
    }

    fn trace(&self) -> &Trace {
        &self.trace
    }

    fn alloc(&self, dtype: DType, rows: usize, cols: usize) -> Result<Tensor<Self>> {
        let bytes = Rc::new(RefCell::new(vec![0; rows * cols * dtype.size()]));
        Ok(Tensor::whole(bytes, dtype, rows, cols))
    }

    fn write(&self, to: &Tensor<Self>, bytes: &[u8]) -> Result<()> {
        to.buf().borrow_mut().copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, from: &Tensor<Self>, bytes: &mut [u8]) -> Result<()> {
        let at = from.offset() * from.dtype().size();
        bytes.copy_from_slice(&from.buf().borrow()[at..at + bytes.len()]);
        Ok(())
    }

    fn copy(&self, _: &Copy<'_, Self>) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>> {
        let ids = u32s(op.ids);
        assert!(!ids.contains(&PANICS), "a bug in a kernel");
        if ids.contains(&FAILS) {
            return Err(Error::Device { device: "faulty".into(), why: "it is out of order".into() });
        }
        // What is wrong with one sequence shows in the row of its last token.
        let after = |r: usize| r > 0 && ids[r - 1] == NOT_A_NUMBER;
        self.fill(ids.len(), op.table.cols(), |r| if after(r) { f32::NAN } else { 0.0 })
    }

    fn normalize(&self, op: &Normalize<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.x.cols())
    }

    fn matmul(&self, op: &Matmul<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.w.rows())
    }

    fn dequant(&self, op: &Dequant<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.rows.len(), op.w.cols())
    }

    fn rotate(&self, op: &Rotate<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.x.cols())
    }

    fn kv_write(&self, _: &KvWrite<'_, Self>) -> Result<()> {
        Ok(())
    }

    fn attend(&self, op: &Attend<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.q.rows(), op.q.cols())
    }

    fn glu(&self, op: &Glu<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.gate.rows(), op.gate.cols())
    }

    fn eltwise(&self, op: &Eltwise<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.x.rows(), op.x.cols())
    }

    fn rows(&self, op: &Rows<'_, Self>) -> Result<Tensor<Self>> {
        self.like(op.at.cols(), op.x.cols())
    }

    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>> {
        let ids = self.alloc(DType::U32, op.x.rows(), 1)?;
        let values: Vec<f32> = f32s(op.x).chunks(op.x.cols()).map(|row| row[0]).collect();
        let t = self.like(op.x.rows(), 1)?;
        self.write(&t, bytes_of(&values))?;
        // Token 0 is no word of the vocabulary; 30 is.
        self.write(
            &ids,
            &vec![30u32; op.x.rows()].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
        )?;
        Ok(TopKOut { values: t, ids })
    }

    /// A layer leaves the hidden states alone, so that what is wrong with a row goes all the way.
    fn ffn(&self, op: &Ffn<'_, Self>) -> Result<Tensor<Self>> {
        Ok(op.x.clone())
    }

    fn project(&self, op: &Project<'_, Self>) -> Result<Tensor<Self>> {
        op.then.residual.map_or_else(|| self.like(op.x.rows(), op.by.weight.rows()), |x| Ok(x.clone()))
    }

    fn head(&self, op: &Head<'_, Self>) -> Result<Tensor<Self>> {
        let (x, rows) = (f32s(op.x), u32s(op.rows));
        self.fill(rows.len(), op.by.weight.rows(), |r| x[rows[r] as usize * op.x.cols()])
    }
}

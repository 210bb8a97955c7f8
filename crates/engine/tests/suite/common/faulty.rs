//! A backend that computes next to nothing and fails at certain tokens. It computes when something is launched, or, like a
//! device of its own, later.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
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
/// The same two, when a step with this token is waited for.
pub(crate) const FAILS_LATE: u32 = 17;
pub(crate) const LOST_LATE: u32 = 18;

/// Stores what is written to it and returns zeros for everything else.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    trace: Trace,
    lost: Cell<bool>,
    /// True if the next wait fails.
    fails: Cell<bool>,
    /// True if it computes only what is waited for, and then.
    late: bool,
    launched: Launched,
    /// True if the logits after a token depend on it. Otherwise they are all equal.
    chained: bool,
    /// If there are permits, a step takes one before it is launched.
    permits: Option<Receiver<()>>,
    /// Number of steps that were launched.
    launches: Arc<AtomicUsize>,
    /// Per read: rows and columns of each tensor that was read.
    pub(crate) reads: RefCell<Vec<Vec<(usize, usize)>>>,
    /// Number of tokens of each step.
    pub(crate) steps: Rc<RefCell<Vec<usize>>>,
    /// Steps block while the test holds this lock.
    held: Arc<Mutex<()>>,
}

type Bytes = Rc<RefCell<Vec<u8>>>;

/// Ops that were launched and not computed yet.
#[derive(Default)]
struct Launched(RefCell<Vec<Box<dyn FnOnce()>>>);

impl fmt::Debug for Launched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} launched", self.0.borrow().len())
    }
}

impl Faulty {
    /// Computes something, now or when it is waited for.
    fn launch(&self, work: impl FnOnce() + 'static) {
        if self.late { self.launched.0.borrow_mut().push(Box::new(work)) } else { work() }
    }

    fn lose(&self) -> Error {
        self.lost.set(true);
        Error::Lost { device: "faulty".into(), why: "it fell off the bus".into() }
    }

    pub(crate) fn held(held: Arc<Mutex<()>>) -> Faulty {
        Faulty { held, ..Faulty::default() }
    }

    /// The same, computing what is launched later or at once.
    pub(crate) fn late(self, late: bool) -> Faulty {
        Faulty { late, ..self }
    }

    /// The same with logits that depend on the last token, whichever it is, and without faults.
    pub(crate) fn chained(self) -> Faulty {
        Faulty { chained: true, ..self }
    }

    /// The same, taking a permit before it launches a step, and counting the launches.
    pub(crate) fn permitted(self, permits: Receiver<()>, launches: Arc<AtomicUsize>) -> Faulty {
        Faulty { permits: Some(permits), launches, ..self }
    }

    fn like(&self, rows: usize, cols: usize) -> Result<Tensor<Faulty>> {
        self.alloc(DType::F32, rows, cols)
    }
}

fn out_of_order() -> Error {
    Error::Device { device: "faulty".into(), why: "it is out of order".into() }
}

/// Sets all elements of a tensor.
fn set<T: Clone, const N: usize>(t: &Tensor<Faulty>, x: &[T], bytes: fn(T) -> [u8; N]) {
    *t.buf().borrow_mut() = bytes_of(x, bytes);
}

/// A logit of a token after another one: any number, and the same again.
fn logit(after: f32, token: usize) -> f32 {
    let x = (after as u64 * 1009 + token as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 48) as f32 / 16384.0
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
    type Pending = Vec<Tensor<Faulty>>;

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

    fn fetch(&self, from: &[&Tensor<Self>]) -> Result<Vec<Tensor<Faulty>>> {
        self.reads.borrow_mut().push(from.iter().map(|t| (t.rows(), t.cols())).collect());
        Ok(from.iter().copied().cloned().collect())
    }

    fn wait(&self, pending: Vec<Tensor<Faulty>>, to: &mut [&mut [u8]]) -> Result<()> {
        self.launched.0.take().into_iter().for_each(|work| work());
        if self.lost.get() {
            return Err(self.lose());
        }
        if self.fails.take() {
            return Err(out_of_order());
        }
        for reading in Reading::pairs(&pending, to)? {
            reading.to.copy_from_slice(&elements(reading.from));
        }
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

    fn begin(&self) -> Result<bool> {
        Ok(self.late)
    }

    fn embed(&self, op: &Embed<'_, Self>) -> Result<Tensor<Self>> {
        if let Some(permits) = &self.permits {
            permits.recv().unwrap();
        }
        drop(self.held.lock().unwrap());
        self.launches.fetch_add(1, Ordering::Relaxed);
        let ids = u32s(op.ids);
        self.steps.borrow_mut().push(ids.len());
        let has = |token: u32| !self.chained && ids.contains(&token);
        assert!(!has(PANICS), "a bug in a kernel");
        if has(FAILS) && !self.lost.get() {
            return Err(out_of_order());
        }
        if self.lost.get() || has(LOST) {
            return Err(self.lose());
        }
        // Until the step is waited for, whatever is launched after it.
        self.fails.set(self.fails.get() || has(FAILS_LATE));
        self.lost.set(has(LOST_LATE));
        let (cols, chained) = (op.table.cols(), self.chained);
        let x = self.like(ids.len(), cols)?;
        let (ids, out) = (op.ids.clone(), x.clone());
        self.launch(move || {
            // Tokens that the step before samples are there by now.
            let ids = u32s(&ids);
            // A NaN token poisons the row after it in its sequence.
            let after = |r: usize| !chained && r > 0 && ids[r - 1] == NOT_A_NUMBER;
            let own = |r: usize| if chained { ids[r] as f32 } else { 0.0 };
            let value = |r: usize| if after(r) { f32::NAN } else { own(r) };
            let values: Vec<f32> = (0..ids.len()).flat_map(|r| vec![value(r); cols]).collect();
            set(&out, &values, f32::to_le_bytes);
        });
        Ok(x)
    }

    /// Copies tokens.
    fn copy(&self, op: &Copy<'_, Self>) -> Result<()> {
        let (from, to) = (op.from.clone(), op.to.clone());
        if from.dtype() == DType::U32 {
            self.launch(move || {
                let (bytes, at) = (elements(&from), to.offset() * to.dtype().size());
                to.buf().borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
            });
        }
        Ok(())
    }

    fn topk(&self, op: &TopK<'_, Self>) -> Result<TopKOut<Self>> {
        let (rows, cols, k, chained) = (op.x.rows(), op.x.cols(), op.k, self.chained);
        let (values, ids) = (self.like(rows, k)?, self.alloc(DType::U32, rows, k)?);
        let (x, out) = (op.x.clone(), (values.clone(), ids.clone()));
        self.launch(move || {
            let (mut values, mut ids) = (Vec::new(), Vec::new());
            for row in f32s(&x).chunks(cols) {
                // If all logits of a row are equal: token 0 is not in the vocabulary; 30 is.
                let mut order: Vec<usize> = (0..k).map(|i| (30 + i % k) % cols).collect();
                if chained {
                    order = (0..cols).collect();
                    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                }
                values.extend(order[..k].iter().map(|i| row[*i]));
                ids.extend(order[..k].iter().map(|i| *i as u32));
            }
            set(&out.0, &values, f32::to_le_bytes);
            set(&out.1, &ids, u32::to_le_bytes);
        });
        Ok(TopKOut { values, ids })
    }

    fn tail_sum(&self, op: &TailSum<'_, Self>) -> Result<Tensor<Self>> {
        let sums = self.like(op.x.rows(), op.temperatures.cols())?;
        let (x, top, temperatures) = (op.x.clone(), op.top.ids.clone(), op.temperatures.clone());
        let out = sums.clone();
        self.launch(move || {
            let (k, each) = (top.cols(), temperatures.cols());
            let (rows, top, temperatures) = (f32s(&x), u32s(&top), f32s(&temperatures));
            let rows = rows.chunks(x.cols()).zip(top.chunks(k)).zip(temperatures.chunks(each));
            let sums = rows.flat_map(|((row, top), temperatures)| {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let others = (0..).zip(row).filter(|(token, _)| !top.contains(token));
                let sum = move |t: &f32| others.clone().map(|(_, x)| ((x - max) / t).exp()).sum::<f32>();
                temperatures.iter().map(sum)
            });
            set(&out, &sums.collect::<Vec<f32>>(), f32::to_le_bytes);
        });
        Ok(sums)
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
        let (rows, vocab, chained) = (op.rows.cols(), op.weights.weight.rows(), self.chained);
        let logits = self.like(rows, vocab)?;
        let (x, rows, out) = (op.x.clone(), op.rows.clone(), logits.clone());
        self.launch(move || {
            let (values, cols) = (f32s(&x), x.cols());
            let values: Vec<f32> = u32s(&rows).iter().map(|row| values[*row as usize * cols]).collect();
            let logit = |x: f32, token: usize| if chained && x.is_finite() { logit(x, token) } else { x };
            let logits: Vec<f32> =
                values.iter().flat_map(|x| (0..vocab).map(move |token| logit(*x, token))).collect();
            set(&out, &logits, f32::to_le_bytes);
        });
        Ok(logits)
    }
}

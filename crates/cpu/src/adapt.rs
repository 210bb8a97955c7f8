//! Linear layers of which some rows have adapters, in two phases: beside the layers go the ways down, which take the same
//! input; then the ways up, onto what the layers gave.

use tallow_core::ops::{Adapt, Addition};
use tallow_core::{Backend, DType, Result, Tensor, compose};

use crate::backend::Cpu;
use crate::kernels::{LinearTask, Onto, Product};
use crate::mat::{Mat, MatMut};
use crate::phases::{Part, source};

impl Cpu {
    pub(crate) fn adapted<'a>(&self, op: &Adapt<'a, Cpu>) -> Result<Tensor<Cpu>> {
        let additions: Vec<Addition<'a, Cpu>> = op.additions().collect();
        if additions.iter().any(|a| source(&a.part.up).side(self.kernels).is_some()) {
            // Between the phases their input would have to be rounded. Adapters are plain numbers.
            return compose::adapt(self, op);
        }
        let (rows, mut ranks) = (op.x.rows(), 0);
        let down = |a: &Addition<'a, Cpu>| {
            let (outputs, column) = (a.part.rank(), ranks);
            ranks += outputs;
            Part { w: source(&a.part.down), bias: None, outputs, column }
        };
        let downs: Vec<Part<'_>> = additions.iter().map(down).collect();
        let parts = Part::side_by_side(op.by);
        let x = self.input(op.x, op.norm, parts.iter().chain(&downs))?;
        let (out, narrow) = (self.alloc(DType::F32, rows, op.cols())?, self.alloc(DType::F32, rows, ranks)?);
        let (y, to) = (MatMut::new(&out), MatMut::new(&narrow));
        let mut tasks = self.tasks(&x, &parts, &y, op.then);
        for (a, down) in additions.iter().zip(&downs) {
            let (of, to) = (x.times(self.kernels, down.w), to.columns(down.columns()));
            tasks.push(LinearTask::plain(of, a.rows.clone(), to));
        }
        self.phase(&tasks);
        tasks.clear();
        for (a, down) in additions.iter().zip(&downs) {
            let x = Mat::new(&narrow).columns(down.columns());
            let of = Product { w: source(&a.part.up), x, rounded: None };
            let task = LinearTask::plain(of, a.rows.clone(), y.columns(a.columns.clone()));
            tasks.push(LinearTask { scale: a.scale, onto: Onto::Themselves, ..task });
        }
        self.phase(&tasks);
        Ok(out)
    }
}

//! What adapters add to linear layers. The ways down come first in a phase; what they give meets the ways up where the
//! layers' own sums are, before anything becomes of those.

use std::ops::Range;
use std::rc::Rc;

use tallow_core::ops::{Adapt, Addition, additions};
use tallow_core::{Adapted, Backend, DType, Linear, Result, Tensor, Weight};

use crate::activations::{Activations, Rounding};
use crate::backend::Cpu;
use crate::kernels::{Added, Kernels, LinearTask, Product, Room, linear};
use crate::mat::{Mat, MatMut};
use crate::phases::{Input, Part, source};
use crate::pool::First;

/// Rows that go down together.
const TOGETHER: usize = 64;

/// What adapters add to layers over one input.
#[derive(Default)]
pub(crate) struct Additions<'a> {
    ways: Vec<Way<'a>>,
    ups: Vec<Up<'a>>,
}

/// A way down, and room for what it gives.
struct Way<'a> {
    down: &'a Rc<Weight<Cpu>>,
    rows: Range<usize>,
    scale: f32,
    /// [rows, rank]
    narrow: Tensor<Cpu>,
    /// The same, if they take it so.
    rounded: Option<Activations>,
}

/// A way up.
struct Up<'a> {
    layer: usize,
    way: usize,
    part: Part<'a>,
}

impl<'a> Additions<'a> {
    /// What those adapters add to so many rows.
    pub(crate) fn new(
        b: &Cpu,
        by: &'a [Linear<Cpu>],
        with: &'a [Adapted<Cpu>],
        rows: usize,
    ) -> Result<Additions<'a>> {
        let mut all = Additions::default();
        for Addition { layer, rows: of, part, scale, .. } in additions(by, with) {
            // Layers that lie in one tensor have one way down in common.
            let same = |way: &Way<'_>| Rc::ptr_eq(way.down, &part.down) && way.rows == of;
            let way = all.ways.iter().position(same).unwrap_or(all.ways.len());
            let up = Part::of(&part.up);
            if way == all.ways.len() {
                let narrow = b.alloc(DType::F32, rows, part.rank())?;
                let side = b.side(&up.w);
                let rounded = side.map(|side| Activations::new(b, rows, narrow.cols(), [side].into_iter()));
                let (down, rounded) = (&part.down, rounded.transpose()?);
                all.ways.push(Way { down, rows: of, scale, narrow, rounded });
            }
            all.ups.push(Up { layer, way, part: up });
        }
        Ok(all)
    }

    /// The ways down, which take the layers' input.
    pub(crate) fn downs(&self) -> Vec<Part<'a>> {
        self.ways.iter().map(|way| Part::of(way.down)).collect()
    }

    /// They over their input.
    pub(crate) fn over<'t>(&'t self, k: &'static Kernels, x: &'t Input) -> Downs<'t> {
        let (mut pieces, mut ups) = (Vec::new(), Vec::new());
        for way in &self.ways {
            let (of, to) = (x.times(k, source(way.down)), MatMut::new(&way.narrow));
            let narrow = Mat::new(&way.narrow);
            for first in way.rows.clone().step_by(TOGETHER) {
                let rows = first..way.rows.end.min(first + TOGETHER);
                let task = LinearTask::plain(of, rows, to.columns(0..to.cols));
                let round = way.rounded.as_ref().map(|to| (to.rounding(), narrow));
                pieces.push(Piece { task: LinearTask { scale: way.scale, ..task }, round });
            }
        }
        for Up { layer, way, part } in &self.ups {
            let (way, w) = (&self.ways[*way], part.w);
            let rounded = way.rounded.as_ref().and_then(|r| r.of(w.side(k)?));
            ups.push((*layer, Product { w, x: Mat::new(&way.narrow), rounded }, way.rows.clone()));
        }
        let first = First::new(pieces.len());
        Downs { k, pieces, ups, first }
    }
}

/// A way down for some rows, and how what it gives is rounded, if it is.
struct Piece<'a> {
    task: LinearTask<'a>,
    round: Option<(Rounding<'a>, Mat<'a, f32>)>,
}

/// Ways down as pieces of a phase whose others need what they give.
pub(crate) struct Downs<'a> {
    k: &'static Kernels,
    pieces: Vec<Piece<'a>>,
    /// What is added to which layer, and for which rows.
    ups: Vec<(usize, Product<'a>, Range<usize>)>,
    first: First,
}

impl Downs<'_> {
    /// Goes those that nobody goes yet. Each piece of the phase begins with this.
    pub(crate) fn help(&self, room: &mut Room) {
        self.first.help(|i| {
            let Piece { task, round } = &self.pieces[i];
            linear(self.k, task, 0..task.out.cols, room);
            if let Some((to, from)) = round {
                task.rows.clone().for_each(|row| (self.k.round)(to, row, from.row(row)));
            }
        });
    }

    /// What is added to a layer.
    pub(crate) fn to(&self, layer: usize) -> Vec<Added<'_>> {
        let of_layer = self.ups.iter().filter(|up| up.0 == layer);
        of_layer.map(|(_, of, rows)| Added { of: *of, rows: rows.clone(), after: &self.first }).collect()
    }
}

impl Cpu {
    pub(crate) fn adapted(&self, op: &Adapt<'_, Cpu>) -> Result<Tensor<Cpu>> {
        let added = Additions::new(self, op.by, op.with, op.x.rows())?;
        let (parts, downs) = (Part::side_by_side(op.by), added.downs());
        let x = self.input(op.x, op.norm, parts.iter().chain(&downs))?;
        let out = self.alloc(DType::F32, op.x.rows(), op.cols())?;
        self.linear(&x, &parts, &out, op.then, &added.over(self.kernels, &x));
        Ok(out)
    }
}

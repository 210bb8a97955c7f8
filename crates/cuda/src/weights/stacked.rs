//! Weights of one shape and format at equal distances, so that a kernel finds each by its index: experts, and heads.

use tallow_core::{HostWeight, LinearWeights, Result, Stack, Tensor, Weight};

use super::{Layout, PANEL, Sixteen, Stored, arg_of_rows, in_any_order, lie_alike, products, sixteen};
use crate::args::Args;
use crate::device::Cuda;
use crate::kernels;

impl Cuda {
    /// As [`prepare_weight`](Cuda::prepare_weight), for the next weight of a stack: it comes behind the one before.
    pub(crate) fn prepare_in_stack(
        &self,
        weight: HostWeight<'_>,
        stack: &mut Stack<Cuda>,
    ) -> Result<Weight<Cuda>> {
        let (used, count) = (stack.used, stack.count);
        if used == 0 && count > 0 {
            stack.room = Some(self.room_for(&weight, count)?);
        }
        let place = stack.room.as_ref().filter(|_| used < count);
        let Some(place) = place.and_then(|room| place_of(room, &weight, used, count)) else {
            return self.prepare_weight(weight);
        };
        stack.used += 1;
        self.pack_into(&weight, &place)?;
        Ok(place)
    }
}

/// The place of weight `i` of a stack of `count`; `None` if there is room for another format or shape.
fn place_of(room: &Weight<Cuda>, weight: &HostWeight<'_>, i: usize, count: usize) -> Option<Weight<Cuda>> {
    let HostWeight { format, rows, cols, .. } = *weight;
    match room {
        Weight::Dense(data) => {
            let is_f32 = Layout::of(format).stored == Stored::RowsOfF32;
            let fits = is_f32 && (data.rows(), data.cols()) == (count * rows, cols);
            fits.then(|| Weight::Dense(data.row_range(i * rows..(i + 1) * rows)))
        }
        Weight::Blocks { data, format: f, rows: r, cols: c } => {
            let panels = rows.div_ceil(PANEL);
            let data = || data.row_range(i * panels..(i + 1) * panels);
            let fits = (*f, *r, *c) == (format, rows, cols);
            fits.then(|| Weight::Blocks { data: data(), format, rows, cols })
        }
    }
}

/// Addresses at equal distances: the first of them, and the distance, which wraps around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evenly {
    first: u64,
    each: u64,
}

impl Evenly {
    fn of(mut addresses: impl Iterator<Item = u64>) -> Option<Evenly> {
        let first = addresses.next()?;
        let Some(second) = addresses.next() else { return Some(Evenly { first, each: 0 }) };
        let each = second.wrapping_sub(first);
        let mut last = second;
        let follows = |next: u64| std::mem::replace(&mut last, next).wrapping_add(each) == next;
        addresses.all(follows).then_some(Evenly { first, each })
    }

    /// Those of tensors, or none where there are none.
    fn of_tensors<'a>(
        tensors: impl Iterator<Item = Option<&'a Tensor<Cuda>>> + Clone,
    ) -> Option<Option<Evenly>> {
        let addresses = tensors.flatten().map(Cuda::address);
        match addresses.clone().next() {
            Some(_) => Evenly::of(addresses).map(Some),
            None => Some(None),
        }
    }

    fn after(self, bytes: u64) -> Evenly {
        Evenly { first: self.first + bytes, ..self }
    }

    pub(crate) fn arg(self, args: Args) -> Args {
        args.wide(self.first).wide(self.each)
    }
}

/// The weights of a linear layer, one for each expert or head, with their biases, if they have any.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stacked<'a> {
    /// The first of them.
    weight: &'a Weight<Cuda>,
    weights: Evenly,
    biases: Option<Evenly>,
    /// The orders in which they take inputs, if not one after the other.
    orders: Option<Evenly>,
    rows: usize,
}

impl<'a> Stacked<'a> {
    /// `None` if there are none, or they differ in format or shape, or do not lie at equal distances.
    pub(crate) fn of(layers: impl Iterator<Item = &'a LinearWeights<Cuda>> + Clone) -> Option<Stacked<'a>> {
        let parts = layers.map(|layer| {
            let (weight, order) = in_any_order(&layer.weight);
            (weight, order, layer.bias.as_ref())
        });
        let (weight, order, bias) = parts.clone().next()?;
        let all_alike = parts.clone().all(|(w, o, b)| {
            let has_same = (o.is_some(), b.is_some()) == (order.is_some(), bias.is_some());
            has_same && lie_alike(w, weight) && w.rows() == weight.rows()
        });
        if !all_alike {
            return None;
        }
        Some(Stacked {
            weight,
            weights: Evenly::of(parts.clone().map(|(w, ..)| Cuda::address(data(w))))?,
            biases: Evenly::of_tensors(parts.clone().map(|(.., bias)| bias))?,
            orders: Evenly::of_tensors(parts.map(|(_, order, _)| order))?,
            rows: weight.rows(),
        })
    }

    /// The orders in which they take inputs, if not one after the other.
    pub(crate) fn orders(&self) -> Option<Evenly> {
        self.orders
    }

    /// Outputs of each.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs of each.
    pub(crate) fn cols(&self) -> usize {
        self.weight.cols()
    }

    /// The first rows of each, and the others, where the others begin a panel.
    pub(crate) fn halves(self) -> Option<[Stacked<'a>; 2]> {
        let (rows, data) = (self.rows / 2, data(self.weight));
        let lines = match self.weight {
            Weight::Dense(_) => rows,
            Weight::Blocks { .. } => rows.is_multiple_of(PANEL).then_some(rows / PANEL)?,
        };
        let weights = self.weights.after((lines * data.stride() * data.dtype().size()) as u64);
        let biases = self.biases.map(|biases| biases.after((rows * size_of::<f32>()) as u64));
        Some([Stacked { rows, ..self }, Stacked { weights, biases, rows, ..self }])
    }

    /// True if a kernel that multiplies with one can do so with the other at the same time.
    pub(crate) fn is_like(&self, other: &Stacked<'_>) -> bool {
        lie_alike(self.weight, other.weight) && self.rows == other.rows && self.orders == other.orders
    }

    /// The module of the kernels that multiply such weights with input that is rounded to 8 bits; `None` if their codes are no whole numbers.
    pub(crate) fn products(&self) -> Option<&'static str> {
        kernels::of_form("stacked", products(self.weight)?)
    }

    /// The kernels that multiply such weights with input that is rounded to 16 bits; `None` if they are no floats of 16 or 8 bits.
    pub(crate) fn sixteen(&self) -> Option<Sixteen> {
        let kernels = sixteen(self.weight)?;
        Some(Sixteen { module: kernels::of_form("stacked", kernels.module)?, ..kernels })
    }

    /// The first as `Weights` of the kernels.
    pub(crate) fn weights_arg(&self, args: Args) -> Args {
        arg_of_rows(args, self.weight, self.rows)
    }

    /// All of them as `Stack` of the kernels.
    pub(crate) fn arg(of: Option<&Stacked<'_>>, args: Args) -> Args {
        let args = of.map(|stack| stack.weights).unwrap_or_default().arg(args);
        of.and_then(|stack| stack.biases).unwrap_or_default().arg(args)
    }
}

fn data(weight: &Weight<Cuda>) -> &Tensor<Cuda> {
    match weight {
        Weight::Dense(data) | Weight::Blocks { data, .. } => data,
    }
}

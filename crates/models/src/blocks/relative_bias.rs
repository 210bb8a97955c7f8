//! Relative position bias (T5), expanded at load time from buckets to a table by distance: devices know no buckets.

use tallow_checkpoint::tensor_names::Slot;
use tallow_core::{Backend, Tensor};

use crate::Result;
use crate::spec::RelativeBiasSpec;
use crate::weights::Weights;

/// Loads layer `i`'s bias for `heads` heads: [heads, distances]
pub(super) fn load<B: Backend>(
    w: &mut Weights<'_, B>,
    i: usize,
    heads: usize,
    spec: RelativeBiasSpec,
    causal: bool,
) -> Result<Tensor<B>> {
    let of_buckets = w.table((Slot::AttnRelB, i), spec.buckets, heads)?;
    let reach = spec.max_distance as i64;
    let row = |head: usize| {
        let of_buckets = &of_buckets;
        (-reach..=reach).map(move |d| of_buckets[spec.bucket(d, causal) * heads + head])
    };
    let table: Vec<f32> = (0..heads).flat_map(row).collect();
    Ok(w.device().upload(&table, heads, 2 * spec.max_distance + 1)?)
}

impl RelativeBiasSpec {
    /// Distances per direction that have a bucket of their own.
    pub(crate) fn own(&self, causal: bool) -> usize {
        self.buckets / if causal { 2 } else { 4 }
    }

    /// The bucket of a relative position. Logarithms are `f32`, as in the reference, so that distances near a boundary
    /// fall into the same bucket.
    fn bucket(&self, distance: i64, causal: bool) -> usize {
        let (buckets, first, far) = match causal {
            true => (self.buckets, 0, (-distance).max(0)),
            false => {
                let half = self.buckets / 2;
                (half, if distance > 0 { half } else { 0 }, distance.abs())
            }
        };
        let (own, far) = (self.own(causal), far as usize);
        if far < own {
            return first + far;
        }
        let share = (far as f32 / own as f32).ln() / (self.max_distance as f64 / own as f64).ln() as f32;
        first + (own + (share * (buckets - own) as f32) as usize).min(buckets - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_fall_into_buckets_as_in_the_reference() {
        let spec = RelativeBiasSpec { buckets: 32, max_distance: 128 };
        let of = |causal, list: &[i64]| list.iter().map(|d| spec.bucket(*d, causal)).collect::<Vec<_>>();
        assert_eq!(
            of(true, &[5, 0, -1, -15, -16, -20, -64, -127, -128, -999]),
            [0, 0, 1, 15, 16, 17, 26, 31, 31, 31]
        );
        assert_eq!(
            of(false, &[0, -1, -7, -8, -999, 1, 7, 8, 16, 128, 999]),
            [0, 1, 7, 8, 15, 17, 23, 24, 26, 31, 31]
        );
    }
}

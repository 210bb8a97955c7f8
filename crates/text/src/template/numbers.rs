//! Integers, which have a largest size here.

use super::Failure;
use super::run::Done;

/// A float truncated to an integer.
pub(super) fn whole_of(x: f64) -> Done<i128> {
    // 2^127: larger integers are not supported.
    if x.abs() < 170_141_183_460_469_231_731_687_303_715_884_105_728.0 {
        Ok(x as i128)
    } else {
        Err(too_large())
    }
}

pub(super) fn too_large() -> Failure {
    Failure::Limit("works with too large a number")
}
